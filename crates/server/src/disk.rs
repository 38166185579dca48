//! A disk that is full, in words.

use std::io;
use std::path::Path;

use muster_api::problem::{Code, Problem};
use muster_model::quantity::format_bytes;

/// Whether an error says that there is no room: on the disk, or in the user's quota.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
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
        format!("{what}: the disk that holds {directory} is full ({free} free); nothing was changed"),
    )
    .hint("make room there, `muster gc` or `muster rm JOB` may help, then try again; what runs is not harmed")
}
