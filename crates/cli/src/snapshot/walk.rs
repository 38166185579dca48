//! Which files belong to a code directory.
//!
//! `.gitignore` means what it means to git, also where there is no repository; `.musterignore` is written the same way
//! and goes before it, so it can take files out as well as back in (`!weights.bin`). `.git` itself and the folder of
//! the private server are never part of it.

use std::env;
use std::fs;
use std::io;
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};
use std::sync::Mutex;
use std::sync::PoisonError;

use ignore::{DirEntry, WalkBuilder, WalkState};
use muster_bundle::listing::{self, Entry, Kind, Time};
use muster_bundle::pack::{Found, Stamp};

use super::Error;
use crate::threads;

/// From here on two threads find more than one; below, starting them costs more than it gains.
const MANY: usize = 2000;

/// A tree: what is in it, and what had to be left out.
#[derive(Default)]
pub(super) struct Tree {
    /// In the order of a listing.
    pub found: Vec<Found>,
    /// Sockets, pipes and devices.
    pub skipped: Vec<PathBuf>,
}

impl Tree {
    /// How many files it has, and how many bytes they have together.
    pub fn size(&self) -> (usize, u64) {
        let files = self.found.iter().filter(|found| matches!(found.entry.kind, Kind::File { .. }));
        files.fold((0, 0), |(files, bytes), found| (files + 1, bytes + found.entry.size()))
    }
}

/// Finds everything that belongs to a tree, of which about so much is expected.
pub(super) fn walk(root: &Path, leave_out: &[PathBuf], expected: usize) -> Result<Tree, Error> {
    let walker = walker(root, leave_out);
    // The walker's own threads cannot be refused without a panic.
    let is_alone = expected < MANY || !threads::is_possible();
    let mut tree = if is_alone { one_by_one(root, &walker)? } else { at_once(root, walker)? };
    sort(&mut tree.found);
    tree.skipped.sort_unstable();
    Ok(tree)
}

/// Sorts as a listing is. No name has a zero byte, so with one for each slash the order is that of the bytes, which is
/// compared several times as fast.
fn sort(found: &mut [Found]) {
    let replace = |found: &mut [Found], from: u8, to: u8| {
        let paths = found.iter_mut().flat_map(|found| &mut found.entry.path);
        paths.filter(|byte| **byte == from).for_each(|byte| *byte = to);
    };
    replace(found, b'/', 0);
    found.sort_unstable_by(|a, b| a.entry.path.cmp(&b.entry.path));
    replace(found, 0, b'/');
}

fn one_by_one(root: &Path, walker: &WalkBuilder) -> Result<Tree, Error> {
    let mut tree = Tree::default();
    for found in walker.build() {
        tree.add(root, found)?;
    }
    Ok(tree)
}

/// The same with several threads, each with a tree of its own.
fn at_once(root: &Path, mut walker: WalkBuilder) -> Result<Tree, Error> {
    let all: Mutex<Result<Tree, Error>> = Mutex::new(Ok(Tree::default()));
    walker.threads(std::thread::available_parallelism().map_or(2, |cores| cores.get().clamp(2, 4)));
    walker.build_parallel().run(|| {
        let mut part = Part { tree: Tree::default(), all: &all };
        Box::new(move |found| match part.tree.add(root, found) {
            Ok(()) => WalkState::Continue,
            Err(error) => {
                *part.all.lock().unwrap_or_else(PoisonError::into_inner) = Err(error);
                WalkState::Quit
            }
        })
    });
    all.into_inner().unwrap_or_else(PoisonError::into_inner)
}

/// What one thread found; it joins the rest when the thread is done.
struct Part<'a> {
    tree: Tree,
    all: &'a Mutex<Result<Tree, Error>>,
}

impl Drop for Part<'_> {
    fn drop(&mut self) {
        if let Ok(all) = &mut *self.all.lock().unwrap_or_else(PoisonError::into_inner) {
            all.found.append(&mut self.tree.found);
            all.skipped.append(&mut self.tree.skipped);
        }
    }
}

