//! Files at paths that the machine does not have, in a namespace of the supervisor's own.
//!
//! A directory that must gain an entry is replaced, for the task alone, by one of the task's that has the new entries,
//! and on every other entry the old one: so what is written below any of them reaches the machine as ever. It is the
//! smallest directory that must gain one; of the root itself it is a new root. Nothing is overlaid, since what a task writes
//! to `/home` or `/data` must not be lost.
//!
//! A home directory is never replaced, because files are made in it. There, an empty file or directory is made to
//! mount on, and removed by whoever uses it last.

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::{OsStr, OsString};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStringExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FileType, FlockOperation, Mode, OFlags, flock, fstat, openat, readlinkat};
use rustix::mount::{MoveMountFlags, OpenTreeFlags, UnmountFlags, move_mount, open_tree, unmount};
use rustix::process::{chdir, pivot_root};

use muster_model::node::Account;

use super::{HOSTS, Stage, below, make_parent};
use crate::account::{self, Person};
use crate::overlay::isolate;
use crate::supervisor::complain;
use crate::trusted;

/// A directory with more entries than this is not taken apart.
const MOST_ENTRIES: usize = 2000;

/// Show everything at its path. The paths that are seen.
pub(super) fn show(stage: &Stage, cwd: &Path, isolated: bool) -> io::Result<BTreeSet<String>> {
    if !isolated {
        isolate()?;
    }
    let home = Home::of(&stage.account);
    let mut plan = Plan::default();
    let hosts = (!stage.hosts.is_empty()).then(|| HOSTS.to_owned());
    for path in stage.files.iter().chain(&stage.directories).chain(&stage.workdir).chain(&hosts) {
        let source = if stage.workdir.contains(path) { cwd.to_owned() } else { below(&stage.root, path) };
        plan.add(path, source, &home);
    }
    for (path, directory) in &stage.volumes {
        plan.add(path, directory.clone(), &home);
    }
    let mut shown = plan.mount_in_home(stage)?;
    // Only what is there now is to be seen through the other name.
    let other_name =
        home.other_name.filter(|name| shown.iter().any(|path| Path::new(path).starts_with(name)));
    if let Some(name) = &other_name {
        fs::create_dir_all(below(&stage.root, name.to_str().unwrap_or_default()))?;
        plan.gain(name, "");
        plan.on.push(("", home.real, name.clone()));
    }
    // Before anything is replaced: what is mounted later is not to be seen through it.
    let person = stage.person.as_ref();
    let clones: Vec<_> = plan.on.iter().map(|(_, source, _)| clone(source, person)).collect();
    shown.extend(plan.replace_directories(&stage.root, person));
    for ((path, _, target), clone) in plan.on.iter().zip(clones) {
        match clone.and_then(|clone| attach(&clone, target, person)) {
            Ok(()) => shown.insert((*path).to_owned()),
            Err(error) => {
                stage.do_without(path, error)?;
                shown.remove(*path)
            }
        };
    }
    shown.remove("");
    Ok(shown)
}

impl Stage {
    /// Something cannot be shown. Files lie elsewhere as well, and storage does not: nobody is to write what will be missed.
    fn do_without(&self, path: &str, error: io::Error) -> io::Result<()> {
        if self.volumes.contains_key(path) {
            return Err(io::Error::new(error.kind(), format!("{path} cannot be mounted: {error}")));
        }
        complain(&format!("cannot show {path}"), &error);
        Ok(())
    }
}

/// A home directory, and the name that platforms have for it where nothing is there: `/home/root`.
struct Home {
    real: PathBuf,
    other_name: Option<PathBuf>,
}

impl Home {
    fn of(account: &Account) -> Home {
        let real = PathBuf::from(&account.home);
        let name = Path::new("/home").join(&account.name);
        let is_other = real.is_dir() && real != name && !name.exists();
        Home { real, other_name: is_other.then_some(name) }
    }

    /// Where something is in the home directory; none if it is not.
    fn place(&self, path: &Path) -> Option<PathBuf> {
        if let Some(rest) = self.other_name.as_ref().and_then(|name| path.strip_prefix(name).ok()) {
            return Some(self.real.join(rest));
        }
        // A root directory that is someone's home is a root directory first.
        (self.real != Path::new("/") && path.starts_with(&self.real)).then(|| path.to_owned())
    }
}

