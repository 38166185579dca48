//! Waking up: what the database holds becomes memory again.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::sync::Arc;
use std::time::Duration;

use muster_model::node::Capacity;
use muster_model::spec::Target;
use muster_model::{AttemptId, NodeId, Timestamp};
use muster_scheduler::{Scheduler, Usage};
use muster_store::{NodeRow, UsageRow};

use super::allocation::{Allocation, target_of};
use super::clock::ClockReading;
use super::live::{Ended, Live, Node};
use super::schedule::{MEMORY, Untold, millis};
use super::{Core, Parts};
use crate::delegate::Word;

/// How long nodes may take to come back to a server that has started: their way to it may have to be made anew.
const RETURN: Duration = Duration::from_secs(60);
/// How long whoever asks for nodes waits for those that are on their way to a server that has just started.
const SETTLE: Duration = Duration::from_secs(2);

impl Core {
    /// Loads everything that is not over. `nodes` are those the engines offer; until their agents dial in, they are
    /// as the database remembers them.
    pub fn load(parts: Parts, nodes: Vec<(NodeId, Target)>) -> Result<Self, muster_store::Error> {
        let next_seq = parts.readers.largest_job_seq()?;
        let now = super::now();
        let mut core = Self {
            jobs: HashMap::new(),
            names: HashMap::new(),
            scheduler: Scheduler::new(parts.policy.clone()),
            untold: Untold::default(),
            usage_due: None,
            dependants: HashMap::new(),
            over: BTreeSet::new(),
            nodes: BTreeMap::new(),
            quotas: parts.readers.quotas()?,
            pools: BTreeMap::new(),
            leaving: BTreeSet::new(),
            allocations: BTreeMap::new(),
            untended: BTreeSet::new(),
            unheard: Vec::new(),
            settling: Vec::new(),
            settles_at: now + SETTLE,
            clock: ClockReading::now(),
            ended: HashMap::new(),
            collecting: None,
            timers: BTreeSet::from([now + SETTLE]),
            next_seq,
            dirty: true,
            later: Vec::new(),
            refused: HashSet::new(),
            unread: BTreeSet::new(),
            parked: HashMap::new(),
            parts,
        };
        core.load_nodes(nodes)?;
        core.load_jobs()?;
        core.load_allocations()?;
        let usage = core.parts.readers.usage()?.into_iter().map(used).collect::<Vec<_>>();
        core.rebuild(&usage);
        core.doubt_lanes();
        Ok(core)
    }

    fn load_nodes(&mut self, offered: Vec<(NodeId, Target)>) -> Result<(), muster_store::Error> {
        let mut remembered: HashMap<NodeId, NodeRow> =
            self.parts.readers.nodes()?.into_iter().map(|row| (row.id.clone(), row)).collect();
        let drained = self.parts.readers.drained()?;
        let mut labels = self.parts.readers.labels()?;
        self.pools = self.parts.readers.pools()?.into_iter().map(|pool| (pool.name.clone(), pool)).collect();
        let hosts = self.pools.values().flat_map(|pool| {
            pool.hosts.iter().map(|host| (host.node.clone(), Target::Ssh(pool.name.clone())))
        });
        let all: Vec<(NodeId, Target)> = offered.into_iter().chain(hosts).collect();
        let now = super::now();
        for (id, target) in all {
            let row = remembered.remove(&id);
            let capacity = row.as_ref().map_or_else(Capacity::default, |row| row.capacity.clone());
            let mut node = Node::new(id.clone(), target, capacity);
            (node.host, node.incarnation) = row.map(|row| (row.host, row.incarnation)).unwrap_or_default();
            node.drained = drained.contains(&id);
            node.labels = labels.remove(&id).unwrap_or_default();
            // The server's absence is not the node's fault: its time starts now.
            let engine = self.parts.engines.get(node.target.engine());
            node.lost_at = engine.map(|engine| now + engine.capabilities().lost_after.max(RETURN));
            self.timers.extend(node.lost_at);
            self.nodes.insert(id, node);
        }
        let ids: Vec<NodeId> = self.nodes.keys().cloned().collect();
        ids.iter().for_each(|id| self.join(id));
        Ok(())
    }

