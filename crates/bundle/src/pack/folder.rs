//! A folder of this machine's file system, whose files are read.

use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;

use rustix::fs::{CWD, Mode, OFlags, ResolveFlags, openat, openat2};
use rustix::io::Errno;

use super::{Source, Stamp};
use crate::listing::Time;

/// An open folder. What leads out of it, or through a link, is not opened.
pub struct Folder {
    folder: OwnedFd,
}

impl Folder {
    /// Opens a folder.
    pub fn open(path: &Path) -> io::Result<Self> {
        let flags = OFlags::DIRECTORY | OFlags::CLOEXEC | OFlags::RDONLY;
        Ok(Self { folder: openat(CWD, path, flags, Mode::empty())? })
    }
}

impl Stamp {
    /// From what the system says.
    pub fn of(metadata: &std::fs::Metadata) -> Self {
        let time = |seconds, nanos| Time { seconds, nanos: u32::try_from(nanos).unwrap_or(0) };
        Self {
            size: metadata.size(),
            mtime: time(metadata.mtime(), metadata.mtime_nsec()),
            ctime: time(metadata.ctime(), metadata.ctime_nsec()),
            inode: metadata.ino(),
            device: metadata.dev(),
            mode: metadata.mode() & 0o777,
        }
    }
}

impl Source for Folder {
    type File = File;

    fn open(&self, path: &[u8]) -> io::Result<File> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_SYMLINKS | ResolveFlags::NO_MAGICLINKS;
        let file = match openat2(&self.folder, path, flags, Mode::empty(), resolve) {
            // Kernels before 5.6, and sandboxes that do not know the call.
            Err(Errno::NOSYS | Errno::PERM) => openat(&self.folder, path, flags, Mode::empty()),
            other => other,
        };
        Ok(file?.into())
    }

    fn stamp(&self, file: &File) -> io::Result<Option<Stamp>> {
        let metadata = file.metadata()?;
        Ok(metadata.is_file().then(|| Stamp::of(&metadata)))
    }

    fn read_at(&self, file: &File, into: &mut [u8], offset: u64) -> io::Result<usize> {
        FileExt::read_at(file, into, offset)
    }
}
