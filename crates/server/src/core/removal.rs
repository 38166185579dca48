//! Removed jobs whose files nodes have yet to remove.
//!
//! A node may be away when a job is removed, or lose the message with its connection. So each node that ran a task of the job
//! owes the removal in the database until it confirms it, and is told again whenever it connects.

use muster_link::message::ToAgent;
use muster_model::{JobId, NodeId};
use muster_store::Change;

use super::Core;
use super::batch::Batch;

/// Removals that a node is told at once; its outbox has room for these and much else.
const PAGE: u32 = 1000;

impl Core {
    /// Tells a node what it owes, one page of it.
    pub(super) fn repeat_removals(&mut self, id: &NodeId, after: Option<&JobId>, batch: &mut Batch) {
        let jobs = match self.parts.readers.removals(id, after, PAGE) {
            Ok(jobs) => jobs,
            Err(error) => return tracing::error!(node = %id, %error, "its removals cannot be read"),
        };
        let Some(node) = self.nodes.get_mut(id) else { return };
        node.last_removal = jobs.last().filter(|_| jobs.len() == PAGE as usize).cloned();
        batch.messages.extend(jobs.into_iter().map(|job| (id.clone(), ToAgent::Remove { job })));
    }

    /// A node has nothing of a job any more.
    pub(super) fn on_removed(&mut self, node: &NodeId, job: JobId, batch: &mut Batch) {
        let last = self.nodes.get(node).and_then(|node| node.last_removal.as_ref());
        if last == Some(&job) {
            self.repeat_removals(node, Some(&job), batch);
        }
        batch.last.push(Change::ConfirmRemoval { node: node.clone(), job });
    }
}
