//! Bundles from wherever they come: clients over HTTP, nodes over their link. The same checks, the same store.

use std::io;
use std::sync::Arc;

use bytes::Bytes;
use futures::{Stream, StreamExt};
use muster_api::problem::{Code, Problem};
use muster_bundle::chunk;
use muster_model::spec::{FieldCode, FieldError};
use muster_model::{BundleId, ChunkId};

use crate::accounts::Caller;
use crate::chunk_store::pack::{self, PackWriter};
use crate::core::{Input, internal, now};
use crate::disk;
use crate::manifest::{self, CompactManifest};
use crate::state::Shared;
use crate::upload::{self, Uploader};

/// Why a pack was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The bytes are not a pack, or could not be received.
    #[error("{0}")]
    Pack(String),
    #[error(transparent)]
    Store(#[from] pack::Error),
}

/// A bundle that was named.
pub(crate) struct NamedBundle {
    pub missing: Vec<ChunkId>,
    /// Whether the manifest was written. One that was there before is not.
    pub is_written: bool,
}

/// Names a bundle; if no chunk of it is missing, it is on disk when this returns. For a `tenant`, chunks that they have not
/// shown are missing.
pub(crate) async fn put(
    shared: &Arc<Shared>,
    id: BundleId,
    manifest: Arc<CompactManifest>,
    tenant: Option<Arc<Uploader>>,
) -> Result<NamedBundle, Problem> {
    let (store, name, user) = (shared.clone(), id.clone(), tenant.clone());
    let (missing, used_at, text, is_allowed) = with_chunks(shared, move || {
        store.floor.check()?;
        let missing = missing_for(&store, manifest.pieces().map(|piece| piece.digest), user.as_deref())?;
        let used_at = store.readers.bundle_used_at(&name);
        let (limit, grace) = (store.limits().upload_bytes, store.keep().unused);
        let is_allowed = match user.filter(|_| missing.is_empty()) {
            Some(user) => user.check_unused_manifests(&name, &store.readers, limit, grace),
            None => Ok(()),
        };
        // What a stored bundle has was settled when it was stored.
        if missing.is_empty() && !matches!(used_at, Ok(Some(_))) {
            store.chunks.settle()?;
        }
        let text = if missing.is_empty() { manifest.text() } else { String::new() };
        Ok((missing, used_at, text, is_allowed))
    })
    .await?;
    is_allowed?;
    // Told anew when half of the grace has passed, as with its chunks: then it stays for the job that is about to name it.
    let is_fresh =
        |used_at| now().duration_since(used_at) < (shared.keep().unused / 2).try_into().unwrap_or_default();
    let is_written = missing.is_empty() && !used_at.map_err(|error| internal(&error))?.is_some_and(is_fresh);
    let manifest_bytes = text.len() as u64;
    if is_written {
        shared.core.ask(|reply| Input::PutBundle(id.clone(), text, reply)).await?;
    }
    if let Some(tenant) = tenant.filter(|_| missing.is_empty()) {
        tenant.on_bundle(&id, manifest_bytes);
    }
    Ok(NamedBundle { missing, is_written })
}

/// Of these chunks, those that are not here, or that a tenant has not shown. Waits for the disk.
pub(crate) fn missing_for(
    shared: &Shared,
    digests: impl Iterator<Item = [u8; chunk::DIGEST]>,
    tenant: Option<&Uploader>,
) -> io::Result<Vec<ChunkId>> {
    let Some(tenant) = tenant else { return shared.chunks.missing_for(digests, |_| true) };
    tenant.load(&shared.readers, shared.keep().unused).map_err(io::Error::other)?;
    shared.chunks.missing_for(digests, |digest| tenant.has_chunk(digest))
}

/// The code that a job names, as it was found.
pub(crate) struct NamedCode {
    id: BundleId,
    /// The user whose uploads are counted to the job's workspace, and those that are not counted yet.
    uncounted: Option<(Arc<Uploader>, Vec<upload::Short>)>,
}

impl NamedCode {
    /// Marks it as counted. Returns the bytes that are new to the server and were counted to no workspace.
    pub fn count(self) -> u64 {
        self.uncounted.map_or(0, |(tenant, chunks)| tenant.count(&self.id, &chunks))
    }
}

