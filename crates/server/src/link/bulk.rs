//! What one bulk stream carries: a log, a bundle's manifest, chunks, or a bundle from a node.

use std::collections::BTreeSet;
use std::io;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_link::control::{self, Received};
use muster_link::message::{Kept, Lacks, MAX_CHUNKS, StreamHeader};
use muster_link::session::Stream;
use muster_model::{BundleId, ChunkId, NodeId, TaskId};
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader};
use tokio::time::timeout;
use tokio_util::io::ReaderStream;

use super::SILENCE;
use crate::bundle;
use crate::chunk_store;
use crate::core::Input;
use crate::log_store::blocking;
use crate::manifest::{self, CompactManifest};
use crate::state::Shared;
use crate::upload::LARGE_MANIFEST;

/// Chunks read from disk at once: few enough to be held, enough not to wait for the disk each time.
const READ_AHEAD: usize = 4;
/// The longest manifest a node may send: a line for each chunk.
const MAX_MANIFEST: u64 = (manifest::MAX_CHUNKS * 96) as u64;
/// A node that sends what a task left behind may be slow, but not silent.
const PATIENCE: Duration = Duration::from_secs(60);
/// How often the core hears of a log that grows: what it is given to do lasts much longer.
const GROWTH: Duration = Duration::from_millis(25);
/// How much of a pack is read at once.
const PIECE: usize = 64 << 10;

/// Logs of lanes that come over a connection, of which the core may have yet to hear how far they are.
#[derive(Default)]
pub(super) struct LaneLogs(Mutex<BTreeSet<TaskId>>);

impl LaneLogs {
    fn logs(&self) -> MutexGuard<'_, BTreeSet<TaskId>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// All of them, for the end of the connection.
    pub fn take(&self) -> BTreeSet<TaskId> {
        std::mem::take(&mut self.logs())
    }
}

/// Serves a stream that an agent opened, to its end.
pub(super) async fn serve(
    shared: Arc<Shared>,
    node: NodeId,
    lanes: Arc<LaneLogs>,
    stream: Stream,
) -> io::Result<()> {
    let mut stream = BufReader::with_capacity(64 * 1024, stream);
    match timeout(SILENCE, control::receive(&mut stream)).await?? {
        Some(Received::Message(header)) => answer(shared, &node, &lanes, header, stream).await,
        Some(Received::Unknown { .. }) | None => Ok(()),
    }
}

async fn answer(
    shared: Arc<Shared>,
    node: &NodeId,
    lanes: &LaneLogs,
    header: StreamHeader,
    mut stream: BufReader<Stream>,
) -> io::Result<()> {
    match header {
        StreamHeader::Log { task } => {
            is_of(&shared, &task, node).await?;
            let result = take_log(&shared, &task, lanes, stream).await;
            if result.is_ok() {
                shared.core.tell(Input::LogClosed(task.clone())).await.map_err(io::Error::other)?;
            }
            lanes.logs().remove(&task);
            result
        }
        StreamHeader::Manifest { bundle } => send_manifest(&shared, bundle, &mut stream).await,
        StreamHeader::Chunks { chunks } if chunks.len() <= MAX_CHUNKS => {
            send_chunks(&shared, &chunks, &mut stream).await
        }
        StreamHeader::Damaged { chunks } if chunks.len() <= MAX_CHUNKS => {
            blocking(move || chunks.iter().try_for_each(|chunk| shared.chunks.inspect(chunk))).await
        }
        StreamHeader::Chunks { .. } | StreamHeader::Damaged { .. } => {
            Err(io::Error::new(io::ErrorKind::InvalidData, "more chunks than a stream may ask for"))
        }
        StreamHeader::PutBundle => take_bundle(&shared, &mut stream).await,
        // Servers ask for files and call on tasks; nodes do not.
        StreamHeader::Files { .. } | StreamHeader::Call { .. } => Ok(()),
    }
}

/// Takes a log. Of a task that runs elements of an array, the core is told when there is more to read. It is told once more
/// when the stream breaks, or by [`LaneLogs`] when its connection does: the lane may write nothing else before the core has acted on what came last.
async fn take_log(
    shared: &Arc<Shared>,
    task: &TaskId,
    lanes: &LaneLogs,
    stream: BufReader<Stream>,
) -> io::Result<()> {
    let (readers, job) = (shared.readers.clone(), task.attempt.job.clone());
    if !blocking(move || readers.is_array(&job).map_err(io::Error::other)).await? {
        return shared.logs.ingest(task, stream).await;
    }
    lanes.logs().insert(task.clone());
    // Held, so that it is the one that grows.
    let log = shared.logs.open(task);
    let mut grown = log.watch();
    let noticing = async {
        while grown.changed().await.is_ok() {
            tell_growth(shared, task).await?;
            tokio::time::sleep(GROWTH).await;
        }
        std::future::pending().await
    };
    let taken = tokio::select! {
        taken = shared.logs.ingest(task, stream) => taken,
        stopped = noticing => return stopped,
    };
    if taken.is_err() {
        tell_growth(shared, task).await?;
    }
    taken
}

