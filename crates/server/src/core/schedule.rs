//! Letting waiting jobs start, and what happens by the clock.

use std::sync::Arc;

use muster_model::Reason;
use muster_model::job::Event;
use muster_model::spec::{JobSpec, Target};
use muster_model::task::TaskEnd;
use muster_model::{JobId, Timestamp};
use muster_scheduler::{Free, Waiting};

use super::Core;
use super::batch::Batch;

impl Core {
    /// Admits what fits now, in the same batch as what made room for it.
    pub(super) fn schedule(&mut self, batch: &mut Batch, now: Timestamp) {
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let targets: Vec<Target> = self.queues.keys().cloned().collect();
        for target in targets {
            let mut free = self.free_on(&target);
            let mut deferred = false;
            let candidates = self.candidates(&target, batch, now, &mut deferred);
            let plan = muster_scheduler::plan(&mut free, candidates.iter().map(Arc::as_ref));
            // A job whose attempt ended in this batch starts its next one in the next.
            self.dirty |= deferred;
            for admission in plan {
                let event = Event::Admit { placements: admission.placements };
                if let Err(error) = self.apply(&admission.job, event, batch, now) {
                    tracing::error!(job = %admission.job, %error, "the plan did not fit the job");
                }
            }
        }
    }

    /// The jobs that may start, in order, no more of them than could possibly fit and one that could not.
    fn candidates(
        &self,
        target: &Target,
        batch: &Batch,
        now: Timestamp,
        deferred: &mut bool,
    ) -> Vec<Arc<Waiting>> {
        let Some(queue) = self.queues.get(target) else { return Vec::new() };
        let room: usize = self.free_on(target).iter().map(room).sum();
        let mut candidates = Vec::new();
        for id in queue.values() {
            let Some(live) = self.jobs.get(id).filter(|live| live.job.is_eligible(now)) else { continue };
            if batch.jobs.get(id).is_some_and(|touched| touched.attempt_ended) {
                *deferred = true;
                continue;
            }
            candidates.push(live.waiting.clone());
            if candidates.len() > room {
                break;
            }
        }
        candidates
    }

    /// What is free where a target runs.
    pub(super) fn free_on(&self, target: &Target) -> Vec<Free> {
        self.nodes.values().filter(|node| node.target == *target).map(|node| node.free.clone()).collect()
    }

    pub(super) fn free_nodes(&self, spec: &JobSpec) -> Vec<Free> {
        self.free_on(&spec.on)
    }

    /// What is due: nodes that stayed away too long, and jobs whose pause is over.
    pub(super) fn on_timers(&mut self, batch: &mut Batch, now: Timestamp) {
        while self.timers.first().is_some_and(|at| *at <= now) {
            self.timers.pop_first();
            self.dirty = true;
        }
        let lost: Vec<_> = self
            .nodes
            .iter()
            .filter(|(_, node)| node.connection.is_none() && node.lost_at.is_some_and(|at| at <= now))
            .map(|(id, node)| (id.clone(), node.tasks.clone()))
            .collect();
        for (id, tasks) in lost {
            if let Some(node) = self.nodes.get_mut(&id) {
                node.lost_at = None;
            }
            for task in tasks {
                tracing::warn!(%task, node = %id, "given up: its node stayed away");
                let end =
                    TaskEnd { failure: Some(Reason::NodeLost { node: id.to_string() }), log_bytes: None };
                let event = Event::TaskEnded { attempt: task.attempt.number, rank: task.rank, end, at: now };
                self.apply_quietly(&task.attempt.job, event, batch, now);
            }
        }
    }

    /// For events of agents: what is stale changes nothing, and that is as it should be.
    pub(super) fn apply_quietly(&mut self, job: &JobId, event: Event, batch: &mut Batch, now: Timestamp) {
        if let Err(invalid) = self.apply(job, event, batch, now) {
            tracing::debug!(%job, %invalid, "an event changed nothing");
        }
    }
}

/// How many tasks could start on a node at the very most.
fn room(free: &Free) -> usize {
    if free.usable { free.slots as usize + free.devices.len() + free.cpu_millis as usize } else { 0 }
}