/// That a bundle which was stored still has all its chunks: one that was damaged on disk is not there any more, and is sent
/// again by whoever is told so. Whether there is such a bundle at all is for the core to say; but a bundle that a tenant
/// may not name is not there for them, in the same words.
pub(crate) async fn check(shared: &Arc<Shared>, caller: &Caller, id: BundleId) -> Result<NamedCode, Problem> {
    let tenant = upload::tenant(shared, caller);
    let (store, name, user, sight) = (shared.clone(), id.clone(), caller.name.clone(), caller.rights.sight());
    let limit = shared.manifest_limit();
    // A manifest is held whole here, and may be long.
    let _turn = shared.uploads.checks.acquire().await;
    let found = with_chunks(shared, move || {
        if let Some(tenant) = &tenant {
            let is_named = tenant.has_bundle(&name)
                || store.readers.has_code(&name, None, &user, &sight).map_err(io::Error::other)?;
            if !is_named {
                return Ok(Named::Hidden);
            }
        }
        let row = store.readers.bundle(&name).map_err(io::Error::other)?;
        let manifest = row.and_then(|row| CompactManifest::read_text(&row.manifest).ok()).unwrap_or_default();
        if manifest.bytes() > limit.bundle_bytes {
            return Ok(Named::TooLarge(manifest.bytes()));
        }
        let lost = store.chunks.missing_for(manifest.pieces().map(|piece| piece.digest), |_| true)?.len();
        if lost > 0 {
            return Ok(Named::Lost(lost));
        }
        let uncounted = tenant.map(|tenant| {
            let chunks = tenant.uncounted(manifest.pieces());
            (tenant, chunks)
        });
        Ok(Named::Whole(NamedCode { id: name, uncounted }))
    });
    match found.await? {
        Named::Whole(code) => Ok(code),
        Named::Hidden => Err(absent(&id)),
        Named::TooLarge(bytes) => {
            let message = manifest::too_large(bytes, limit);
            Err(Problem::fields(vec![FieldError::new("bundle", FieldCode::OutOfRange, message)]))
        }
        Named::Lost(count) => {
            Err(Problem::new(Code::BundleIncomplete, format!("{count} chunks of {id} are not here any more"))
                .hint("send it again: POST /api/v1/bundles says what is missing"))
        }
    }
}

enum Named {
    Whole(NamedCode),
    Hidden,
    TooLarge(u64),
    Lost(usize),
}

/// The answer about a bundle that is not there.
pub(crate) fn absent(id: &BundleId) -> Problem {
    Problem::new(Code::BundleIncomplete, format!("{id} is not here, or not whole"))
        .hint("send it first: POST /api/v1/bundles, then the missing chunks with POST /api/v1/chunks")
}

/// Takes a pack, a few records at a time. Records before one that is refused are kept, and a tenant has shown them.
pub(crate) async fn take_pack(
    shared: &Arc<Shared>,
    bytes: &mut (impl Stream<Item = io::Result<Bytes>> + Unpin),
    tenant: Option<Arc<Uploader>>,
) -> Result<(), Error> {
    let mut writer = shared.chunks.writer();
    let mut incoming = Incoming { bytes, open: Bytes::new(), at: 0 };
    loop {
        let mut records = Vec::new();
        let mut length = 0;
        // Several for one change of threads, which costs as much as the smallest of them.
        let ended = loop {
            match incoming.next().await {
                Ok(Some(record)) => {
                    length += record.length;
                    records.push(record);
                }
                ended => break Some(ended.map(drop)),
            }
            if length >= TOGETHER {
                break None;
            }
        };
        let (store, user, is_over) = (shared.clone(), tenant.clone(), ended.is_some());
        let pushed;
        (writer, pushed) = blocking(move || {
            store.floor.check()?;
            let mut records = records.into_iter();
            let pushed = records.try_for_each(|record| push(&mut writer, &store, record, user.as_deref()));
            // What came before is good, whatever came then.
            if is_over || matches!(pushed, Err(pack::Error::Chunk(_))) {
                writer.finish(&store.chunks)?;
            }
            Ok((writer, pushed))
        })
        .await?;
        pushed?;
        if let Some(ended) = ended {
            return ended;
        }
    }
}

