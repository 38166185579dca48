//! Chunks of bundles, each in a file named by its content, in the form it is sent in.
//!
//! # Durable at little cost
//! A chunk gets its name only after its bytes are on disk, so whatever has a name can be promised. Bytes are written
//! under other names, a batch at a time; the kernel is told to begin with each at once, so that the `fdatasync` of each, in
//! a few threads, finds most of the work done: a thousand chunks take about 30 ms here, against 240 ms one after the other.
//! (`syncfs` was no faster, and would make this wait for whatever else the file system has to write.) The names
//! themselves are made durable by [`ChunkStore::settle`], once for each directory, when a bundle is complete. There are only
//! sixteen, because each costs the disk a flush: 256 took a second on a busy disk.
//!
//! # Safe against the sweep
//! Chunks that no bundle has are removed after a grace, counted from the file's time. [`ChunkStore::missing`] sets that time
//! anew where half of the grace has passed, so a chunk it reports as present stays for at least half a grace more, which
//! is the time a client has to complete its bundle. Reporting and removing exclude each other (`gate`); nothing else has to:
//! see [`sweep`].
//!
//! # Damage
//! A power cut may shorten a file whose name was already durable on a disk that lies. Nodes compare what they get with
//! its name, and say so; what cannot be a chunk is not given out. Either way the file goes, the chunk is missing again, and
//! the next upload brings it back.

pub(crate) mod pack;
pub(crate) mod sweep;

use std::collections::HashSet;
use std::fs::{self, File, FileTimes};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, PoisonError, RwLock};
use std::time::{Duration, SystemTime};

use muster_bundle::chunk::{self, Verifier};
use muster_model::ChunkId;
use pack::PackWriter;

/// The directories, by the first digit of the chunks' digests.
const DIRECTORIES: [&str; 16] =
    ["0", "1", "2", "3", "4", "5", "6", "7", "8", "9", "a", "b", "c", "d", "e", "f"];
/// Where chunks are before they have their name.
const INCOMING: &str = "new";

/// Every chunk this server keeps.
pub(crate) struct ChunkStore {
    root: PathBuf,
    /// For how long a chunk that no bundle has is kept.
    grace: Duration,
    /// Shared by those who report chunks as present, alone for those who remove them.
    gate: RwLock<()>,
    /// Directories with names that are not on disk yet, by the first digit of the digest.
    unsettled: Vec<AtomicBool>,
    settling: Mutex<()>,
}

impl ChunkStore {
    /// Opens the store. What an earlier life of this server left half done goes, and what one that kept chunks in another
    /// form had.
    pub fn open(root: PathBuf, grace: Duration) -> io::Result<Self> {
        fs::create_dir_all(&root)?;
        for entry in fs::read_dir(&root)? {
            let entry = entry?;
            if entry.file_name().len() > 1 && entry.file_type()?.is_dir() {
                fs::remove_dir_all(entry.path())?;
            }
        }
        fs::create_dir_all(root.join(INCOMING))?;
        // An earlier life may have been killed between a name and its settling.
        let unsettled = DIRECTORIES.iter().map(|_| AtomicBool::new(true)).collect();
        Ok(Self { root, grace, gate: RwLock::default(), unsettled, settling: Mutex::default() })
    }

