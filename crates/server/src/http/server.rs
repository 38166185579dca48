//! The server itself.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use muster_api::view::{ServerReload, ServerView};

use super::describe::{Always, Conflicts};
use super::failure::{Failure, Json};
use super::node::present;
use crate::accounts::Caller;
use crate::core::Input;
use crate::state::Shared;

/// Show the server.
#[utoipa::path(get, path = "/api/v1/server", tag = "server", operation_id = "show_server",
    responses((status = 200, body = ServerView), Always))]
pub(super) async fn show(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
) -> Result<Json<ServerView>, Failure> {
    shared.core.ask(Input::Settled).await?;
    let mut nodes = shared.core.ask(Input::Nodes).await?;
    present(&shared, &caller, nodes.iter_mut()).await?;
    let unfinished_jobs = shared.core.ask(Input::Unfinished).await?;
    Ok(Json(ServerView {
        pid: std::process::id(),
        version: shared.version.clone(),
        build: shared.build.clone(),
        started_at: shared.started_at,
        home: shared.home.clone(),
        fingerprint: shared.certificate.as_ref().map(|shown| shown.fingerprint().to_string()),
        unfinished_jobs,
        nodes,
    }))
}

/// Read the server's configuration anew. What can change without a restart does; a configuration that cannot be used changes nothing.
#[utoipa::path(post, path = "/api/v1/server/reload", tag = "server", operation_id = "reload_server",
    responses((status = 200, body = ServerReload), Always, Conflicts))]
pub(super) async fn reload(State(shared): State<Arc<Shared>>) -> Result<Json<ServerReload>, Failure> {
    Ok(Json(crate::reload::reload(&shared).await?))
}

/// Stop the server. Jobs keep running, and are there again when a server is.
#[utoipa::path(post, path = "/api/v1/server/shutdown", tag = "server", operation_id = "stop_server",
    responses((status = 202, description = "It stops."), Always))]
pub(super) async fn shutdown(State(shared): State<Arc<Shared>>) -> StatusCode {
    tracing::info!("asked to stop");
    shared.stop.cancel();
    StatusCode::ACCEPTED
}
