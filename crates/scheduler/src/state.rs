//! Everything the scheduler remembers between passes, and the events that change it.
//!
//! Names are numbers inside, and what jobs need is kept once for all that need it. Nothing here decides: it keeps the books that
//! [`crate::pass`] decides by. It can be rebuilt at any time from jobs, runs and [`Usage`]; whoever could not write a plan down
//! throws the scheduler away and does so.

mod intern;

use std::cell::Cell;
use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::ops::RangeInclusive;

use muster_model::node::Vendor;
use muster_model::{JobId, NodeId};

use crate::fit::Need;
use crate::policy::{Millis, Policy, millis};
use crate::queue::{JobIx, Lanes, MemberIx, ShapeIx, Ticket};
use crate::quota::{CPU, DEVICES, Dim, Ledger, MEMORY, Resource};
use crate::request::{Request, Shape, Standing, Usage, User, Workspace};
use crate::reserve::Reservation;
use crate::room::{Node, NodeIx, NodeState, Room, RunIx};
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
    pub key: String,
    pub pool: u32,
    pub need: Need,
    pub labels: BTreeMap<String, String>,
    pub exclude: Vec<NodeId>,
    /// How many shapes refer to it.
    pub users: u32,
    /// How many tasks there would be room for if nothing else ran, with the layout of its pool that it was counted for.
    pub most: Cell<Option<(u64, u32)>>,
}

impl Class {
    /// Whether its tasks may be on a node at all, as far as that is not a matter of room.
    pub fn admits(&self, node: &Node) -> bool {
        let state = &node.state;
        self.labels.iter().all(|(key, value)| state.labels.get(key) == Some(value))
            && !self.exclude.contains(&state.node)
            && state.serves.serves(&self.need)
    }
}

