//! Waking up: what the database holds becomes memory again.

use std::collections::{BTreeMap, BTreeSet, HashMap};

use muster_model::NodeId;
use muster_model::node::Capacity;
use muster_model::spec::Target;

use super::live::{Live, Node};
use super::{Core, Parts};

impl Core {
    /// Loads everything that is not over. `nodes` are those the engines offer; until their agents dial in, they are
    /// as the database remembers them.
    pub fn load(parts: Parts, nodes: Vec<(NodeId, Target)>) -> Result<Self, muster_store::Error> {
        let next_seq = parts.readers.largest_job_seq()?;
        let mut core = Self {
            jobs: HashMap::new(),
            names: HashMap::new(),
            queues: BTreeMap::new(),
            nodes: BTreeMap::new(),
            ended: HashMap::new(),
            collecting: None,
            timers: BTreeSet::new(),
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
        let remembered = self.parts.readers.nodes()?;
        let now = super::now();
        for (id, target) in offered {
            let row = remembered.iter().find(|row| row.id == id);
            let capacity = row.map_or_else(Capacity::default, |row| row.capacity.clone());
            let mut node = Node::new(id.clone(), target, capacity);
            node.incarnation = row.and_then(|row| row.incarnation.clone());
            node.host = row.map(|row| row.host.clone()).unwrap_or_default();
            // The server's absence is not the node's fault: its time starts now.
            let engine = self.parts.engines.get(node.target.engine());
            node.lost_at = engine.map(|engine| now + engine.capabilities().lost_after);
            self.timers.extend(node.lost_at);
            self.nodes.insert(id, node);
        }
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
