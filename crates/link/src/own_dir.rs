//! Directories that only this account can change.
//!
//! The server, the agent and the commands that start them keep tokens, sockets, locks and programs in directories. Another local
//! user may have made a directory of that name first, or put a link there, in a place where everybody may write. So a directory is
//! opened without following a link, its owner and permissions are read from the open descriptor, and the files in it are reached
//! through that descriptor.

use std::ffi::OsStr;
use std::fs::{self, DirBuilder, File};
use std::io::{self, ErrorKind, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Component, Path, PathBuf};

use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, Stat, fchmod, fstat, mkdirat, openat, renameat, unlinkat,
};
use rustix::io::Errno;
use rustix::process::geteuid;

/// Write permission for the group and for others.
const OTHERS_WRITE: u32 = 0o022;
/// Any permission for the group and for others.
const OTHERS_ANY: u32 = 0o077;
const STICKY: u32 = 0o1000;
const PRIVATE: Mode = Mode::RWXU;

/// A directory of this account that no other account but root's can write to, held open.
#[derive(Debug)]
pub struct OwnDir {
    descriptor: OwnedFd,
    path: PathBuf,
}

impl OwnDir {
    /// Opens a directory. Refuses a link, a directory of another account, and one that others may write to.
    pub fn open(path: &Path) -> io::Result<Self> {
        Self::open_at(CWD, path.as_os_str(), path.to_owned())
    }

    /// Opens a directory for this account's eyes alone, after it was made, if it was missing. Its parent must be there.
    pub fn create(path: &Path) -> io::Result<Self> {
        match DirBuilder::new().mode(PRIVATE.bits()).create(path) {
            Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(named(path, &error)),
            _ => Self::open(path)?.close_to_others(),
        }
    }

    /// Like [`OwnDir::create`], for a path that may be a link: its parent is this account's own, and with it the link.
    pub fn create_in_own(path: &Path) -> io::Result<Self> {
        match path.canonicalize() {
            Ok(found) => Self::create(&found),
            Err(error) if error.kind() == ErrorKind::NotFound => Self::create(path),
            Err(error) => Err(named(path, &error)),
        }
    }

    /// Opens a directory in this one.
    pub fn open_below(&self, name: &str) -> io::Result<Self> {
        Self::open_at(self.as_fd(), OsStr::new(name), self.path.join(name))
    }

    /// Opens a directory in this one after it was made, if it was missing.
    pub fn create_below(&self, name: &str) -> io::Result<Self> {
        match mkdirat(&self.descriptor, name, PRIVATE) {
            Ok(()) | Err(Errno::EXIST) => self.open_below(name)?.close_to_others(),
            Err(errno) => Err(named(&self.path.join(name), &errno.into())),
        }
    }

    fn open_at(parent: BorrowedFd, name: &OsStr, path: PathBuf) -> io::Result<Self> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let descriptor = match openat(parent, name, flags, Mode::empty()) {
            // What the kernel says of a link, and of a file.
            Err(Errno::LOOP | Errno::NOTDIR) => {
                return Err(refused(&path, "is not a directory, or is a link"));
            }
            opened => opened.map_err(|errno| named(&path, &errno.into()))?,
        };
        let found = fstat(&descriptor)?;
        if let Some(reason) = fault(&found) {
            return Err(refused(&path, &reason));
        }
        Ok(Self { descriptor, path })
    }

    fn close_to_others(self) -> io::Result<Self> {
        if fstat(&self.descriptor)?.st_mode & OTHERS_ANY != 0 {
            fchmod(&self.descriptor, PRIVATE).map_err(|errno| named(&self.path, &errno.into()))?;
        }
        Ok(self)
    }

    /// Its path, for messages and for programs that are given it.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Opens a regular file of this account for reading; none if it is not there.
    pub fn open_file(&self, name: &str) -> io::Result<Option<File>> {
        let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
        let path = self.path.join(name);
        let file = match openat(&self.descriptor, name, flags, Mode::empty()) {
            Ok(descriptor) => File::from(descriptor),
            Err(Errno::NOENT) => return Ok(None),
            Err(Errno::LOOP) => return Err(refused(&path, "is a link")),
            Err(errno) => return Err(named(&path, &errno.into())),
        };
        let found = fstat(&file)?;
        if FileType::from_raw_mode(found.st_mode) != FileType::RegularFile
            || found.st_uid != geteuid().as_raw()
        {
            return Err(refused(&path, "is not a file of this account"));
        }
        Ok(Some(file))
    }

    /// Replaces a file that only this account may read.
    pub fn write_file(&self, name: &str, text: &str) -> io::Result<()> {
        let temporary = format!("{name}.new");
        let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::TRUNC | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let written = openat(&self.descriptor, &temporary, flags, Mode::RUSR | Mode::WUSR)
            .map_err(io::Error::from)
            .and_then(|descriptor| File::from(descriptor).write_all(text.as_bytes()))
            .and_then(|()| Ok(renameat(&self.descriptor, &temporary, &self.descriptor, name)?));
        written.map_err(|error| named(&self.path.join(name), &error))
    }

    /// Removes a file, or a link to one.
    pub fn remove_file(&self, name: &OsStr) -> io::Result<()> {
        Ok(unlinkat(&self.descriptor, name, AtFlags::empty())?)
    }

    /// Makes it the working directory: a socket in it then has a short name.
    pub fn enter(&self) -> io::Result<()> {
        Ok(rustix::process::fchdir(&self.descriptor)?)
    }
}