/// How paths come to be seen.
#[derive(Default)]
struct Plan<'a> {
    /// In the home: what is shown, and on what it is mounted.
    in_home: Vec<(&'a str, PathBuf, PathBuf)>,
    /// On what is there, or will be: likewise.
    on: Vec<(&'a str, PathBuf, PathBuf)>,
    /// Directories that gain entries, and for which paths.
    gains: BTreeMap<PathBuf, Vec<(OsString, &'a str)>>,
}

impl<'a> Plan<'a> {
    fn add(&mut self, path: &'a str, source: PathBuf, home: &Home) {
        let real = Path::new(path);
        if let Some(point) = home.place(real) {
            self.in_home.push((path, source, point));
            return;
        }
        let is_there = real.exists();
        if !is_there {
            self.gain(real, path);
        }
        // What lies elsewhere than the new entry, as the working directory does, is mounted on it.
        if is_there || !source.ends_with(path.trim_start_matches('/')) {
            self.on.push((path, source, real.to_owned()));
        }
    }

    fn gain(&mut self, place: &Path, path: &'a str) {
        let (dir, name) = gap(place);
        self.gains.entry(dir).or_default().push((name, path));
    }

    fn mount_in_home(&self, stage: &Stage) -> io::Result<BTreeSet<String>> {
        let person = stage.person.as_ref();
        let mut shown = BTreeSet::new();
        for (path, source, point) in &self.in_home {
            // By whose home it is, so that it is theirs, and no link of theirs leads elsewhere. They need not see what is shown.
            let is_dir = source.is_dir();
            let made = account::act_as(person, || make_point(point, is_dir)).and_then(|made| made);
            match made.and_then(|()| mount_on_own(source, point, person)) {
                Ok(()) => drop(shown.insert((*path).to_owned())),
                Err(error) => stage.do_without(path, error)?,
            }
        }
        Ok(shown)
    }

    fn replace_directories(&self, root: &Path, person: Option<&Person>) -> BTreeSet<String> {
        let mut shown = BTreeSet::new();
        for (dir, new) in &self.gains {
            let names: BTreeSet<&OsStr> = new.iter().map(|(name, _)| name.as_os_str()).collect();
            match gain(dir, &below(root, dir.to_str().unwrap_or_default()), &names, root, person) {
                Ok(()) => shown.extend(new.iter().map(|(_, path)| (*path).to_owned())),
                Err(error) => complain(&format!("{} cannot gain anything", dir.display()), &error),
            }
        }
        shown
    }
}

/// The deepest directory on the way that is there, and the name that it lacks.
fn gap(path: &Path) -> (PathBuf, OsString) {
    let mut below = path;
    for dir in path.ancestors().skip(1) {
        if dir.is_dir() {
            return (dir.to_owned(), below.file_name().unwrap_or_default().to_owned());
        }
        below = dir;
    }
    (PathBuf::from("/"), below.file_name().unwrap_or_default().to_owned())
}

/// Put `new` in the place of a directory: it has the new entries, and on all others the old ones.
fn gain(
    dir: &Path,
    new: &Path,
    names: &BTreeSet<&OsStr>,
    root: &Path,
    person: Option<&Person>,
) -> io::Result<()> {
    let old_dir = open(dir, person)?;
    let mut entries = Vec::new();
    for entry in fs::read_dir(dir)? {
        let name = entry?.file_name();
        if names.contains(name.as_os_str()) {
            continue;
        }
        if entries.len() == MOST_ENTRIES {
            return Err(io::Error::other("it has too many entries"));
        }
        let point = new.join(&name);
        // One that vanishes meanwhile is as good as never there.
        let flags = OFlags::PATH | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let Ok(old) = openat(&old_dir, &name, flags, Mode::empty()) else { continue };
        match FileType::from_raw_mode(fstat(&old)?.st_mode) {
            FileType::Symlink => {
                let target = OsString::from_vec(readlinkat(&old, "", Vec::new())?.into_bytes());
                ignore_existing(symlink(target, point))?;
                continue;
            }
            FileType::Directory => ignore_existing(fs::create_dir(&point))?,
            _ => ignore_existing(File::create_new(&point).map(drop))?,
        }
        entries.push((name, clone_of(&old)?));
    }
    let replacement = open_tree(CWD, new, OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC)?;
    if dir != Path::new("/") {
        attach_to(&replacement, &old_dir)?;
        return entries.iter().try_for_each(|(name, old)| attach(old, &dir.join(name), person));
    }
    attach(&replacement, root, person)?;
    entries.iter().try_for_each(|(name, old)| attach(old, &root.join(name), person))?;
    chdir(root)?;
    // The old root comes to lie on the new one, and is taken off it.
    pivot_root(".", ".")?;
    unmount(".", UnmountFlags::DETACH)?;
    Ok(chdir("/")?)
}

fn ignore_existing(made: io::Result<()>) -> io::Result<()> {
    match made {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => Err(error),
        _ => Ok(()),
    }
}

/// What a path leads to. Where it is for a task of somebody else's, only as far as that can be trusted.
fn open(path: &Path, person: Option<&Person>) -> io::Result<OwnedFd> {
    match person {
        Some(person) => trusted::open_for(person, path),
        None => Ok(openat(CWD, path, OFlags::PATH | OFlags::CLOEXEC, Mode::empty())?),
    }
}

/// All that is seen at a path, to be attached elsewhere.
pub(super) fn clone(path: &Path, person: Option<&Person>) -> io::Result<OwnedFd> {
    clone_of(&open(path, person)?)
}

fn clone_of(found: &OwnedFd) -> io::Result<OwnedFd> {
    let flags = OpenTreeFlags::OPEN_TREE_CLONE
        | OpenTreeFlags::OPEN_TREE_CLOEXEC
        | OpenTreeFlags::AT_RECURSIVE
        | OpenTreeFlags::AT_EMPTY_PATH;
    Ok(open_tree(found, "", flags)?)
}

pub(super) fn attach(mount: &OwnedFd, target: &Path, person: Option<&Person>) -> io::Result<()> {
    attach_to(mount, &open(target, person)?)
}

fn attach_to(mount: &OwnedFd, target: &OwnedFd) -> io::Result<()> {
    let flags = MoveMountFlags::MOVE_MOUNT_F_EMPTY_PATH | MoveMountFlags::MOVE_MOUNT_T_EMPTY_PATH;
    Ok(move_mount(mount, "", target, "", flags)?)
}

/// Whether any of this is possible, tried in a namespace of this thread's own.
pub(super) fn probe() -> io::Result<()> {
    isolate()?;
    probe_mount()
}

/// Whether this process, whose mounts are its own, may mount.
pub(super) fn probe_mount() -> io::Result<()> {
    attach(&clone(Path::new("/proc/self"), None)?, Path::new("/tmp"), None)
}

/// Show something where its user has made a place for it, and nowhere else that they may have put a link to.
fn mount_on_own(source: &Path, point: &Path, person: Option<&Person>) -> io::Result<()> {
    let target = open(point, person)?;
    if let Some(person) = person
        && trusted::owner(&target)? != person.account.uid
    {
        return Err(io::Error::new(ErrorKind::InvalidInput, "what is there is not the user's own"));
    }
    attach_to(&clone(source, person)?, &target)
}

/// Make something to mount on in a home directory, and keep others from removing it for as long as this process lives.
fn make_point(point: &Path, is_dir: bool) -> io::Result<()> {
    if is_dir {
        return fs::create_dir_all(point);
    }
    make_parent(point)?;
    loop {
        let file = opened(OpenOptions::new().create(true).append(true), point)?;
        flock(&file, FlockOperation::LockShared)?;
        // Someone may have removed it just before it was ours.
        let is_there = fs::symlink_metadata(point).is_ok_and(|there| {
            file.metadata().is_ok_and(|file| (file.dev(), file.ino()) == (there.dev(), there.ino()))
        });
        if is_there {
            // Its lock is to be held until this process is gone, however that comes.
            std::mem::forget(file);
            return Ok(());
        }
    }
}

/// A plain file in a directory where anything may lie; a pipe would keep whoever opens it waiting.
fn opened(options: &mut OpenOptions, path: &Path) -> io::Result<File> {
    let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
    let file = options.custom_flags(flags.bits() as i32).open(path)?;
    if file.metadata()?.is_file() {
        return Ok(file);
    }
    Err(io::Error::new(ErrorKind::InvalidInput, "what is there is not a plain file"))
}

/// Remove what was made in the home directory to mount on, unless another task uses it. To be called where it is not
/// mounted on.
pub(crate) fn remove_points(stage: &Stage) {
    if let Err(error) = account::act_as(stage.person.as_ref(), || remove_own_points(stage)) {
        tracing::warn!(%error, "what was made in a home directory to mount on stays there");
    }
}

fn remove_own_points(stage: &Stage) {
    let home = Home::of(&stage.account);
    let all = stage.files.iter().chain(&stage.directories).chain(&stage.workdir).chain(stage.volumes.keys());
    for path in all {
        let Some(point) = home.place(Path::new(path)) else { continue };
        let is_free = opened(OpenOptions::new().read(true), &point).is_ok_and(|file| {
            file.metadata().is_ok_and(|it| it.len() == 0)
                && flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        });
        if is_free {
            let _ = fs::remove_file(&point);
        }
        // Directories go if nothing is in them, up to the home itself.
        for dir in point.ancestors().take_while(|dir| *dir != home.real && dir.starts_with(&home.real)) {
            let _ = fs::remove_dir(dir);
        }
    }
}
