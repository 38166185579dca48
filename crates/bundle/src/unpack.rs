//! Writing a tree whose names may have been made to harm.
//!
//! Every name is walked from the root one component at a time, and never through a symbolic link, so that nothing is
//! ever written outside. Only files, directories and symbolic links are made, nothing is made twice, and no bit beyond
//! the nine permissions survives. Whatever reads a tree from somewhere (a listing here, an archive in [`crate::untar`],
//! chunks on a node) writes it with [`Writer`], and with nothing else.

use std::fs::File;
use std::io::{self, Read};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{AtFlags, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use crate::listing::{Entry, Kind, MAX_DEPTH, MAX_PATH, Time, shown};

/// We must be able to read every file, and to enter and list every directory.
const FILE_FOR_US: u32 = 0o400;
const DIRECTORY_FOR_US: u32 = 0o500;

/// Why something was not written.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Absolute, with `..`, empty, too long or too deep.
    #[error("the name `{name}` leads outside, is too long or is too deep")]
    BadName {
        /// The name, readable.
        name: String,
    },
    /// Something else is there already.
    #[error("`{name}` is there twice, or below something that is not a directory")]
    Conflict {
        /// The name, readable.
        name: String,
    },
    /// The content is shorter than the files in it.
    #[error("the content of `{name}` cannot be read")]
    Content {
        /// The name, readable.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
    /// The disk.
    #[error("`{name}` cannot be written")]
    Write {
        /// The name, readable.
        name: String,
        /// Why.
        #[source]
        source: io::Error,
    },
}

impl Error {
    /// What the kernel said about a name.
    pub fn of(name: &[u8], errno: Errno) -> Error {
        let shown = shown(name);
        match errno {
            Errno::EXIST | Errno::NOTDIR | Errno::LOOP => Error::Conflict { name: shown },
            Errno::NAMETOOLONG => Error::BadName { name: shown },
            errno => Error::Write { name: shown, source: errno.into() },
        }
    }

    /// The disk's own error, where it was the disk's.
    pub fn disk(&self) -> Option<&io::Error> {
        match self {
            Error::Write { source, .. } => Some(source),
            Error::BadName { .. } | Error::Conflict { .. } | Error::Content { .. } => None,
        }
    }
}

/// Unpacks a listing into `root`, an empty directory. The content holds all files, one after the other.
pub fn unpack(entries: &[Entry], content: &mut impl Read, root: &Path) -> Result<(), Error> {
    let mut writer = Writer::open(root)?;
    for entry in entries {
        match &entry.kind {
            Kind::Directory => writer.directory(&entry.path)?,
            Kind::Link { target } => writer.link(&entry.path, target)?,
            Kind::File { size } => {
                let mut file = writer.file(&entry.path)?;
                copy(content, &mut file, *size, &entry.path)?;
                seal(&file, entry)?;
            }
        }
    }
    writer.seal_directories(entries)
}

fn copy(content: &mut impl Read, file: &mut File, size: u64, name: &[u8]) -> Result<(), Error> {
    let mut left = size;
    let mut block = vec![0; size.min(64 << 10) as usize];
    while left > 0 {
        let room = block.len().min(usize::try_from(left).unwrap_or(usize::MAX));
        let read = content.read_exact(&mut block[..room]);
        read.map_err(|source| Error::Content { name: shown(name), source })?;
        let written = io::Write::write_all(file, &block[..room]);
        written.map_err(|source| Error::Write { name: shown(name), source })?;
        left -= room as u64;
    }
    Ok(())
}

/// Gives a file that is whole its mode and its time.
pub fn seal(file: &File, entry: &Entry) -> Result<(), Error> {
    let mode = Mode::from_raw_mode(entry.mode & 0o777 | FILE_FOR_US);
    rustix::fs::fchmod(file, mode)
        .and_then(|()| rustix::fs::futimens(file, &times(entry.mtime)))
        .map_err(|errno| Error::of(&entry.path, errno))
}

fn times(time: Time) -> Timestamps {
    let time = Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanos) };
    Timestamps { last_access: time, last_modification: time }
}

/// Writes below one directory.
pub struct Writer {
    walk: Walk,
}

impl Writer {
    /// Writes below this directory, which is there.
    pub fn open(root: &Path) -> Result<Writer, Error> {
        let failed = |source| Error::Write { name: root.display().to_string(), source };
        Ok(Writer { walk: Walk::open(root).map_err(failed)? })
    }

    /// Makes a directory, unless it is there. Its mode is set at the end: it might keep us out.
    pub fn directory(&mut self, path: &[u8]) -> Result<(), Error> {
        self.walk.enter(path, true).map(|_| ())
    }

    /// Makes a file that only we can read and write, until it is sealed.
    pub fn file(&mut self, path: &[u8]) -> Result<File, Error> {
        let (parent, last) = self.walk.parent(path, true)?;
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let made = rustix::fs::openat(parent, last, flags, Mode::RUSR | Mode::WUSR);
        made.map(File::from).map_err(|errno| Error::of(path, errno))
    }

    /// Opens a file that was made here and is not sealed yet.
    pub fn again(&mut self, path: &[u8]) -> Result<File, Error> {
        let (parent, last) = self.walk.parent(path, false)?;
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(parent, last, flags, Mode::empty());
        opened.map(File::from).map_err(|errno| Error::of(path, errno))
    }

