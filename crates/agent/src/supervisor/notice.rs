//! What a task is told when it is to end, and what it says about having saved its work.
//!
//! A signal alone says neither why nor how long there is, and launchers in between swallow it. So the same is in a file that
//! appears whole before the signal is sent, at a path that the task has in a variable. The other way, a task that has saved
//! writes a file of its own; only the time of that one is looked at, and never what is in it or behind it.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::time::Duration;

use jiff::Timestamp;
use muster_model::task::StopNotice;
use rustix::time::{ClockId, clock_gettime};
use serde::Serialize;

/// Read by the task alone.
const NOTICE: &str = "stop-notice.json";
/// A directory that is the task's own.
pub const NOTES: &str = "notes";
const SAVED: &str = "saved";

#[derive(Serialize)]
struct Notice<'a> {
    reason: &'a str,
    at: Timestamp,
    kill_at: Timestamp,
}

/// Where a task looks, and where it answers.
pub(crate) fn tell(dir: &Path, env: &mut BTreeMap<String, String>) {
    for (name, path) in [("MUSTER_STOP_FILE", dir.join(NOTICE)), ("MUSTER_SAVED_FILE", saved(dir))] {
        env.insert(name.into(), path.display().to_string());
    }
}

fn saved(dir: &Path) -> PathBuf {
    dir.join(NOTES).join(SAVED)
}

/// The time as files are dated by it, which may lag a little behind the precise one: so that what is saved after a notice is never
/// dated before it.
pub(super) fn now() -> Timestamp {
    let time = clock_gettime(ClockId::RealtimeCoarse);
    Timestamp::new(time.tv_sec, time.tv_nsec as i32).unwrap_or_else(|_| Timestamp::now())
}

/// Tell a task that it is to end. It may be somebody else's.
pub(super) fn post(dir: &Path, notice: &StopNotice, grace: Duration) -> io::Result<()> {
    let kill_at = notice.at.checked_add(grace).unwrap_or(Timestamp::MAX);
    let bytes = serde_json::to_vec(&Notice { reason: &notice.reason, at: notice.at, kill_at })?;
    let temporary = dir.join(format!(".{NOTICE}.new"));
    let mut file = OpenOptions::new().write(true).create(true).truncate(true).mode(0o644).open(&temporary)?;
    file.write_all(&bytes)?;
    file.set_permissions(fs::Permissions::from_mode(0o644))?;
    fs::rename(&temporary, dir.join(NOTICE))
}

/// Whoever was told is gone, and the next is not to take it for theirs.
pub(super) fn withdraw(dir: &Path) {
    let _ = fs::remove_file(dir.join(NOTICE));
}

/// When the task last said that it had saved.
pub(crate) fn saved_at(dir: &Path) -> Option<Timestamp> {
    let metadata = fs::symlink_metadata(saved(dir)).ok().filter(fs::Metadata::is_file)?;
    Timestamp::try_from(metadata.modified().ok()?).ok()
}
