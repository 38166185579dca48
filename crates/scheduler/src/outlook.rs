//! What is to come: who is before a job, when it starts by what is expected, and what somebody could start now.

use std::cmp::Ordering;

use muster_model::quantity::DeviceRequest;
use muster_model::task::Placement;
use muster_model::{JobId, NodeId};
use serde::Serialize;

use crate::policy::Millis;
use crate::queue::JobIx;
use crate::quota::DEVICES;
use crate::request::{Fate, Plan, Request, Shape};
use crate::room::{KindIx, Used};
use crate::state::Scheduler;

/// How many ends are played through before an estimate is given up.
const ENDS: usize = 300;
/// How many passes follow one another at one moment before that is left at it.
const PASSES: usize = 10;

/// When a job starts, if running jobs end when they are expected to.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Estimate {
    /// The moment.
    pub at: Millis,
    /// The job whose end makes room for it.
    pub when_ends: JobId,
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

    /// Plays on from here with the same rules, every run ending when it is expected to, until a job starts.
    pub(crate) fn estimate(&self, ix: JobIx, now: Millis) -> Option<Estimate> {
        let id = &self.jobs[ix].id;
        let key = self.key(ix, &mut self.new_pass(now));
        let mut trial = self.trial(ix, &key, now)?;
        // Nobody can foresee who will be told to leave.
        trial.policy.preemption = false;
        for _ in 0..ENDS {
            let ends = trial.pools.iter().filter_map(|pool| pool.ends.first().copied());
            let (ends_at, run) = ends.min()?;
            let run = &trial.runs[run];
            let (ended, element) = (JobId::clone(&trial.jobs[run.job].id), run.element);
            let at = ends_at.max(now);
            trial.ended(&ended, element, Fate::Over, at);
            if trial.settle(at).starts.iter().any(|start| start.job == **id) {
                return Some(Estimate { at, when_ends: ended });
            }
        }
        None
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
