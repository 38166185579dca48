//! A copy of everything this server knows, taken while it serves, and the way back.
//!
//! # What is in it
//! The database, logs, the chunks that the database names, and every small file of the data directory that makes this server
//! the one it is: its secrets, its configuration, what it is called on other machines. Not in it: what processes hold only while they
//! run, and `node/`, which belongs to the agent of this machine.
//!
//! # Why it is right
//! The order is: wait until what is over has told all, copy the database in one transaction, wait once more, then logs, then chunks. A
//! log only grows, and a job is only over after what it is to be was committed, so whatever the copied database says is over is whole
//! in files that are read after it. The one who removes (`retention`) waits meanwhile. To keep that short, files are not read but
//! *linked* into a directory of the backup's own: a link is there whatever becomes of the name, and costs no room. What is
//! then sent is as old as the link, however long the way takes; only logs that are being written grow on, by whole writes at their end,
//! as they would before a crash.
//!
//! Nothing here asks the core for more than what is not settled yet, so nobody waits for a backup.

mod archive;
mod restore;

use std::fs::{self, DirBuilder};
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use muster_api::problem::Problem;
use muster_store::{Readers, Store};
use tokio::time::Instant;

pub(crate) use restore::is_unfinished;
pub use restore::{Error as RestoreError, Restored, restore};

use crate::chunk_store::sweep::Marks;
use crate::core::{Input, internal, now};
use crate::log_store::blocking;
use crate::outputs;
use crate::state::Shared;
use archive::Head;

/// Where links are while they are needed, in the data directory.
const DIR: &str = "backup";
/// How long what is over may take to arrive here. A node that is slower than that sends it to whoever is its server then.
const SETTLE: Duration = Duration::from_secs(10);
/// How often is looked whether it has.
const LOOK: Duration = Duration::from_millis(20);

/// Of the data directory, what is no part of a server's memory, or is taken in its own way.
const LEFT_OUT: [&str; 19] = [
    "backup",
    "chunks",
    // What its user knows of other servers.
    "contexts.json",
    "contexts.lock",
    "disk.reserve",
    "gate.sock",
    "logs",
    Store::MARK,
    "muster.db",
    "muster.db-shm",
    "muster.db-wal",
    "node",
    "restoring",
    "server.address",
    "server.json",
    "server.lock",
    "server.log",
    // What clients remember of their own code directories.
    "snapshots",
    "start.lock",
];

/// A directory with all that a backup has; it goes when this is dropped.
pub(crate) struct Stage {
    path: PathBuf,
    head: Head,
}

/// Takes a backup: when this returns, everything that will be in it is held.
pub(crate) async fn take(shared: &Arc<Shared>) -> Result<Stage, Problem> {
    settle(shared).await?;
    let home = PathBuf::from(&shared.home);
    let failed = |error: io::Error| crate::disk::problem("the backup cannot be taken", &home, &error);
    let mut stage = Stage::make(&home, shared).map_err(failed)?;
    // Whoever removes must not come between the database and the files it names.
    let _alone = shared.collecting.lock().await;
    let (readers, copy) = (shared.readers.clone(), stage.path.join(Store::FILE));
    let copied = blocking(move || Ok(readers.copy_to(&copy))).await.map_err(failed)?;
    copied.map_err(|error| match error.is_disk_full() {
        true => crate::disk::full("the backup cannot be taken", &home),
        false => internal(&error),
    })?;
    stage.head.unsettled = settle(shared).await?;
    let (files, from) = (shared.clone(), home.clone());
    blocking(move || {
        stage.link_logs(&from)?;
        stage.link_chunks(&files)?;
        stage.link_rest(&from)?;
        Ok(stage)
    })
    .await
    .map_err(failed)
}

/// Waits until the tasks that are over now have sent their logs and outputs; says how many have not.
async fn settle(shared: &Shared) -> Result<u64, Problem> {
    let deadline = Instant::now() + SETTLE;
    let mut waited_for = shared.core.ask(Input::Unsettled).await?;
    while !waited_for.is_empty() && Instant::now() < deadline {
        tokio::time::sleep(LOOK).await;
        let unsettled = shared.core.ask(Input::Unsettled).await?;
        waited_for.retain(|task| unsettled.contains(task));
    }
    Ok(waited_for.len() as u64)
}

