//! Reading a tree that someone else may be writing to, from an open directory, and never leaving it.
//!
//! A path may lead through symbolic links as long as they stay inside: whoever may see a task's files may not, by a
//! link, see those of the machine.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::ffi::{OsStrExt, OsStringExt};

use rustix::fs::{AtFlags, Dir, FileType, Mode, OFlags, ResolveFlags, Stat};
use rustix::io::Errno;

use crate::listing::{Entry, Kind, MAX_DEPTH, Time};

/// Opens what lies at a path below a directory. An empty path is the directory itself.
pub fn open(root: BorrowedFd<'_>, path: &[u8]) -> io::Result<OwnedFd> {
    let path = if path.is_empty() { b"." } else { path };
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK | OFlags::NOCTTY;
    let resolve = ResolveFlags::BENEATH | ResolveFlags::NO_MAGICLINKS;
    let opened = rustix::fs::openat2(root, OsStr::from_bytes(path), flags, Mode::empty(), resolve);
    opened.map_err(|errno| match errno {
        Errno::XDEV => io::Error::new(io::ErrorKind::PermissionDenied, "the path leads outside"),
        errno => errno.into(),
    })
}

/// What an open file is, under a name. `None` for sockets, pipes and devices.
pub fn describe(path: Vec<u8>, stat: &Stat, target: Option<Vec<u8>>) -> Option<Entry> {
    let kind = match FileType::from_raw_mode(stat.st_mode) {
        FileType::Directory => Kind::Directory,
        FileType::RegularFile => Kind::File { size: u64::try_from(stat.st_size).unwrap_or(0) },
        FileType::Symlink => Kind::Link { target: target? },
        _ => return None,
    };
    let mtime = Time { seconds: stat.st_mtime, nanos: u32::try_from(stat.st_mtime_nsec).unwrap_or(0) };
    Some(Entry { path, kind, mode: stat.st_mode & 0o777, mtime })
}

/// Gives what is in an open directory, in the order of a listing, and with `recursive` also what is in the directories
/// below. `visit` gets the entry and the directory it lies in, and says whether to go on. What goes away meanwhile is
/// left out.
pub fn walk(
    root: BorrowedFd<'_>,
    recursive: bool,
    visit: &mut dyn FnMut(Entry, BorrowedFd<'_>, &OsStr) -> io::Result<bool>,
) -> io::Result<bool> {
    level(root, &mut Vec::new(), recursive, 0, visit)
}

fn level(
    at: BorrowedFd<'_>,
    path: &mut Vec<u8>,
    recursive: bool,
    depth: usize,
    visit: &mut dyn FnMut(Entry, BorrowedFd<'_>, &OsStr) -> io::Result<bool>,
) -> io::Result<bool> {
    for name in names(at)? {
        let Some(stat) = present(rustix::fs::statat(at, name.as_os_str(), AtFlags::SYMLINK_NOFOLLOW))? else {
            continue;
        };
        let length = path.len();
        if length > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(name.as_bytes());
        let target = match FileType::from_raw_mode(stat.st_mode) {
            FileType::Symlink => present(rustix::fs::readlinkat(at, name.as_os_str(), Vec::new()))?,
            _ => None,
        };
        let entry = describe(path.clone(), &stat, target.map(|target| target.into_bytes()));
        let is_directory = entry.as_ref().is_some_and(|entry| entry.kind == Kind::Directory);
        let mut goes_on = match entry {
            Some(entry) => visit(entry, at, &name)?,
            None => true,
        };
        if goes_on && recursive && is_directory && depth < MAX_DEPTH {
            let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            if let Some(below) = present(rustix::fs::openat(at, name.as_os_str(), flags, Mode::empty()))? {
                goes_on = level(below.as_fd(), path, recursive, depth + 1, visit)?;
            }
        }
        path.truncate(length);
        if !goes_on {
            return Ok(false);
        }
    }
    Ok(true)
}

/// The names in a directory, sorted. Within one directory, bytes are the order of a listing.
fn names(at: BorrowedFd<'_>) -> io::Result<Vec<OsString>> {
    let mut names = Vec::new();
    for entry in Dir::read_from(at)? {
        let name = entry?.file_name().to_bytes().to_vec();
        if name != b"." && name != b".." {
            names.push(OsString::from_vec(name));
        }
    }
    names.sort_unstable();
    Ok(names)
}

/// Opens a file that a walk has found, without following it elsewhere or waiting for it.
pub fn open_file(at: BorrowedFd<'_>, name: &OsStr) -> io::Result<File> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC | OFlags::NOCTTY;
    Ok(rustix::fs::openat(at, name, flags, Mode::empty())?.into())
}

fn present<T>(result: Result<T, Errno>) -> io::Result<Option<T>> {
    match result {
        Ok(value) => Ok(Some(value)),
        // Removed, or replaced by something else, since its directory was read.
        Err(Errno::NOENT | Errno::NOTDIR | Errno::LOOP | Errno::INVAL) => Ok(None),
        Err(errno) => Err(errno.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use super::*;

    #[test]
    fn a_tree_is_walked_in_the_order_of_a_listing() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path();
        fs::create_dir_all(root.join("a/b")).unwrap();
        fs::write(root.join("a-b"), "12").unwrap();
        fs::write(root.join("a/b/c"), "1").unwrap();
        symlink("/etc", root.join("a/link")).unwrap();
        let _socket = std::os::unix::net::UnixListener::bind(root.join("socket")).unwrap();
        let opened = File::open(root).unwrap();
        let mut found = Vec::new();
        walk(opened.as_fd(), true, &mut |entry, _, _| {
            found.push(entry);
            Ok(true)
        })
        .unwrap();
        let paths: Vec<_> =
            found.iter().map(|entry| String::from_utf8_lossy(&entry.path).into_owned()).collect();
        assert_eq!(paths, ["a", "a/b", "a/b/c", "a/link", "a-b"]);
        assert!(crate::listing::decode(&crate::listing::encode(&found)).is_ok());
        let mut count = 0;
        let whole = walk(opened.as_fd(), true, &mut |_, _, _| {
            count += 1;
            Ok(count < 2)
        });
        assert_eq!((whole.unwrap(), count), (false, 2));
    }

    #[test]
    fn a_path_never_leads_outside() {
        let folder = tempfile::tempdir().unwrap();
        let root = folder.path().join("root");
        fs::create_dir_all(root.join("d")).unwrap();
        fs::write(root.join("d/file"), "inside").unwrap();
        fs::write(folder.path().join("secret"), "outside").unwrap();
        symlink("d/file", root.join("within")).unwrap();
        symlink("../secret", root.join("without")).unwrap();
        symlink("/etc", root.join("etc")).unwrap();
        let opened = File::open(&root).unwrap();
        for path in ["d/file", "within", "", "d/../d/file"] {
            assert!(open(opened.as_fd(), path.as_bytes()).is_ok(), "{path:?}");
        }
        for path in ["without", "etc/passwd", "../secret", "/etc/passwd", "d/../../secret", "absent", "a\0b"]
        {
            assert!(open(opened.as_fd(), path.as_bytes()).is_err(), "{path:?}");
        }
    }
}
