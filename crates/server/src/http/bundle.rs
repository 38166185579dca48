//! Code: ask what is missing, send it, and the bundle is there.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use axum::body::{Body, BodyDataStream};
use axum::extract::State;
use axum::http::{HeaderMap, StatusCode, header};
use futures::{StreamExt, TryStreamExt};
use muster_api::problem::{Code, Problem};
use muster_api::view::{BundleStatus, ChunkList, PutBundle};
use muster_bundle::{chunk, cut};
use muster_model::bundle::{Chunk, Manifest};
use muster_model::spec::{FieldCode, FieldError};
use tokio::io::AsyncReadExt;
use tokio_util::io::StreamReader;

use super::describe::{Always, Reads, Takes};
use super::failure::{Failure, Json};
use crate::chunk_store::MAX_CHUNKS;
use crate::chunk_store::pack;
use crate::state::Shared;
use crate::{bundle, disk};

/// The most ids one question may have.
const MAX_IDS: usize = 4096;
/// How long a client whose pack was refused may take to send the rest of it.
const PATIENCE: Duration = Duration::from_secs(10);
/// The most bytes of chunks in one request.
pub(super) const MAX_PACK: u64 = 32 << 20;

/// Name a bundle. Once nothing is missing it can be used; until then, send what is, and ask again.
#[utoipa::path(post, path = "/api/v1/bundles", tag = "bundles", operation_id = "put_bundle", request_body = PutBundle,
    responses((status = 200, body = BundleStatus), Always, Reads, Takes))]
pub(super) async fn put(
    State(shared): State<Arc<Shared>>,
    Json(request): Json<PutBundle>,
) -> Result<Json<BundleStatus>, Failure> {
    let manifest = Manifest { listing: request.listing, content: request.content };
    check(&manifest)?;
    let id = chunk::bundle_id(&manifest);
    let missing = bundle::put(&shared, id.clone(), manifest).await?;
    Ok(Json(BundleStatus { id, missing }))
}

fn check(manifest: &Manifest) -> Result<(), Problem> {
    let mut errors = Vec::new();
    for (list, chunks) in [("listing", &manifest.listing), ("content", &manifest.content)] {
        let too_long = |chunk: &Chunk| chunk.bytes > cut::MAX as u64;
        if let Some(i) = chunks.iter().position(too_long) {
            let message = format!("must be at most {}", cut::MAX);
            errors.push(FieldError::new(format!("{list}[{i}].bytes"), FieldCode::OutOfRange, message));
        }
    }
    if manifest.chunks().count() > MAX_CHUNKS {
        errors.push(FieldError::new(
            "content",
            FieldCode::OutOfRange,
            format!("a bundle has at most {MAX_CHUNKS} chunks"),
        ));
    }
    if errors.is_empty() { Ok(()) } else { Err(Problem::fields(errors)) }
}

/// Of some chunks, those that the server lacks.
#[utoipa::path(post, path = "/api/v1/chunks/missing", tag = "bundles", operation_id = "missing_chunks", request_body = ChunkList,
    responses((status = 200, body = ChunkList), Always, Reads, Takes))]
pub(super) async fn missing(
    State(shared): State<Arc<Shared>>,
    Json(ChunkList { chunks }): Json<ChunkList>,
) -> Result<Json<ChunkList>, Failure> {
    if chunks.len() > MAX_IDS {
        let message = format!("has {} entries; ask for at most {MAX_IDS} at a time", chunks.len());
        return Err(Problem::fields(vec![FieldError::new("chunks", FieldCode::OutOfRange, message)]).into());
    }
    let store = shared.clone();
    let missing = bundle::with_chunks(&shared, move || store.chunks.missing(chunks.iter())).await?;
    Ok(Json(ChunkList { chunks: missing }))
}

/// Send chunks: a pack of records, each the length of the stored form (4 bytes, little endian), the digest (32 bytes), and
/// the stored form. Records before one that is refused are kept.
#[utoipa::path(post, path = "/api/v1/chunks", tag = "bundles", operation_id = "put_chunks",
    request_body(content = inline(super::describe::Bytes), content_type = "application/octet-stream"),
    responses((status = 204, description = "They are kept."), Always, Reads, Takes))]
pub(super) async fn put_chunks(
    State(shared): State<Arc<Shared>>,
    headers: HeaderMap,
    body: Body,
) -> Result<StatusCode, Failure> {
    let announced = headers.get(header::CONTENT_LENGTH).and_then(|value| value.to_str().ok()?.parse().ok());
    let mut bytes = body.into_data_stream();
    let taken = if announced.is_some_and(|length: u64| length > MAX_PACK) {
        Err(too_large())
    } else {
        take(&shared, &mut bytes).await
    };
    if let Err(problem) = taken {
        // A client that is still sending would see its connection break before it could read why.
        let mut reader = StreamReader::new(bytes.map_err(io::Error::other)).take(2 * MAX_PACK);
        let rest = async { tokio::io::copy(&mut reader, &mut tokio::io::sink()).await };
        drop(tokio::time::timeout(PATIENCE, rest).await);
        return Err(problem.into());
    }
    Ok(StatusCode::NO_CONTENT)
}

async fn take(shared: &Arc<Shared>, bytes: &mut BodyDataStream) -> Result<(), Problem> {
    let mut left = Some(MAX_PACK);
    let mut allowed = bytes.map(|bytes| {
        let bytes = bytes.map_err(io::Error::other)?;
        left = left.and_then(|left| left.checked_sub(bytes.len() as u64));
        left.map(|_| bytes).ok_or_else(|| io::ErrorKind::FileTooLarge.into())
    });
    let taken = bundle::take_pack(shared, &mut allowed).await;
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