    /// What other schedulers were given: whether they still have it, and what of it was not told, is found out anew.
    fn load_allocations(&mut self) -> Result<(), muster_store::Error> {
        let remembered: HashMap<NodeId, NodeRow> =
            self.parts.readers.nodes()?.into_iter().map(|row| (row.id.clone(), row)).collect();
        let now = super::now();
        for row in self.parts.readers.open_allocations()? {
            let attempt = row.attempt.clone();
            let target = target_of(&row);
            let known: Vec<&NodeRow> = row.nodes.iter().filter_map(|node| remembered.get(node)).collect();
            let came = !known.is_empty();
            self.adopt_allocation(Allocation { came, ..Allocation::new(row) });
            for row in known {
                self.remember_seat(row, now);
            }
            let live = self.jobs.get(&attempt.job).filter(|live| live.job.attempt == attempt.number);
            let word = match live.filter(|live| live.job.is_under_way()) {
                Some(live) if self.allocations[&attempt].row.external.is_none() => {
                    self.word_of_hand_over(live)
                }
                Some(_) | None => Some(Word::Watch { attempt: attempt.clone(), target }),
            };
            word.into_iter().for_each(|word| self.tell_delegate(word));
            self.load_debts(&attempt)?;
        }
        Ok(())
    }

    /// A node of a gang, as its agent was when it last spoke. One that never came is not missed.
    fn remember_seat(&mut self, row: &NodeRow, now: Timestamp) {
        let Some(node) = self.nodes.get_mut(&row.id) else { return };
        node.host = row.host.clone();
        node.incarnation = row.incarnation.clone();
        node.capacity = row.capacity.clone();
        let engine = self.parts.engines.get(node.target.engine());
        node.lost_at = engine.map(|engine| now + engine.capabilities().lost_after.max(RETURN));
        self.timers.extend(node.lost_at);
    }

    /// The tasks of an attempt that are over and whose log or outputs were not here yet.
    fn load_debts(&mut self, attempt: &AttemptId) -> Result<(), muster_store::Error> {
        for (rank, task) in (0..).zip(self.parts.readers.tasks(&attempt.job, attempt.number)?) {
            let id = attempt.task(rank);
            let Some(end) = task.end else { continue };
            let Some(debt) = self.parts.readers.debt(&id)? else { continue };
            let log_bytes = end.log_bytes.filter(|_| debt.log);
            if debt.outputs || !self.parts.logs.is_complete(&id, log_bytes) {
                let ended = Ended { node: task.placement.node, log_bytes, owes_outputs: debt.outputs };
                self.ended.insert(id, ended);
            }
        }
        Ok(())
    }

    fn load_jobs(&mut self) -> Result<(), muster_store::Error> {
        let mut preempted = self.parts.readers.preempted_since(super::now() - MEMORY)?;
        for row in self.parts.readers.load_unfinished()? {
            let mut live = Live {
                need: Arc::new(self.need_of(&row.owner, &row.spec)),
                preempted: preempted.remove(&row.job.id).unwrap_or_default(),
                job: row.job,
                name: row.name,
                owner: row.owner,
                spec: row.spec,
                bundle: row.bundle,
                seq: row.seq,
                submitted_at: row.submitted_at,
                after: Vec::new(),
                machine_names: row.machine_names,
            };
            // The clock may have been set back while no server ran.
            live.job.limit_waits(super::now());
            self.jobs.insert(live.job.id.clone(), live);
        }
        Ok(())
    }
}

/// What somebody had used, as the scheduler is told of it.
fn used(row: UsageRow) -> Usage {
    Usage { workspace: row.workspace, user: row.user, mean: row.mean, at: millis(row.at) }
}
