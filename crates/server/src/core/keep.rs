//! What is kept for a while and then goes: outputs, logs, and what nodes have.

use muster_link::message::{PROTOCOL, ToAgent};
use muster_model::task::Outputs;
use muster_model::{JobId, NodeId, TaskId, Timestamp};
use muster_store::Change;
use serde_json::json;
use tokio::sync::mpsc;

use super::Core;
use super::batch::{Answer, Batch};
use super::input::{Kept, Reply};
use crate::volume::Volume;

impl Core {
    /// A node says what became of a task's files. It repeats that until it may forget the task.
    pub(super) fn on_outputs(
        &mut self,
        node: &NodeId,
        task: TaskId,
        outputs: Outputs,
        batch: &mut Batch,
        now: Timestamp,
    ) {
        if batch.outputs.contains(&task) {
            return;
        }
        match self.owes_outputs(node, &task, batch) {
            Ok(false) => {}
            Ok(true) => {
                let outputs = self.checked_outputs(outputs, batch);
                let body = json!({ "rank": task.rank, "outputs": outputs });
                batch.event(&task.attempt.job, task.attempt.number, now, "outputs", body);
                batch.first.push(Change::Outputs { task: task.clone(), outputs });
            }
            Err(error) => return tracing::error!(%task, %error, "the task cannot be looked up"),
        }
        batch.outputs.push(task);
    }

    /// Whether a node has yet to say what became of a task's files.
    fn owes_outputs(&self, node: &NodeId, task: &TaskId, batch: &Batch) -> muster_store::Result<bool> {
        // Of a task whose end is in this batch, the database may not even know that it ran.
        if let Some((_, ended)) = batch.ended.iter().find(|(ended, _)| ended == task) {
            return Ok(ended.node == *node && ended.owes_outputs);
        }
        let debt = self.parts.readers.debt(task)?;
        Ok(debt.is_some_and(|debt| debt.node == *node && debt.outputs))
    }

    /// A bundle that was sent long before it was spoken of may have gone meanwhile.
    fn checked_outputs(&self, outputs: Outputs, batch: &Batch) -> Outputs {
        match outputs {
            Outputs::Collected { bundle, .. }
                if !batch.bundles.contains(&bundle)
                    && !matches!(self.parts.readers.bundle_used_at(&bundle), Ok(Some(_))) =>
            {
                let message = format!("the server does not have {bundle}, which holds them, any more");
                Outputs::Failed { message }
            }
            other => other,
        }
    }

    /// Writes down that something of a job was removed, before it is.
    pub(super) fn on_remove_kept(
        &mut self,
        kept: Kept,
        bytes: u64,
        reply: Reply<()>,
        batch: &mut Batch,
        now: Timestamp,
    ) {
        let (job, event, change) = match kept {
            Kept::Logs(job) => (job.clone(), "logs_removed", Change::RemoveLogs { job, at: now }),
            Kept::Outputs(job) => (job.clone(), "outputs_removed", Change::RemoveOutputs { job, at: now }),
        };
        batch.event(&job, 0, now, event, json!({ "bytes": bytes }));
        batch.first.push(change);
        batch.answers.push(Answer::Done(reply));
    }

    pub(super) fn on_log_bytes(&mut self, sizes: Vec<(JobId, u64)>, reply: Reply<()>, batch: &mut Batch) {
        batch.first.extend(sizes.into_iter().map(|(job, bytes)| Change::LogBytes { job, bytes }));
        batch.answers.push(Answer::Done(reply));
    }

    /// Tells every node that is there. One that is away hears of it when it comes back.
    pub(super) fn on_keep(&mut self, keep: muster_link::message::Keep) {
        if self.parts.keep == keep {
            return;
        }
        self.parts.keep = keep;
        let welcome = self.welcome();
        for node in self.nodes.values_mut().filter(|node| node.connection.is_some()) {
            node.send(welcome.clone());
        }
    }

    /// What an agent is told first.
    pub(super) fn welcome(&self) -> ToAgent {
        let volumes = self.parts.volumes.iter().map(Volume::asked).collect();
        ToAgent::Welcome { protocol: PROTOCOL, keep: self.parts.keep.clone(), volumes }
    }

    /// Asks every node that is there. One that is away does it by itself.
    pub(super) fn on_collect(&mut self, collected: mpsc::Sender<(NodeId, u64)>, reply: Reply<Vec<NodeId>>) {
        let mut asked = Vec::new();
        for (id, node) in
            self.nodes.iter_mut().filter(|(_, node)| node.connection.is_some() && node.allocation.is_none())
        {
            node.send(ToAgent::Collect);
            asked.push(id.clone());
        }
        self.collecting = Some(collected);
        drop(reply.send(Ok(asked)));
    }

    pub(super) fn on_collected(&mut self, node: &NodeId, bytes: u64) {
        if let Some(collecting) = &self.collecting {
            // Whoever asked may have stopped waiting.
            let _ = collecting.try_send((node.clone(), bytes));
        }
    }
}