fn push(
    writer: &mut PackWriter,
    shared: &Shared,
    record: Record,
    tenant: Option<&Uploader>,
) -> Result<(), pack::Error> {
    let Record { id, stored, length } = record;
    let is_hidden = tenant.is_some_and(|tenant| !tenant.has_chunk(&chunk::digest(&id)));
    writer.push(&shared.chunks, id.clone(), &stored, is_hidden)?;
    if let Some(tenant) = tenant.filter(|_| is_hidden) {
        tenant.on_chunk(&id, length as u64);
    }
    Ok(())
}

/// Records taken at once: a chunk of the longest kind, or a few of the usual.
const TOGETHER: usize = 1 << 20;
/// Less than this is put together with its neighbours.
const TINY: usize = 4 << 10;

/// A chunk as it came: the pieces are parts of what was received, not copies.
struct Record {
    id: ChunkId,
    stored: Vec<Bytes>,
    length: usize,
}

/// A pack on its way in.
struct Incoming<'a, S> {
    bytes: &'a mut S,
    /// What came and was not looked at yet.
    open: Bytes,
    /// Where in the pack the next record begins.
    at: u64,
}

impl<S: Stream<Item = io::Result<Bytes>> + Unpin> Incoming<'_, S> {
    /// The next record; `None` at the end.
    async fn next(&mut self) -> Result<Option<Record>, Error> {
        if !self.has_more().await? {
            return Ok(None);
        }
        let mut head = [0; 4 + chunk::DIGEST];
        let mut filled = 0;
        while filled < head.len() {
            let part = self.part(head.len() - filled).await?;
            head[filled..filled + part.len()].copy_from_slice(&part);
            filled += part.len();
        }
        let (length, digest) = head.split_first_chunk::<4>().ok_or_else(|| self.cut_off())?;
        let digest = digest.first_chunk().ok_or_else(|| self.cut_off())?;
        let length = u32::from_le_bytes(*length) as usize;
        if length == 0 || length > chunk::MAX_STORED {
            let (at, most) = (self.at, chunk::MAX_STORED);
            return Err(Error::Pack(format!(
                "the chunk at byte {at} has a length of {length}; 1 to {most} are allowed"
            )));
        }
        let stored = self.parts(length).await?;
        self.at += (head.len() + length) as u64;
        Ok(Some(Record { id: chunk::from_digest(digest), stored, length }))
    }

    /// So many of the next bytes, in the parts they came in, save where those are tiny: to keep such would take more
    /// memory than they have.
    async fn parts(&mut self, length: usize) -> Result<Vec<Bytes>, Error> {
        let (mut parts, mut tiny, mut missing) = (Vec::new(), Vec::new(), length);
        while missing > 0 {
            let part = self.part(missing).await?;
            missing -= part.len();
            if part.len() < TINY {
                tiny.extend_from_slice(&part);
                continue;
            }
            if !tiny.is_empty() {
                parts.push(Bytes::from(std::mem::take(&mut tiny)));
            }
            parts.push(part);
        }
        if !tiny.is_empty() {
            parts.push(Bytes::from(tiny));
        }
        Ok(parts)
    }

    /// Waits until there is something to look at; there is nothing more at the end.
    async fn has_more(&mut self) -> Result<bool, Error> {
        while self.open.is_empty() {
            match self.bytes.next().await {
                Some(Ok(bytes)) => self.open = bytes,
                Some(Err(error)) if error.kind() == io::ErrorKind::UnexpectedEof => {
                    return Err(self.cut_off());
                }
                Some(Err(error)) => return Err(Error::Pack(format!("the pack cannot be received: {error}"))),
                None => return Ok(false),
            }
        }
        Ok(true)
    }

    /// So many of the next bytes, or as many as came together.
    async fn part(&mut self, most: usize) -> Result<Bytes, Error> {
        if !self.has_more().await? {
            return Err(self.cut_off());
        }
        Ok(self.open.split_to(most.min(self.open.len())))
    }

    fn cut_off(&self) -> Error {
        Error::Pack(format!("the chunk at byte {} is cut off", self.at))
    }
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
