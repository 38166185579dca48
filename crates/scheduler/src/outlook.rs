//! What is to come: who is before a job, when it starts by what is expected, and what somebody could start now.

use std::cmp::Ordering;
use std::collections::BTreeSet;

use muster_model::quantity::DeviceRequest;
use muster_model::task::Placement;
use muster_model::{JobId, NodeId};
use serde::Serialize;

use crate::policy::Millis;
use crate::queue::JobIx;
use crate::quota::DEVICES;
use crate::request::{Fate, Plan, Request, Shape};
use crate::room::{KindIx, RunIx, Used};
use crate::state::Scheduler;

/// How many ends, and passes between them, are played through before an estimate is given up.
const EVENTS: usize = 500;
/// How many passes follow one another at one moment before that is left at it.
const PASSES: usize = 10;
/// How long a job takes to end once it is told to. The scheduler does not know what each asked for.
pub(crate) const LEAVING: Millis = 30_000;

/// When a job starts, if running jobs end when they are expected to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Estimate {
    /// The moment.
    pub at: Millis,
    /// The job whose end makes room for it; none, if time alone does.
    pub when_ends: Option<JobId>,
}

/// What somebody can get of one model now.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Available {
    /// The model.
    pub model: String,
    /// How many there are.
    pub all: u64,
    /// How many are free.
    pub free: u64,
    /// How many more the workspace may have; without end, if absent.
    pub quota_left: Option<u64>,
    /// The largest job that starts now: tasks, and devices for each; none, if none does.
    pub largest: Option<(u32, u32)>,
}

/// A copy of the scheduler in which time goes on.
struct Foresight {
    scheduler: Scheduler,
    now: Millis,
    /// Runs that were told to end, and when they have.
    leaving: BTreeSet<(Millis, JobId, u32)>,
    /// When another pass is worthwhile, though nothing ends.
    look_at: Option<Millis>,
    last_ended: Option<JobId>,
}

impl Foresight {
    fn new(scheduler: Scheduler, now: Millis) -> Self {
        let leaves = |run: &RunIx| {
            let run = &scheduler.runs[*run];
            (now.saturating_add(LEAVING), JobId::clone(&scheduler.jobs[run.job].id), run.element)
        };
        let leaving = scheduler.leaving.iter().map(leaves).collect();
        Self { leaving, scheduler, now, look_at: Some(now), last_ended: None }
    }

    /// What comes of the next thing that happens; none, if nothing more is foreseen.
    fn advance(&mut self) -> Option<Plan> {
        let ends = self.scheduler.pools.iter().filter_map(|pool| pool.ends.first().copied());
        let ends = ends.min();
        let leaves_at = self.leaving.first().map(|(at, ..)| *at);
        let next = [ends.map(|(at, _)| at), leaves_at, self.look_at].into_iter().flatten().min()?;
        self.now = self.now.max(next);
        if leaves_at == Some(next) {
            let (_, job, element) = self.leaving.pop_first()?;
            self.end(job, element, Fate::Again);
        } else if let Some((_, run)) = ends.filter(|(at, _)| *at == next) {
            let run = &self.scheduler.runs[run];
            let (job, element) = (JobId::clone(&self.scheduler.jobs[run.job].id), run.element);
            self.leaving.retain(|(_, other, its)| (other, *its) != (&job, element));
            self.end(job, element, Fate::Over);
        }
        let plan = self.scheduler.settle(self.now);
        let at = self.now.saturating_add(LEAVING);
        self.leaving.extend(plan.preemptions.iter().map(|it| (at, it.job.clone(), it.element)));
        self.look_at = plan.next_at;
        Some(plan)
    }

    fn end(&mut self, job: JobId, element: u32, fate: Fate) {
        self.scheduler.ended(&job, element, fate, self.now);
        self.last_ended = Some(job);
    }
}

impl Scheduler {
    /// How many jobs of its pool are before a job.
    pub(crate) fn ahead(&self, ix: JobIx, now: Millis) -> usize {
        let mut pass = self.new_pass(now);
        let own = self.key(ix, &mut pass);
        let pool = self.classes[self.groups[self.jobs[ix].group].class].pool;
        let here = self.groups.iter().filter(|(_, group)| self.classes[group.class].pool == pool);
        let mut ahead = 0;
        for (_, group) in here {
            for (priority, lane, all, before) in group.lanes.before(own.place) {
                ahead += match self.compare_lane(lane.member, priority, &own, now) {
                    Ordering::Less => all,
                    Ordering::Equal => before,
                    Ordering::Greater => 0,
                };
            }
        }
        ahead
    }

