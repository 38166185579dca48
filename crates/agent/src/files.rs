//! A task's files, as they are to be seen: its working directory and its output directory.

pub(crate) mod collect;
pub(crate) mod serve;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use muster_model::TaskId;
use rustix::fs::{CWD, Mode, OFlags};

use crate::record::TaskDir;

/// The tasks whose files are on this node.
#[derive(Debug)]
pub(crate) struct Shelf {
    tasks: PathBuf,
}

/// The directories of one task, open.
#[derive(Debug)]
pub(crate) struct View {
    pub(crate) work: OwnedFd,
    pub(crate) output: OwnedFd,
}

impl Shelf {
    pub(crate) fn new(tasks: PathBuf) -> Shelf {
        Shelf { tasks }
    }

    /// A task's directories; none if nothing of it is here.
    pub(crate) fn open(&self, task: &TaskId) -> io::Result<Option<View>> {
        let dir = TaskDir::new(&self.tasks, task);
        match (open(&dir.work()), open(&dir.output())) {
            (Ok(work), Ok(output)) => Ok(Some(View { work, output })),
            (Err(error), _) | (_, Err(error)) if error.kind() == io::ErrorKind::NotFound => Ok(None),
            (Err(error), _) | (_, Err(error)) => Err(error),
        }
    }
}

fn open(path: &Path) -> io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    Ok(rustix::fs::openat(CWD, path, flags, Mode::empty())?)
}
