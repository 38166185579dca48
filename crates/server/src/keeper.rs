//! Keeps an agent running on every node of the fleets: at the start, and whenever one goes away.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use muster_engine::StartRequest;
use muster_model::NodeId;
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;

use crate::core::Input;
use crate::state::Shared;

/// How soon a start that brought no agent is repeated; it doubles up to the longest. The first is short, because an
/// agent that just died may still seem to run.
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Runs until cancelled.
pub(crate) async fn run(
    shared: Arc<Shared>,
    nodes: Vec<(NodeId, &'static str)>,
    mut away: mpsc::UnboundedReceiver<NodeId>,
    stop: CancellationToken,
) {
    let mut starting = FuturesUnordered::new();
    // One at a time for each node: one that comes and goes, because the server cannot write, must not gather a crowd.
    let mut awaited = HashSet::new();
    for (node, engine) in &nodes {
        awaited.insert(node.clone());
        starting.push(bring_back(&shared, node.clone(), engine));
    }
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            Some(node) = away.recv() => {
                if let Some((_, engine)) = nodes.iter().find(|(known, _)| *known == node)
                    && awaited.insert(node.clone())
                {
                    starting.push(bring_back(&shared, node, engine));
                }
            }
            Some(node) = starting.next() => {
                awaited.remove(&node);
                // It may have gone again between the last look and now, and that word was not listened to.
                if !is_connected(&shared, &node).await
                    && let Some((_, engine)) = nodes.iter().find(|(known, _)| *known == node)
                    && awaited.insert(node.clone())
                {
                    starting.push(bring_back(&shared, node, engine));
                }
            }
        }
    }
}

async fn bring_back(shared: &Shared, node: NodeId, engine: &str) -> NodeId {
    let Some(engine) = shared.engines.get(engine) else { return node };
    let request = StartRequest { token: shared.auth.node_token(&node), node };
    let mut pause = FIRST_PAUSE;
    while !is_connected(shared, &request.node).await {
        if let Err(error) = engine.start(&request).await {
            tracing::warn!(node = %request.node, %error, source = ?error.source, "the agent could not be started");
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LONGEST_PAUSE);
    }
    request.node
}

async fn is_connected(shared: &Shared, node: &NodeId) -> bool {
    let nodes = shared.core.ask(Input::Nodes).await.unwrap_or_default();
    nodes.iter().any(|view| view.id == *node && view.connected)
}
