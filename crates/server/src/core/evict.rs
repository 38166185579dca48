//! Emptying a node: what runs there is told to end, and runs elsewhere.

use muster_model::job::Event;
use muster_model::{Reason, TaskId, Timestamp};
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
        let tasks: Vec<TaskId> = node.tasks.iter().cloned().collect();
        let message = format!("{} was drained", self.name_of(&id));
        for TaskId { attempt, rank } in tasks {
            let Some(live) = self.jobs.get(&attempt.job) else { continue };
            let reason = Reason::Displaced { message: message.clone() };
            let (job, attempt) = (attempt.job, attempt.number);
            let event = match (&live.job.array, live.job.policy.independent) {
                (Some(_), _) => Event::StopLane { attempt, rank, reason },
                (None, true) => continue,
                (None, false) => Event::Preempt { attempt, reason },
            };
            // One that ends already, as the others of its gang do by now, goes all the same.
            if self.apply(&job, event, batch, now).is_ok() {
                batch.event(&job, attempt, now, "evicted", json!({ "node": id }));
            }
        }
    }
}