/// The nearest directory, from here upwards, that is a git repository's.
pub(super) fn repository(root: &Path) -> Option<&Path> {
    root.ancestors().find(|folder| folder.join(".git").exists())
}

/// Whether git may have rules for all repositories. To find that out as git does takes longer than all of a small tree, so
/// it is done only if some configuration names a file of rules, or there is one at the usual place.
fn has_rules_for_all() -> bool {
    if ["GIT_CONFIG_GLOBAL", "GIT_CONFIG_SYSTEM"].iter().any(|name| env::var_os(name).is_some()) {
        return true;
    }
    let home = env::home_dir();
    let folder = env::var_os("XDG_CONFIG_HOME").filter(|path| !path.is_empty()).map(PathBuf::from);
    let folder = folder.or_else(|| Some(home.as_ref()?.join(".config"))).map(|folder| folder.join("git"));
    let configurations = [
        home.map(|home| home.join(".gitconfig")),
        folder.as_ref().map(|folder| folder.join("config")),
        Some(PathBuf::from("/etc/gitconfig")),
    ];
    folder.is_some_and(|folder| folder.join("ignore").exists())
        || configurations.into_iter().flatten().any(|path| {
            fs::read(path)
                .is_ok_and(|text| text.to_ascii_lowercase().windows(12).any(|name| name == b"excludesfile"))
        })
}

fn walker(root: &Path, leave_out: &[PathBuf]) -> WalkBuilder {
    let leave_out = leave_out.to_vec();
    let mut walker = WalkBuilder::new(root);
    walker
        .hidden(false)
        .ignore(false)
        .require_git(false)
        // Outside a repository, a .gitignore above the root belongs to something else: many people keep one with a
        // single `*` in their home directory.
        .parents(repository(root).is_some())
        .git_global(has_rules_for_all())
        .follow_links(false)
        .add_custom_ignore_filename(".musterignore")
        .filter_entry(move |entry| {
            entry.file_name() != ".git" && !leave_out.iter().any(|path| entry.path() == path)
        });
    walker
}

impl Tree {
    fn add(&mut self, root: &Path, found: Result<DirEntry, ignore::Error>) -> Result<(), Error> {
        let found = match found {
            Ok(found) => found,
            // Gone since its directory was listed: then it is not part of the tree.
            Err(error) if error.io_error().is_some_and(|error| error.kind() == io::ErrorKind::NotFound) => {
                return Ok(());
            }
            Err(error) => return Err(Error::Walk(error)),
        };
        if found.depth() == 0 {
            return Ok(());
        }
        if found.depth() > listing::MAX_DEPTH {
            return Err(Error::Deep { path: found.into_path() });
        }
        match self.look(root, &found) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            other => {
                other.map_err(|source| Error::Read { path: below(root, found.path()).to_owned(), source })
            }
        }
    }

    fn look(&mut self, root: &Path, found: &DirEntry) -> io::Result<()> {
        let metadata = fs::symlink_metadata(found.path())?;
        let path = below(root, found.path());
        let stamp = Stamp::of(&metadata);
        let (kind, mode, mtime) = match metadata.file_type() {
            kind if kind.is_dir() => (Kind::Directory, stamp.mode, Time::default()),
            kind if kind.is_file() => (Kind::File { size: stamp.size }, stamp.mode, stamp.mtime),
            kind if kind.is_symlink() => {
                let target = fs::read_link(found.path())?.into_os_string().into_vec();
                (Kind::Link { target }, 0, Time::default())
            }
            _ => {
                self.skipped.push(path.to_owned());
                return Ok(());
            }
        };
        let entry = Entry { path: path.as_os_str().as_bytes().to_vec(), kind, mode, mtime };
        self.found.push(Found { entry, stamp, is_settled: false });
        Ok(())
    }
}

fn below<'a>(root: &Path, path: &'a Path) -> &'a Path {
    path.strip_prefix(root).unwrap_or(path)
}
