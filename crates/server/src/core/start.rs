//! Waking up: what the database holds becomes memory again.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::time::Duration;

use muster_model::NodeId;
use muster_model::node::Capacity;
use muster_model::spec::Target;
use muster_store::NodeRow;

use super::live::{Live, Node};
use super::{Core, Parts};

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
            queues: BTreeMap::new(),
            nodes: BTreeMap::new(),
            pools: BTreeMap::new(),
            leaving: BTreeSet::new(),
            settling: Vec::new(),
            settles_at: now + SETTLE,
            ended: HashMap::new(),
            collecting: None,
            timers: BTreeSet::from([now + SETTLE]),
            next_seq,
            dirty: true,
            parts,
        };
        core.load_nodes(nodes)?;
        core.load_jobs()?;
        core.rebuild();
        Ok(core)
    }

    fn load_nodes(&mut self, offered: Vec<(NodeId, Target)>) -> Result<(), muster_store::Error> {
        let mut remembered: HashMap<NodeId, NodeRow> =
            self.parts.readers.nodes()?.into_iter().map(|row| (row.id.clone(), row)).collect();
        let drained = self.parts.readers.drained()?;
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

    fn load_jobs(&mut self) -> Result<(), muster_store::Error> {
        for row in self.parts.readers.load_unfinished()? {
            let live = Live::new(row.job, row.name, row.spec, row.bundle, row.seq);
            self.jobs.insert(live.job.id.clone(), live);
        }
        Ok(())
    }
}
