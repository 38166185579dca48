//! Code: ask what is missing, send it, and the bundle is there.

use std::io::{self, Read};
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream, Bytes};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use futures::{StreamExt, TryStreamExt};
use muster_api::problem::{Code, Problem};
use muster_api::view::{BundleStatus, ChunkList, PutBundle};
use muster_bundle::chunk;
use muster_model::spec::{FieldCode, FieldError};
use muster_store::NewAudit;
use tokio::io::AsyncReadExt;
use tokio::sync::mpsc;
use tokio_util::io::StreamReader;

use super::describe::{Always, Reads, Stores, Takes};
use super::failure::{Failure, Json};
use super::job::read;
use crate::accounts::Caller;
use crate::chunk_store::pack;
use crate::manifest::{CompactManifest, ManifestLimit, ReadError};
use crate::state::Shared;
use crate::upload::{self, LARGE_MANIFEST, Uploader};
use crate::{bundle, disk};

/// The most ids one question may have.
const MAX_IDS: usize = 4096;
/// The most missing chunks that an answer names.
const MAX_MISSING: usize = 1 << 16;
/// How long a client whose upload was refused may take to send the rest of it.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long an upload may take, and how long it may bring nothing: whoever is slower keeps others from their turn.
const LONGEST: Duration = Duration::from_secs(600);
const SILENCE: Duration = Duration::from_secs(30);
/// The most bytes of chunks in one request.
pub(super) const MAX_PACK: u64 = 32 << 20;
/// Frames of a manifest that wait for the thread that reads it.
const AHEAD: usize = 4;

/// Name a bundle. Once nothing is missing it can be used; until then, send what is, and ask again.
#[utoipa::path(post, path = "/api/v1/bundles", tag = "bundles", operation_id = "put_bundle", request_body = PutBundle,
    responses((status = 200, body = BundleStatus), Always, Reads, Takes, Stores))]
pub(super) async fn put(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<Json<BundleStatus>, Failure> {
    let limit = shared.manifest_limit();
    let is_large = content_length(&headers).is_none_or(|length| length > LARGE_MANIFEST);
    let mut bytes = body.into_data_stream();
    let _turn = match shared.uploads.turn(&caller, is_large).await {
        Ok(turn) => turn,
        Err(problem) => return Err(refuse(bytes, problem).await),
    };
    let manifest = match receive_manifest(&mut bytes, &headers, limit).await {
        Ok(manifest) => Arc::new(manifest),
        Err(problem) => return Err(refuse(bytes, problem).await),
    };
    let errors = manifest.check(limit);
    if !errors.is_empty() {
        return Err(Problem::fields(errors).into());
    }
    let id = manifest.bundle_id();
    let tenant = upload::tenant(&shared, &caller);
    let (unpacked, pieces) = (manifest.bytes(), manifest.pieces().count());
    let bundle::NamedBundle { mut missing, is_written } =
        bundle::put(&shared, id.clone(), manifest, tenant).await?;
    missing.truncate(MAX_MISSING);
    if is_written {
        let detail = serde_json::json!({ "bytes": unpacked, "chunks": pieces });
        let entry = NewAudit { detail: Some(detail), ..caller.audit("put_bundle", id.as_str(), "done") };
        shared.trail.push(entry);
    }
    Ok(Json(BundleStatus { id, missing }))
}

/// Reads a manifest as it comes, off the threads that serve connections.
async fn receive_manifest(
    bytes: &mut BodyDataStream,
    headers: &HeaderMap,
    limit: ManifestLimit,
) -> Result<CompactManifest, Problem> {
    let most = limit.json_bytes();
    let too_large = || {
        Problem::new(Code::TooLarge, format!("a manifest may have at most {most} bytes"))
            .hint("limits.bundle of the server says how large code may be; leave data out of it")
    };
    if content_length(headers).is_some_and(|length| length > most) {
        return Err(too_large());
    }
    let (sender, frames) = mpsc::channel(AHEAD);
    let reading = tokio::task::spawn_blocking(move || {
        let reader = FrameReader { frames, open: Bytes::new() };
        CompactManifest::read_json(io::BufReader::with_capacity(64 << 10, reader), limit)
    });
    let mut left = Some(most);
    let feeding = async {
        while let Ok(Some(frame)) = tokio::time::timeout(SILENCE, bytes.next()).await {
            let Ok(frame) = frame else { return };
            left = left.and_then(|left| left.checked_sub(frame.len() as u64));
            // The reader has stopped at a mistake; it says which.
            if left.is_none() || sender.send(frame).await.is_err() {
                return;
            }
        }
    };
    drop(tokio::time::timeout(LONGEST, feeding).await);
    let is_too_long = left.is_none();
    drop(sender);
    match reading.await {
        Ok(Ok(manifest)) => Ok(manifest),
        Ok(Err(_)) if is_too_long => Err(too_large()),
        Ok(Err(ReadError::Json(error))) => Err(Problem::new(Code::InvalidRequest, error.to_string())),
        Ok(Err(error @ ReadError::TooMany(_))) => {
            Err(Problem::fields(vec![FieldError::new("content", FieldCode::OutOfRange, error.to_string())]))
        }
        Err(_) => Err(Problem::new(Code::Internal, "the request failed")),
    }
}

/// The frames of a body, for a thread that may wait.
struct FrameReader {
    frames: mpsc::Receiver<Bytes>,
    open: Bytes,
}

impl Read for FrameReader {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        while self.open.is_empty() {
            match self.frames.blocking_recv() {
                Some(frame) => self.open = frame,
                None => return Ok(0),
            }
        }
        let length = buffer.len().min(self.open.len());
        buffer[..length].copy_from_slice(&self.open.split_to(length));
        Ok(length)
    }
}