    /// Makes a symbolic link, wherever it leads: nothing here follows it.
    pub fn link(&mut self, path: &[u8], target: &[u8]) -> Result<(), Error> {
        if target.is_empty() || target.len() >= MAX_PATH || target.contains(&0) {
            return Err(Error::BadName { name: shown(path) });
        }
        let (parent, last) = self.walk.parent(path, true)?;
        rustix::fs::symlinkat(target, parent, last).map_err(|errno| Error::of(path, errno))
    }

    /// Makes a further name for a file of another tree. The error is the kernel's, since there are reasons for which a
    /// copy is the answer.
    pub fn hard_link(&mut self, other: &mut Walk, from: &[u8], path: &[u8]) -> Result<(), HardLinkError> {
        let (parent, last) = self.walk.parent(path, true)?;
        let (source, name) = other.parent(from, false)?;
        rustix::fs::linkat(source, name, parent, last, AtFlags::empty()).map_err(HardLinkError::Refused)
    }

    /// Removes a file that was made here and will not be.
    pub fn remove(&mut self, path: &[u8]) -> Result<(), Error> {
        let (parent, last) = self.walk.parent(path, false)?;
        rustix::fs::unlinkat(parent, last, AtFlags::empty()).map_err(|errno| Error::of(path, errno))
    }

    /// Gives a directory its mode and, if it has one, its time.
    pub fn seal_directory(&mut self, path: &[u8], mode: u32, time: Option<Time>) -> Result<(), Error> {
        let (parent, last) = self.walk.parent(path, false)?;
        let mode = Mode::from_raw_mode(mode & 0o777 | DIRECTORY_FOR_US);
        // Nothing here ever turns a directory into something else, so that this follows no link.
        rustix::fs::chmodat(parent, last, mode, AtFlags::empty()).map_err(|errno| Error::of(path, errno))?;
        let Some(time) = time else { return Ok(()) };
        let set = rustix::fs::utimensat(parent, last, &times(time), AtFlags::SYMLINK_NOFOLLOW);
        set.map_err(|errno| Error::of(path, errno))
    }

    /// Gives the directories of a listing their modes, when all is in them: those below first.
    pub fn seal_directories(mut self, entries: &[Entry]) -> Result<(), Error> {
        let directories = entries.iter().rev().filter(|entry| entry.kind == Kind::Directory);
        for entry in directories {
            self.seal_directory(&entry.path, entry.mode, None)?;
        }
        Ok(())
    }
}

/// Why there is no hard link.
#[derive(Debug)]
pub enum HardLinkError {
    /// The kernel, about the link itself.
    Refused(Errno),
    /// One of the two names.
    Name(Error),
}

impl From<Error> for HardLinkError {
    fn from(error: Error) -> Self {
        Self::Name(error)
    }
}

/// A way through a tree that never leaves it: it stays open from the root to the directory that was asked for last,
/// since the next one is most often beside it.
pub struct Walk {
    root: OwnedFd,
    open: Vec<(Vec<u8>, OwnedFd)>,
}

impl Walk {
    /// Walks below this directory.
    pub fn open(root: &Path) -> io::Result<Walk> {
        let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
        let root = rustix::fs::open(root, flags, Mode::empty())?;
        Ok(Walk { root, open: Vec::new() })
    }

    /// The directory that something lies in, and its own name there.
    pub fn parent<'a>(&mut self, path: &'a [u8], make: bool) -> Result<(BorrowedFd<'_>, &'a [u8]), Error> {
        let (parent, last) = match path.iter().rposition(|byte| *byte == b'/') {
            Some(slash) => (&path[..slash], &path[slash + 1..]),
            None => (&[][..], path),
        };
        if !is_component(last) || path.len() >= MAX_PATH {
            return Err(Error::BadName { name: shown(path) });
        }
        Ok((self.enter(parent, make)?, last))
    }

    /// Opens a file to read it.
    pub fn read(&mut self, path: &[u8]) -> Result<File, Error> {
        let (parent, last) = self.parent(path, false)?;
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(parent, last, flags, Mode::empty());
        opened.map(File::from).map_err(|errno| Error::of(path, errno))
    }

    /// The directory of this path, made where it is missing if that is asked for; the root for an empty one.
    pub(crate) fn enter(&mut self, path: &[u8], make: bool) -> Result<BorrowedFd<'_>, Error> {
        let components = || path.split(|byte| *byte == b'/').filter(|_| !path.is_empty());
        if path.len() >= MAX_PATH || components().count() > MAX_DEPTH || !components().all(is_component) {
            return Err(Error::BadName { name: shown(path) });
        }
        let shared = self.open.iter().zip(components()).take_while(|((name, _), one)| name == one).count();
        self.open.truncate(shared);
        for component in components().skip(shared) {
            let at = self.open.last().map_or(self.root.as_fd(), |(_, directory)| directory.as_fd());
            let next = step(at, component, make).map_err(|errno| Error::of(path, errno))?;
            self.open.push((component.to_vec(), next));
        }
        Ok(self.open.last().map_or(self.root.as_fd(), |(_, directory)| directory.as_fd()))
    }
}

fn is_component(component: &[u8]) -> bool {
    !matches!(component, b"" | b"." | b"..") && !component.contains(&0) && !component.contains(&b'/')
}

fn step(at: BorrowedFd<'_>, component: &[u8], make: bool) -> Result<OwnedFd, Errno> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    match rustix::fs::openat(at, component, flags, Mode::empty()) {
        Err(Errno::NOENT) if make => {
            rustix::fs::mkdirat(at, component, Mode::RWXU)?;
            rustix::fs::openat(at, component, flags, Mode::empty())
        }
        opened => opened,
    }
}

#[cfg(test)]
mod tests;
