//! Everything the scheduler remembers between passes, and the events that change it.
//!
//! Names are numbers inside, and what jobs need is kept once for all that need it. Nothing here decides: it keeps the books that
//! [`crate::pass`] decides by. It can be rebuilt at any time from jobs, runs and [`Usage`]; whoever could not write a plan down
//! throws the scheduler away and does so.

mod cluster;
mod copy;
mod due;
mod intern;

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::ops::RangeInclusive;
use std::sync::Arc;

use muster_model::node::Vendor;
use muster_model::{JobId, NodeId};
use rustc_hash::FxHashSet;

pub(crate) use self::copy::Waiting;
use crate::fit::Need;
use crate::known::Bulk;
use crate::policy::{Millis, Policy, millis};
use crate::queue::{JobIx, Lanes, MemberIx, ShapeIx, Ticket};
use crate::quota::{Dim, Ledger};
use crate::request::{Request, Shape, Standing, User};
use crate::reserve::Reservation;
use crate::room::{Node, NodeIx, Room, RunIx};
use crate::run::Run;
use crate::share::Account;
use crate::slab::Slab;

/// A kind of device.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Kind {
    pub vendor: Vendor,
    pub model: String,
    pub dim: Dim,
    pub weight: f64,
}

/// What tasks need, of all jobs that need the same.
#[derive(Debug, Clone)]
pub(crate) struct Class {
    /// The same for all classes that differ only in how much a task needs of what.
    pub family: u32,
    family_key: Arc<str>,
    pub pool: u32,
    pub need: Need,
    pub labels: BTreeMap<String, String>,
    pub exclude: Vec<NodeId>,
    /// How many shapes refer to it.
    pub users: u32,
    /// How many tasks there would be room for if nothing else ran, with the layout of its pool that it was counted for.
    pub most: Cell<Option<(u64, u32)>>,
}

/// A class by its family, and what a task needs: CPUs, memory, devices.
type ClassKey = (u32, u64, u64, usize);

impl Class {
    fn key(&self) -> ClassKey {
        (self.family, self.need.cpu_millis, self.need.memory_bytes, self.need.device_count())
    }

    /// Whether its tasks may be on a node at all, as far as that is not a matter of room.
    pub fn admits(&self, node: &Node) -> bool {
        self.chooses(node) && node.state.serves.serves(&self.need)
    }

    /// Whether a node is among those that a job chooses, by labels and by name.
    pub fn chooses(&self, node: &Node) -> bool {
        self.has_labels(node) && !self.exclude.contains(&node.state.node)
    }

    pub fn has_labels(&self, node: &Node) -> bool {
        self.labels.iter().all(|(key, value)| node.state.labels.get(key) == Some(value))
    }
}

/// Jobs of one class with the same number of tasks.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub class: u32,
    pub size: u32,
    /// What its class says, too, beside it because it is looked at for every shape in every pass.
    pub pool: u32,
    pub bulk: Bulk,
    pub lanes: Lanes,
    /// Nothing of it fitted when its pool was at this count.
    pub blocked_at: Option<u64>,
    pub users: u32,
}

/// What a job still has to start.
#[derive(Debug, Clone)]
pub(crate) enum Left {
    Gang,
    Many { elements: Vec<RangeInclusive<u32>>, at_once: u32 },
}

#[derive(Debug, Clone)]
pub(crate) struct Job {
    pub id: Arc<JobId>,
    pub workspace: u32,
    pub user: u32,
    pub member: MemberIx,
    pub group: ShapeIx,
    pub priority: u32,
    pub preemptible: bool,
    pub submitted_at: Millis,
    pub place: u64,
    pub expected: Option<Millis>,
    pub left: Left,
    pub prefer: Vec<NodeId>,
    pub standing: Standing,
    pub preempted: Vec<(u32, Millis)>,
    pub runs: BTreeMap<u32, RunIx>,
    /// It has a promise.
    pub is_promised: bool,
    pub is_queued: bool,
}

impl Job {
    pub fn ticket(&self, ix: JobIx) -> Ticket {
        let Self { priority, workspace, member, place, .. } = *self;
        Ticket { priority, workspace, member, place, job: ix }
    }

    fn is_waiting(&self) -> bool {
        let has_more = match &self.left {
            Left::Gang => self.runs.is_empty(),
            Left::Many { elements, at_once } => !elements.is_empty() && self.runs.len() < *at_once as usize,
        };
        has_more && !self.is_promised && self.standing == Standing::Ready
    }

