//! Copies of the server.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header::CONTENT_TYPE;
use axum::response::Response;

use super::describe::{Always, Bytes};
use super::failure::Failure;
use crate::backup;
use crate::state::Shared;

/// Download a backup: all that the server knows at this moment, its secrets included, as a tar archive that is compressed with
/// zstd. The server goes on meanwhile. One that could not be sent to its end is cut off.
#[utoipa::path(get, path = "/api/v1/server/backup", tag = "server", operation_id = "back_up_server",
    responses((status = 200, description = "The backup.", content((inline(Bytes) = "application/zstd"))), Always))]
pub(super) async fn take(State(shared): State<Arc<Shared>>) -> Result<Response, Failure> {
    let stage = backup::take(&shared).await?;
    tracing::info!("a backup was taken; it is being sent");
    let mut response = Response::new(stage.into_body());
    response.headers_mut().insert(CONTENT_TYPE, axum::http::HeaderValue::from_static("application/zstd"));
    Ok(response)
}
