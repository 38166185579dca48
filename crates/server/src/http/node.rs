//! Nodes: list, drain, remove.

use std::collections::BTreeSet;
use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::http::StatusCode;
use muster_api::pool::{DrainNode, RemoveHosts};
use muster_api::problem::{Code, Problem};
use muster_api::view::{LabelNode, NodeList, NodeView};
use muster_model::{JobId, NodeId};
use muster_store::Sight;

use super::describe::{Always, Conflicts, OnNode, Reads, Takes};
use super::failure::{self, Failure, Json, Params, Segment};
use super::job::read;
use crate::accounts::Caller;
use crate::core::{Input, internal};
use crate::state::Shared;

/// List nodes, with what is free on each.
#[utoipa::path(get, path = "/api/v1/nodes", tag = "nodes", operation_id = "list_nodes",
    responses((status = 200, body = NodeList), Always))]
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
) -> Result<Json<NodeList>, Failure> {
    shared.core.ask(Input::Settled).await?;
    let mut items = shared.core.ask(Input::Nodes).await?;
    present(&shared, &caller, items.iter_mut()).await?;
    Ok(Json(NodeList { items }))
}

/// Keep new tasks from a node; those that it has go on, unless they are to be evicted: then their jobs are told to end, and run elsewhere.
#[utoipa::path(post, path = "/api/v1/nodes/{node}/drain", tag = "nodes", operation_id = "drain_node", params(("node" = String, Path, description = "the node's id, or its host's name")), request_body = Option<DrainNode>,
    responses((status = 200, body = NodeView), Always, OnNode, Reads, Takes, Conflicts))]
pub(super) async fn drain(
    State(shared): State<Arc<Shared>>,
    Segment(node): Segment,
    body: Bytes,
) -> Result<Json<NodeView>, Failure> {
    let DrainNode { evict } = failure::optional(&body)?;
    set_drained(&shared, node, true, evict).await
}

/// Let a node have new tasks again.
#[utoipa::path(post, path = "/api/v1/nodes/{node}/undrain", tag = "nodes", operation_id = "undrain_node", params(("node" = String, Path, description = "the node's id, or its host's name")),
    responses((status = 200, body = NodeView), Always, OnNode, Conflicts))]
pub(super) async fn undrain(
    State(shared): State<Arc<Shared>>,
    Segment(node): Segment,
) -> Result<Json<NodeView>, Failure> {
    set_drained(&shared, node, false, false).await
}

/// Change what a node is labelled with: jobs choose among nodes by it.
#[utoipa::path(patch, path = "/api/v1/nodes/{node}", tag = "nodes", operation_id = "label_node", params(("node" = String, Path, description = "the node's id, or its host's name")),
    request_body = LabelNode, responses((status = 200, body = NodeView), Always, OnNode, Reads, Takes, Conflicts))]
pub(super) async fn label(
    State(shared): State<Arc<Shared>>,
    Segment(node): Segment,
    Json(request): Json<LabelNode>,
) -> Result<Json<NodeView>, Failure> {
    let id = shared.core.ask(|reply| Input::Label { node, labels: request.labels, reply }).await?;
    shown(&shared, id).await
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

async fn set_drained(
    shared: &Shared,
    node: String,
    drained: bool,
    evict: bool,
) -> Result<Json<NodeView>, Failure> {
    let id = shared.core.ask(|reply| Input::Drain { node, drained, evict, reply }).await?;
    shown(shared, id).await
}

/// A node as it is now.
async fn shown(shared: &Shared, id: NodeId) -> Result<Json<NodeView>, Failure> {
    let nodes = shared.core.ask(Input::Nodes).await?;
    // It may have been removed between the two.
    let gone = || Problem::new(Code::NodeNotFound, format!("there is no node `{id}` any more"));
    let mut node = nodes.into_iter().find(|node| node.id == id).ok_or_else(gone)?;
    add_present(shared, &mut node);
    Ok(Json(node))
}

/// Nodes as the caller may know them: with what is in use of each now, and without jobs that are not there for them.
pub(super) async fn present<'a>(
    shared: &Shared,
    caller: &Caller,
    nodes: impl Iterator<Item = &'a mut NodeView>,
) -> Result<(), Problem> {
    let mut nodes: Vec<&mut NodeView> = nodes.collect();
    nodes.iter_mut().for_each(|node| add_present(shared, node));
    let sight = caller.rights.sight();
    if sight == Sight::All {
        return Ok(());
    }
    let devices = || nodes.iter().flat_map(|node| &node.devices);
    let jobs: BTreeSet<JobId> = devices().filter_map(|device| device.job.clone()).collect();
    let seen = read(shared, move |readers| {
        let is_seen = |job: &JobId| {
            let belongs = readers.belongs(job).map_err(|error| internal(&error))?;
            Ok(belongs.is_some_and(|belongs| sight.has(&belongs.workspace)))
        };
        let mut seen = BTreeSet::new();
        for job in jobs {
            if is_seen(&job)? {
                seen.insert(job);
            }
        }
        Ok(seen)
    });
    let seen: BTreeSet<JobId> = seen.await?;
    for device in nodes.iter_mut().flat_map(|node| &mut node.devices) {
        device.job.take_if(|job| !seen.contains(job));
    }
    Ok(())
}

fn add_present(shared: &Shared, node: &mut NodeView) {
    let Some(point) = shared.metrics.node(&node.id) else { return };
    for device in point.devices {
        if let Some(known) = node.devices.iter_mut().find(|known| known.device.index == device.index) {
            known.now = Some(device);
        }
    }
    node.now = Some(point.node);
}