    /// The element that starts next.
    pub fn next_element(&self) -> u32 {
        match &self.left {
            Left::Gang => 0,
            Left::Many { elements, .. } => elements.first().map_or(0, |range| *range.start()),
        }
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Pool {
    pub name: String,
    /// Somebody else's scheduler places here.
    pub delegates: bool,
    pub room: Room,
    pub nodes: BTreeSet<NodeIx>,
    /// How many jobs wait to be considered.
    pub waiting: usize,
    /// Counts what may let something start that did not fit before.
    pub epoch: u64,
    /// Nodes on which something was given back since the count was `base`, and how often; if that is all that was counted since.
    pub freed: Vec<NodeIx>,
    pub releases: u64,
    pub base: u64,
    /// Counts what changes which nodes there are.
    pub layout: u64,
    /// What is kept for the first in order, and for the one that has waited longest.
    pub reserved: [Option<Reservation>; 2],
    /// Runs that may be ended for a higher priority than theirs: the least first, then those that lose least.
    pub preemptible: BTreeSet<(u32, Reverse<Millis>, RunIx)>,
    /// Runs that are more than their workspace's own.
    pub borrowing: BTreeSet<(Reverse<Millis>, RunIx)>,
    /// Runs whose end is known.
    pub ends: BTreeSet<(Millis, RunIx)>,
    pub runs: BTreeSet<RunIx>,
}

/// Beyond so many, it is not remembered where something was given back.
const FREED: usize = 256;

impl Pool {
    /// Something was given back on some nodes.
    pub fn give_back(&mut self, nodes: impl Iterator<Item = NodeIx>) {
        self.epoch += 1;
        if self.freed.len() < FREED {
            self.freed.extend(nodes);
            self.releases += 1;
        }
    }

    /// Whether what did not fit when the count was so may fit now on nodes on which something was given back, and nowhere else.
    pub fn only_freed_since(&self, blocked_at: Option<u64>) -> bool {
        self.epoch == self.base + self.releases && blocked_at.is_some_and(|at| at >= self.base)
    }
}

#[derive(Debug, Clone)]
pub(crate) struct Member {
    pub workspace: u32,
    pub user: u32,
    pub account: Account,
}

#[derive(Debug, Clone, Default)]
pub(crate) struct Person {
    pub name: String,
    pub due: User,
    pub running: u32,
}

pub(crate) type Fresh = BTreeSet<(Millis, ShapeIx)>;

/// Who waits, what runs, and what there is: see the module.
#[derive(Debug, Clone)]
pub struct Scheduler {
    pub(crate) policy: Policy,
    pub(crate) half_life: Millis,
    pub(crate) kinds: Vec<Kind>,
    pub(crate) dims: Vec<String>,
    pub(crate) pools: Vec<Pool>,
    pub(crate) nodes: Slab<Node>,
    pub(crate) classes: Slab<Class>,
    pub(crate) groups: Slab<Group>,
    pub(crate) jobs: Slab<Job>,
    pub(crate) runs: Slab<Run>,
    pub(crate) workspaces: Vec<(String, Account)>,
    /// Of each workspace, the runs that may be ended for a higher priority than theirs.
    pub(crate) lesser: Vec<BTreeSet<(u32, Reverse<Millis>, RunIx)>>,
    pub(crate) ledger: Ledger,
    pub(crate) people: Vec<Person>,
    /// How many whoever has no limit of their own may run at once.
    pub(crate) max_running: Option<u32>,
    pub(crate) members: Vec<Member>,
    pub(crate) paused: BTreeSet<(Millis, JobIx)>,
    /// Runs whose place is not free yet, and runs that are to make place.
    pub(crate) promised: BTreeSet<RunIx>,
    pub(crate) leaving: BTreeSet<RunIx>,
    /// Shapes with jobs that have not been tried at others' cost yet, with the moment from which on they may be; and when all
    /// of them last were.
    pub(crate) fresh: Fresh,
    /// Runs that may be ended for others from a moment on.
    pub(crate) young: BTreeSet<(Millis, RunIx)>,
    pub(crate) searched_at: Option<Millis>,
    pub(crate) searched_epoch: u64,
    /// Runs that are taken out for a trial; none between passes.
    pub(crate) is_out: FxHashSet<RunIx>,
    pub(crate) job_index: HashMap<Arc<JobId>, JobIx>,
    pub(crate) node_index: HashMap<NodeId, NodeIx>,
    class_index: HashMap<ClassKey, u32>,
    /// The families by what they have in common, with their number and how many classes they have.
    families: HashMap<Arc<str>, (u32, u32)>,
    next_family: u32,
    group_index: HashMap<(u32, u32), ShapeIx>,
    names: HashMap<(u8, String), u32>,
    member_index: HashMap<(u32, u32), MemberIx>,
    domain_index: HashMap<(usize, String), u32>,
    /// Everything is tried, though it is known what comes of it: what is passed over must make no difference.
    #[cfg(test)]
    pub(crate) is_thorough: bool,
}

impl Scheduler {
    /// One that knows nobody and nothing yet.
    pub fn new(policy: Policy) -> Self {
        Self {
            half_life: millis(policy.half_life).max(1),
            policy,
            kinds: Vec::new(),
            dims: vec!["CPUs".into(), "memory".into(), "devices".into()],
            pools: Vec::new(),
            nodes: Slab::default(),
            classes: Slab::default(),
            groups: Slab::default(),
            jobs: Slab::default(),
            runs: Slab::default(),
            workspaces: Vec::new(),
            lesser: Vec::new(),
            ledger: Ledger::default(),
            people: Vec::new(),
            max_running: None,
            members: Vec::new(),
            paused: BTreeSet::new(),
            promised: BTreeSet::new(),
            leaving: BTreeSet::new(),
            fresh: BTreeSet::new(),
            young: BTreeSet::new(),
            searched_at: None,
            searched_epoch: 0,
            is_out: FxHashSet::default(),
            job_index: HashMap::new(),
            node_index: HashMap::new(),
            class_index: HashMap::new(),
            families: HashMap::new(),
            next_family: 0,
            group_index: HashMap::new(),
            names: HashMap::new(),
            member_index: HashMap::new(),
            domain_index: HashMap::new(),
            #[cfg(test)]
            is_thorough: false,
        }
    }

    /// How many jobs wait to be considered.
    pub fn queued(&self) -> usize {
        self.pools.iter().map(|pool| pool.waiting).sum()
    }

    /// Whether anybody but this job waits for room in a pool.
    pub fn is_contended(&self, pool: &str, id: &JobId) -> bool {
        let waiting = self.pools.iter().find(|it| it.name == pool).map_or(0, |pool| pool.waiting);
        let is_own = self.job_index.get(id).is_some_and(|ix| self.jobs[*ix].is_queued);
        waiting > usize::from(is_own)
    }

    /// How many gangs and elements run, or are about to.
    pub fn running(&self) -> usize {
        self.runs.len()
    }

    /// A job is new, or waits again as something else than it was. One that runs is left as it is.
    pub fn submit(&mut self, request: Request) {
        let mut preempted = request.preempted.clone();
        if let Some(ix) = self.job_index.get(&request.job).copied() {
            if !self.jobs[ix].runs.is_empty() {
                return;
            }
            preempted.append(&mut self.jobs[ix].preempted);
            self.drop_job(ix);
        }
        preempted.sort_unstable();
        preempted.dedup();
        let workspace = self.workspace(&request.workspace);
        let user = self.user(&request.user);
        let member = self.member(workspace, user);
        let (size, left) = match &request.shape {
            Shape::Gang(size) => (*size, Left::Gang),
            Shape::Many { elements, at_once } => {
                let elements = elements.iter().filter(|range| !range.is_empty()).cloned().collect();
                (1, Left::Many { elements, at_once: *at_once })
            }
        };
        let group = self.group(&request, size);
        let id = Arc::new(request.job);
        let job = Job {
            id: id.clone(),
            workspace,
            user,
            member,
            group,
            priority: request.priority,
            preemptible: request.preemptible,
            submitted_at: request.submitted_at,
            place: request.place,
            expected: request.expected,
            left,
            prefer: request.prefer,
            standing: request.standing,
            preempted,
            runs: BTreeMap::new(),
            is_promised: false,
            is_queued: false,
        };
        let ix = self.jobs.insert(job);
        self.job_index.insert(id, ix);
        self.queue(ix);
    }

    /// A job waits no more, and does not run: somebody took it back.
    pub fn withdraw(&mut self, id: &JobId) {
        let Some(ix) = self.job_index.get(id).copied() else { return };
        if self.jobs[ix].is_promised {
            self.break_promise(ix);
        }
        if self.jobs[ix].runs.is_empty() {
            self.drop_job(ix);
        } else if let Left::Many { elements, .. } = &mut self.jobs[ix].left {
            elements.clear();
            // What is kept for an element that is not wanted any more would start one that runs once more.
            self.unreserve(ix);
            self.queue(ix);
        }
    }

    /// Whether a job is known.
    pub fn knows(&self, id: &JobId) -> bool {
        self.job_index.contains_key(id)
    }

    /// Puts a job into the queue or takes it out of it, as it stands.
    pub(crate) fn queue(&mut self, ix: JobIx) {
        let job = &mut self.jobs[ix];
        let is_waiting = job.is_waiting();
        if let Standing::Paused(until) = job.standing {
            self.paused.insert((until, ix));
        }
        if job.is_queued != is_waiting {
            job.is_queued = is_waiting;
            let (ticket, expected, number) = (job.ticket(ix), job.expected, job.group);
            let group = &mut self.groups[number];
            if is_waiting {
                if self.policy.preemption {
                    let due = job.submitted_at.saturating_add(millis(self.policy.preempt_after));
                    self.fresh.insert((due, number));
                }
                group.lanes.insert(ticket, expected);
                group.blocked_at = None;
                self.pools[group.pool as usize].waiting += 1;
            } else {
                group.lanes.remove(ticket, expected);
                self.pools[group.pool as usize].waiting -= 1;
            }
        }
    }

    /// Forgets a job that does not run.
    pub(crate) fn drop_job(&mut self, ix: JobIx) {
        if self.jobs[ix].is_promised {
            self.break_promise(ix);
        }
        self.unreserve(ix);
        let job = &mut self.jobs[ix];
        if let Standing::Paused(until) = job.standing {
            self.paused.remove(&(until, ix));
        }
        job.standing = Standing::Held;
        self.queue(ix);
        let job = self.jobs.remove(ix);
        self.job_index.remove(&job.id);
        self.release_group(job.group);
    }
}
