//! Nodes: list, drain, remove.

use std::sync::Arc;

use axum::extract::State;
use axum::http::StatusCode;
use muster_api::pool::RemoveHosts;
use muster_api::problem::{Code, Problem};
use muster_api::view::{NodeList, NodeView};

use super::describe::{Always, Conflicts, OnNode};
use super::failure::{Failure, Json, Params, Segment};
use crate::core::Input;
use crate::state::Shared;

/// List nodes, with what is free on each.
#[utoipa::path(get, path = "/api/v1/nodes", tag = "nodes", operation_id = "list_nodes",
    responses((status = 200, body = NodeList), Always))]
pub(super) async fn list(State(shared): State<Arc<Shared>>) -> Result<Json<NodeList>, Failure> {
    shared.core.ask(Input::Settled).await?;
    let mut items = shared.core.ask(Input::Nodes).await?;
    items.iter_mut().for_each(|node| add_present(&shared, node));
    Ok(Json(NodeList { items }))
}

/// Keep new tasks from a node; those that it has go on.
#[utoipa::path(post, path = "/api/v1/nodes/{node}/drain", tag = "nodes", operation_id = "drain_node", params(("node" = String, Path, description = "the node's id, or its host's name")),
    responses((status = 200, body = NodeView), Always, OnNode, Conflicts))]
pub(super) async fn drain(
    State(shared): State<Arc<Shared>>,
    Segment(node): Segment,
) -> Result<Json<NodeView>, Failure> {
    set_drained(&shared, node, true).await
}

/// Let a node have new tasks again.
#[utoipa::path(post, path = "/api/v1/nodes/{node}/undrain", tag = "nodes", operation_id = "undrain_node", params(("node" = String, Path, description = "the node's id, or its host's name")),
    responses((status = 200, body = NodeView), Always, OnNode, Conflicts))]
pub(super) async fn undrain(
    State(shared): State<Arc<Shared>>,
    Segment(node): Segment,
) -> Result<Json<NodeView>, Failure> {
    set_drained(&shared, node, false).await
}

/// Remove a host from its pool, and stop its agent.
#[utoipa::path(delete, path = "/api/v1/nodes/{node}", tag = "nodes", operation_id = "remove_node", params(RemoveHosts, ("node" = String, Path, description = "the node's id, or its host's name")),
    responses((status = 204, description = "It is gone."), Always, OnNode, Conflicts))]
pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    Segment(node): Segment,
    Params(query): Params<RemoveHosts>,
) -> Result<StatusCode, Failure> {
    shared.core.ask(|reply| Input::RemoveNode { node, force: query.force, reply }).await?;
    Ok(StatusCode::NO_CONTENT)
}

async fn set_drained(shared: &Shared, node: String, drained: bool) -> Result<Json<NodeView>, Failure> {
    let id = shared.core.ask(|reply| Input::Drain { node, drained, reply }).await?;
    let nodes = shared.core.ask(Input::Nodes).await?;
    // It may have been removed between the two.
    let gone = || Problem::new(Code::NodeNotFound, format!("there is no node `{id}` any more"));
    let mut node = nodes.into_iter().find(|node| node.id == id).ok_or_else(gone)?;
    add_present(shared, &mut node);
    Ok(Json(node))
}

/// Adds what is in use of a node now.
pub(super) fn add_present(shared: &Shared, node: &mut NodeView) {
    let Some(point) = shared.metrics.node(&node.id) else { return };
    for device in point.devices {
        if let Some(known) = node.devices.iter_mut().find(|known| known.device.index == device.index) {
            known.now = Some(device);
        }
    }
    node.now = Some(point.node);
}
