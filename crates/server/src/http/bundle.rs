//! Code: ask what is missing, send it, and the bundle is there.

use std::io::ErrorKind;
use std::sync::Arc;

use axum::body::{Body, to_bytes};
use axum::extract::State;
use axum::http::StatusCode;
use muster_api::problem::{Code, Problem};
use muster_api::view::{BundleStatus, PutBundle};
use muster_model::ChunkId;
use muster_model::bundle::Manifest;
use muster_model::spec::{FieldCode, FieldError};

use super::describe::{Always, Reads, Takes};
use super::failure::{Failure, Json, Segment};
use super::job::read;
use crate::chunk_store::{MAX_CHUNK, MAX_CHUNKS, PutError, bundle_id};
use crate::core::{Input, internal};
use crate::state::Shared;

/// Name a bundle. Once nothing is missing it can be used; until then, send what is, and ask again.
#[utoipa::path(post, path = "/api/v1/bundles", tag = "bundles", operation_id = "put_bundle", request_body = PutBundle,
    responses((status = 200, body = BundleStatus), Always, Reads, Takes))]
pub(super) async fn put(
    State(shared): State<Arc<Shared>>,
    Json(request): Json<PutBundle>,
) -> Result<Json<BundleStatus>, Failure> {
    let manifest = Manifest { chunks: request.chunks };
    let too_long = manifest.chunks.iter().position(|chunk| chunk.bytes > MAX_CHUNK as u64);
    if let Some(i) = too_long {
        let message = format!("must be at most {MAX_CHUNK}");
        let field = format!("chunks[{i}].bytes");
        return Err(Problem::fields(vec![FieldError::new(field, FieldCode::OutOfRange, message)]).into());
    }
    if manifest.chunks.len() > MAX_CHUNKS {
        let message = format!("must be at most {MAX_CHUNKS}");
        return Err(Problem::fields(vec![FieldError::new("chunks", FieldCode::OutOfRange, message)]).into());
    }
    let id = bundle_id(&manifest);
    let (store, asked, name) = (shared.clone(), manifest.clone(), id.clone());
    let (missing, known) = read(&shared, move |readers| {
        let known = readers.bundle(&name).map_err(|error| internal(&error))?.is_some();
        Ok((store.chunks.missing(&asked), known))
    })
    .await?;
    if missing.is_empty() && !known {
        shared.core.ask(|reply| Input::PutBundle(id.clone(), manifest, reply)).await?;
    }
    Ok(Json(BundleStatus { id, missing }))
}

/// Send a chunk.
#[utoipa::path(put, path = "/api/v1/chunks/{chunk}", tag = "bundles", operation_id = "put_chunk", params(("chunk" = ChunkId, Path)),
    request_body(content = inline(super::describe::Bytes), content_type = "application/octet-stream"),
    responses((status = 204, description = "It is kept."), Always, Reads, Takes))]
pub(super) async fn put_chunk(
    State(shared): State<Arc<Shared>>,
    Segment(chunk): Segment,
    body: Body,
) -> Result<StatusCode, Failure> {
    let id: ChunkId =
        chunk.parse().map_err(|error| Problem::new(Code::InvalidRequest, format!("{error}")))?;
    let bytes = to_bytes(body, MAX_CHUNK)
        .await
        .map_err(|_| Problem::new(Code::TooLarge, format!("a chunk may have at most {MAX_CHUNK} bytes")))?;
    let stored = tokio::task::spawn_blocking(move || shared.chunks.put(&id, &bytes)).await;
    match stored.unwrap_or_else(|error| Err(PutError::Io(std::io::Error::other(error)))) {
        Ok(()) => Ok(StatusCode::NO_CONTENT),
        Err(error @ PutError::Mismatch) => Err(Problem::new(Code::ChunkMismatch, error.to_string()).into()),
        Err(PutError::Io(error)) => {
            tracing::error!(%error, "a chunk cannot be written");
            let code = match error.kind() {
                ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Code::ServerDiskFull,
                _ => Code::Unavailable,
            };
            let problem = Problem::new(code, format!("the server cannot keep the chunk: {error}"));
            Err(problem.hint("check free space in the server's data directory").into())
        }
    }
}
