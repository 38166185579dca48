//! From a backup to a data directory that a server can start on.
//!
//! Everything is unpacked into `restoring/` in the data directory and moved out of it when it is whole and on disk; a server does not start where
//! that directory is. So a restore that was killed leaves nothing that could be taken for a server's data, and the next one begins anew.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Component, Path, PathBuf};

use muster_model::Timestamp;
use muster_store::Store;
use rustix::fs::{FlockOperation, flock};
use serde::de::DeserializeOwned;

use super::archive::{END, End, FORMAT, HEAD, Head, Sum, Summed};
use crate::core::now;

/// Where a restore is until it is whole, in the data directory.
const UNFINISHED: &str = "restoring";
/// What may be in a data directory that holds nothing of a server yet. `node` is the agent's: its tasks may have outlived the server's
/// data, and then go on under the restored one.
const EMPTY: [&str; 5] = ["lost+found", "node", "server.lock", "server.log", "start.lock"];
/// The first and the last entry are short.
const MAX_NOTE: u64 = 1 << 16;

/// Why nothing was restored.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Somebody uses the directory.
    #[error("a server is running on {0}")]
    Running(PathBuf),
    /// There is something that would be lost.
    #[error("{} is not empty: it has `{found}`", home.display())]
    NotEmpty {
        /// The directory.
        home: PathBuf,
        /// The first thing that is there.
        found: String,
    },
    /// It is something else, or not all of it, or not what was written.
    #[error("the backup cannot be used: {0}")]
    Unusable(String),
    /// A newer muster wrote it.
    #[error("the backup was made by muster {version}, which is newer than this one")]
    Newer {
        /// What wrote it.
        version: String,
    },
    /// The database in it.
    #[error("the database of the backup cannot be used")]
    Store(#[source] muster_store::Error),
    /// The data directory.
    #[error("cannot restore into {}", home.display())]
    Io {
        /// The directory.
        home: PathBuf,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// What was restored.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restored {
    /// When the backup was taken.
    pub taken_at: Timestamp,
    /// The muster that took it.
    pub version: String,
    /// How much there is.
    pub files: u64,
    /// All of it together.
    pub bytes: u64,
    /// Jobs that were not over, and now wait for somebody to let them go.
    pub held: u64,
    /// Tasks that were over and had not sent everything.
    pub unsettled: u64,
}

/// Whether a restore into this directory was begun and has not ended.
pub(crate) fn is_unfinished(home: &Path) -> bool {
    home.join(UNFINISHED).exists()
}

/// Makes an empty directory the data directory of the server that a backup is of.
pub fn restore(backup: impl Read, home: &Path) -> Result<Restored, Error> {
    let failed = |source| Error::Io { home: home.to_owned(), source };
    DirBuilder::new().recursive(true).mode(0o700).create(home).map_err(failed)?;
    let _lock = lock(home)?;
    clear(home)?;
    let unfinished = home.join(UNFINISHED);
    let made = DirBuilder::new().mode(0o700).create(&unfinished).and_then(|()| sync(home));
    made.map_err(failed)?;
    match unpack(backup, &unfinished) {
        Ok(restored) => {
            settle(home, &unfinished).map_err(failed)?;
            Ok(restored)
        }
        Err(error) => {
            // What was wrong with the backup is what matters; the next try removes what this one cannot.
            let _ = fs::remove_dir_all(&unfinished);
            Err(match error {
                Failure::Backup(error) => error,
                Failure::Disk(source) => failed(source),
            })
        }
    }
}

/// The lock that a server holds for life.
fn lock(home: &Path) -> Result<File, Error> {
    let failed = |source| Error::Io { home: home.to_owned(), source };
    let mut options = OpenOptions::new();
    let file = options.create(true).truncate(false).write(true).mode(0o600).open(home.join("server.lock"));
    let file = file.map_err(failed)?;
    match flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(file),
        Err(rustix::io::Errno::WOULDBLOCK) => Err(Error::Running(home.into())),
        Err(errno) => Err(failed(errno.into())),
    }
}

/// Sees to it that there is nothing. Where a restore did not end, no server has ever started, so what is there came from it.
fn clear(home: &Path) -> Result<(), Error> {
    let failed = |source| Error::Io { home: home.to_owned(), source };
    let was_unfinished = is_unfinished(home);
    let mut rest = Vec::new();
    for entry in fs::read_dir(home).map_err(failed)? {
        let entry = entry.map_err(failed)?;
        let name = entry.file_name();
        if !EMPTY.iter().any(|known| name == *known) && name != UNFINISHED {
            rest.push(entry);
        }
    }
    match rest.first() {
        Some(entry) if !was_unfinished => {
            let found = entry.file_name().to_string_lossy().into_owned();
            return Err(Error::NotEmpty { home: home.to_owned(), found });
        }
        _ => {}
    }
    for entry in rest {
        let is_directory = entry.file_type().map_err(failed)?.is_dir();
        let removed =
            if is_directory { fs::remove_dir_all(entry.path()) } else { fs::remove_file(entry.path()) };
        removed.map_err(failed)?;
    }
    // Last, so that the next try knows as much if this one is killed.
    if was_unfinished {
        fs::remove_dir_all(home.join(UNFINISHED)).map_err(failed)?;
    }
    Ok(())
}

