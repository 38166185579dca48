//! What became of the last try to start each node's agent. The keeper writes it and whoever shows nodes reads it; the core
//! decides nothing by it.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use muster_api::view::NodeError;
use muster_model::NodeId;
use tokio::sync::watch;

/// The tries that have not brought an agent yet.
#[derive(Default)]
pub(crate) struct Starts {
    tries: Mutex<HashMap<NodeId, Try>>,
    changed: watch::Sender<()>,
}

/// A node without an agent.
enum Try {
    /// Nothing is known yet.
    Open,
    Failed(NodeError),
}

impl Starts {
    /// A node is tried anew; what failed before is no answer to that.
    pub fn begin(&self, node: &NodeId) {
        self.lock().insert(node.clone(), Try::Open);
        self.changed.send_replace(());
    }

    pub fn failed(&self, node: &NodeId, error: NodeError) {
        self.lock().insert(node.clone(), Try::Failed(error));
        self.changed.send_replace(());
    }

    /// The node's agent is there, or nobody asks for it any more.
    pub fn close(&self, node: &NodeId) {
        if self.lock().remove(node).is_some() {
            self.changed.send_replace(());
        }
    }

    pub fn error(&self, node: &NodeId) -> Option<NodeError> {
        match self.lock().get(node) {
            Some(Try::Failed(error)) => Some(error.clone()),
            Some(Try::Open) | None => None,
        }
    }

    /// Whether a try goes on of which nothing is known yet.
    pub fn is_open(&self, node: &NodeId) -> bool {
        matches!(self.lock().get(node), Some(Try::Open))
    }

    /// For whoever waits for an answer.
    pub fn changes(&self) -> watch::Receiver<()> {
        self.changed.subscribe()
    }

    /// A panic between lock and unlock leaves the map whole, so poison means nothing.
    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Try>> {
        self.tries.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
