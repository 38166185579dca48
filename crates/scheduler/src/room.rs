//! What nodes have left, and an index of it: which node fits best is found without looking at all of them.
//!
//! A node remembers what is claimed on it, not what is left. So claims may overlap for a while, as those of a job that is promised a
//! place do with those of the jobs that are about to leave it, and nothing is lost or given twice when either goes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use muster_model::NodeId;
use muster_model::node::Capacity;

use crate::fit::{Need, Serves};

pub(crate) type NodeIx = u32;
pub(crate) type KindIx = u32;
pub(crate) type RunIx = u32;

/// A node as the scheduler is told of it.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeState {
    /// The node.
    pub node: NodeId,
    /// The pool that it belongs to.
    pub pool: String,
    /// What it has in all.
    pub capacity: Capacity,
    /// What it is labelled with; the topology is among it.
    pub labels: BTreeMap<String, String>,
    /// Whether new tasks may start there now: it is connected, and not cordoned.
    pub usable: bool,
    /// Whom and what it serves.
    pub serves: Serves,
}

/// The devices of one kind on a node, by number.
#[derive(Debug, Clone)]
pub(crate) struct Devices {
    pub kind: KindIx,
    pub all: Vec<u32>,
    pub free: Vec<u32>,
}

/// A node and what is claimed on it.
#[derive(Debug, Clone)]
pub(crate) struct Node {
    pub state: NodeState,
    pub pool: u32,
    /// Whether anybody still has it; what runs on one that is gone is remembered until it ends.
    pub is_present: bool,
    pub devices: Vec<Devices>,
    /// The value of each label of the policy's topology.
    pub domains: Vec<Option<u32>>,
    /// The runs with tasks here, and how many.
    pub runs: Vec<(RunIx, u32)>,
    cpu: u64,
    memory: u64,
    slots: u64,
    alone: u32,
    tasks: u32,
    taken: Vec<u32>,
}

/// What is left on a node, in amounts.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Left {
    pub cpu: u64,
    pub memory: u64,
    pub slots: u64,
    pub devices: u64,
    pub is_empty: bool,
}

impl Left {
    /// How many tasks of a need fit into it. `devices` are those of the kind in question.
    pub fn room(&self, need: &Need) -> u32 {
        if need.exclusive {
            let is_enough = self.cpu >= need.cpu_millis
                && self.memory >= need.memory_bytes
                && self.devices >= need.device_count() as u64;
            return u32::from(self.is_empty && is_enough);
        }
        let of = |have: u64, each: u64| have.checked_div(each).unwrap_or(u64::MAX);
        let room = of(self.cpu, need.cpu_millis)
            .min(of(self.memory, need.memory_bytes))
            .min(of(self.slots, u64::from(need.slots())))
            .min(of(self.devices, need.device_count() as u64));
        u32::try_from(room).unwrap_or(u32::MAX)
    }
}

impl Node {
    pub fn new(state: NodeState, pool: u32, devices: Vec<Devices>, domains: Vec<Option<u32>>) -> Self {
        Self {
            state,
            pool,
            is_present: true,
            devices,
            domains,
            runs: Vec::new(),
            cpu: 0,
            memory: 0,
            slots: 0,
            alone: 0,
            tasks: 0,
            taken: Vec::new(),
        }
    }

    /// Takes over what is claimed on a node that is told of anew.
    pub fn inherit(&mut self, before: &Self) {
        self.runs.clone_from(&before.runs);
        self.taken.clone_from(&before.taken);
        (self.cpu, self.memory, self.slots) = (before.cpu, before.memory, before.slots);
        (self.alone, self.tasks) = (before.alone, before.tasks);
        self.refresh();
    }

    pub fn tasks(&self) -> u32 {
        self.tasks
    }

    /// Whether somebody has it alone.
    pub fn is_alone(&self) -> bool {
        self.alone > 0
    }

    pub fn is_open(&self) -> bool {
        self.is_present && self.state.usable && self.alone == 0
    }

    /// What is left, with devices of a kind.
    pub fn left(&self, kind: Option<KindIx>) -> Left {
        let capacity = &self.state.capacity;
        let devices = kind.and_then(|kind| self.devices.iter().find(|it| it.kind == kind));
        Left {
            cpu: capacity.cpu_millis.saturating_sub(self.cpu),
            memory: capacity.memory_bytes.saturating_sub(self.memory),
            slots: u64::from(capacity.slots).saturating_sub(self.slots),
            devices: devices.map_or(0, |it| it.free.len() as u64),
            is_empty: self.tasks == 0,
        }
    }

    /// What there would be if nothing were claimed.
    pub fn whole(&self, kind: Option<KindIx>) -> Left {
        let capacity = &self.state.capacity;
        let devices = kind.and_then(|kind| self.devices.iter().find(|it| it.kind == kind));
        Left {
            cpu: capacity.cpu_millis,
            memory: capacity.memory_bytes,
            slots: u64::from(capacity.slots),
            devices: devices.map_or(0, |it| it.all.len() as u64),
            is_empty: true,
        }
    }

    pub fn free_devices(&self) -> u32 {
        self.devices.iter().map(|it| it.free.len() as u32).sum()
    }

    /// The devices of one more task.
    pub fn choose(&self, need: &Need, kind: Option<KindIx>, before: &[u32]) -> Vec<u32> {
        if need.exclusive {
            let mut all: Vec<u32> = self.devices.iter().flat_map(|it| it.free.iter().copied()).collect();
            all.sort_unstable();
            return all;
        }
        let of_kind = self.devices.iter().find(|it| Some(it.kind) == kind);
        let free = of_kind.into_iter().flat_map(|it| it.free.iter().copied());
        free.filter(|device| !before.contains(device)).take(need.device_count()).collect()
    }