    /// Plays on from here with the same rules, every run ending when it is expected to or when others reclaim what it has, until
    /// a job starts. Otherwise, why nothing can be foreseen.
    pub(crate) fn estimate(&self, ix: JobIx, now: Millis) -> Result<Estimate, String> {
        let id = &self.jobs[ix].id;
        let key = self.key(ix, &mut self.new_pass(now));
        let trial = self.trial(ix, &key, now);
        let trial = trial.ok_or_else(|| "too many jobs are before it".to_owned())?;
        let mut foresight = Foresight::new(trial, now);
        for _ in 0..EVENTS {
            let Some(plan) = foresight.advance() else {
                return Err("it is not known when what runs ends; jobs with --timeout say so".into());
            };
            if plan.starts.iter().any(|start| start.job == **id) {
                return Ok(Estimate { at: foresight.now, when_ends: foresight.last_ended });
            }
        }
        Err(format!("more than {EVENTS} changes are before it"))
    }

    /// All that comes of passes at one moment, each of which may call for the next.
    pub(crate) fn settle(&mut self, now: Millis) -> Plan {
        let mut all = Plan::default();
        for _ in 0..PASSES {
            let plan = self.pass(now);
            all.starts.extend(plan.starts);
            all.preemptions.extend(plan.preemptions);
            all.next_at = plan.next_at;
            if plan.next_at.is_none_or(|at| at > now) {
                break;
            }
        }
        all
    }

    /// What somebody of a workspace could start in a pool now, by model.
    pub fn available(&mut self, pool: &str, workspace: &str, user: &str, now: Millis) -> Vec<Available> {
        let (pool_ix, workspace_ix) = (self.pool(pool), self.workspace(workspace));
        let of = |this: &Self, kind: KindIx| {
            let nodes = this.pools[pool_ix as usize].nodes.iter().map(|ix| &this.nodes[*ix]);
            nodes
                .flat_map(|node| &node.devices)
                .filter(|it| it.kind == kind)
                .map(|it| it.all.len() as u64)
                .sum()
        };
        let mut found = Vec::new();
        for kind in 0..self.kinds.len() as KindIx {
            let all: u64 = of(self, kind);
            if all == 0 {
                continue;
            }
            let model = self.kinds[kind as usize].model.clone();
            let dims = [DEVICES, self.kinds[kind as usize].dim];
            let quota_left = dims.into_iter().filter_map(|dim| self.ledger.left(workspace_ix, dim)).min();
            let free = self.pools[pool_ix as usize].room.free(kind);
            let largest = self.largest_of(pool, workspace, user, &model, now);
            found.push(Available { model, all, free, quota_left, largest });
        }
        found
    }

    /// What is claimed on a node.
    pub fn used(&self, node: &NodeId) -> Used {
        self.node_index.get(node).map(|ix| self.nodes[*ix].used()).unwrap_or_default()
    }

    /// Whether a device of a node is claimed.
    pub fn is_taken(&self, node: &NodeId, device: u32) -> bool {
        self.node_index.get(node).is_some_and(|ix| self.nodes[*ix].is_taken(device))
    }

    /// Where a job that nobody has submitted yet would start now; none if it would wait.
    pub fn place(&mut self, request: Request, now: Millis) -> Option<Vec<Placement>> {
        let id = request.job.clone();
        self.submit(request);
        let offer = self.offer(&self.asker(*self.job_index.get(&id)?, now)).ok();
        self.withdraw(&id);
        let seats = offer?.seats;
        Some(seats.iter().map(|seat| self.placement(seat.node, &seat.devices)).collect())
    }

    /// The most devices of a model that one job gets now, on as few nodes as possible.
    fn largest_of(
        &mut self,
        pool: &str,
        workspace: &str,
        user: &str,
        model: &str,
        now: Millis,
    ) -> Option<(u32, u32)> {
        let pool_ix = self.pool(pool);
        let nodes = self.pools[pool_ix as usize].nodes.iter().map(|ix| &self.nodes[*ix]);
        let on_one = nodes.flat_map(|node| &node.devices).map(|it| it.free.len() as u32).max().unwrap_or(0);
        let mut starts = |tasks: u32, devices: u32| {
            let mut request = Request::new(JobId::from_random(u64::MAX), workspace, user, pool);
            request.shape = Shape::Gang(tasks);
            request.place = u64::MAX;
            request.need.devices =
                Some(DeviceRequest { vendor: None, model: Some(model.into()), count: devices });
            let id = request.job.clone();
            self.submit(request);
            let ix = self.job_index[&id];
            let is_offered = self.offer(&self.asker(ix, now)).is_ok();
            self.withdraw(&id);
            is_offered
        };
        let mut best: Option<(u32, u32)> = None;
        for devices in (1..=on_one).rev() {
            let (mut low, mut high) = (0, 1u32);
            while starts(high, devices) {
                (low, high) = (high, high.saturating_mul(2));
            }
            while low + 1 < high {
                let middle = low + (high - low) / 2;
                if starts(middle, devices) { low = middle } else { high = middle }
            }
            if low > 0 && best.is_none_or(|(tasks, each)| tasks * each < low * devices) {
                best = Some((low, devices));
            }
        }
        best
    }
}