pub(super) async fn tell_growth(shared: &Shared, task: &TaskId) -> io::Result<()> {
    shared.core.tell(Input::LogGrown(task.clone())).await.map_err(io::Error::other)
}

/// Nobody speaks for tasks of another node.
async fn is_of(shared: &Shared, task: &TaskId, node: &NodeId) -> io::Result<()> {
    let (readers, attempt) = (shared.readers.clone(), task.attempt.clone());
    let tasks =
        blocking(move || readers.tasks(&attempt.job, attempt.number).map_err(io::Error::other)).await?;
    match tasks.get(task.rank as usize) {
        Some(placed) if placed.placement.node == *node => Ok(()),
        _ => {
            Err(io::Error::new(io::ErrorKind::PermissionDenied, "the log of a task that is not this node's"))
        }
    }
}

async fn send_manifest(shared: &Shared, id: BundleId, stream: &mut BufReader<Stream>) -> io::Result<()> {
    let readers = shared.readers.clone();
    let row = blocking(move || readers.bundle(&id).map_err(io::Error::other)).await?;
    let text = row.map(|row| row.manifest).unwrap_or_default();
    stream.write_all(&(text.len() as u64).to_le_bytes()).await?;
    stream.write_all(text.as_bytes()).await?;
    stream.shutdown().await
}

/// Sends stored forms as they are.
async fn send_chunks(
    shared: &Arc<Shared>,
    chunks: &[ChunkId],
    stream: &mut BufReader<Stream>,
) -> io::Result<()> {
    for some in chunks.chunks(READ_AHEAD) {
        let (store, some) = (shared.clone(), some.to_vec());
        let read = blocking(move || {
            some.iter().map(|chunk| store.chunks.read(chunk)).collect::<io::Result<Vec<_>>>()
        });
        for stored in read.await? {
            let stored = stored.unwrap_or_default();
            stream.write_all(&(stored.len() as u32).to_le_bytes()).await?;
            stream.write_all(&stored).await?;
        }
    }
    stream.shutdown().await
}

/// Takes what a task left behind; the last word says whether it is here.
async fn take_bundle(shared: &Arc<Shared>, stream: &mut BufReader<Stream>) -> io::Result<()> {
    let kept = match receive_bundle(shared, stream).await {
        Ok(bundle) => Kept { bundle: Some(bundle), error: None },
        Err(error) => Kept { bundle: None, error: Some(error) },
    };
    control::send(stream, &kept).await?;
    stream.flush().await?;
    stream.shutdown().await
}

async fn receive_bundle(shared: &Arc<Shared>, stream: &mut BufReader<Stream>) -> Result<BundleId, String> {
    let broken = |error: io::Error| format!("the bundle cannot be received: {error}");
    let manifest = Arc::new(receive_manifest(shared, stream).await.map_err(broken)?);
    let id = manifest.bundle_id();
    let named =
        bundle::put(shared, id.clone(), manifest.clone(), None).await.map_err(|problem| problem.detail)?;
    let chunks = named.missing;
    let is_complete = chunks.is_empty();
    control::send(stream, &Lacks { chunks }).await.map_err(broken)?;
    stream.flush().await.map_err(broken)?;
    let mut bytes = ReaderStream::with_capacity(&mut *stream, PIECE);
    bundle::take_pack(shared, &mut bytes, None).await.map_err(|error| {
        let full = matches!(&error, bundle::Error::Store(chunk_store::pack::Error::Io(error)) if crate::disk::is_full(error));
        if full {
            return crate::disk::full("the chunks cannot be kept", shared.chunks.root()).detail;
        }
        error.to_string()
    })?;
    if is_complete {
        return Ok(id);
    }
    let named = bundle::put(shared, id.clone(), manifest, None).await.map_err(|problem| problem.detail)?;
    match named.missing.len() {
        0 => Ok(id),
        count => Err(format!("{count} of its chunks did not come")),
    }
}

/// Long texts are read a few at a time.
async fn receive_manifest(shared: &Shared, stream: &mut BufReader<Stream>) -> io::Result<CompactManifest> {
    let invalid = |message: String| io::Error::new(io::ErrorKind::InvalidData, message);
    let length = timeout(PATIENCE, stream.read_u64_le()).await??;
    if length > MAX_MANIFEST {
        return Err(invalid(format!("a manifest of {length} bytes; at most {MAX_MANIFEST} are allowed")));
    }
    let _turn = if length > LARGE_MANIFEST { shared.uploads.node_turn().await } else { None };
    let mut text = String::new();
    timeout(PATIENCE, stream.take(length).read_to_string(&mut text)).await??;
    let manifest = CompactManifest::read_text(&text).map_err(|error| invalid(format!("{error}")))?;
    if manifest.pieces().count() > manifest::MAX_CHUNKS {
        return Err(invalid(format!("a bundle has at most {} chunks", manifest::MAX_CHUNKS)));
    }
    Ok(manifest)
}
