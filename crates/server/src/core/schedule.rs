//! Letting waiting jobs start, and ending others for them; and what happens by the clock.
//!
//! The scheduler remembers. It is told at once what is free again, and before it is asked for a plan, of every job and node that is
//! otherwise than it last heard. A batch that is not written leaves it with what never was, so it is then made anew.

use std::collections::BTreeSet;
use std::time::Duration;

use muster_model::job::{Ending, Event, State};
use muster_model::task::TaskEnd;
use muster_model::{JobId, NodeId, Reason, Timestamp};
use muster_scheduler::{
    Fate, Millis, Preemption, Request, Running, Scheduler, Shape, Standing, Start, Usage,
};
use muster_store::{Change, UsageRow};
use serde_json::json;

use super::batch::Batch;
use super::live::Live;
use super::workspace::workspace_of;
use super::{Core, array};

/// How soon what people have used is written down after it changed: what a crash forgets of it is less than this.
const USAGE: Duration = Duration::from_secs(60);
/// For how long it counts that a job was ended for others.
pub(super) const MEMORY: Duration = Duration::from_secs(24 * 3600);

/// What the scheduler has yet to be told.
#[derive(Debug, Default)]
pub(super) struct Untold {
    pub jobs: BTreeSet<JobId>,
    pub nodes: BTreeSet<NodeId>,
}

impl Core {
    /// Starts what may start now, in the same batch as what made room for it.
    pub(super) fn schedule(&mut self, batch: &mut Batch, now: Timestamp) {
        self.tell_nodes();
        self.tell_jobs(batch, now);
        self.keep_usage(batch, now);
        if !std::mem::take(&mut self.dirty) {
            return;
        }
        let plan = self.scheduler.pass(millis(now));
        // Jobs whose attempt ended in this batch are told of in the next.
        self.dirty = !self.untold.jobs.is_empty();
        for start in plan.starts {
            self.start(start, batch, now);
        }
        for preemption in plan.preemptions {
            self.make_room(&preemption, batch, now);
        }
        match plan.next_at {
            Some(at) if at <= millis(now) => self.dirty = true,
            Some(at) => self.timers.extend(timestamp(at)),
            None => {}
        }
    }

    fn start(&mut self, start: Start, batch: &mut Batch, now: Timestamp) {
        let Some(live) = self.jobs.get(&start.job) else { return };
        if let Some(reason) = self.start_obstacle(live) {
            return self.refuse_start(&start, reason, batch, now);
        }
        if live.job.array.is_some() {
            return self.start_lane(start, batch, now);
        }
        let done = if self.is_delegated(live.target()) {
            self.hand_over(&start.job, batch, now)
        } else {
            self.apply(&start.job, Event::Admit { placements: start.placements }, batch, now)
        };
        if let Err(error) = done {
            tracing::error!(job = %start.job, %error, "the plan did not fit the job");
            self.scheduler.ended(&start.job, start.element, Fate::Over, millis(now));
            self.untold.jobs.insert(start.job);
        } else {
            self.note_usage(now);
        }
    }

    /// Ends a job for another one. It gets its notice, and waits again with its place.
    fn make_room(&mut self, preemption: &Preemption, batch: &mut Batch, now: Timestamp) {
        let Preemption { job, element, by, cause, loses } = preemption;
        let Some(live) = self.jobs.get(job) else { return };
        let reason = Reason::Preempted;
        let (attempt, event) = match live.job.array {
            Some(_) => {
                let attempt = live.job.attempt_of(*element).number;
                (attempt, Event::StopLane { attempt, rank: *element, reason })
            }
            None => (live.job.attempt, Event::Preempt { attempt: live.job.attempt, reason }),
        };
        // One that ends already makes room all the same.
        if self.apply(job, event, batch, now).is_err() {
            return;
        }
        if let Some(live) = self.jobs.get_mut(job) {
            live.preempted.retain(|at| *at + MEMORY > now);
            live.preempted.push(now);
        }
        let body = json!({ "by": by, "cause": cause, "lost_device_seconds": loses.round() });
        batch.event(job, attempt, now, "preempted", body);
    }

    /// Before it is asked for a plan, or for words.
    pub(super) fn tell_nodes(&mut self) {
        for id in std::mem::take(&mut self.untold.nodes) {
            match self.nodes.get(&id).filter(|node| node.is_shown()) {
                Some(node) => self.scheduler.set_node(node.state()),
                None => self.scheduler.remove_node(&id),
            }
        }
    }

    fn tell_jobs(&mut self, batch: &Batch, now: Timestamp) {
        for id in std::mem::take(&mut self.untold.jobs) {
            // One write holds one attempt: the next is planned in the next batch.
            if batch.jobs.get(&id).is_some_and(|touched| touched.attempt_ended) {
                self.dirty = true;
                self.untold.jobs.insert(id);
                continue;
            }
            self.tell_job(&id, now);
        }
    }

