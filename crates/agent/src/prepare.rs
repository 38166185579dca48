//! Making what a task needs before its gang is whole: its directory, its record, its files, and its supervisor, which
//! is started while the files are made, since it takes as long.
//!
//! Done again after a kill, it goes on where it was: the working directory gets its name only when it is whole.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_model::{AttemptId, BundleId, TaskId};
use tokio::task::{JoinHandle, spawn_blocking};
use tokio_util::sync::CancellationToken;

use crate::Overlays;
use crate::bulk::Bulk;
use crate::bundle::{self, Cache, Tree, copy_tree};
use crate::disk;
use crate::files::Reader;
use crate::record::{Ended, Found, Record, TaskDir};
use crate::task::{self, Waiting};

/// Why a task cannot be prepared. In words for the user, who sees them.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the directory `{path}` to run in is not there")]
    NoDirectory { path: String },
    #[error("the directory `{path}` to run in is not an absolute path")]
    RelativeDirectory { path: String },
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
            Error::NoDirectory { .. } | Error::RelativeDirectory { .. } | Error::Abandoned => false,
        }
    }
}

/// What came of it.
#[derive(Debug)]
pub(crate) enum Prepared {
    /// With the supervisor that will wait for it.
    Ready(Coming),
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
}

/// Prepare a task, or find that it was.
pub(crate) async fn prepare(
    dir: TaskDir,
    record: Record,
    means: Means,
    cancel: CancellationToken,
) -> Result<Prepared, Error> {
    let bundle = record.prepare.bundle.clone().filter(|_| record.prepare.in_place.is_none());
    let task = record.prepare.task.clone();
    let at_hand = {
        let (dir, bundle, means, cancel) = (dir.clone(), bundle.clone(), means.clone(), cancel.clone());
        move || prepare_at_hand(&dir, &record, bundle.as_ref(), &means, &cancel)
    };
    match (disk::work(at_hand).await?, bundle) {
        (AtHand::Over(ended), _) => Ok(Prepared::Over(ended)),
        (AtHand::Lacks(supervisor), Some(bundle)) => {
            furnish(dir, task, bundle, means, cancel).await?;
            Ok(Prepared::Ready(supervisor))
        }
        (AtHand::Ready(supervisor) | AtHand::Lacks(supervisor), _) => Ok(Prepared::Ready(supervisor)),
    }
}

enum AtHand {
    Ready(Coming),
    /// Its code is not on this node.
    Lacks(Coming),
    Over(Ended),
}

/// All that can be done without the network, at one go: each change of threads is time that a start takes longer.
fn prepare_at_hand(
    dir: &TaskDir,
    record: &Record,
    bundle: Option<&BundleId>,
    means: &Means,
    cancel: &CancellationToken,
) -> Result<AtHand, Error> {
    let files = match begin(dir, record, bundle.is_some())? {
        Begun::Over(ended) => return Ok(AtHand::Over(ended)),
        Begun::Unfinished => bundle,
        Begun::Ready => None,
    };
    let (exe, supervised) = (means.exe.clone(), dir.clone());
    // Only now, since what was asked for is on disk before any process is started for it. Nobody waits for it before the
    // launch.
    let supervisor = spawn_blocking(move || task::await_launch(&exe, supervised.path()).ok());
    let Some(bundle) = files else { return Ok(AtHand::Ready(supervisor)) };
    match means.cache.at_hand(bundle)? {
        Some(tree) => {
            show(dir, &record.prepare.task, &tree, means.overlays, cancel)?;
            Ok(AtHand::Ready(supervisor))
        }
        None => Ok(AtHand::Lacks(supervisor)),
    }
}

enum Begun {
    Ready,
    Unfinished,
    Over(Ended),
}

fn begin(dir: &TaskDir, record: &Record, has_bundle: bool) -> Result<Begun, Error> {
    if let Some(path) = &record.prepare.in_place {
        check_in_place(path)?;
    }
    disk::make_dir(dir.path())?;
    match dir.read()? {
        Found::Forgotten(ended) => return Ok(Begun::Over(ended)),
        Found::Task(..) => {}
        Found::Nothing => dir.write(record)?,
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
    task: TaskId,
    bundle: BundleId,
    means: Means,
    cancel: CancellationToken,
) -> Result<(), Error> {
    let tree = tokio::select! {
        tree = means.cache.tree(&bundle, &means.bulk) => tree?,
        () = cancel.cancelled() => return Err(Error::Abandoned),
    };
    disk::work(move || show(&dir, &task, &tree, means.overlays, &cancel)).await
}

/// Make the working directory of a tree.
fn show(
    dir: &TaskDir,
    task: &TaskId,
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
        return Ok(lay_out(dir, task, tree)?);
    }
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
