//! The one thing that is done before the batch is on disk: telling a gang to start.
//!
//! The last `Ready` of a gang is on the way from a submission to its first instruction, and the disk need not be. What a
//! launch says follows from the attempt, which was committed before anything was prepared, and from what agents said,
//! which they say again on every connection. So whoever ends between a launch and its commit, or cannot commit, is told by
//! the nodes how far each task is and where, and sends what was missed. Anything else in the batch that the launch may
//! follow from, or that it may come too late for, makes it wait for the disk as everything does.

use std::collections::BTreeSet;

use muster_link::message::ToAgent;
use muster_model::job::{Effect, Job, State};
use muster_model::task::TaskPhase;
use muster_model::{JobId, NodeId};

use super::Core;
use super::batch::Batch;

/// The first version of the protocol in which a task that runs is reported with its address. Without it, a member of a
/// larger gang that missed its launch could not be sent it again.
const SAYS_ADDRESS: u32 = 2;

impl Core {
    /// Sends the launches that need not wait for the disk.
    pub(super) fn launch_ahead(&mut self, batch: &mut Batch) {
        if !batch.effects.iter().any(|(_, effect)| matches!(effect, Effect::Launch { .. })) {
            return;
        }
        let greeted: BTreeSet<NodeId> = batch
            .messages
            .iter()
            .filter(|(_, message)| matches!(message, ToAgent::Welcome { .. }))
            .map(|(node, _)| node.clone())
            .collect();
        for (id, effect) in std::mem::take(&mut batch.effects) {
            if matches!(effect, Effect::Launch { .. }) && self.may_launch_ahead(&id, batch, &greeted) {
                self.perform(&id, effect);
            } else {
                batch.effects.push((id, effect));
            }
        }
    }

    fn may_launch_ahead(&self, id: &JobId, batch: &Batch, greeted: &BTreeSet<NodeId>) -> bool {
        let Some(live) = self.jobs.get(id) else { return false };
        let Some(before) = batch.jobs.get(id).and_then(|touched| touched.before.as_ref()) else {
            return false;
        };
        let is_committed = before.job.attempt == live.job.attempt
            && (before.job.state == State::Starting || before.job.is_handed_over())
            && before.name == live.name;
        let nothing_but_ready = live.job.state == State::Starting
            && live.job.tasks.iter().all(|task| task.phase < TaskPhase::Ended);
        // One member of a group may be told to end while it and the others begin.
        let partings = |job: &Job| job.tasks.iter().map(|task| task.parting).collect::<Vec<_>>();
        let is_alone = live.job.tasks.len() == 1;
        let is_told_again = |node: &NodeId| {
            let connection = self.nodes.get(node).and_then(|node| node.connection.as_ref());
            // An agent is welcomed before it is told anything else.
            !greeted.contains(node)
                && connection.is_some_and(|connection| is_alone || connection.protocol >= SAYS_ADDRESS)
        };
        is_committed
            && nothing_but_ready
            && partings(&before.job) == partings(&live.job)
            && live.job.tasks.iter().all(|task| is_told_again(&task.placement.node))
    }
}