enum Failure {
    Backup(Error),
    Disk(io::Error),
}

fn unusable(why: impl Into<String>) -> Failure {
    Failure::Backup(Error::Unusable(why.into()))
}

/// What reading the backup fails with.
fn damaged(error: &io::Error) -> Failure {
    match error.kind() {
        io::ErrorKind::UnexpectedEof => unusable("it is not complete"),
        _ => unusable(format!("it is damaged, or no backup at all ({error})")),
    }
}

fn unpack(backup: impl Read, to: &Path) -> Result<Restored, Failure> {
    let plain = zstd::Decoder::new(backup).map_err(|error| damaged(&error))?;
    let mut archive = tar::Archive::new(plain);
    let mut entries = archive.entries().map_err(|error| damaged(&error))?;
    let mut head: Option<Head> = None;
    let mut sum = Sum::default();
    let mut end: Option<End> = None;
    for entry in &mut entries {
        let mut entry = entry.map_err(|error| damaged(&error))?;
        let path = entry.path_bytes().into_owned();
        match (&head, path.as_slice()) {
            (None, name) if name == HEAD.as_bytes() => head = Some(usable(note(&mut entry)?)?),
            (None, _) => return Err(unusable("it is not one of muster's")),
            (Some(_), name) if name == END.as_bytes() => end = Some(note(&mut entry)?),
            (Some(_), _) if end.is_some() => return Err(unusable("it goes on after its end")),
            (Some(_), _) => put(&path, &mut entry, to, &mut sum)?,
        }
    }
    let Some((head, end)) = head.zip(end) else { return Err(unusable("it is not complete")) };
    if sum.finish() != end {
        return Err(unusable("what is in it is not what was written"));
    }
    // The checksum of the compressed form comes after the archive's own end.
    io::copy(&mut archive.into_inner(), &mut io::sink()).map_err(|error| damaged(&error))?;
    let held = Store::take_over(to, now()).map_err(|error| Failure::Backup(Error::Store(error)))?;
    Ok(Restored {
        taken_at: head.taken_at,
        version: head.version,
        files: end.files,
        bytes: end.bytes,
        held,
        unsettled: head.unsettled,
    })
}

fn usable(head: Head) -> Result<Head, Failure> {
    if head.format > FORMAT || head.shape > Store::newest_shape() {
        return Err(Failure::Backup(Error::Newer { version: head.version }));
    }
    Ok(head)
}

fn note<T: DeserializeOwned>(entry: &mut impl Read) -> Result<T, Failure> {
    let mut text = Vec::new();
    entry.take(MAX_NOTE).read_to_end(&mut text).map_err(|error| damaged(&error))?;
    serde_json::from_slice(&text)
        .map_err(|error| unusable(format!("what it says of itself is wrong ({error})")))
}

/// Writes one file. Names come from outside: none leads out of the directory, and nothing is written twice.
fn put<R: Read>(path: &[u8], entry: &mut tar::Entry<'_, R>, to: &Path, sum: &mut Sum) -> Result<(), Failure> {
    let name = std::str::from_utf8(path).map_err(|_| unusable("it has a name that is not text"))?;
    let is_plain = Path::new(name).components().all(|part| matches!(part, Component::Normal(_)));
    if !is_plain || name.is_empty() || !entry.header().entry_type().is_file() {
        return Err(unusable(format!("it has `{}`, which is no file of a server", name.escape_default())));
    }
    let target = to.join(name);
    let directory = target.parent().unwrap_or(to);
    DirBuilder::new().recursive(true).mode(0o700).create(directory).map_err(Failure::Disk)?;
    let mut file =
        OpenOptions::new().write(true).create_new(true).mode(0o600).open(&target).map_err(Failure::Disk)?;
    let size = entry.size();
    sum.begin(path, size);
    let mut content = Summed { from: entry, sum };
    let mut buffer = vec![0; 128 << 10];
    let mut left = size;
    while left > 0 {
        let length = match content.read(&mut buffer) {
            Ok(0) => return Err(unusable("it is not complete")),
            Ok(length) => length,
            Err(error) => return Err(damaged(&error)),
        };
        io::Write::write_all(&mut file, &buffer[..length]).map_err(Failure::Disk)?;
        left -= length as u64;
    }
    Ok(())
}

/// Moves what is whole to where a server looks for it.
fn settle(home: &Path, unfinished: &Path) -> io::Result<()> {
    // One flush for all: a million chunks would take an hour one by one.
    rustix::fs::syncfs(File::open(unfinished)?)?;
    for entry in fs::read_dir(unfinished)? {
        let entry = entry?;
        fs::rename(entry.path(), home.join(entry.file_name()))?;
    }
    sync(home)?;
    fs::remove_dir(unfinished)?;
    sync(home)
}

fn sync(directory: &Path) -> io::Result<()> {
    File::open(directory)?.sync_all()
}
