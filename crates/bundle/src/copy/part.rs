//! A file that is not whole: `.NAME.muster-part`, beside its place.
//!
//! One copy at a time writes to it, which a lock makes sure of. Whoever comes back after a lost connection may find the lock held
//! by its own past for a moment, and waits for it.

use std::fs::File;
use std::io;
use std::os::fd::BorrowedFd;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::fs::{AtFlags, FileType, FlockOperation, Mode, OFlags, Timespec, Timestamps};
use rustix::io::Errno;

use crate::listing::Time;

const END: &[u8] = b".muster-part";
/// Of a name that is so long that nothing can be added to it.
const KEPT_OF_NAME: usize = 200;
const MAX_NAME: usize = 255;
/// How long a part that another copy writes is waited for: longer than it takes to notice a broken connection on one machine.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(20);

/// Whether a name is one of a part.
pub(super) fn is_part(name: &[u8]) -> bool {
    name.starts_with(b".") && name.ends_with(END)
}

/// What the part of a file is called.
pub(super) fn name_of(name: &[u8]) -> Vec<u8> {
    if name.len() + 1 + END.len() <= MAX_NAME {
        return [b".", name, END].concat();
    }
    let digest = blake3::hash(name).to_hex();
    [b".", &name[..KEPT_OF_NAME], b".", &digest.as_bytes()[..16], END].concat()
}

/// An open part, which is ours alone.
pub(super) struct Part {
    pub file: File,
    name: Vec<u8>,
    pub length: u64,
}

impl Part {
    /// Opens the part of a file; made if it is to be, otherwise only one that is there.
    pub(super) fn open(at: BorrowedFd<'_>, of: &[u8], make: bool) -> io::Result<Option<Part>> {
        let name = name_of(of);
        let deadline = Instant::now() + PATIENCE;
        loop {
            let mut flags = OFlags::RDWR | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            flags.set(OFlags::CREATE, make);
            let file = match rustix::fs::openat(at, name.as_slice(), flags, Mode::RUSR | Mode::WUSR) {
                Err(Errno::NOENT) if !make => return Ok(None),
                opened => File::from(opened?),
            };
            match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Err(Errno::WOULDBLOCK) if Instant::now() > deadline => {
                    return Err(io::Error::other("another copy is writing it; wait for that one to end"));
                }
                Err(Errno::WOULDBLOCK) => {
                    sleep(PAUSE);
                    continue;
                }
                // There are file systems without locks; there, two copies at once are their user's affair.
                Ok(()) | Err(_) => {}
            }
            let stat = rustix::fs::fstat(&file)?;
            if FileType::from_raw_mode(stat.st_mode) != FileType::RegularFile {
                return Err(io::Error::other(format!("`{}` is in the way", crate::listing::shown(&name))));
            }
            // The copy that we waited for may have finished it: then it has another name now.
            if stat.st_nlink > 0 && (stat.st_size == 0 || is_there(at, &name, stat.st_ino)) {
                let length = u64::try_from(stat.st_size).unwrap_or(0);
                return Ok(Some(Part { file, name, length }));
            }
        }
    }

    /// Keeps the first bytes, and writes on from there.
    pub(super) fn cut(&mut self, length: u64) -> io::Result<()> {
        use std::io::Seek;
        if self.length != length {
            self.file.set_len(length)?;
        }
        self.length = length;
        self.file.seek(io::SeekFrom::Start(length)).map(drop)
    }

    /// Gives it its mode, its time and its name.
    pub(super) fn finish(self, at: BorrowedFd<'_>, name: &[u8], mode: u32, mtime: Time) -> io::Result<()> {
        rustix::fs::fchmod(&self.file, Mode::from_raw_mode(mode & 0o777))?;
        rustix::fs::futimens(&self.file, &times(mtime))?;
        Ok(rustix::fs::renameat(at, self.name.as_slice(), at, name)?)
    }

    pub(super) fn remove(self, at: BorrowedFd<'_>) {
        // What cannot be removed is overwritten next time.
        let _ = rustix::fs::unlinkat(at, self.name.as_slice(), AtFlags::empty());
    }
}

fn is_there(at: BorrowedFd<'_>, name: &[u8], inode: u64) -> bool {
    rustix::fs::statat(at, name, AtFlags::SYMLINK_NOFOLLOW).is_ok_and(|stat| stat.st_ino == inode)
}

pub(super) fn times(time: Time) -> Timestamps {
    let time = Timespec { tv_sec: time.seconds, tv_nsec: i64::from(time.nanos) };
    Timestamps { last_access: time, last_modification: time }
}
