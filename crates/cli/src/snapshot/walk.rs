//! Which files belong to a code directory.
//!
//! `.gitignore` means what it means to git, also where there is no repository; `.musterignore` is written the same way
//! and goes before it, so it can take files out as well as back in (`!weights.bin`). `.git` itself and the folder of
//! the private server are never part of it.

use std::fs::Metadata;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

use ignore::{DirEntry, WalkBuilder};

use super::Error;

/// A tree: what is in it, and what had to be left out.
pub(super) struct Tree {
    /// Sorted by the bytes of their paths.
    pub entries: Vec<Entry>,
    /// Sockets, pipes and devices.
    pub skipped: Vec<PathBuf>,
}

/// Something in a tree.
#[derive(Debug)]
pub(super) struct Entry {
    /// Below the root.
    pub path: PathBuf,
    pub kind: Kind,
    /// The nine bits of its rights.
    pub mode: u32,
    /// Seconds and nanoseconds.
    pub mtime: (i64, i64),
}

#[derive(Debug)]
pub(super) enum Kind {
    Directory,
    File { size: u64 },
    Link { target: PathBuf },
}

impl Entry {
    pub fn file_size(&self) -> Option<u64> {
        match self.kind {
            Kind::File { size } => Some(size),
            Kind::Directory | Kind::Link { .. } => None,
        }
    }
}

/// Finds everything that belongs to a tree.
pub(super) fn walk(root: &Path, leave_out: &[&Path]) -> Result<Tree, Error> {
    let mut tree = Tree { entries: Vec::new(), skipped: Vec::new() };
    for found in walker(root, leave_out).build() {
        let found = match found {
            Ok(found) => found,
            // Gone since its directory was listed: then it is not part of the tree.
            Err(error)
                if error.io_error().is_some_and(|error| error.kind() == std::io::ErrorKind::NotFound) =>
            {
                continue;
            }
            Err(error) => return Err(Error::Walk(error)),
        };
        if found.depth() > 0 {
            tree.add(root, &found)?;
        }
    }
    tree.entries.sort_unstable_by(|a, b| a.path.as_os_str().as_bytes().cmp(b.path.as_os_str().as_bytes()));
    tree.skipped.sort_unstable();
    Ok(tree)
}

fn walker(root: &Path, leave_out: &[&Path]) -> WalkBuilder {
    let leave_out: Vec<PathBuf> = leave_out.iter().map(|path| (*path).to_owned()).collect();
    // Outside a repository, a .gitignore above the root belongs to something else: many people keep one with a single
    // `*` in their home directory.
    let in_repository = root.ancestors().any(|folder| folder.join(".git").exists());
    let mut walker = WalkBuilder::new(root);
    walker
        .hidden(false)
        .ignore(false)
        .require_git(false)
        .parents(in_repository)
        .follow_links(false)
        .add_custom_ignore_filename(".musterignore")
        .filter_entry(move |entry| {
            entry.file_name() != ".git" && !leave_out.iter().any(|path| entry.path() == path)
        });
    walker
}

impl Tree {
    fn add(&mut self, root: &Path, found: &DirEntry) -> Result<(), Error> {
        let path = found.path().strip_prefix(root).unwrap_or(found.path()).to_owned();
        let gone_or = |source: std::io::Error| match source.kind() {
            std::io::ErrorKind::NotFound => Ok(()),
            _ => Err(Error::Read { path: path.clone(), source }),
        };
        let metadata = match std::fs::symlink_metadata(found.path()) {
            Ok(metadata) => metadata,
            Err(error) => return gone_or(error),
        };
        let kind = match metadata.file_type() {
            kind if kind.is_dir() => Kind::Directory,
            kind if kind.is_file() => Kind::File { size: metadata.len() },
            kind if kind.is_symlink() => match std::fs::read_link(found.path()) {
                Ok(target) => Kind::Link { target },
                Err(error) => return gone_or(error),
            },
            _ => {
                self.skipped.push(path);
                return Ok(());
            }
        };
        self.entries.push(Entry { path, kind, mode: metadata.mode() & 0o777, mtime: mtime(&metadata) });
        Ok(())
    }
}

pub(super) fn mtime(metadata: &Metadata) -> (i64, i64) {
    (metadata.mtime(), metadata.mtime_nsec())
}