fn content_length(headers: &HeaderMap) -> Option<u64> {
    headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok())
}

/// Of some chunks, those that the server lacks, or has from other users alone.
#[utoipa::path(post, path = "/api/v1/chunks/missing", tag = "bundles", operation_id = "missing_chunks", request_body = ChunkList,
    responses((status = 200, body = ChunkList), Always, Reads, Takes))]
pub(super) async fn missing(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Json(ChunkList { chunks }): Json<ChunkList>,
) -> Result<Json<ChunkList>, Failure> {
    if chunks.len() > MAX_IDS {
        let message = format!("has {} entries; ask for at most {MAX_IDS} at a time", chunks.len());
        return Err(Problem::fields(vec![FieldError::new("chunks", FieldCode::OutOfRange, message)]).into());
    }
    let (store, tenant) = (shared.clone(), upload::tenant(&shared, &caller));
    let missing = bundle::with_chunks(&shared, move || {
        bundle::missing_for(&store, chunks.iter().map(chunk::digest), tenant.as_deref())
    });
    Ok(Json(ChunkList { chunks: missing.await? }))
}

/// Send chunks: a pack of records, each the length of the stored form (4 bytes, little endian), the digest (32 bytes), and
/// the stored form. Records before one that is refused are kept.
#[utoipa::path(post, path = "/api/v1/chunks", tag = "bundles", operation_id = "put_chunks",
    request_body(content = inline(super::describe::Bytes), content_type = "application/octet-stream"),
    responses((status = 204, description = "They are kept."), Always, Reads, Takes, Stores))]
pub(super) async fn put_chunks(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, Failure> {
    let mut bytes = body.into_data_stream();
    let taken = take(&shared, &caller, &headers, &mut bytes).await;
    match taken {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(problem) => Err(refuse(bytes, problem).await),
    }
}

/// A client that is still sending would see its connection break before it could read why.
async fn refuse(bytes: BodyDataStream, problem: Problem) -> Failure {
    let mut reader = StreamReader::new(bytes.map_err(io::Error::other)).take(2 * MAX_PACK);
    let rest = async { tokio::io::copy(&mut reader, &mut tokio::io::sink()).await };
    drop(tokio::time::timeout(PATIENCE, rest).await);
    problem.into()
}

async fn take(
    shared: &Arc<Shared>,
    caller: &Caller,
    headers: &HeaderMap,
    bytes: &mut BodyDataStream,
) -> Result<(), Problem> {
    if content_length(headers).is_some_and(|length| length > MAX_PACK) {
        return Err(too_large());
    }
    let _turn = shared.uploads.turn(caller, false).await?;
    let tenant = upload::tenant(shared, caller);
    if let Some(tenant) = tenant.clone() {
        let (limit, grace) = (shared.limits().upload_bytes, shared.keep().unused);
        read(shared, move |readers| tenant.check_unused(readers, limit, grace)).await?;
    }
    let taking = take_within(shared, bytes, tenant);
    let late = || Problem::new(Code::InvalidRequest, "the pack takes too long").hint("send smaller packs");
    tokio::time::timeout(LONGEST, taking).await.unwrap_or_else(|_| Err(late()))
}

async fn take_within(
    shared: &Arc<Shared>,
    bytes: &mut BodyDataStream,
    tenant: Option<Arc<Uploader>>,
) -> Result<(), Problem> {
    let mut left = Some(MAX_PACK);
    let mut arriving = Box::pin(futures::stream::unfold(bytes, async |bytes| {
        match tokio::time::timeout(SILENCE, bytes.next()).await {
            Ok(frame) => frame.map(|frame| (frame.map_err(io::Error::other), bytes)),
            Err(_) => Some((Err(io::ErrorKind::TimedOut.into()), bytes)),
        }
    }));
    let mut allowed = (&mut arriving).map(|bytes| {
        let bytes = bytes?;
        left = left.and_then(|left| left.checked_sub(bytes.len() as u64));
        left.map(|_| bytes).ok_or_else(|| io::ErrorKind::FileTooLarge.into())
    });
    let taken = bundle::take_pack(shared, &mut allowed, tenant).await;
    taken.map_err(|error| refusal(shared, error, left.is_none()))
}

fn too_large() -> Problem {
    Problem::new(Code::TooLarge, format!("a pack may have at most {MAX_PACK} bytes"))
        .hint("send the chunks in several requests")
}

fn refusal(shared: &Shared, error: bundle::Error, is_too_long: bool) -> Problem {
    match error {
        // Cut off by the limit, not by the client.
        bundle::Error::Pack(_) if is_too_long => too_large(),
        bundle::Error::Pack(error) => Problem::new(Code::InvalidRequest, error.to_string()),
        bundle::Error::Store(pack::Error::Chunk(error @ chunk::Error::Mismatch)) => {
            Problem::new(Code::ChunkMismatch, error.to_string())
        }
        bundle::Error::Store(pack::Error::Chunk(error)) => {
            Problem::new(Code::InvalidRequest, error.to_string())
        }
        bundle::Error::Store(pack::Error::Io(error)) => {
            disk::problem("the chunks cannot be kept", shared.chunks.root(), &error)
        }
    }
}
