//! Space that the server holds for a full disk: a file that is given up piece by piece.
//!
//! `stop`, `rm` and `gc` write to the database before they free anything, and so does a server that starts. On a full disk the file
//! gives up one piece for each write that does not fit, not all at once: the program that fills the disk takes what is free. The file
//! grows back once there is more room than the floor of free space.

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use rustix::fs::{FallocateFlags, fallocate};
use tokio_util::sync::CancellationToken;

use super::{DiskFloor, is_full};
use crate::log_store::blocking;

/// Its part of the disk, and the bounds of that. A removal writes a few hundred kilobytes.
const DISK_PART: u64 = 32;
const SMALLEST: u64 = 256 << 10;
const LARGEST: u64 = 8 << 20;
/// In so many pieces it is given up.
const PIECES: u64 = 8;
/// How often the server looks whether there is room for it again.
const PERIOD: Duration = Duration::from_secs(5);

/// The reserve of one data directory.
pub(crate) struct DiskReserve {
    path: PathBuf,
    size: u64,
    /// One at a time changes the file.
    turn: Mutex<()>,
}

impl DiskReserve {
    /// The file in the data directory.
    pub const FILE: &str = "disk.reserve";

    /// The reserve of a data directory, as its last server left it.
    pub fn new(home: &Path) -> Self {
        let disk = rustix::fs::statvfs(home);
        let bytes = disk.map_or(u64::MAX, |disk| disk.f_blocks.saturating_mul(disk.f_frsize));
        let size = (bytes / DISK_PART).clamp(SMALLEST, LARGEST) / PIECES * PIECES;
        Self { path: home.join(Self::FILE), size, turn: Mutex::default() }
    }

    /// How much of it is left, and how large it is when it is whole.
    pub fn left(&self) -> (u64, u64) {
        (fs::metadata(&self.path).map_or(0, |file| file.len()).min(self.size), self.size)
    }

    /// Gives up a piece. False if nothing is left.
    pub fn give_up_piece(&self) -> bool {
        let _turn = self.turn();
        let shrunk = OpenOptions::new().write(true).open(&self.path).and_then(|file| {
            let length = file.metadata()?.len();
            file.set_len(length.saturating_sub(self.size / PIECES))?;
            Ok(length)
        });
        match shrunk {
            Ok(0) => false,
            Ok(length) => {
                tracing::warn!(reserved = length, "the disk is full; a piece of the reserve was given up");
                true
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => false,
            Err(error) => {
                tracing::error!(%error, "the disk is full, and the reserve cannot be given up");
                false
            }
        }
    }

    /// Gives up as many pieces as let a small file be written.
    pub fn make_room(&self) {
        while write_probe(&self.path.with_extension("probe"), self.size / PIECES)
            .is_err_and(|error| is_full(&error))
            && self.give_up_piece()
        {}
    }

    /// Makes it whole where there is that much room above the floor.
    pub fn refill(&self, floor: &DiskFloor) -> io::Result<()> {
        let _turn = self.turn();
        let (left, size) = self.left();
        if left == size || !floor.has_room_for(size - left) {
            return Ok(());
        }
        let mut options = OpenOptions::new();
        let mut file = options.create(true).truncate(false).write(true).mode(0o600).open(&self.path)?;
        let allocated = allocate(&mut file, left, size - left);
        if allocated.is_err() {
            file.set_len(left)?;
        }
        allocated
    }

    fn turn(&self) -> MutexGuard<'_, ()> {
        self.turn.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Takes room on the disk. A file system that cannot promise room gets zeros.
fn allocate(file: &mut File, from: u64, bytes: u64) -> io::Result<()> {
    match fallocate(&*file, FallocateFlags::empty(), from, bytes) {
        Err(rustix::io::Errno::OPNOTSUPP | rustix::io::Errno::NOSYS) => {
            io::Seek::seek(file, io::SeekFrom::Start(from))?;
            io::copy(&mut io::Read::take(io::repeat(0), bytes), file).map(drop)
        }
        allocated => Ok(allocated?),
    }
}

fn write_probe(path: &Path, bytes: u64) -> io::Result<()> {
    let written = File::create(path).and_then(|mut file| {
        io::copy(&mut io::Read::take(io::repeat(0), bytes), &mut file)?;
        file.flush()
    });
    let removed = fs::remove_file(path);
    written.and(removed)
}

/// Keeps the reserve whole until cancelled.
pub(crate) async fn run(reserve: Arc<DiskReserve>, floor: Arc<DiskFloor>, stop: CancellationToken) {
    loop {
        let (reserve, floor) = (reserve.clone(), floor.clone());
        if let Err(error) = blocking(move || reserve.refill(&floor)).await {
            tracing::debug!(%error, "the disk reserve cannot be made whole now");
        }
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(PERIOD) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_reserve_is_given_up_piece_by_piece_and_made_whole_again() {
        let home = tempfile::tempdir().unwrap();
        let (reserve, floor) = (DiskReserve::new(home.path()), DiskFloor::new(home.path().into(), Some(0)));
        assert_eq!(reserve.left().0, 0);
        assert!(!reserve.give_up_piece(), "there is nothing to give up");
        reserve.refill(&floor).unwrap();
        let (left, size) = reserve.left();
        assert_eq!(left, size);
        let blocks = || std::os::unix::fs::MetadataExt::blocks(&fs::metadata(&reserve.path).unwrap()) * 512;
        assert!(blocks() >= size, "the file has room of its own");
        assert_eq!((0..).take_while(|_| reserve.give_up_piece()).count() as u64, PIECES);
        assert_eq!((reserve.left().0, blocks()), (0, 0));
        let full = DiskFloor::new(home.path().into(), Some(u64::MAX));
        reserve.refill(&full).unwrap();
        assert_eq!(reserve.left().0, 0, "below the floor nothing is taken");
        reserve.refill(&floor).unwrap();
        reserve.make_room();
        assert_eq!(reserve.left(), (size, size), "a disk with room costs nothing");
        assert_eq!(fs::read_dir(home.path()).unwrap().count(), 1, "no probe is left");
    }
}
