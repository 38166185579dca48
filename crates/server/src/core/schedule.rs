//! Letting waiting jobs start, and what happens by the clock.

use std::cell::Cell;

use muster_model::Reason;
use muster_model::job::Event;
use muster_model::spec::Target;
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
            if self.is_delegated(&target) {
                self.hand_over(&target, batch, now);
                continue;
            }
            let mut free = self.free_on(&target);
            let deferred = Cell::new(false);
            let plan = muster_scheduler::plan(&mut free, self.candidates(&target, batch, now, &deferred));
            // A job whose attempt ended in this batch starts its next one in the next.
            self.dirty |= deferred.get();
            for admission in plan {
                let event = Event::Admit { placements: admission.placements };
                if let Err(error) = self.apply(&admission.job, event, batch, now) {
                    tracing::error!(job = %admission.job, %error, "the plan did not fit the job");
                }
            }
        }
    }

    /// The jobs that may start, in order; looked up only as far as the planner reads.
    fn candidates<'a>(
        &'a self,
        target: &Target,
        batch: &'a Batch,
        now: Timestamp,
        deferred: &'a Cell<bool>,
    ) -> impl Iterator<Item = &'a Waiting> {
        let eligible = move |id: &'a JobId| {
            let live = self.jobs.get(id).filter(|live| live.is_eligible(now))?;
            if batch.jobs.get(id).is_some_and(|touched| touched.attempt_ended) {
                deferred.set(true);
                return None;
            }
            Some(live.waiting.as_ref())
        };
        self.queues.get(target).into_iter().flat_map(|queue| queue.values()).filter_map(eligible)
    }

    /// What is free where a target runs.
    pub(super) fn free_on(&self, target: &Target) -> Vec<Free> {
        self.nodes
            .values()
            .filter(|node| node.target == *target && node.is_shown())
            .map(|node| node.free.clone())
            .collect()
    }

    /// What is due: nodes that stayed away too long, and jobs whose pause is over.
    pub(super) fn on_timers(&mut self, batch: &mut Batch, now: Timestamp) {
        while self.timers.first().is_some_and(|at| *at <= now) {
            self.timers.pop_first();
            self.dirty = true;
            self.untended.extend(self.allocations.keys().cloned());
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
            if self.is_doubtful(&id, batch) {
                continue;
            }
            for task in tasks {
                tracing::warn!(%task, node = %id, "given up: its node stayed away");
                let end = TaskEnd::new(Some(Reason::NodeLost { node: self.name_of(&id) }), None);
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
