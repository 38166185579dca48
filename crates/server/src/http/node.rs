//! Nodes.

use std::sync::Arc;

use axum::extract::State;
use muster_api::problem::Problem;
use muster_api::view::NodeList;

use super::failure::{Failure, Json};
use crate::core::Input;
use crate::state::Shared;

/// List nodes, with what is free on each.
#[utoipa::path(get, path = "/api/v1/nodes", tag = "nodes",
    responses((status = 200, body = NodeList), (status = "4XX", body = Problem), (status = "5XX", body = Problem)))]
pub(super) async fn list(State(shared): State<Arc<Shared>>) -> Result<Json<NodeList>, Failure> {
    Ok(Json(NodeList { items: shared.core.ask(Input::Nodes).await? }))
}
