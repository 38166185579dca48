//! The queue as people see it, and what they change about a job's place in it.

use std::sync::Arc;

use muster_api::problem::{Code, Problem};
use muster_api::quota::{QueueView, QueuedView};
use muster_model::{JobId, Timestamp};
use muster_scheduler::{Change, Queued};
use muster_store::Sight;
use serde_json::json;

use super::Core;
use super::batch::{Answer, Batch};
use super::input::Reply;
use super::schedule::{millis, timestamp};
use super::workspace::workspace_of;

/// Which part of the queue somebody wants to see.
#[derive(Debug, Clone)]
pub(crate) struct QueueAsked {
    /// The workspaces whose jobs are there for them; those of others only count.
    pub sight: Sight,
    pub workspace: Option<String>,
    pub user: Option<String>,
    pub on: Option<String>,
    pub limit: usize,
}

impl Core {
    /// A page of who waits.
    pub(super) fn queue_view(&self, asked: &QueueAsked) -> QueueView {
        let fits = |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|wanted| wanted == is);
        let is_shown = |pool: &str, workspace: &str, user: &str| {
            asked.sight.has(workspace)
                && fits(&asked.workspace, workspace)
                && fits(&asked.user, user)
                && fits(&asked.on, pool)
        };
        let page = self.scheduler.listing(asked.limit, millis(super::now()), is_shown);
        QueueView {
            items: page.into_iter().filter_map(|one| self.queued_view(one)).collect(),
            waiting: self.scheduler.waiting() as u64,
        }
    }

    fn queued_view(&self, one: Queued) -> Option<QueuedView> {
        let Queued { job, position, tier, summary, elements, starts_at } = one;
        let live = self.jobs.get(&job)?;
        Some(QueuedView {
            position,
            name: live.name.clone(),
            user: live.owner.clone(),
            workspace: workspace_of(&live.spec).to_owned(),
            on: live.target().to_string(),
            priority: live.spec.priority,
            nodes: live.spec.nodes,
            gpus: live.spec.resources.gpus.as_ref().map(ToString::to_string),
            cpu_millis: live.spec.resources.cpu_millis(),
            memory_bytes: live.spec.resources.memory.unwrap_or(0),
            exclusive: live.spec.exclusive,
            elements,
            waiting_since: live.submitted_at,
            code: tier.code().into(),
            summary,
            starts_at: starts_at.and_then(timestamp),
            job,
        })
    }

    /// Gives a job that is not over another priority: what waits goes to its new place, what runs is ended for others by it.
    pub(super) fn on_reprioritise(
        &mut self,
        id: &JobId,
        priority: u32,
        reply: Reply<()>,
        batch: &mut Batch,
        now: Timestamp,
    ) {
        let Some(live) = self.jobs.get_mut(id) else {
            let refused = "the job is over; only one that is not has a priority";
            return drop(reply.send(Err(Problem::new(Code::InvalidState, refused))));
        };
        let before = live.spec.priority;
        if before != priority {
            batch.remember(live).is_reprioritised = true;
            Arc::make_mut(&mut live.spec).priority = priority;
            let attempt = live.job.attempt;
            batch.event(id, attempt, now, "reprioritised", json!({ "from": before, "to": priority }));
            self.scheduler.change(id, Change::Priority(priority));
            self.dirty = true;
        }
        batch.answers.push(Answer::Done(reply));
    }
}