/// Jobs of one class with the same number of tasks.
#[derive(Debug, Clone)]
pub(crate) struct Group {
    pub class: u32,
    pub size: u32,
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
    pub id: JobId,
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
    /// Counts what may let something start that did not fit before.
    pub epoch: u64,
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
    pub(crate) members: Vec<Member>,
    pub(crate) paused: BTreeSet<(Millis, JobIx)>,
    /// Runs whose place is not free yet, and runs that are to make place.
    pub(crate) promised: BTreeSet<RunIx>,
    pub(crate) leaving: BTreeSet<RunIx>,
    /// Shapes with jobs that have not been tried at others' cost yet, with the moment from which on they may be; and when all
    /// of them last were.
    pub(crate) fresh: BTreeSet<(Millis, ShapeIx)>,
    /// Runs that may be ended for others from a moment on.
    pub(crate) young: BTreeSet<(Millis, RunIx)>,
    pub(crate) searched_at: Option<Millis>,
    pub(crate) searched_epoch: u64,
    /// Runs that are taken out for a trial; none between passes.
    pub(crate) is_out: HashSet<RunIx>,
    pub(crate) job_index: HashMap<JobId, JobIx>,
    pub(crate) node_index: HashMap<NodeId, NodeIx>,
    class_index: HashMap<String, u32>,
    group_index: HashMap<(u32, u32), ShapeIx>,
    names: HashMap<(u8, String), u32>,
    member_index: HashMap<(u32, u32), MemberIx>,
    domain_index: HashMap<(usize, String), u32>,
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
            members: Vec::new(),
            paused: BTreeSet::new(),
            promised: BTreeSet::new(),
            leaving: BTreeSet::new(),
            fresh: BTreeSet::new(),
            young: BTreeSet::new(),
            searched_at: None,
            searched_epoch: 0,
            is_out: HashSet::new(),
            job_index: HashMap::new(),
            node_index: HashMap::new(),
            class_index: HashMap::new(),
            group_index: HashMap::new(),
            names: HashMap::new(),
            member_index: HashMap::new(),
            domain_index: HashMap::new(),
        }
    }

    /// Says whether a pool has a scheduler of its own: then it is given whole jobs, and quotas and limits alone decide here.
    pub fn set_pool(&mut self, name: &str, delegates: bool) {
        let pool = self.pool(name);
        self.pools[pool as usize].delegates = delegates;
        self.pools[pool as usize].epoch += 1;
    }

    /// Says what a node is now, whether or not it was known.
    pub fn set_node(&mut self, state: NodeState) {
        let known = self.node_index.get(&state.node).copied();
        if known.is_some_and(|ix| self.nodes[ix].is_present && self.nodes[ix].state == state) {
            return;
        }
        let pool = self.pool(&state.pool);
        let devices = self.devices_of(&state.capacity.devices);
        let domains = self.domains_of(&state);
        let id = state.node.clone();
        let mut node = Node::new(state, pool, devices, domains);
        let ix = match known {
            Some(ix) => {
                let before = &self.nodes[ix];
                self.pools[before.pool as usize].room.remove(ix, before);
                self.pools[before.pool as usize].nodes.remove(&ix);
                node.inherit(before);
                self.nodes[ix] = node;
                ix
            }
            None => {
                let ix = self.nodes.insert(node);
                self.node_index.insert(id, ix);
                ix
            }
        };
        let pool = &mut self.pools[pool as usize];
        pool.room.add(ix, &self.nodes[ix]);
        pool.nodes.insert(ix);
        pool.epoch += 1;
        pool.layout += 1;
        if !self.nodes[ix].state.usable {
            self.break_promises(ix);
            self.unreserve_on(ix);
        }
    }

    /// A node is nobody's any more. What runs there is still counted, until it is said to have ended.
    pub fn remove_node(&mut self, id: &NodeId) {
        let Some(ix) = self.node_index.get(id).copied() else { return };
        let node = &mut self.nodes[ix];
        let pool = &mut self.pools[node.pool as usize];
        pool.room.remove(ix, node);
        pool.nodes.remove(&ix);
        pool.epoch += 1;
        pool.layout += 1;
        node.is_present = false;
        self.break_promises(ix);
        self.unreserve_on(ix);
        self.forget_node(ix);
    }

    pub(crate) fn forget_node(&mut self, ix: NodeIx) {
        if !self.nodes[ix].is_present && self.nodes[ix].runs.is_empty() {
            let node = self.nodes.remove(ix);
            self.node_index.remove(&node.state.node);
        }
    }

    /// Says what a workspace is due.
    pub fn set_workspace(&mut self, name: &str, due: Workspace) {
        let ix = self.workspace(name);
        self.workspaces[ix as usize].1.weight = due.weight.max(f64::MIN_POSITIVE);
        let quotas = due.quotas.into_iter().map(|(resource, quota)| {
            let dim = match resource {
                Resource::Cpu => CPU,
                Resource::Memory => MEMORY,
                Resource::Devices => DEVICES,
                Resource::Model(model) => self.dim(&model),
            };
            (dim, quota)
        });
        let quotas = quotas.collect();
        self.ledger.set(ix, quotas);
        self.mark_borrowers(ix);
        self.pools.iter_mut().for_each(|pool| pool.epoch += 1);
    }

    /// Says what a user is due.
    pub fn set_user(&mut self, name: &str, due: User) {
        let ix = self.user(name);
        let weight = due.weight.max(f64::MIN_POSITIVE);
        self.people[ix as usize].due = due;
        for member in self.members.iter_mut().filter(|member| member.user == ix) {
            member.account.weight = weight;
        }
    }

    /// What everybody has used, to be kept.
    pub fn usage(&self, now: Millis) -> Vec<Usage> {
        let workspaces = self.workspaces.iter().map(|(name, account)| (name.clone(), None, account));
        let members = self.members.iter().map(|member| {
            let user = self.people[member.user as usize].name.clone();
            (self.workspaces[member.workspace as usize].0.clone(), Some(user), &member.account)
        });
        let used = workspaces.chain(members).map(|(workspace, user, account)| Usage {
            workspace,
            user,
            mean: account.mean(now, self.half_life),
            at: now,
        });
        // What is as good as forgotten is not worth a line.
        used.filter(|usage| usage.mean > 1e-6).collect()
    }

    /// What everybody had used, when the scheduler is made anew; before runs are told.
    pub fn restore(&mut self, usage: &[Usage]) {
        for used in usage {
            let workspace = self.workspace(&used.workspace);
            let account = match &used.user {
                Some(user) => {
                    let user = self.user(user);
                    let member = self.member(workspace, user);
                    &mut self.members[member as usize].account
                }
                None => &mut self.workspaces[workspace as usize].1,
            };
            account.set_mean(used.mean, used.at);
        }
    }

    /// How many jobs wait to be considered.
    pub fn queued(&self) -> usize {
        self.groups.iter().map(|(_, group)| group.lanes.len()).sum()
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
        let job = Job {
            id: request.job.clone(),
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
        self.job_index.insert(request.job, ix);
        self.queue(ix);
    }

    /// A job waits no more, and does not run: somebody took it back.
    pub fn withdraw(&mut self, id: &JobId) {
        let Some(ix) = self.job_index.get(id).copied() else { return };
        if self.jobs[ix].runs.is_empty() || self.jobs[ix].is_promised {
            self.drop_job(ix);
        } else if let Left::Many { elements, .. } = &mut self.jobs[ix].left {
            elements.clear();
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
            } else {
                group.lanes.remove(ticket, expected);
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
