//! Paths that root follows though others own a part of them.
//!
//! Whoever owns a directory decides what its names lead to: a link there, or a directory that was moved there, may lead root where
//! its owner could not go. So such a path is followed by hand, and never from what somebody owns to what is anybody else's. What
//! was found is held by a descriptor, since the next time the path may lead elsewhere.

use std::ffi::{OsStr, OsString};
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::path::{Component, Path};

use rustix::fs::{CWD, FileType, Mode, OFlags, Stat, fstat, openat, readlinkat};

use crate::account::Person;

/// As many as the kernel follows.
const MOST_LINKS: usize = 40;

/// What a path leads to, for a task of this person: with root's rights, or with theirs where root has none, as in a home that a
/// file server keeps from root.
pub(crate) fn open_for(person: &Person, path: &Path) -> io::Result<OwnedFd> {
    match open(path) {
        Err(error) if error.kind() == io::ErrorKind::PermissionDenied => person.act(|| open(path))?,
        opened => opened,
    }
}

/// What an absolute path leads to.
pub(crate) fn open(path: &Path) -> io::Result<OwnedFd> {
    let mut way = Way { at: root()?, owner: 0, todo: Vec::new(), links: 0 };
    way.push(path);
    while let Some(name) = way.todo.pop() {
        way.step(&name, path)?;
    }
    Ok(way.at)
}

/// Who owns what a descriptor is of.
pub(crate) fn owner(descriptor: &OwnedFd) -> io::Result<u32> {
    Ok(fstat(descriptor)?.st_uid)
}

struct Way {
    at: OwnedFd,
    /// Who has decided where the next step leads.
    owner: u32,
    /// The names that are still to be followed, the next one last.
    todo: Vec<OsString>,
    links: usize,
}

impl Way {
    fn push(&mut self, path: &Path) {
        let names = path.components().rev().filter_map(|part| match part {
            Component::Normal(name) => Some(name.to_owned()),
            Component::ParentDir => Some(OsStr::new("..").to_owned()),
            Component::RootDir | Component::CurDir | Component::Prefix(_) => None,
        });
        self.todo.extend(names);
    }

    fn step(&mut self, name: &OsStr, path: &Path) -> io::Result<()> {
        let next = openat(&self.at, name, OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC, Mode::empty())?;
        let found = fstat(&next)?;
        self.pass_to(&found, path)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::Symlink {
            self.at = next;
            return Ok(());
        }
        self.links += 1;
        if self.links > MOST_LINKS {
            return Err(io::Error::other(format!("`{}` has too many links", path.display())));
        }
        let target = readlinkat(&next, "", Vec::new())?.into_bytes();
        let target = OsString::from_vec(target);
        if Path::new(&target).is_absolute() {
            self.at = root()?;
            self.pass_to(&fstat(&self.at)?, path)?;
        }
        self.push(Path::new(&target));
        Ok(())
    }

    /// Goes from what `owner` has decided on to what was found there.
    fn pass_to(&mut self, found: &Stat, path: &Path) -> io::Result<()> {
        if self.owner != 0 && self.owner != found.st_uid {
            let message = format!(
                "`{}` leads from what the account with the number {} owns to what it does not",
                path.display(),
                self.owner
            );
            return Err(io::Error::new(io::ErrorKind::InvalidInput, message));
        }
        self.owner = found.st_uid;
        Ok(())
    }
}

fn root() -> io::Result<OwnedFd> {
    Ok(openat(CWD, "/", OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC, Mode::empty())?)
}

#[cfg(test)]
mod tests {
    use std::fs::{self, Permissions};
    use std::os::unix::fs::{MetadataExt, PermissionsExt, chown, lchown, symlink};

    use super::*;

    const ADA: u32 = 54_321;

    #[test]
    fn nobody_leads_root_to_what_is_not_theirs() {
        let home = tempfile::tempdir().unwrap();
        fs::set_permissions(home.path(), Permissions::from_mode(0o755)).unwrap();
        let (ada, other) = (home.path().join("ada"), home.path().join("other"));
        for dir in [&ada, &other, &ada.join("own"), &ada.join("roots")] {
            fs::create_dir(dir).unwrap();
        }
        chown(&ada, Some(ADA), None).unwrap();
        chown(ada.join("own"), Some(ADA), None).unwrap();
        for (name, target) in [("away", other.clone()), ("near", "own".into()), ("up", "../other".into())] {
            symlink(target, ada.join(name)).unwrap();
            lchown(ada.join(name), Some(ADA), None).unwrap();
        }
        // A link of root's own is as good as its word.
        symlink(ada.join("own"), home.path().join("by-root")).unwrap();
        let ino = |path: &Path| fs::metadata(path).unwrap().ino();
        for path in [ada.join("own"), ada.join("near"), home.path().join("by-root"), ada.join("own/../own")] {
            let found = open(&path).unwrap();
            assert_eq!((fstat(&found).unwrap().st_ino, owner(&found).unwrap()), (ino(&ada.join("own")), ADA));
        }
        for path in ["away", "up", "roots", "own/../.."] {
            let error = open(&ada.join(path)).unwrap_err();
            assert!(error.to_string().contains("54321"), "{path}: {error}");
        }
        assert_eq!(open(&ada.join("no")).unwrap_err().kind(), io::ErrorKind::NotFound);
    }
}
