//! Making room.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use muster_api::view::{Gc, GcReport};

use super::describe::{Always, Reads, Takes};
use super::failure::{self, Failure, Json};
use crate::state::Shared;

/// Remove what need not be kept now, on the server and on its nodes. The server does the same by itself every hour.
#[utoipa::path(post, path = "/api/v1/gc", tag = "server", operation_id = "collect_garbage", request_body = Option<Gc>,
    responses((status = 200, body = GcReport), Always, Reads, Takes))]
pub(super) async fn collect(
    State(shared): State<Arc<Shared>>,
    body: Bytes,
) -> Result<Json<GcReport>, Failure> {
    let Gc { dry_run } = failure::optional(&body)?;
    let report = crate::retention::collect(&shared, dry_run).await?;
    crate::memory::give_back();
    Ok(Json(report))
}
