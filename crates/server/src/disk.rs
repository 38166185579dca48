//! A disk that is full, or nearly: what is refused then, and in which words.

mod reserve;

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};
use std::time::{Duration, Instant};

use muster_api::problem::{Code, Problem};
use muster_link::message::free_floor;
use muster_model::quantity::format_bytes;

pub(crate) use self::reserve::{DiskReserve, run as keep_reserve};

/// For how long a measurement of free space holds. At the speed of a fast disk, less than the floor is written meanwhile.
const MEASUREMENT_LASTS: Duration = Duration::from_millis(100);

/// The free space below which the server takes no uploads, logs, outputs or jobs. The database goes on in what is left:
/// people can still stop and remove jobs.
pub(crate) struct DiskFloor {
    dir: PathBuf,
    state: Mutex<FloorState>,
}

struct FloorState {
    configured: Option<u64>,
    measured: Option<(Instant, bool)>,
}

impl DiskFloor {
    pub fn new(dir: PathBuf, configured: Option<u64>) -> Self {
        Self { dir, state: Mutex::new(FloorState { configured, measured: None }) }
    }

    /// Takes over a changed configuration.
    pub fn set(&self, configured: Option<u64>) {
        *self.lock() = FloorState { configured, measured: None };
    }

    /// Fails as a full disk does while less is free than the floor.
    pub fn check(&self) -> io::Result<()> {
        let mut state = self.lock();
        let last = state.measured.filter(|(at, _)| at.elapsed() < MEASUREMENT_LASTS);
        let is_low = last.map_or_else(|| is_below(&self.dir, state.configured), |(_, is_low)| is_low);
        if last.is_none() {
            state.measured = Some((Instant::now(), is_low));
        }
        if is_low { Err(io::ErrorKind::StorageFull.into()) } else { Ok(()) }
    }

    /// Whether so many bytes more leave the floor free. A disk that cannot be measured has none to spare.
    pub fn has_room_for(&self, bytes: u64) -> bool {
        let configured = self.lock().configured;
        rustix::fs::statvfs(&self.dir).is_ok_and(|disk| {
            let floor = free_floor(configured, disk.f_blocks.saturating_mul(disk.f_frsize));
            disk.f_bavail.saturating_mul(disk.f_frsize) >= floor.saturating_add(bytes)
        })
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, FloorState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A disk that cannot be measured is not held to be full: the write itself tells.
fn is_below(dir: &Path, configured: Option<u64>) -> bool {
    rustix::fs::statvfs(dir).is_ok_and(|disk| {
        let floor = free_floor(configured, disk.f_blocks.saturating_mul(disk.f_frsize));
        disk.f_bavail.saturating_mul(disk.f_frsize) < floor
    })
}

/// Whether an error says that there is no room: on the disk, or in the user's quota.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Replaces a small file. On a full disk the text goes where the old one is, which needs no room.
pub(crate) fn replace_file(path: &Path, text: &str) -> io::Result<()> {
    let temporary = path.with_extension("new");
    let replaced = fs::write(&temporary, text).and_then(|()| fs::rename(&temporary, path));
    match replaced {
        Err(error) if is_full(&error) => {
            // Where not even its name had room, there is none.
            drop(fs::remove_file(&temporary));
            let file = OpenOptions::new().write(true).open(path)?;
            file.write_all_at(text.as_bytes(), 0)?;
            file.set_len(text.len() as u64)
        }
        replaced => replaced,
    }
}

/// What a caller is told when something could not be written.
pub(crate) fn problem(what: &str, directory: &Path, error: &io::Error) -> Problem {
    if is_full(error) {
        return full(what, directory);
    }
    tracing::error!(%error, directory = %directory.display(), "{what}");
    Problem::new(Code::Unavailable, format!("{what}: {error}"))
        .hint(format!("look at {} and at the server's log, then try again", directory.display()))
}

/// What a caller is told when there is no room.
pub(crate) fn full(what: &str, directory: &Path) -> Problem {
    let free = rustix::fs::statvfs(directory).map(|disk| disk.f_bavail.saturating_mul(disk.f_frsize));
    let free = free.map_or_else(|_| "unknown".into(), format_bytes);
    let directory = directory.display();
    Problem::new(
        Code::ServerDiskFull,
        format!(
            "{what}: the disk that holds {directory} is full ({free} free; limits.server_free keeps a reserve); nothing was changed"
        ),
    )
    .hint("make room there, `muster gc` or `muster rm JOB` may help, then try again; what runs is not harmed")
}

/// What a caller is told when the database has no room left, not even the reserve.
pub(crate) fn read_only(directory: &Path) -> Problem {
    full("the server is read-only, since its reserve is used up", directory)
        .hint("delete other files on that disk; the server goes on by itself once there is room")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_small_file_is_replaced_as_a_whole() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("server.json");
        for text in ["a long text", "short"] {
            replace_file(&path, text).unwrap();
            assert_eq!(fs::read_to_string(&path).unwrap(), text);
        }
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
    }

    #[test]
    fn a_disk_below_its_floor_counts_as_full_until_the_floor_is_lower() {
        let home = tempfile::tempdir().unwrap();
        let floor = DiskFloor::new(home.path().to_owned(), Some(u64::MAX));
        for _ in 0..2 {
            assert!(is_full(&floor.check().unwrap_err()), "measured, and remembered");
        }
        floor.set(Some(0));
        floor.check().unwrap();
        let elsewhere = DiskFloor::new(home.path().join("missing"), Some(u64::MAX));
        elsewhere.check().unwrap();
    }
}
