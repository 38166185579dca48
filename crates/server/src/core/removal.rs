//! Removed jobs whose files nodes have yet to remove.
//!
//! A node may be away when a job is removed, or lose the message with its connection. So each node that ran a task of the job
//! owes the removal in the database until it confirms it, and is told again whenever it connects. An agent of a version that
//! does not confirm is told once.

use muster_link::message::ToAgent;
use muster_model::{JobId, NodeId};
use muster_store::Change;

use super::Core;
use super::batch::Batch;

/// Removals that a node is told at once; its outbox has room for these and much else.
const PAGE: u32 = 1000;
/// The first version of the protocol in which agents confirm removals.
const CONFIRMS: u32 = 5;

impl Core {
    /// Tells a node that has just connected what it owes.
    pub(super) fn tell_removals(&mut self, id: &NodeId, changes_over: bool, batch: &mut Batch) {
        let connection = self.nodes.get(id).and_then(|node| node.connection.as_ref());
        let confirms = connection.is_some_and(|connection| connection.protocol >= CONFIRMS);
        // An older agent that changes over is told when it is back: it may drop the messages of this connection.
        if !confirms && changes_over {
            return;
        }
        let told = self.repeat_removals(id, None, batch);
        if !confirms {
            let done = |job| Change::ConfirmRemoval { node: id.clone(), job };
            batch.last.extend(told.into_iter().map(done));
        }
    }

    /// Tells a node one page of what it owes, and returns the page.
    fn repeat_removals(&mut self, id: &NodeId, after: Option<&JobId>, batch: &mut Batch) -> Vec<JobId> {
        let jobs = match self.parts.readers.removals(id, after, PAGE) {
            Ok(jobs) => jobs,
            Err(error) => {
                tracing::error!(node = %id, %error, "its removals cannot be read");
                return Vec::new();
            }
        };
        let Some(node) = self.nodes.get_mut(id) else { return Vec::new() };
        node.last_removal = jobs.last().filter(|_| jobs.len() == PAGE as usize).cloned();
        batch.messages.extend(jobs.iter().map(|job| (id.clone(), ToAgent::Remove { job: job.clone() })));
        jobs
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
