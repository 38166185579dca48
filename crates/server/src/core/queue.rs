//! The queue as people see it, and what they change about a job's place in it.

use std::sync::Arc;

use muster_api::problem::{Code, Problem};
use muster_api::quota::{QueueView, QueuedView};
use muster_api::view::Why;
use muster_engine::{GangChange, Key};
use muster_model::{AttemptId, JobId, Timestamp};
use muster_scheduler::{Change, Queued};
use muster_store::Sight;
use serde_json::json;

use super::Core;
use super::batch::{Answer, Batch};
use super::input::Reply;
use super::live::Live;
use super::schedule::{millis, timestamp};
use super::workspace::workspace_of;
use crate::delegate::{GangTarget, Word};

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

/// A gang that waits at another scheduler.
#[derive(Debug, Clone)]
pub(crate) struct WaitingGang {
    pub attempt: AttemptId,
    pub target: GangTarget,
}

impl WaitingGang {
    /// What its engine knows it by.
    pub fn key(&self) -> Key {
        self.target.key(&self.attempt)
    }
}

impl Core {
    /// A page of who waits: the jobs that the scheduler here lets start, then those that wait at another one.
    pub(super) fn queue_view(&self, asked: &QueueAsked) -> QueueView {
        let fits = |wanted: &Option<String>, is: &str| wanted.as_deref().is_none_or(|wanted| wanted == is);
        let is_shown = |pool: &str, workspace: &str, user: &str| {
            asked.sight.has(workspace)
                && fits(&asked.workspace, workspace)
                && fits(&asked.user, user)
                && fits(&asked.on, pool)
        };
        let page = self.scheduler.listing(asked.limit, millis(super::now()), is_shown);
        let mut items: Vec<QueuedView> = page.into_iter().filter_map(|one| self.queued_view(one)).collect();
        let handed_over = self.jobs.values().filter(|live| live.job.is_handed_over());
        let mut handed_over: Vec<&Live> = handed_over.collect();
        let waiting = (self.scheduler.waiting() + handed_over.len()) as u64;
        handed_over
            .retain(|live| is_shown(&live.target().to_string(), workspace_of(&live.spec), &live.owner));
        handed_over.sort_unstable_by_key(|live| live.seq);
        let left = asked.limit.saturating_sub(items.len());
        items.extend(handed_over.into_iter().take(left).map(|live| self.handed_over_view(live)));
        QueueView { items, waiting }
    }

    fn queued_view(&self, one: Queued) -> Option<QueuedView> {
        let Queued { job, position, tier, summary, elements, starts_at } = one;
        let live = self.jobs.get(&job)?;
        let starts_at = starts_at.and_then(timestamp);
        Some(QueuedView {
            position,
            elements,
            code: tier.code().into(),
            summary,
            starts_at,
            ..asked_for(live)
        })
    }

    /// A job that waits at another scheduler, with what that says of it. Its place in that queue is not known.
    fn handed_over_view(&self, live: &Live) -> QueuedView {
        let Why { code, summary, starts_at, .. } = self.why_handed_over(live);
        QueuedView { code, summary, starts_at, ..asked_for(live) }
    }

    /// The gang of a job, if that waits at another scheduler.
    pub(super) fn waiting_gang(&self, id: &JobId) -> Option<WaitingGang> {
        let live = self.jobs.get(id).filter(|live| live.job.is_handed_over())?;
        let attempt = live.job.attempt_id();
        let target = self.allocations.get(&attempt)?.target();
        Some(WaitingGang { attempt, target })
    }

    /// A change that another scheduler has taken: it is written down, and what follows from it is asked for.
    pub(super) fn on_passed_on(
        &mut self,
        gang: &WaitingGang,
        change: GangChange,
        reply: Reply<()>,
        batch: &mut Batch,
        now: Timestamp,
    ) {
        let WaitingGang { attempt, target } = gang;
        let word = match change {
            GangChange::Hold => Some("held"),
            GangChange::Release => Some("released"),
            // Its event is written with the new priority.
            GangChange::Priority(_) => None,
        };
        if let Some(word) = word {
            batch.event(&attempt.job, attempt.number, now, word, json!({ "on": target.target.to_string() }));
        }
        batch.words.push(Word::Look(attempt.clone()));
        batch.answers.push(Answer::Done(reply));
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

/// What a job asks for, without why it waits.
fn asked_for(live: &Live) -> QueuedView {
    QueuedView {
        position: None,
        job: live.job.id.clone(),
        name: live.name.clone(),
        display_name: live.spec.display_name.clone(),
        user: live.owner.clone(),
        workspace: workspace_of(&live.spec).to_owned(),
        on: live.target().to_string(),
        priority: live.spec.priority,
        nodes: live.spec.nodes,
        gpus: live.spec.resources.gpus.as_ref().map(ToString::to_string),
        cpu_millis: live.spec.resources.cpu_millis(),
        memory_bytes: live.spec.resources.memory.unwrap_or(0),
        exclusive: live.spec.exclusive,
        elements: None,
        waiting_since: live.submitted_at,
        code: String::new(),
        summary: String::new(),
        starts_at: None,
    }
}