/// Removes what a killed server left of a backup.
pub(crate) fn remove_leftovers(home: &Path) -> io::Result<()> {
    match fs::remove_dir_all(home.join(DIR)) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

impl Stage {
    fn make(home: &Path, shared: &Shared) -> io::Result<Self> {
        let path = home.join(DIR).join(format!("{:016x}", crate::random::bits()));
        DirBuilder::new().recursive(true).mode(0o700).create(&path)?;
        Ok(Self { path, head: Head::new(&shared.version, now()) })
    }

    fn link_logs(&self, home: &Path) -> io::Result<()> {
        match link_all(&home.join("logs"), &self.path.join("logs")) {
            // No job has had one yet.
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
            linked => linked,
        }
    }

    /// What the copied database names, and nothing that is only being sent.
    fn link_chunks(&self, shared: &Shared) -> io::Result<()> {
        let readers = Readers::of_copy(self.path.join(Store::FILE));
        let marks = std::cell::RefCell::new(Marks::default());
        let manifest = |text: &str| marks.borrow_mut().add_manifest(text);
        readers.each_manifest(None, manifest, |id| marks.borrow_mut().add(id)).map_err(io::Error::other)?;
        let to = self.path.join("chunks");
        shared.chunks.each_marked(&marks.into_inner().finish(), |directory, path| {
            let directory = to.join(directory);
            make_directory(&directory)?;
            link(path, &directory.join(path.file_name().unwrap_or_default()))
        })
    }

    /// Every other file that is the server's, at most one directory deep: what is deeper is some process's own.
    fn link_rest(&self, home: &Path) -> io::Result<()> {
        for entry in fs::read_dir(home)? {
            let entry = entry?;
            let (name, kind) = (entry.file_name(), entry.file_type()?);
            if name.to_str().is_none_or(|name| LEFT_OUT.contains(&name) || is_unfinished_file(name)) {
                continue;
            }
            let to = self.path.join(&name);
            if kind.is_file() {
                copy(&entry.path(), &to)?;
            } else if kind.is_dir() {
                for inner in fs::read_dir(entry.path())? {
                    let inner = inner?;
                    let is_whole = inner.file_name().to_str().is_some_and(|name| !is_unfinished_file(name));
                    if is_whole && inner.file_type()?.is_file() {
                        make_directory(&to)?;
                        copy(&inner.path(), &to.join(inner.file_name()))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// The archive. Whoever stops reading ends the work with it, and one that cannot be finished is cut off.
    pub fn into_body(self) -> Body {
        outputs::stream("the backup could not be sent", move |to| archive::write(&self.path, &self.head, to))
    }
}

impl Drop for Stage {
    fn drop(&mut self) {
        if let Err(error) = fs::remove_dir_all(&self.path) {
            tracing::warn!(%error, path = %self.path.display(), "what is left of a backup cannot be removed");
        }
        // Another one may be under way beside it.
        let _ = self.path.parent().map(fs::remove_dir);
    }
}

/// Something that gets its name when it is whole.
fn is_unfinished_file(name: &str) -> bool {
    name.ends_with(".new")
}

fn make_directory(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Links every file below a directory. What goes meanwhile belonged to a job that somebody removed.
fn link_all(from: &Path, to: &Path) -> io::Result<()> {
    make_directory(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        let (kind, to) = (entry.file_type()?, to.join(entry.file_name()));
        let linked = match (kind.is_dir(), kind.is_file()) {
            (true, _) => link_all(&entry.path(), &to),
            (_, true) => link(&entry.path(), &to),
            _ => Ok(()),
        };
        match linked {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            linked => linked?,
        }
    }
    Ok(())
}

/// Links a file; one on another disk, which an operator may have put there, is copied.
fn link(from: &Path, to: &Path) -> io::Result<()> {
    match fs::hard_link(from, to) {
        Err(error) if error.kind() == io::ErrorKind::CrossesDevices => fs::copy(from, to).map(drop),
        linked => linked,
    }
}

/// Copies a small file that is written in place by a person or a program.
fn copy(from: &Path, to: &Path) -> io::Result<()> {
    match fs::copy(from, to) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        copied => copied.map(drop),
    }
}