impl AsFd for OwnDir {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.descriptor.as_fd()
    }
}

/// Checks that no other account can put another directory in the place of this one: whoever may write to a directory above it
/// could rename it. An ancestor belongs to root or to this account. For root, no group may write to it; for other accounts a group
/// may, because sites have groups whose members share a directory of homes.
pub fn check_ancestors(path: &Path) -> io::Result<()> {
    let own = geteuid().as_raw();
    for ancestor in existing(path)?.ancestors().skip(1) {
        let found = match fs::symlink_metadata(ancestor) {
            // It is to be made.
            Err(error) if error.kind() == ErrorKind::NotFound => continue,
            found => found.map_err(|error| named(ancestor, &error))?,
        };
        let is_sticky = found.mode() & STICKY != 0;
        let open = if own == 0 { OTHERS_WRITE } else { 0o002 };
        if found.mode() & open != 0 && !is_sticky {
            return Err(refused(ancestor, "may be changed by other accounts"));
        }
        if found.uid() != 0 && found.uid() != own {
            return Err(refused(ancestor, &format!("belongs to the account with the uid {}", found.uid())));
        }
    }
    Ok(())
}

/// Checks that a data directory is this account's or root's, and that neither it nor its place can be changed by others. In a pod
/// there are no other accounts, and volumes are often made for every account to write to.
pub fn check_home(path: &Path) -> io::Result<()> {
    let is_pod = std::env::var_os("KUBERNETES_SERVICE_HOST").is_some();
    if is_pod { Ok(()) } else { check_shared_home(path) }
}

fn check_shared_home(path: &Path) -> io::Result<()> {
    let home = existing(path)?;
    check_ancestors(&home)?;
    let found = match fs::symlink_metadata(&home) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(()),
        found => found.map_err(|error| named(&home, &error))?,
    };
    let own = geteuid().as_raw();
    if found.uid() != own && found.uid() != 0 {
        return Err(refused(
            &home,
            &format!("belongs to the account with the uid {}, not to {own}", found.uid()),
        ));
    }
    if found.mode() & 0o002 != 0 {
        return Err(refused(&home, "may be written to by every account"));
    }
    // An ordinary account may share its data with its group; root shares with nobody.
    if own == 0 && found.mode() & 0o020 != 0 && found.gid() != 0 {
        return Err(refused(&home, &format!("may be written to by the group with the gid {}", found.gid())));
    }
    Ok(())
}

/// The path without links, as far as it exists; what is missing is to be made below that.
fn existing(path: &Path) -> io::Result<PathBuf> {
    let mut missing = Vec::new();
    let mut at = path;
    loop {
        match at.canonicalize() {
            Ok(found) => return Ok(missing.iter().rev().fold(found, |found, name| found.join(name))),
            Err(error) if error.kind() == ErrorKind::NotFound => {}
            Err(error) => return Err(named(at, &error)),
        }
        let (Some(parent), Some(Component::Normal(name))) = (at.parent(), at.components().next_back()) else {
            return Err(named(path, &ErrorKind::NotFound.into()));
        };
        missing.push(name.to_owned());
        at = parent;
    }
}

/// Why a directory is not this account's alone.
fn fault(found: &Stat) -> Option<String> {
    let own = geteuid().as_raw();
    if found.st_uid != own {
        return Some(format!("belongs to the account with the uid {}, not to {own}", found.st_uid));
    }
    let mode = found.st_mode & 0o777;
    (mode & OTHERS_WRITE != 0).then(|| {
        format!("may be written to by others (mode {mode:03o}); remove it, or run chmod go-w if its files are yours")
    })
}

