//! Nodes.

use std::sync::Arc;

use axum::extract::State;
use muster_api::view::NodeList;

use super::describe::Always;
use super::failure::{Failure, Json};
use crate::core::Input;
use crate::state::Shared;

/// List nodes, with what is free on each.
#[utoipa::path(get, path = "/api/v1/nodes", tag = "nodes", operation_id = "list_nodes",
    responses((status = 200, body = NodeList), Always))]
pub(super) async fn list(State(shared): State<Arc<Shared>>) -> Result<Json<NodeList>, Failure> {
    let mut items = shared.core.ask(Input::Nodes).await?;
    for node in &mut items {
        let Some(point) = shared.metrics.node(&node.id) else { continue };
        for device in point.devices {
            if let Some(known) = node.devices.iter_mut().find(|known| known.device.index == device.index) {
                known.now = Some(device);
            }
        }
        node.now = Some(point.node);
    }
    Ok(Json(NodeList { items }))
}
