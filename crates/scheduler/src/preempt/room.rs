//! Whom to end so that there is room: node by node, the cheapest first.

use std::cmp::Reverse;
use std::collections::{BTreeMap, BTreeSet, BinaryHeap};
use std::ops::ControlFlow;

use rustc_hash::FxHashMap;

use super::{Claimant, SEEN, WEIGHED};
use crate::policy::Millis;
use crate::request::Cause;
use crate::room::{NodeIx, RunIx};
use crate::state::{Class, Scheduler};

impl Scheduler {
    /// Takes out runs until there is room, node by node, the cheapest first.
    pub(super) fn take_room(&mut self, claimant: &Claimant, out: &mut Vec<RunIx>) -> bool {
        let group = &self.groups[claimant.asker.group];
        let (class_ix, size, pool) = (group.class, group.size, self.classes[group.class].pool);
        if self.pools[pool as usize].delegates {
            return false;
        }
        let victims = self.victims(claimant, pool);
        let mut rooms: FxHashMap<NodeIx, u32> = FxHashMap::default();
        let class = &self.classes[class_ix];
        self.pools[pool as usize].room.visit(&class.need, claimant.kind, 1, |ix| {
            rooms.insert(ix, self.room_on(ix, class, claimant.kind, claimant.asker).min(size));
            ControlFlow::Continue(())
        });
        let mut total: u64 = rooms.values().map(|room| u64::from(*room)).sum();
        let price = |this: &Self, ix: NodeIx| {
            let (loss, chosen) = this.price(claimant, &this.classes[class_ix], ix, &victims[&ix])?;
            Some((Reverse((loss.to_bits(), ix)), chosen))
        };
        let mut heap: BinaryHeap<_> = victims.keys().filter_map(|ix| Some(price(self, *ix)?.0)).collect();
        while total < u64::from(size) {
            let Some(Reverse((offered, ix))) = heap.pop() else { return false };
            let Some((now, chosen)) = price(self, ix) else { continue };
            if now.0.0 != offered {
                heap.push(now);
                continue;
            }
            for run in chosen {
                let nodes: BTreeSet<NodeIx> =
                    self.runs[run].seats.iter().flatten().map(|seat| seat.node).collect();
                self.take_out(run);
                out.push(run);
                for node in nodes {
                    let class = &self.classes[class_ix];
                    let room = self.room_on(node, class, claimant.kind, claimant.asker).min(size);
                    total = total - u64::from(rooms.insert(node, room).unwrap_or(0)) + u64::from(room);
                }
            }
            heap.extend(price(self, ix).map(|it| it.0));
        }
        true
    }

    /// The runs that may be ended for somebody, by node.
    fn victims(&self, claimant: &Claimant, pool: u32) -> BTreeMap<NodeIx, Vec<RunIx>> {
        let class = &self.classes[self.groups[claimant.asker.group].class];
        let from = &self.pools[pool as usize];
        let below = (claimant.asker.priority, Reverse(Millis::MAX), 0);
        let lower = from.preemptible.range(..below).map(|(_, _, ix)| *ix);
        // Whoever has no quota takes nothing back.
        let borrowing = from.borrowing.iter().filter(|_| claimant.has_quota).map(|(_, ix)| *ix);
        let may_end = |ix: &RunIx| match self.cause(claimant, *ix) {
            Some(Cause::Priority) => true,
            Some(Cause::Reclaim) => self.is_borrower(*ix),
            None => false,
        };
        let size = self.groups[claimant.asker.group].size as usize * class.need.device_count().max(1);
        let all = borrowing.take(SEEN.max(8 * size)).chain(lower.take(SEEN.max(8 * size)));
        let open = all.filter(|ix| !self.is_out.contains(ix) && may_end(ix));
        let all: BTreeSet<RunIx> = open.take(WEIGHED.max(4 * size)).collect();
        let mut by_node: BTreeMap<NodeIx, Vec<RunIx>> = BTreeMap::new();
        for ix in all {
            for seat in self.runs[ix].seats.iter().flatten() {
                let node = &self.nodes[seat.node];
                let is_usable = node.is_present && node.state.usable && class.admits(node);
                if is_usable && self.unreserved(seat.node, class, claimant.kind, claimant.asker).is_none() {
                    let here = by_node.entry(seat.node).or_default();
                    if here.last() != Some(&ix) {
                        here.push(ix);
                    }
                }
            }
        }
        for runs in by_node.values_mut() {
            self.sort_by_loss(runs, claimant.now);
        }
        by_node
    }

    /// Whether a run's workspace has more than its own just now, with what is out.
    fn is_borrower(&self, ix: RunIx) -> bool {
        let run = &self.runs[ix];
        self.ledger.borrows_any(self.jobs[run.job].workspace, &run.charge)
    }

    /// What room for one more task on a node would cost, and whom.
    fn price(
        &self,
        claimant: &Claimant,
        class: &Class,
        ix: NodeIx,
        victims: &[RunIx],
    ) -> Option<(f64, Vec<RunIx>)> {
        let is_open = |run: &&RunIx| {
            let still = self.cause(claimant, **run) == Some(Cause::Priority) || self.is_borrower(**run);
            !self.is_out.contains(run) && still
        };
        let victims: Vec<RunIx> = victims.iter().filter(is_open).copied().collect();
        let before = self.shadow(ix, class, claimant.kind, u32::MAX).room;
        let room_without = |chosen: &[RunIx]| {
            let mut shadow = self.shadow(ix, class, claimant.kind, u32::MAX);
            for run in chosen {
                self.give_back_on(ix, *run, claimant.kind, &mut shadow);
            }
            self.room_of(ix, class, &shadow)
        };
        let mut chosen = Vec::new();
        for run in &victims {
            chosen.push(*run);
            if room_without(&chosen) > before {
                break;
            }
        }
        if room_without(&chosen) <= before {
            return None;
        }
        for at in (0..chosen.len()).rev() {
            let spared = chosen.remove(at);
            if room_without(&chosen) <= before {
                chosen.insert(at, spared);
            }
        }
        Some((chosen.iter().map(|run| self.runs[*run].loses(claimant.now)).sum(), chosen))
    }
}
