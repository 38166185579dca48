//! Who this agent is: the only one of its directory, and the same as the last one that served from it.

use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use muster_link::own_dir::OwnDir;
use rustix::fs::{FlockOperation, flock};
use rustix::process::{Pid, test_kill_process};
use serde::{Deserialize, Serialize};

use crate::disk;
use crate::tree::{Process, boot_id, is_same_boot};

/// How long the lock of a dead agent may be held by what it left behind.
const LEGACY: Duration = Duration::from_secs(2);

/// Why this process cannot be the agent of its directory.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("another agent serves from this directory")]
    AlreadyRunning,
    #[error("the agent's directory cannot be used")]
    Directory(#[source] io::Error),
    #[error("{path}")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// What is known of the agent of a directory, by `agent.json`.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(crate) struct Identity {
    pub(crate) pid: u32,
    /// When that process started, in clock ticks after boot. Missing in records of earlier versions.
    #[serde(default)]
    pub(crate) start_ticks: Option<u64>,
    /// Made once for a directory: an agent with another one has lost its records.
    pub(crate) incarnation: String,
    /// Which boot of the machine this is.
    pub(crate) boot_id: String,
}

/// The agent of a directory, as long as this is held.
#[derive(Debug)]
pub(crate) struct Agent {
    pub(crate) identity: Identity,
    /// The machine was started anew since the last agent: nothing runs of what ran then.
    pub(crate) is_new_boot: bool,
    _lock: File,
}

/// Become the agent of this directory, which is made if it is not there.
pub(crate) fn take(dir: &Path) -> Result<Agent, Error> {
    let failed = |path: PathBuf| move |source| Error::Io { path, source };
    std::fs::create_dir_all(dir.parent().unwrap_or(dir)).map_err(failed(dir.to_owned()))?;
    OwnDir::create_in_own(dir).map_err(Error::Directory)?;
    let path = dir.join("agent.json");
    let lock = lock(&dir.join("agent.lock"), &path)?;
    // A power cut may leave nothing readable: then the records beside it are not to be trusted either, and an agent
    // with another incarnation says so.
    let before = disk::read_json::<Identity>(&path).unwrap_or_default();
    let boot_id = boot_id().map_err(failed("/proc/sys/kernel/random/boot_id".into()))?;
    let is_new_boot = before.as_ref().is_some_and(|before| !is_same_boot(&before.boot_id, &boot_id));
    let is_known = before.is_some();
    let incarnation = match before {
        Some(before) => before.incarnation,
        None => random_name().map_err(failed(path.clone()))?,
    };
    let process = Process::current().map_err(failed("/proc/self/stat".into()))?;
    let identity =
        Identity { pid: std::process::id(), start_ticks: Some(process.start_ticks), incarnation, boot_id };
    match disk::write_json(&path, &identity) {
        // Only the number of the process is new, and tasks wait for their agent.
        Err(error) if disk::is_full(&error) && is_known && !is_new_boot => {
            tracing::warn!(error = %error, "the agent could not write down its process");
        }
        written => written.map_err(failed(path))?,
    }
    Ok(Agent { identity, is_new_boot, _lock: lock })
}

/// Take the lock, unless a living agent has it. One that was killed while it was starting a supervisor has left the lock
/// to that for a moment, until it becomes a supervisor and lets go.
fn lock(path: &Path, identity: &Path) -> Result<File, Error> {
    let failed = |source| Error::Io { path: path.to_owned(), source };
    let mut options = OpenOptions::new();
    let file = options.write(true).create(true).truncate(false).mode(0o600).open(path).map_err(failed)?;
    let deadline = Instant::now() + LEGACY;
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => return Ok(file),
            Err(rustix::io::Errno::AGAIN) if is_alive(identity) || deadline <= Instant::now() => {
                return Err(Error::AlreadyRunning);
            }
            Err(rustix::io::Errno::AGAIN) => std::thread::sleep(Duration::from_millis(1)),
            Err(errno) => return Err(failed(errno.into())),
        }
    }
}

/// Whether the last agent that took the lock lives, as far as its number tells.
fn is_alive(identity: &Path) -> bool {
    let last = disk::read_json::<Identity>(identity).unwrap_or_default();
    let pid = last.and_then(|last| Pid::from_raw(i32::try_from(last.pid).ok()?));
    pid.is_some_and(|pid| test_kill_process(pid).is_ok())
}

pub(crate) fn random_name() -> io::Result<String> {
    let bits = getrandom::u64().map_err(io::Error::other)?;
    Ok(format!("{bits:016x}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_has_one_agent_at_a_time_and_keeps_its_identity() {
        let home = tempfile::tempdir().unwrap();
        let dir = home.path().join("agents/local");
        let first = take(&dir).unwrap();
        assert!(matches!(take(&dir), Err(Error::AlreadyRunning)));
        let incarnation = first.identity.incarnation.clone();
        drop(first);
        let second = take(&dir).unwrap();
        assert!(!second.is_new_boot && second.identity.incarnation == incarnation);
        drop(second);
        let earlier = Identity {
            pid: 1,
            start_ticks: None,
            incarnation: incarnation.clone(),
            boot_id: "another".into(),
        };
        disk::write_json(&dir.join("agent.json"), &earlier).unwrap();
        let third = take(&dir).unwrap();
        assert!(third.is_new_boot && third.identity.incarnation == incarnation);
        let other = take(&home.path().join("agents/other")).unwrap();
        assert_ne!(other.identity.incarnation, incarnation);
    }
}