    pub fn claim(&mut self, run: RunIx, need: &Need, devices: &[u32]) {
        match self.runs.iter_mut().find(|(it, _)| *it == run) {
            Some((_, tasks)) => *tasks += 1,
            None => self.runs.push((run, 1)),
        }
        self.tasks += 1;
        self.alone += u32::from(need.exclusive);
        self.cpu += need.cpu_millis;
        self.memory += need.memory_bytes;
        self.slots += u64::from(need.slots());
        self.taken.extend_from_slice(devices);
        self.refresh();
    }

    pub fn release(&mut self, run: RunIx, need: &Need, devices: &[u32]) {
        let Some(at) = self.runs.iter().position(|(it, _)| *it == run) else { return };
        self.runs[at].1 -= 1;
        if self.runs[at].1 == 0 {
            self.runs.remove(at);
        }
        self.tasks -= 1;
        self.alone -= u32::from(need.exclusive);
        self.cpu -= need.cpu_millis;
        self.memory -= need.memory_bytes;
        self.slots -= u64::from(need.slots());
        for device in devices {
            if let Some(at) = self.taken.iter().position(|it| it == device) {
                self.taken.swap_remove(at);
            }
        }
        self.refresh();
    }

    fn refresh(&mut self) {
        let taken = &self.taken;
        for devices in &mut self.devices {
            devices.free.clear();
            devices.free.extend(devices.all.iter().filter(|device| !taken.contains(device)));
        }
    }

    #[cfg(test)]
    pub fn is_untouched(&self) -> bool {
        self.tasks == 0 && self.cpu == 0 && self.memory == 0 && self.slots == 0 && self.taken.is_empty()
    }
}

/// The open nodes of a pool, by what is left on them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Room {
    by_kind: BTreeMap<KindIx, BTreeSet<(u32, NodeIx)>>,
    by_cpu: BTreeSet<(u32, u64, NodeIx)>,
    by_slots: BTreeSet<(u32, u64, NodeIx)>,
    empty: BTreeSet<(u32, u64, NodeIx)>,
    free: BTreeMap<KindIx, u64>,
}

impl Room {
    pub fn add(&mut self, ix: NodeIx, node: &Node) {
        self.put(ix, node, true);
    }

    pub fn remove(&mut self, ix: NodeIx, node: &Node) {
        self.put(ix, node, false);
    }

    fn put(&mut self, ix: NodeIx, node: &Node, is_in: bool) {
        if !node.is_open() {
            return;
        }
        fn set<K: Ord>(set: &mut BTreeSet<K>, key: K, is_in: bool) {
            if is_in {
                set.insert(key);
            } else {
                set.remove(&key);
            }
        }
        for devices in node.devices.iter().filter(|it| !it.free.is_empty()) {
            let count = devices.free.len() as u32;
            set(self.by_kind.entry(devices.kind).or_default(), (count, ix), is_in);
            let free = self.free.entry(devices.kind).or_default();
            *free = if is_in { *free + u64::from(count) } else { *free - u64::from(count) };
        }
        let (left, devices) = (node.left(None), node.free_devices());
        if left.cpu > 0 {
            set(&mut self.by_cpu, (devices, left.cpu, ix), is_in);
        }
        if left.slots > 0 {
            set(&mut self.by_slots, (devices, left.slots, ix), is_in);
        }
        if left.is_empty {
            set(&mut self.empty, (devices, left.cpu, ix), is_in);
        }
    }

    /// How many devices of a kind are free in all.
    pub fn free(&self, kind: KindIx) -> u64 {
        self.free.get(&kind).copied().unwrap_or(0)
    }

    /// Shows the nodes that may have room for so many tasks of a need, those that they fill best first: the fewest devices are
    /// left, so that whole nodes stay whole.
    pub fn visit(
        &self,
        need: &Need,
        kind: Option<KindIx>,
        tasks: u32,
        mut see: impl FnMut(NodeIx) -> ControlFlow<()>,
    ) {
        if need.exclusive {
            let _ = self.empty.iter().try_for_each(|(_, _, ix)| see(*ix));
        } else if let Some(kind) = kind {
            let Some(nodes) = self.by_kind.get(&kind) else { return };
            let _ = nodes
                .range(((need.device_count() as u32).saturating_mul(tasks), 0)..)
                .try_for_each(|(_, ix)| see(*ix));
        } else if need.cpu_millis > 0 {
            let _ = steps(&self.by_cpu, need.cpu_millis.saturating_mul(u64::from(tasks)), see);
        } else {
            let _ = steps(&self.by_slots, u64::from(tasks), see);
        }
    }
}

/// For each number of free devices, the nodes with at least so much of something else.
fn steps(
    set: &BTreeSet<(u32, u64, NodeIx)>,
    least: u64,
    mut see: impl FnMut(NodeIx) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut devices = set.first().map(|(devices, _, _)| *devices);
    while let Some(count) = devices {
        set.range((count, least, 0)..=(count, u64::MAX, NodeIx::MAX)).try_for_each(|(_, _, ix)| see(*ix))?;
        devices = set.range((count + 1, 0, 0)..).next().map(|(devices, _, _)| *devices);
    }
    ControlFlow::Continue(())
}
