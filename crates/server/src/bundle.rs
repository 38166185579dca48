//! Bundles from wherever they come: clients over HTTP, nodes over their link. The same checks, the same store.

use std::io;
use std::sync::Arc;

use muster_api::problem::{Code, Problem};
use muster_bundle::chunk;
use muster_model::bundle::Manifest;
use muster_model::{BundleId, ChunkId};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::chunk_store::pack;
use crate::core::{Input, internal, now};
use crate::disk;
use crate::state::Shared;

/// Why a pack was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The bytes are not a pack, or could not be received.
    #[error("{0}")]
    Pack(String),
    #[error(transparent)]
    Store(#[from] pack::Error),
}

/// Names a bundle; if no chunk of it is missing, it is on disk when this returns.
pub(crate) async fn put(
    shared: &Arc<Shared>,
    id: BundleId,
    manifest: Manifest,
) -> Result<Vec<ChunkId>, Problem> {
    let (store, name) = (shared.clone(), id.clone());
    let (missing, used_at, text) = with_chunks(shared, move || {
        let missing = store.chunks.missing(manifest.chunks().map(|chunk| &chunk.id))?;
        let used_at = store.readers.bundle_used_at(&name);
        // What a stored bundle has was settled when it was stored.
        if missing.is_empty() && !matches!(used_at, Ok(Some(_))) {
            store.chunks.settle()?;
        }
        let text = if missing.is_empty() { manifest.text() } else { String::new() };
        Ok((missing, used_at, text))
    })
    .await?;
    // Told anew when half of the grace has passed, as with its chunks: then it stays for the job that is about to name it.
    let is_fresh =
        |used_at| now().duration_since(used_at) < (shared.keep.unused / 2).try_into().unwrap_or_default();
    if missing.is_empty() && !used_at.map_err(|error| internal(&error))?.is_some_and(is_fresh) {
        shared.core.ask(|reply| Input::PutBundle(id, text, reply)).await?;
    }
    Ok(missing)
}

/// That a bundle which was stored still has all its chunks: one that was damaged on disk is not there any more, and is sent
/// again by whoever is told so. Whether there is such a bundle at all is for the core to say.
pub(crate) async fn check(shared: &Arc<Shared>, id: BundleId) -> Result<(), Problem> {
    let (store, name) = (shared.clone(), id.clone());
    let lost = with_chunks(shared, move || {
        let row = store.readers.bundle(&name).map_err(io::Error::other)?;
        let manifest = row.and_then(|row| row.manifest.parse::<Manifest>().ok()).unwrap_or_default();
        Ok(store.chunks.missing(manifest.chunks().map(|chunk| &chunk.id))?.len())
    });
    match lost.await? {
        0 => Ok(()),
        count => {
            Err(Problem::new(Code::BundleIncomplete, format!("{count} chunks of {id} are not here any more"))
                .hint("send it again: POST /api/v1/bundles says what is missing"))
        }
    }
}

/// Takes a pack, a few records at a time. Records before one that is refused are kept.
pub(crate) async fn take_pack(
    shared: &Arc<Shared>,
    reader: &mut (impl AsyncRead + Unpin),
) -> Result<(), Error> {
    let mut writer = shared.chunks.writer();
    let mut buffer = Vec::new();
    let mut at = 0;
    loop {
        buffer.clear();
        let mut records = Vec::new();
        // Several for one change of threads, which costs as much as the smallest of them.
        let ended = loop {
            match next_record(reader, &mut buffer, at).await {
                Ok(Some((id, length))) => {
                    at += (4 + chunk::DIGEST + length) as u64;
                    records.push((id, length));
                }
                ended => break Some(ended.map(drop)),
            }
            if buffer.len() >= TOGETHER {
                break None;
            }
        };
        let (store, is_over) = (shared.clone(), ended.is_some());
        let pushed;
        (writer, buffer, pushed) = blocking(move || {
            let pushed = push(&mut writer, &store, &records, &buffer);
            // What came before is good, whatever came then.
            if is_over || matches!(pushed, Err(pack::Error::Chunk(_))) {
                writer.finish(&store.chunks)?;
            }
            Ok((writer, buffer, pushed))
        })
        .await?;
        pushed?;
        if let Some(ended) = ended {
            return ended;
        }
    }
}

/// Records taken at once: a chunk of the longest kind, or a few of the usual.
const TOGETHER: usize = 1 << 20;

fn push(
    writer: &mut pack::PackWriter,
    shared: &Shared,
    records: &[(ChunkId, usize)],
    buffer: &[u8],
) -> Result<(), pack::Error> {
    let mut rest = buffer;
    for (id, length) in records {
        let (stored, after) = rest.split_at(*length);
        writer.push(&shared.chunks, id.clone(), stored)?;
        rest = after;
    }
    Ok(())
}

/// The next record's name and length, with its stored form added to the buffer; `None` at the end.
async fn next_record(
    reader: &mut (impl AsyncRead + Unpin),
    buffer: &mut Vec<u8>,
    at: u64,
) -> Result<Option<(ChunkId, usize)>, Error> {
    let mut head = [0; 4 + chunk::DIGEST];
    let cut_off = || Error::Pack(format!("the chunk at byte {at} is cut off"));
    let failed = |error: io::Error| match error.kind() {
        io::ErrorKind::UnexpectedEof => cut_off(),
        _ => Error::Pack(format!("the pack cannot be received: {error}")),
    };
    if reader.read(&mut head[..1]).await.map_err(failed)? == 0 {
        return Ok(None);
    }
    reader.read_exact(&mut head[1..]).await.map_err(failed)?;
    let (length, digest) = head.split_first_chunk::<4>().ok_or_else(cut_off)?;
    let length = u32::from_le_bytes(*length) as usize;
    if length == 0 || length > chunk::MAX_STORED {
        let most = chunk::MAX_STORED;
        return Err(Error::Pack(format!(
            "the chunk at byte {at} has a length of {length}; 1 to {most} are allowed"
        )));
    }
    let from = buffer.len();
    buffer.resize(from + length, 0);
    reader.read_exact(&mut buffer[from..]).await.map_err(failed)?;
    let digest = digest.first_chunk().ok_or_else(cut_off)?;
    Ok(Some((chunk::from_digest(digest), length)))
}

async fn blocking<T: Send + 'static>(
    work: impl FnOnce() -> Result<T, pack::Error> + Send + 'static,
) -> Result<T, Error> {
    let done = tokio::task::spawn_blocking(work).await;
    Ok(done.unwrap_or_else(|error| Err(pack::Error::Io(io::Error::other(error))))?)
}

/// Work on the chunk store, off the threads that serve connections.
pub(crate) async fn with_chunks<T: Send + 'static>(
    shared: &Shared,
    work: impl FnOnce() -> io::Result<T> + Send + 'static,
) -> Result<T, Problem> {
    match tokio::task::spawn_blocking(work).await {
        Ok(done) => {
            done.map_err(|error| disk::problem("the chunks cannot be kept", shared.chunks.root(), &error))
        }
        Err(_) => Err(Problem::new(Code::Internal, "the request failed")),
    }
}
