//! Making what a task needs before its gang is whole: its directory, its record, its files, and its supervisor, which
//! is started while the files are made, since it takes as long.
//!
//! Done again after a kill, it goes on where it was: the working directory gets its name only when it is whole.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_link::message::Prepare;
use muster_model::{AttemptId, TaskId};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio_util::sync::CancellationToken;

use crate::account::{self, Person};
use crate::bulk::Bulk;
use crate::bundle::{self, Cache, Key, Tree, copy_tree};
use crate::files::Reader;
use crate::login::Login;
use crate::record::{Ended, Found, Record, TaskDir};
use crate::task::{self, Waiting};
use crate::{Overlays, disk, environment, volume};

/// Why a task cannot be prepared. In words for the user, who sees them.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the directory `{path}` to run in is not there")]
    NoDirectory { path: String },
    #[error("the directory `{path}` to run in is not an absolute path")]
    RelativeDirectory { path: String },
    #[error(transparent)]
    Account(#[from] account::Error),
    #[error("volume `{name}`: {why}")]
    Volume { name: String, why: String },
    #[error("its files cannot be made")]
    Disk(#[from] io::Error),
    #[error(transparent)]
    Bundle(#[from] bundle::Error),
    #[error("nobody wants it any more")]
    Abandoned,
}

impl Error {
    /// Whether there was no room for its files.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            Error::Disk(error) => disk::is_full(error),
            Error::Bundle(error) => error.is_full(),
            Error::Account(_) | Error::Volume { .. } => false,
            Error::NoDirectory { .. } | Error::RelativeDirectory { .. } | Error::Abandoned => false,
        }
    }
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Prepared {
    /// With the supervisor that will wait for it, and all that is now known of it.
    Ready(Coming, Box<Record>),
    /// The server has forgotten that this task is over.
    Over(Ended),
}

/// A supervisor that is being started. There is none in the end if that failed; the launch then tries again, and says
/// why not.
pub(crate) type Coming = JoinHandle<Option<Waiting>>;

/// What preparing needs besides the task itself.
#[derive(Debug, Clone)]
pub(crate) struct Means {
    pub(crate) cache: Arc<Cache>,
    pub(crate) bulk: Bulk,
    /// Where the files of tasks are read.
    pub(crate) reader: Arc<Reader>,
    /// When working directories are overlays; never, where they cannot be.
    pub(crate) overlays: Overlays,
    /// The binary that supervises.
    pub(crate) exe: PathBuf,
    /// What logins are given.
    pub(crate) login: Arc<Login>,
}

/// Prepare a task, or find that it was.
pub(crate) async fn prepare(
    dir: TaskDir,
    record: Record,
    means: Means,
    cancel: CancellationToken,
) -> Result<Prepared, Error> {
    let at_hand = {
        let (dir, means, cancel) = (dir.clone(), means.clone(), cancel.clone());
        move || prepare_at_hand(&dir, record, &means, &cancel)
    };
    match disk::work(at_hand).await? {
        AtHand::Over(ended) => Ok(Prepared::Over(ended)),
        AtHand::Lacks(supervisor, record, bundle) => {
            furnish(dir, &record.prepare, bundle, means, cancel).await?;
            Ok(Prepared::Ready(supervisor, record))
        }
        AtHand::Ready(supervisor, record) => Ok(Prepared::Ready(supervisor, record)),
    }
}

enum AtHand {
    Ready(Coming, Box<Record>),
    /// Its code is not on this node.
    Lacks(Coming, Box<Record>, Key),
    Over(Ended),
}

/// All that can be done without the network, at one go: each change of threads is time that a start takes longer.
fn prepare_at_hand(
    dir: &TaskDir,
    mut record: Record,
    means: &Means,
    cancel: &CancellationToken,
) -> Result<AtHand, Error> {
    let person = account::of(record.prepare.account.as_deref())?;
    // Before it is written down: whose its files are must be known to whoever removes them.
    if let (Some(address), Some(person)) = (&mut record.address, &person) {
        address.account = Some(person.account.clone());
    }
    let bundle = record.bundle().filter(|_| record.prepare.in_place.is_none());
    let files = match begin(dir, &record, bundle.is_some(), person.as_ref())? {
        Begun::Over(ended) => return Ok(AtHand::Over(ended)),
        Begun::Unfinished => bundle,
        Begun::Ready => None,
    };
    for volume in &record.prepare.volumes {
        let made = volume::make(volume, person.as_ref());
        made.map_err(|why| Error::Volume { name: volume.name.clone(), why })?;
    }
    // The launch will want to know, and then everybody waits for it.
    means.login.ask_ahead(person.as_ref());
    let (exe, supervised) = (means.exe.clone(), dir.clone());
    // Only now, since what was asked for is on disk before any process is started for it. Nobody waits for it before the
    // launch.
    let supervisor = spawn_blocking(move || task::await_launch(&exe, supervised.path()).ok());
    let Some(bundle) = files else { return Ok(AtHand::Ready(supervisor, Box::new(record))) };
    match means.cache.at_hand(&bundle)? {
        Some(tree) => {
            show(dir, &record.prepare, &tree, means.overlays, cancel)?;
            Ok(AtHand::Ready(supervisor, Box::new(record)))
        }
        None => Ok(AtHand::Lacks(supervisor, Box::new(record), bundle)),
    }
}

enum Begun {
    Ready,
    Unfinished,
    Over(Ended),
}

fn begin(dir: &TaskDir, record: &Record, has_bundle: bool, person: Option<&Person>) -> Result<Begun, Error> {
    if let Some(path) = &record.prepare.in_place {
        let path = directory(path, person);
        account::act_as(person, || check_in_place(&path))??;
    }
    disk::make_dir(dir.path())?;
    match dir.read()? {
        Found::Forgotten(ended) => return Ok(Begun::Over(ended)),
        Found::Task(..) => {}
        Found::Nothing => {
            disk::check_free(dir.path(), record.prepare.disk.free_bytes, 0)?;
            dir.write(record)?;
        }
    }
    disk::make_dir(&dir.output())?;
    disk::make_dir(dir.log().path())?;
    if !has_bundle && record.prepare.in_place.is_none() {
        if record.prepare.goes_on {
            take_over(dir, &record.prepare.task)?;
        }
        disk::make_dir(&dir.work())?;
    }
    Ok(if !has_bundle || dir.work().is_dir() { Begun::Ready } else { Begun::Unfinished })
}

/// Make the working directory of an earlier attempt this one's. Nothing of that attempt runs any more, and a kill leaves
/// it in one place or in the other.
fn take_over(dir: &TaskDir, task: &TaskId) -> io::Result<()> {
    if dir.work().is_dir() {
        return Ok(());
    }
    let earlier = |number| {
        let attempt = AttemptId { number, ..task.attempt.clone() };
        dir.of_other(&attempt.task(task.rank)).work()
    };
    match (1..task.attempt.number).rev().map(earlier).find(|work| work.is_dir()) {
        Some(work) => fs::rename(work, dir.work()),
        None => Ok(()),
    }
}

/// A directory of the node that a task runs in: `~` is the home of whom it runs as.
pub(crate) fn directory(path: &str, person: Option<&Person>) -> String {
    match (path, person) {
        ("~", Some(person)) => person.account.home.clone(),
        ("~", None) => environment::account().home,
        (path, _) => path.to_owned(),
    }
}

fn check_in_place(path: &str) -> Result<(), Error> {
    if !Path::new(path).is_absolute() {
        return Err(Error::RelativeDirectory { path: path.to_owned() });
    }
    match fs::metadata(path) {
        Ok(metadata) if metadata.is_dir() => Ok(()),
        Err(error) if !matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            Err(error.into())
        }
        _ => Err(Error::NoDirectory { path: path.to_owned() }),
    }
}

