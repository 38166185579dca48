//! Where received files go: below one directory, and never elsewhere.
//!
//! As with `cp`: what is copied to a directory that is there goes into it; otherwise it gets the name that was given. So that a
//! directory whose copy was cut off is not taken for one that was there before, a mark lies beside it until it is whole.

use std::fs;
use std::io;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use rustix::fs::{AtFlags, FileType, Mode, OFlags, Stat};
use rustix::io::Errno;

use super::part::{self, Part, times};
use super::reason;
use crate::listing::{Entry, MAX_PATH, Time};
use crate::unpack::{self, Walk};

/// The place that was named.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Destination {
    /// Where.
    pub path: PathBuf,
    /// Written with a slash at its end, or otherwise such that only a directory is meant.
    pub is_directory: bool,
}

impl Destination {
    /// What was written as a destination and what path it means.
    pub fn new(text: &[u8], path: PathBuf) -> Destination {
        let last = text.rsplit(|byte| *byte == b'/').next().unwrap_or_default();
        Destination { path, is_directory: matches!(last, b"" | b"." | b".." | b"~" | b"@output") }
    }
}

/// Where files go.
pub(super) struct Place {
    root: PathBuf,
    walk: Walk,
    /// The only source is called this here.
    rename: Option<Vec<u8>>,
    /// The mark that its directory is not whole.
    mark: Option<PathBuf>,
}