fn refused(path: &Path, reason: &str) -> io::Error {
    io::Error::new(ErrorKind::PermissionDenied, format!("{} {reason}", path.display()))
}

fn named(path: &Path, error: &io::Error) -> io::Error {
    io::Error::new(error.kind(), format!("{}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::{PermissionsExt, chown, symlink};

    use super::*;

    fn mode(path: &Path, mode: u32) {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }

    #[test]
    fn a_directory_of_this_account_is_made_private() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("own");
        let own = OwnDir::create(&path).unwrap();
        own.write_file("token", "secret").unwrap();
        assert_eq!(fs::read_to_string(path.join("token")).unwrap(), "secret");
        assert_eq!(fs::metadata(path.join("token")).unwrap().mode() & 0o777, 0o600);
        assert!(own.open_file("token").unwrap().is_some() && own.open_file("other").unwrap().is_none());
        mode(&path, 0o755);
        OwnDir::create(&path).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o700);
        symlink(&path, base.path().join("link")).unwrap();
        assert_eq!(
            OwnDir::create_in_own(&base.path().join("link")).unwrap().path(),
            path.canonicalize().unwrap()
        );
        own.remove_file(OsStr::new("token")).unwrap();
        assert_eq!(own.create_below("below").unwrap().path(), path.join("below"));
    }

    #[test]
    fn links_and_directories_that_others_may_write_to_are_refused() {
        let base = tempfile::tempdir().unwrap();
        let own = OwnDir::create(&base.path().join("own")).unwrap();
        symlink(own.path(), base.path().join("link")).unwrap();
        symlink("/tmp", own.path().join("bin")).unwrap();
        fs::write(base.path().join("file"), "").unwrap();
        for path in ["link", "file"] {
            assert!(OwnDir::create(&base.path().join(path)).is_err(), "{path}");
        }
        assert!(own.create_below("bin").is_err());
        symlink("/etc/passwd", own.path().join("agent.lock")).unwrap();
        assert!(own.open_file("agent.lock").is_err());
        for open in [0o770, 0o702, 0o777] {
            mode(own.path(), open);
            let refused = OwnDir::open(own.path()).unwrap_err();
            assert!(refused.to_string().contains("written to by others"), "{refused}");
        }
    }

    #[test]
    fn what_belongs_to_another_account_is_refused() {
        if !geteuid().is_root() {
            return;
        }
        let base = tempfile::tempdir().unwrap();
        let theirs = base.path().join("theirs");
        fs::create_dir(&theirs).unwrap();
        chown(&theirs, Some(54_321), None).unwrap();
        let refused = OwnDir::create(&theirs).unwrap_err();
        assert!(refused.to_string().contains("54321"), "{refused}");
        fs::create_dir(theirs.join("ours")).unwrap();
        OwnDir::open(&theirs.join("ours")).unwrap();
        for path in ["ours", "ours/new", "missing/new"] {
            let refused = check_ancestors(&theirs.join(path)).unwrap_err();
            assert!(refused.to_string().contains("54321"), "{refused}");
        }
        check_ancestors(&base.path().join("ours")).unwrap();
        let own = OwnDir::create(&base.path().join("own")).unwrap();
        fs::write(own.path().join("agent.json"), "{}").unwrap();
        chown(own.path().join("agent.json"), Some(54_321), None).unwrap();
        assert!(own.open_file("agent.json").is_err());
    }

    #[test]
    fn a_data_directory_is_ours_or_roots_and_not_everybodys() {
        let base = tempfile::tempdir().unwrap();
        let home = base.path().join("home");
        check_home(&home).unwrap();
        fs::create_dir(&home).unwrap();
        mode(&home, 0o755);
        check_home(&home).unwrap();
        mode(&home, 0o1777);
        assert!(check_home(&home).unwrap_err().to_string().contains("every account"));
        if geteuid().is_root() {
            mode(&home, 0o700);
            chown(&home, Some(54_321), None).unwrap();
            assert!(check_home(&home).unwrap_err().to_string().contains("54321"));
            chown(&home, Some(0), Some(54_322)).unwrap();
            mode(&home, 0o2770);
            assert!(check_home(&home).unwrap_err().to_string().contains("54322"));
        }
    }

    #[test]
    fn a_directory_that_others_could_replace_is_refused() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("own");
        check_ancestors(&path).unwrap();
        mode(base.path(), 0o777);
        assert!(check_ancestors(&path).is_err());
        mode(base.path(), 0o1777);
        check_ancestors(&path).unwrap();
    }
}