/// Fetch the code, and make the working directory of it.
async fn furnish(
    dir: TaskDir,
    prepare: &Prepare,
    bundle: Key,
    means: Means,
    cancel: CancellationToken,
) -> Result<(), Error> {
    let tree = tokio::select! {
        tree = means.cache.tree(&bundle, &means.bulk, &prepare.disk) => tree?,
        () = cancel.cancelled() => return Err(Error::Abandoned),
    };
    let prepare = prepare.clone();
    disk::work(move || show(&dir, &prepare, &tree, means.overlays, &cancel)).await
}

/// Make the working directory of a tree.
fn show(
    dir: &TaskDir,
    prepare: &Prepare,
    tree: &Tree,
    overlays: Overlays,
    cancel: &CancellationToken,
) -> Result<(), Error> {
    let is_overlay = match overlays {
        Overlays::Auto => !tree.is_small(),
        Overlays::Always => true,
        Overlays::Never => false,
    };
    if is_overlay {
        return Ok(lay_out(dir, &prepare.task, tree)?);
    }
    disk::check_free(dir.path(), prepare.disk.free_bytes, tree.bytes())?;
    let unfinished = dir.unfinished_work();
    disk::remove_tree(&unfinished)?;
    match copy_tree(&tree.path(), &unfinished, || cancel.is_cancelled()) {
        Err(_) if cancel.is_cancelled() => return Err(Error::Abandoned),
        copied => copied.map_err(bundle::Error::Copy)?,
    }
    Ok(fs::rename(&unfinished, dir.work())?)
}

/// Make a place for an overlay over this tree; its supervisor mounts it. The place itself comes last: with it the
/// working directory is whole.
fn lay_out(dir: &TaskDir, task: &TaskId, tree: &Tree) -> io::Result<()> {
    tree.keep_for(task)?;
    disk::make_dir(&dir.scratch())?;
    // Its mode is what the task sees as that of its working directory.
    match fs::create_dir(dir.upper()) {
        Err(error) if error.kind() != ErrorKind::AlreadyExists => return Err(error),
        _ => {}
    }
    disk::make_dir(&dir.work())
}
