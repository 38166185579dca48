//! Emptying a node: what runs there is told to end, and runs elsewhere.

use std::collections::BTreeSet;

use muster_model::job::Event;
use muster_model::{AttemptId, Reason, Timestamp};
use serde_json::json;

use super::Core;
use super::batch::Batch;

impl Core {
    /// Every job with a task there gets its notice and its grace, and waits again at its old place; that it had to go costs it none of
    /// its retries. Machines stay: whoever made one is in it, and it is theirs to stop.
    pub(super) fn evict(&mut self, text: &str, batch: &mut Batch, now: Timestamp) {
        // One that is not there was refused already.
        let Ok(id) = self.find_node(text) else { return };
        let Some(node) = self.nodes.get(&id) else { return };
        let attempts: BTreeSet<AttemptId> = node.tasks.iter().map(|task| task.attempt.clone()).collect();
        let message = format!("{} was drained", self.name_of(&id));
        for AttemptId { job, number } in attempts {
            if self.jobs.get(&job).is_none_or(|live| live.job.policy.independent) {
                continue;
            }
            let reason = Reason::Displaced { message: message.clone() };
            // One that ends already goes all the same.
            if self.apply(&job, Event::Preempt { attempt: number, reason }, batch, now).is_ok() {
                batch.event(&job, number, now, "evicted", json!({ "node": id }));
            }
        }
    }
}
