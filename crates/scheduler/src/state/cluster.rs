//! What there is: pools, and the nodes in them.

use muster_model::NodeId;

use super::Scheduler;
use crate::room::{Node, NodeIx, NodeState};

impl Scheduler {
    /// Says whether a pool has a scheduler of its own: then it is given whole jobs, and quotas and limits alone decide here.
    pub fn set_pool(&mut self, name: &str, delegates: bool) {
        let pool = self.pool(name);
        let pool = &mut self.pools[pool as usize];
        if pool.delegates != delegates {
            pool.delegates = delegates;
            pool.epoch += 1;
        }
    }

    /// Says what a node is now, whether or not it was known.
    pub fn set_node(&mut self, state: NodeState) {
        let known = self.node_index.get(&state.node).copied();
        if known.is_some_and(|ix| self.nodes[ix].is_present && *self.nodes[ix].state == state) {
            return;
        }
        let pool = self.pool(&state.pool);
        let devices = self.devices_of(&state.capacity.devices);
        let domains = self.domains_of(&state);
        let id = state.node.clone();
        let mut node = Node::new(state, pool, devices, domains);
        let mut is_other = !node.state.usable;
        let ix = match known {
            Some(ix) => {
                let before = &self.nodes[ix];
                is_other |= !node.is_alike(before);
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
        // What was promised or kept on a node as it was may not be there any more.
        if is_other {
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
}
