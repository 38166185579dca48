//! Removal of a directory tree that another account has made.
//!
//! A task may leave a tree of any depth. So a removal goes down a bounded number of levels, which are descriptors and stack
//! frames, and moves what lies deeper up to the top first. Links are removed and never followed.

use std::ffi::CStr;
use std::fs;
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use rustix::fs::{
    AtFlags, CWD, Dir, FileType, Mode, OFlags, chmodat, fchmod, fstat, openat, renameat, unlinkat,
};
use rustix::io::Errno;

/// Levels that a removal goes down at once.
const MAX_LEVELS: usize = 64;

/// Removes a directory and all below it, also what its owner made unwritable. That it is gone already is fine.
pub fn remove_tree(path: &Path) -> io::Result<()> {
    let top = match open(&CWD, path) {
        Ok(top) => top,
        Err(Errno::NOENT) => return Ok(()),
        // A link or a file in the place of a directory.
        Err(Errno::NOTDIR | Errno::LOOP) => return gone(fs::remove_file(path)),
        Err(Errno::ACCESS) => {
            fs::set_permissions(path, fs::Permissions::from_mode(0o700))?;
            open(&CWD, path)?
        }
        Err(errno) => return Err(errno.into()),
    };
    let mut removal = Removal { top, moved: 0 };
    loop {
        let moved = removal.moved;
        let top = removal.top.as_fd().try_clone_to_owned()?;
        removal.empty(&top, 0)?;
        if removal.moved == moved {
            return gone(fs::remove_dir(path));
        }
    }
}

fn gone(result: io::Result<()>) -> io::Result<()> {
    match result {
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
        result => result,
    }
}

fn open(parent: &impl AsFd, name: impl rustix::path::Arg) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(parent, name, flags, Mode::empty())
}

struct Removal {
    top: OwnedFd,
    /// Directories that were moved up to the top so far.
    moved: u64,
}

impl Removal {
    fn empty(&mut self, dir: &OwnedFd, level: usize) -> io::Result<()> {
        // A task may have taken away its owner's right to change the directory.
        if fstat(dir)?.st_mode & 0o700 != 0o700 {
            fchmod(dir, Mode::RWXU)?;
        }
        for entry in Dir::read_from(dir)? {
            let entry = entry?;
            let name = entry.file_name();
            if name == c"." || name == c".." {
                continue;
            }
            match entry.file_type() {
                FileType::Directory => self.remove_dir(dir, name, level)?,
                _ => match unlinkat(dir, name, AtFlags::empty()) {
                    Ok(()) | Err(Errno::NOENT) => {}
                    // A file system that does not tell types.
                    Err(Errno::ISDIR) => self.remove_dir(dir, name, level)?,
                    Err(errno) => return Err(errno.into()),
                },
            }
        }
        Ok(())
    }

    fn remove_dir(&mut self, parent: &OwnedFd, name: &CStr, level: usize) -> io::Result<()> {
        match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            Ok(()) | Err(Errno::NOENT) => return Ok(()),
            Err(errno) => return Err(errno.into()),
        }
        if level >= MAX_LEVELS {
            return self.move_up(parent, name);
        }
        let dir = match open(parent, name) {
            Err(Errno::ACCESS) => {
                chmodat(parent, name, Mode::RWXU, AtFlags::empty())?;
                open(parent, name)?
            }
            opened => opened?,
        };
        self.empty(&dir, level + 1)?;
        match unlinkat(parent, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(errno.into()),
        }
    }

    /// Moves a directory to the top, under a name that nothing has there.
    fn move_up(&mut self, parent: &OwnedFd, name: &CStr) -> io::Result<()> {
        loop {
            self.moved += 1;
            match renameat(parent, name, &self.top, format!(".removed-{}", self.moved)) {
                Ok(()) => return Ok(()),
                Err(Errno::EXIST | Errno::NOTEMPTY | Errno::NOTDIR) => {}
                Err(errno) => return Err(errno.into()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::os::unix::process::CommandExt;
    use std::process::Command;

    use super::*;

    #[test]
    fn a_very_deep_tree_is_removed() {
        let base = tempfile::tempdir().unwrap();
        let path = base.path().join("tree");
        fs::create_dir(&path).unwrap();
        fs::write(path.join(".removed-1"), "in the way").unwrap();
        let mut at = open(&CWD, &path).unwrap();
        for level in 0..20_000 {
            rustix::fs::mkdirat(&at, "d", Mode::RWXU).unwrap();
            if level % 100 == 0 {
                rustix::fs::mkdirat(&at, "side", Mode::RWXU).unwrap();
            }
            at = open(&at, "d").unwrap();
        }
        drop(at);
        remove_tree(&path).unwrap();
        assert!(!path.exists());
        remove_tree(&path).unwrap();
    }

    #[test]
    fn links_are_removed_and_not_followed() {
        let base = tempfile::tempdir().unwrap();
        let (kept, tree) = (base.path().join("kept"), base.path().join("tree"));
        fs::create_dir_all(kept.join("below")).unwrap();
        fs::create_dir_all(tree.join("a/b")).unwrap();
        fs::write(tree.join("a/b/file"), "x").unwrap();
        symlink(&kept, tree.join("a/link")).unwrap();
        symlink(&kept, base.path().join("link")).unwrap();
        remove_tree(&tree).unwrap();
        remove_tree(&base.path().join("link")).unwrap();
        assert!(kept.join("below").exists() && !tree.exists() && !base.path().join("link").exists());
    }

    #[test]
    fn what_its_owner_made_unwritable_is_removed() {
        let base = tempfile::tempdir().unwrap();
        let tree = base.path().join("tree");
        fs::create_dir_all(tree.join("a/b/c")).unwrap();
        for path in ["a/b", "a", ""] {
            fs::set_permissions(tree.join(path), fs::Permissions::from_mode(0o500)).unwrap();
        }
        // Root may do it whatever the modes are, so an ordinary account is asked where that can be had.
        if rustix::process::geteuid().is_root() {
            fs::set_permissions(base.path(), fs::Permissions::from_mode(0o777)).unwrap();
            for path in ["a/b/c", "a/b", "a", ""] {
                std::os::unix::fs::chown(tree.join(path), Some(54_321), Some(54_321)).unwrap();
            }
            let test = "remove_tree::tests::what_its_owner_made_unwritable_is_removed";
            if std::env::var_os("REMOVED_TREE").is_none() {
                let copy = base.path().join("test");
                fs::copy(std::env::current_exe().unwrap(), &copy).unwrap();
                let mut command = Command::new(&copy);
                command.args(["--exact", test]).env("REMOVED_TREE", &tree).env("TMPDIR", base.path());
                assert!(command.uid(54_321).gid(54_321).current_dir("/").status().unwrap().success());
            }
        }
        let given = std::env::var_os("REMOVED_TREE").map(std::path::PathBuf::from);
        remove_tree(given.as_deref().unwrap_or(&tree)).unwrap();
        assert!(!given.as_deref().unwrap_or(&tree).exists());
    }
}