    /// Calls for every chunk in a store's directory, with its file; also beside a server. Other files are passed over.
    pub fn each(root: &Path, mut each: impl FnMut(ChunkId, &Path) -> io::Result<()>) -> io::Result<()> {
        for name in DIRECTORIES {
            let entries = match fs::read_dir(root.join(name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries?,
            };
            for entry in entries {
                let entry = entry?;
                let id = entry.file_name().to_str().and_then(|digest| ChunkId::from_digest(digest).ok());
                if let Some(id) = id {
                    each(id, &entry.path())?;
                }
            }
        }
        Ok(())
    }

    /// Where the chunks are.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// Spread over a few directories, so that none grows too large.
    fn path(&self, id: &ChunkId) -> PathBuf {
        let digest = id.as_str().trim_start_matches(ChunkId::PREFIX);
        let mut path = PathBuf::with_capacity(self.root.as_os_str().len() + digest.len() + 4);
        path.extend([self.root.as_path(), Path::new(&digest[..1]), Path::new(digest)]);
        path
    }

    /// Of these chunks, those that are not here, each once. Those that are stay for at least half a grace.
    pub fn missing(&self, ids: impl Iterator<Item = ChunkId>) -> io::Result<Vec<ChunkId>> {
        self.missing_for(ids.map(|id| chunk::digest(&id)), |_| true)
    }

    /// The same for somebody who must not learn what others have: what they have not shown is missing, whether it is here or
    /// not.
    pub fn missing_for(
        &self,
        digests: impl Iterator<Item = [u8; chunk::DIGEST]>,
        has_shown: impl Fn(&[u8; chunk::DIGEST]) -> bool,
    ) -> io::Result<Vec<ChunkId>> {
        let refreshed_before = SystemTime::now().checked_sub(self.grace / 2);
        let mut seen = HashSet::new();
        let mut missing = Vec::new();
        let _gate = self.gate.read().unwrap_or_else(PoisonError::into_inner);
        for digest in digests.filter(|digest| seen.insert(*digest)) {
            let id = chunk::from_digest(&digest);
            if !has_shown(&digest) || !self.is_present(&id, refreshed_before)? {
                missing.push(id);
            }
        }
        Ok(missing)
    }

    fn is_present(&self, id: &ChunkId, refreshed_before: Option<SystemTime>) -> io::Result<bool> {
        let path = self.path(id);
        let metadata = match fs::metadata(&path) {
            Ok(metadata) => metadata,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(false),
            Err(error) => return Err(error),
        };
        if refreshed_before.is_some_and(|before| metadata.modified().is_ok_and(|at| at < before)) {
            File::options()
                .write(true)
                .open(&path)?
                .set_times(FileTimes::new().set_modified(SystemTime::now()))?;
        }
        // The stored form has at least the byte that says how.
        Ok(metadata.len() > 0)
    }

    /// Takes chunks as they come.
    pub fn writer(&self) -> PackWriter {
        PackWriter::default()
    }

    /// Makes durable that the chunks that are here have their names.
    pub fn settle(&self) -> io::Result<()> {
        // Whoever finds a directory settled must not go on while another still settles it.
        let _settling = self.settling.lock().unwrap_or_else(PoisonError::into_inner);
        let taken: Vec<usize> = (0..self.unsettled.len())
            .filter(|index| self.unsettled[*index].swap(false, Ordering::AcqRel))
            .collect();
        let settled = pack::in_threads(&taken, |index| sync_if_there(&self.root.join(DIRECTORIES[*index])))
            .and_then(|()| if taken.is_empty() { Ok(()) } else { sync_directory(&self.root) });
        if settled.is_err() {
            taken.iter().for_each(|index| self.unsettled[*index].store(true, Ordering::Release));
        }
        settled
    }

    /// A chunk's stored form. One that cannot be right is removed, and so missing.
    pub fn read(&self, id: &ChunkId) -> io::Result<Option<Vec<u8>>> {
        let path = self.path(id);
        let stored = match fs::read(&path) {
            Ok(stored) => stored,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
            Err(error) => return Err(error),
        };
        if chunk::is_plausible(&stored) {
            return Ok(Some(stored));
        }
        self.remove_damaged(id)?;
        Ok(None)
    }

    /// Looks closely at a chunk that somebody found damaged, and removes it if it is.
    pub fn inspect(&self, id: &ChunkId) -> io::Result<()> {
        match self.read(id)? {
            Some(stored) if Verifier::default().verify(id, &stored).is_err() => self.remove_damaged(id),
            _ => Ok(()),
        }
    }

    fn remove_damaged(&self, id: &ChunkId) -> io::Result<()> {
        tracing::error!(chunk = %id, "a chunk is damaged; it is removed, and the next upload brings it back");
        let _gate = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        match fs::remove_file(self.path(id)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

fn sync_if_there(path: &Path) -> io::Result<()> {
    match sync_directory(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        synced => synced,
    }
}

fn sync_directory(path: &Path) -> io::Result<()> {
    File::open(path)?.sync_all()
}

#[cfg(test)]
mod tests;
