//! Files that are there whole or not at all, and directories that go away whatever is in them.
//!
//! Nothing here asks the disk to flush. A killed agent loses nothing that the kernel has, and a machine that crashed
//! has lost its tasks anyway, so waiting for the disk would buy nothing and cost every start.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::Path;

use muster_link::message::free_floor;
pub(crate) use muster_link::remove_tree::remove_tree;
use rustix::fs::{IFlags, StatVfs, ioctl_getflags, ioctl_setflags};
use serde::Serialize;
use serde::de::DeserializeOwned;

/// Do this where it may wait for the disk without keeping the heartbeat waiting.
pub(crate) async fn work<T: Send + 'static, E: From<io::Error> + Send + 'static>(
    work: impl FnOnce() -> Result<T, E> + Send + 'static,
) -> Result<T, E> {
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(error) => Err(io::Error::from(error).into()),
    }
}

/// Whether this is for lack of room.
pub(crate) fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// Fails as a full disk does when `bytes` more would leave less free space than the floor. A disk that cannot be
/// measured passes: the write itself then fails or not.
pub(crate) fn check_free(dir: &Path, floor: Option<u64>, bytes: u64) -> io::Result<()> {
    rustix::fs::statvfs(dir).map_or(Ok(()), |stat| check_measured(&stat, floor, bytes))
}

/// The same for a disk that was measured.
pub(crate) fn check_measured(stat: &StatVfs, floor: Option<u64>, bytes: u64) -> io::Result<()> {
    let free = stat.f_bavail.saturating_mul(stat.f_frsize);
    let floor = free_floor(floor, stat.f_blocks.saturating_mul(stat.f_frsize));
    if free < floor.saturating_add(bytes) { Err(ErrorKind::StorageFull.into()) } else { Ok(()) }
}

/// The message for a directory whose disk is full, or has no more free space than the floor.
pub(crate) fn full(dir: &Path) -> String {
    let free = rustix::fs::statvfs(dir).map(|stat| stat.f_bavail.saturating_mul(stat.f_frsize));
    let free = free.map_or_else(
        |_| String::new(),
        |bytes| format!(" ({} MB free; limits.node_free keeps a reserve)", bytes >> 20),
    );
    format!("the disk of {} is full{free}; make room there and run it again", dir.display())
}

/// How much room the files below a directory take. What vanishes meanwhile, or cannot be read, does not count.
pub(crate) fn usage(path: &Path) -> u64 {
    let mut waiting = vec![path.to_owned()];
    let mut total = 0_u64;
    while let Some(dir) = waiting.pop() {
        for entry in fs::read_dir(&dir).into_iter().flatten().flatten() {
            let Ok(metadata) = entry.metadata() else { continue };
            total = total.saturating_add(metadata.blocks().saturating_mul(512));
            if metadata.is_dir() {
                waiting.push(entry.path());
            }
        }
    }
    total
}

/// Write a file for our eyes only. A reader sees the old content or the new one; a kill leaves one of the two.
pub(crate) fn write(path: &Path, bytes: &[u8]) -> io::Result<()> {
    let mut new = path.as_os_str().to_owned();
    new.push(".new");
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(&new)?.write_all(bytes)?;
    fs::rename(&new, path)
}

/// The same, as JSON.
pub(crate) fn write_json(path: &Path, value: &impl Serialize) -> io::Result<()> {
    write(path, &serde_json::to_vec(value)?)
}

/// Read what `write_json` wrote; none if it is not there.
pub(crate) fn read_json<T: DeserializeOwned>(path: &Path) -> io::Result<Option<T>> {
    match File::open(path) {
        Ok(file) => Ok(Some(serde_json::from_reader(io::BufReader::new(file))?)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

/// Make a directory that only we can enter. That it is there already is fine.
pub(crate) fn make_dir(path: &Path) -> io::Result<()> {
    match DirBuilder::new().mode(0o700).create(path) {
        Err(error) if error.kind() == ErrorKind::AlreadyExists && path.is_dir() => Ok(()),
        result => result,
    }
}

/// Ask for what is made in this directory to be spread over the disk. By itself ext4 puts it all together, and then
/// passes over every file that was deleted there within minutes before it makes a new one: where a thousand tasks come
/// and go, each file takes a hundred times as long. Other file systems have no such trouble, and refuse.
pub(crate) fn spread_out(dir: &Path) {
    if let Ok(dir) = File::open(dir)
        && let Ok(flags) = ioctl_getflags(&dir)
    {
        let _ = ioctl_setflags(&dir, flags | IFlags::TOPDIR);
    }
}

/// Remove a file; that it is gone is all the caller wants.
pub(crate) fn remove_file(path: &Path) -> io::Result<()> {
    gone(fs::remove_file(path))
}

fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn a_file_is_replaced_whole_and_private() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("a.json");
        write_json(&path, &[1, 2]).unwrap();
        write_json(&path, &[3]).unwrap();
        assert_eq!(read_json::<Vec<u8>>(&path).unwrap(), Some(vec![3]));
        assert_eq!(fs::metadata(&path).unwrap().permissions().mode() & 0o777, 0o600);
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1);
        assert_eq!(read_json::<Vec<u8>>(&home.path().join("b")).unwrap(), None);
    }
}