    fn tell_job(&mut self, id: &JobId, now: Timestamp) {
        let Some(live) = self.jobs.get(id) else { return self.scheduler.withdraw(id) };
        self.scheduler.set_pool(&live.target().to_string(), self.is_delegated(live.target()));
        if live.job.array.is_some() && live.job.is_under_way() {
            let live = live.clone();
            return self.tell_lanes(&live);
        }
        if !live.job.is_under_way() {
            match live.job.is_waiting() {
                true => self.scheduler.submit(self.request(live, now)),
                false => self.scheduler.withdraw(id),
            }
        } else if live.job.policy.independent {
            // Who of the group is there may be others than the plan had.
            let (request, running) = (self.request(live, now), running(live, now));
            self.scheduler.ended(id, 0, Fate::Over, millis(now));
            self.scheduler.submit(request);
            self.scheduler.started(running);
        }
    }

    /// A job as the scheduler is told of it.
    pub(super) fn request(&self, live: &Live, now: Timestamp) -> Request {
        let job = &live.job;
        let tasks = match job.is_under_way() && job.policy.independent {
            true => job.ranks(|task| !task.is_over()).len(),
            false => job.wanted().len(),
        };
        let standing = if job.hold {
            Standing::Held
        } else if !live.after.is_empty() || self.has_allocation(&job.id) {
            Standing::Dependent(String::new())
        } else {
            job.eligible_at.filter(|at| *at > now).map_or(Standing::Ready, |at| Standing::Paused(millis(at)))
        };
        Request {
            priority: live.spec.priority,
            preemptible: live.spec.preemptible,
            submitted_at: millis(live.submitted_at),
            place: live.seq,
            // Of an array it is how long an element may take.
            expected: live.spec.timeout.filter(|_| live.spec.array.is_none()).map(span),
            shape: array::shape(live).unwrap_or(Shape::Gang(tasks as u32)),
            need: (*live.need).clone(),
            prefer: job.preferred(),
            exclude: self.excluded(&live.spec),
            labels: live.spec.node_labels.clone(),
            standing,
            preempted: live.preempted.iter().map(|at| (0, millis(*at))).collect(),
            ..Request::new(job.id.clone(), workspace_of(&live.spec), &live.owner, &live.target().to_string())
        }
    }

    /// The scheduler as it follows from jobs and nodes, and from what people had used.
    pub(super) fn scheduler_anew(&self, usage: &[Usage], now: Timestamp) -> Scheduler {
        let mut scheduler = Scheduler::new(self.parts.policy.clone());
        scheduler.restore(usage);
        super::quota::tell(&self.quotas, &mut scheduler);
        for node in self.nodes.values().filter(|node| node.is_shown()) {
            scheduler.set_node(node.state());
        }
        // In the order in which they came, so that the same database always makes the same scheduler.
        let mut jobs: Vec<&Live> = self.jobs.values().collect();
        jobs.sort_unstable_by_key(|live| live.seq);
        for live in jobs {
            scheduler.set_pool(&live.target().to_string(), self.is_delegated(live.target()));
            if live.job.is_under_way() {
                scheduler.submit(self.request(live, now));
                match live.job.array {
                    Some(_) => array::running(live, now).into_iter().for_each(|lane| scheduler.started(lane)),
                    None => scheduler.started(running(live, now)),
                }
            } else if live.job.is_waiting() {
                scheduler.submit(self.request(live, now));
            }
        }
        scheduler
    }

    /// What was used has changed, and is to be written down before long.
    pub(super) fn note_usage(&mut self, now: Timestamp) {
        if self.usage_due.is_none() {
            self.usage_due = Some(now + USAGE);
            self.timers.insert(now + USAGE);
        }
    }

    fn keep_usage(&mut self, batch: &mut Batch, now: Timestamp) {
        if self.usage_due.is_some_and(|at| at <= now) {
            self.usage_due = None;
            let row = |used: Usage| UsageRow {
                workspace: used.workspace,
                user: used.user,
                mean: used.mean,
                at: timestamp(used.at).unwrap_or(now),
            };
            batch.last.push(Change::Usage(self.scheduler.usage(millis(now)).into_iter().map(row).collect()));
        }
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

/// A gang that runs, as the scheduler is told of it. It knows no node where somebody else's scheduler has placed it.
fn running(live: &Live, now: Timestamp) -> Running {
    let job = &live.job;
    let place = |task: &muster_model::Task| (!task.is_over()).then(|| task.placement.clone());
    let first = job.tasks.iter().filter_map(|task| task.started_at).min();
    Running {
        job: job.id.clone(),
        element: 0,
        placements: job.tasks.iter().map(place).collect(),
        started_at: millis(job.started_at.or(first).unwrap_or(now)),
        saved_at: None,
        is_leaving: job.state == State::Stopping && matches!(job.ending, Some(Ending::Requeue { .. })),
    }
}

/// A moment, as the scheduler counts them.
pub(super) fn millis(at: Timestamp) -> Millis {
    u64::try_from(at.as_millisecond()).unwrap_or(0)
}

/// The moment that the scheduler means; none where it means never.
pub(super) fn timestamp(at: Millis) -> Option<Timestamp> {
    i64::try_from(at).ok().and_then(|at| Timestamp::from_millisecond(at).ok())
}

/// A span, as the scheduler counts them.
pub(super) fn span(span: Duration) -> Millis {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}
