//! Taking chunks: each is compared with its name, written, made durable with others, and then gets its name.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::thread::ScopedJoinHandle;

use bytes::Bytes;
use muster_bundle::chunk::{self, Verifier};
use muster_model::ChunkId;
use rustix::fs::Advice;

use super::{ChunkStore, INCOMING};

/// Files made durable together: enough to share the waiting, few enough to be open at once.
const BATCH: usize = 128;
/// Threads that wait for the disk at the same time; more were not faster.
const THREADS: usize = 4;

/// Why a chunk was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Chunk(#[from] chunk::Error),
    #[error("chunks cannot be written")]
    Io(#[from] io::Error),
}

/// Chunks on their way in. Dropped before [`PackWriter::finish`], it leaves nothing of those that have no name yet.
#[derive(Default)]
pub(crate) struct PackWriter {
    verifier: Verifier,
    batch: Vec<Incoming>,
}

struct Incoming {
    id: ChunkId,
    file: File,
    path: PathBuf,
}

impl PackWriter {
    /// Takes a chunk, whose stored form comes in pieces, unless it is here already. A wrong one changes nothing. One that is
    /// `hidden` from whoever sends it is written in any case: how long that takes must not tell that others have it.
    pub fn push(
        &mut self,
        store: &ChunkStore,
        id: ChunkId,
        stored: &[Bytes],
        is_hidden: bool,
    ) -> Result<(), Error> {
        self.verifier.verify_pieces(&id, stored)?;
        if !is_hidden && store.missing(std::iter::once(id.clone()))?.is_empty() {
            return Ok(());
        }
        let path = store.root.join(INCOMING).join(format!("{:016x}", crate::random::bits()));
        let file = File::options().write(true).create_new(true).open(&path)?;
        self.batch.push(Incoming { id, file, path });
        let file = &mut self.batch.last_mut().expect("it was just pushed").file;
        stored.iter().try_for_each(|piece| file.write_all(piece))?;
        // Starts writing out what is dirty, without waiting; whether it worked is found by the sync.
        let _ = rustix::fs::fadvise(&*file, 0, None, Advice::DontNeed);
        if self.batch.len() >= BATCH {
            self.finish(store)?;
        }
        Ok(())
    }

    /// Puts everything taken so far on disk and gives it its name.
    pub fn finish(&mut self, store: &ChunkStore) -> io::Result<()> {
        in_threads(&self.batch, |incoming| incoming.file.sync_data())?;
        for incoming in &self.batch {
            let path = store.path(&incoming.id);
            match fs::rename(&incoming.path, &path) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    fs::create_dir_all(path.parent().unwrap_or(&store.root))?;
                    fs::rename(&incoming.path, &path)?;
                }
                renamed => renamed?,
            }
            store.unsettled[usize::from(chunk::digest(&incoming.id)[0] >> 4)].store(true, Ordering::Release);
        }
        self.batch.clear();
        Ok(())
    }
}

impl Drop for PackWriter {
    fn drop(&mut self) {
        for incoming in &self.batch {
            // Those that were renamed are not there any more.
            drop(fs::remove_file(&incoming.path));
        }
    }
}

/// Waits for the disk in a few threads, so that it can do several things at once.
pub(super) fn in_threads<T: Sync>(batch: &[T], sync: impl Fn(&T) -> io::Result<()> + Sync) -> io::Result<()> {
    let sync = |part: &[T]| part.iter().try_for_each(&sync);
    // A thread costs more than the sync of a chunk or two.
    if batch.len() <= 2 {
        return sync(batch);
    }
    let sync = &sync;
    std::thread::scope(|scope| {
        let threads: Vec<_> =
            batch.chunks(batch.len().div_ceil(THREADS)).map(|part| scope.spawn(move || sync(part))).collect();
        let join = |thread: ScopedJoinHandle<io::Result<()>>| {
            thread.join().unwrap_or_else(|_| Err(io::Error::other("a thread failed")))
        };
        threads.into_iter().try_for_each(join)
    })
}