impl Place {
    /// `base` is what the only source is called; none if there are several, or if it has no name.
    pub(super) fn find(to: &Destination, base: Option<&[u8]>) -> Result<Place, String> {
        let shown = to.path.display();
        let name = to.path.file_name().map(OsStrExt::as_bytes);
        let mark = name.map(|name| to.path.with_file_name(std::ffi::OsStr::from_bytes(&part::name_of(name))));
        let is_unfinished = || mark.as_ref().is_some_and(|mark| is_mark_of(mark, base));
        let is_single = base.is_some() && !to.is_directory;
        let rename = match fs::metadata(&to.path) {
            Ok(found) if found.is_dir() => is_single && is_unfinished(),
            Ok(_) if is_single => true,
            Ok(_) => return Err(format!("{shown} is not a directory")),
            Err(error) if error.kind() == io::ErrorKind::NotFound && is_single => true,
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                let made = fs::create_dir_all(&to.path);
                made.map_err(|error| format!("cannot make the directory {shown}: {}", reason(&error)))?;
                false
            }
            Err(error) => return Err(format!("cannot use {shown}: {}", reason(&error))),
        };
        let (root, rename, mark) = match name.filter(|_| rename) {
            Some(name) => (to.path.parent().unwrap_or(Path::new("")), Some(name.to_vec()), mark),
            None => (to.path.as_path(), None, None),
        };
        let root = if root.as_os_str().is_empty() { Path::new(".") } else { root };
        let walk = Walk::open(root)
            .map_err(|error| format!("cannot write into {}: {}", root.display(), reason(&error)))?;
        Ok(Place { root: root.to_owned(), walk, rename, mark })
    }

    /// Where an entry of the first level is.
    pub(super) fn path(&self, path: &[u8]) -> PathBuf {
        self.root.join(std::ffi::OsStr::from_bytes(&self.name(path)))
    }

    /// Whether the only source has the name that was given for it, instead of lying in a directory.
    pub(super) fn is_renamed(&self) -> bool {
        self.rename.is_some()
    }

    /// What an entry is called here.
    pub(super) fn name(&self, path: &[u8]) -> Vec<u8> {
        match (&self.rename, path.iter().position(|byte| *byte == b'/')) {
            (Some(name), Some(slash)) => [name, &path[slash..]].concat(),
            (Some(name), None) => name.clone(),
            (None, _) => path.to_vec(),
        }
    }

    /// Makes a directory, unless it is there.
    pub(super) fn directory(&mut self, name: &[u8]) -> Result<(), String> {
        if name.is_empty() {
            return Ok(());
        }
        self.walk.parent(name, false).map_err(|error| words(&error))?;
        self.walk.enter(name, true).map(drop).map_err(|error| words(&error))
    }

    /// Says that the only source is a directory, which is not whole yet.
    pub(super) fn begin_directory(&self, base: &[u8]) {
        if let Some(mark) = &self.mark {
            // A copy that cannot be marked is made all the same.
            let _ = fs::write(mark, base);
        }
    }

    /// Everything is there.
    pub(super) fn finish(&self) {
        if let Some(mark) = &self.mark {
            let _ = fs::remove_file(mark);
        }
    }

    /// What is there under a name; a link is not followed.
    pub(super) fn stat(&mut self, name: &[u8]) -> Result<Option<Stat>, String> {
        let (parent, last) = self.walk.parent(name, false).map_err(|error| words(&error))?;
        match rustix::fs::statat(parent, last, AtFlags::SYMLINK_NOFOLLOW) {
            Ok(stat) => Ok(Some(stat)),
            Err(Errno::NOENT) => Ok(None),
            Err(errno) => Err(reason(&errno.into())),
        }
    }

    pub(super) fn set_mode(&mut self, name: &[u8], mode: u32) {
        if let Ok((parent, last)) = self.walk.parent(name, false) {
            let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
            if let Ok(file) = rustix::fs::openat(parent, last, flags, Mode::empty()) {
                let _ = rustix::fs::fchmod(&file, Mode::from_raw_mode(mode & 0o777));
            }
        }
    }

    /// Makes a symbolic link, wherever it leads: nothing here follows it. Whether there was none of the kind.
    pub(super) fn link(&mut self, entry: &Entry, name: &[u8], target: &[u8]) -> Result<bool, String> {
        if target.is_empty() || target.len() >= MAX_PATH || target.contains(&0) {
            return Err("its target cannot be written".into());
        }
        let (parent, last) = self.walk.parent(name, false).map_err(|error| words(&error))?;
        if rustix::fs::readlinkat(parent, last, Vec::new()).is_ok_and(|there| there.to_bytes() == target) {
            return Ok(false);
        }
        let part = part::name_of(last);
        let made = rustix::fs::symlinkat(target, parent, part.as_slice())
            .or_else(|errno| match errno {
                // Of a copy that was cut off.
                Errno::EXIST => {
                    rustix::fs::unlinkat(parent, part.as_slice(), AtFlags::empty())?;
                    rustix::fs::symlinkat(target, parent, part.as_slice())
                }
                errno => Err(errno),
            })
            .and_then(|()| {
                let times = times(entry.mtime);
                rustix::fs::utimensat(parent, part.as_slice(), &times, AtFlags::SYMLINK_NOFOLLOW)
            })
            .and_then(|()| rustix::fs::renameat(parent, part.as_slice(), parent, last));
        if let Err(errno) = made {
            let _ = rustix::fs::unlinkat(parent, part.as_slice(), AtFlags::empty());
            return Err(in_the_way(errno));
        }
        Ok(true)
    }

    pub(super) fn part(&mut self, name: &[u8], make: bool) -> Result<Option<Part>, String> {
        let (parent, last) = self.walk.parent(name, false).map_err(|error| words(&error))?;
        Part::open(parent, last, make).map_err(|error| reason(&error))
    }

    /// A file is whole.
    pub(super) fn finish_part(
        &mut self,
        part: Part,
        name: &[u8],
        mode: u32,
        mtime: Time,
    ) -> Result<(), String> {
        let (parent, last) = self.walk.parent(name, false).map_err(|error| words(&error))?;
        part.finish(parent, last, mode, mtime).map_err(|error| reason(&error))
    }

    pub(super) fn remove_part(&mut self, part: Part, name: &[u8]) {
        if let Ok((parent, _)) = self.walk.parent(name, false) {
            part.remove(parent);
        }
    }

    /// Gives a directory its mode and time, when all is in it.
    pub(super) fn seal(&mut self, name: &[u8], mode: u32, mtime: Time) {
        let Ok((parent, last)) = self.walk.parent(name, false) else { return };
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        // Of somebody else's directory neither can be set, and its files are there all the same.
        if let Ok(opened) = rustix::fs::openat(parent, last, flags, Mode::empty()) {
            let _ = rustix::fs::fchmod(opened.as_fd(), Mode::from_raw_mode(mode & 0o777));
            let _ = rustix::fs::futimens(opened.as_fd(), &times(mtime));
        }
    }
}

/// Whether there is a mark that this source is being copied.
fn is_mark_of(mark: &Path, base: Option<&[u8]>) -> bool {
    let is_short = fs::metadata(mark).is_ok_and(|found| found.is_file() && found.len() < MAX_PATH as u64);
    is_short && fs::read(mark).ok().as_deref() == base
}

pub(super) fn is_directory(stat: &Stat) -> bool {
    FileType::from_raw_mode(stat.st_mode) == FileType::Directory
}

fn in_the_way(errno: Errno) -> String {
    match errno {
        Errno::ISDIR | Errno::NOTEMPTY => "a directory of that name is there, and is not replaced".into(),
        errno => reason(&errno.into()),
    }
}

fn words(error: &unpack::Error) -> String {
    match error {
        unpack::Error::BadName { .. } => "its name leads outside, is too long or is too deep".into(),
        unpack::Error::Conflict { .. } => "something that is not a directory is in the way".into(),
        unpack::Error::Content { source, .. } | unpack::Error::Write { source, .. } => reason(source),
    }
}
