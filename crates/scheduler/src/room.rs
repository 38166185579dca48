//! What nodes have left, and an index of it: which node fits best is found without looking at all of them.
//!
//! A node remembers what is claimed on it, not what is left. So claims may overlap for a while, as those of a job that is promised a
//! place do with those of the jobs that are about to leave it, and nothing is lost or given twice when either goes.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;
use std::sync::Arc;

use muster_model::NodeId;
use muster_model::node::Capacity;

use crate::fit::{Need, Serves};
use crate::known::Bulk;

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

/// What is claimed on a node, in all.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Used {
    /// CPUs, in thousandths.
    pub cpu_millis: u64,
    /// Memory.
    pub memory_bytes: u64,
    /// Slots.
    pub slots: u32,
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
    /// Shared with every copy of the scheduler: it is large, and replaced as a whole.
    pub state: Arc<NodeState>,
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
            state: Arc::new(state),
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

    /// Whether what fitted another fits this one: they differ in nothing but whether they are usable.
    pub fn is_alike(&self, other: &Self) -> bool {
        let (own, other) = (&self.state, &other.state);
        own.pool == other.pool
            && own.capacity == other.capacity
            && own.labels == other.labels
            && own.serves == other.serves
    }

    pub fn tasks(&self) -> u32 {
        self.tasks
    }

    /// What is claimed. Who has a node alone has all of it.
    pub fn used(&self) -> Used {
        let capacity = &self.state.capacity;
        let of = |claimed: u64, whole: u64| if self.alone > 0 { whole } else { claimed.min(whole) };
        Used {
            cpu_millis: of(self.cpu, capacity.cpu_millis),
            memory_bytes: of(self.memory, capacity.memory_bytes),
            slots: of(self.slots, u64::from(capacity.slots)) as u32,
        }
    }

    pub fn is_taken(&self, device: u32) -> bool {
        self.taken.contains(&device)
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

/// Where a node stands among others: free devices, memory in steps, CPUs or slots.
type Spot = (u32, u32, u64, NodeIx);

/// Memory in steps, four for each doubling: few enough to go through, fine enough that those of one step are much alike.
fn step(memory: u64) -> u32 {
    let Some(top) = memory.checked_ilog2() else { return 0 };
    let next = if top >= 2 { memory >> (top - 2) } else { memory << (2 - top) };
    1 + top * 4 + (next & 3) as u32
}

/// The open nodes of a pool, by what is left on them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Room {
    by_kind: BTreeMap<KindIx, BTreeSet<Spot>>,
    by_cpu: BTreeSet<Spot>,
    by_slots: BTreeSet<Spot>,
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
        let (left, all) = (node.left(None), node.free_devices());
        let memory = step(left.memory);
        for devices in node.devices.iter().filter(|it| !it.free.is_empty()) {
            let count = devices.free.len() as u32;
            set(self.by_kind.entry(devices.kind).or_default(), (count, memory, left.cpu, ix), is_in);
            let free = self.free.entry(devices.kind).or_default();
            *free = if is_in { *free + u64::from(count) } else { *free - u64::from(count) };
        }
        if left.cpu > 0 {
            set(&mut self.by_cpu, (all, memory, left.cpu, ix), is_in);
        }
        if left.slots > 0 {
            set(&mut self.by_slots, (all, memory, left.slots, ix), is_in);
        }
        if left.is_empty {
            set(&mut self.empty, (all, left.cpu, ix), is_in);
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
            return;
        }
        let Some(nodes) = self.nodes_for(need, kind) else { return };
        let _ = steps(nodes, least(need, kind, tasks), see);
    }

    /// The nodes in question for a need, in their order.
    fn nodes_for(&self, need: &Need, kind: Option<KindIx>) -> Option<&BTreeSet<Spot>> {
        match kind {
            Some(kind) => self.by_kind.get(&kind),
            None if need.cpu_millis > 0 => Some(&self.by_cpu),
            None => Some(&self.by_slots),
        }
    }

    /// What the roomiest nodes have: a need that is more than each of these fits nowhere.
    pub fn ceiling(&self, need: &Need, kind: Option<KindIx>) -> Ceiling {
        let mut tops: Vec<(u32, u32, u64)> = Vec::new();
        let Some(nodes) = self.nodes_for(need, kind) else { return Ceiling(tops) };
        // From the most devices down: a later one is covered by one before it, and seldom the other way round.
        let mut next = nodes.last().copied();
        while let Some((devices, memory, amount, _)) = next {
            if !tops.iter().any(|top| top.0 >= devices && top.1 >= memory && top.2 >= amount) {
                tops.push((devices, memory, amount));
            }
            next = nodes.range(..(devices, memory, 0, 0)).next_back().copied();
        }
        Ceiling(tops)
    }
}

/// What the roomiest nodes have left.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ceiling(Vec<(u32, u32, u64)>);

impl Ceiling {
    /// What some nodes have left, in CPUs and devices of whatever kind.
    pub fn of<'a>(nodes: impl Iterator<Item = &'a Node>) -> Self {
        let mut tops: Vec<(u32, u32, u64)> = Vec::new();
        for node in nodes.filter(|node| node.is_open()) {
            let left = node.left(None);
            let top = (node.free_devices(), step(left.memory), left.cpu);
            let covers = |a: &(u32, u32, u64), b: &(u32, u32, u64)| a.0 >= b.0 && a.1 >= b.1 && a.2 >= b.2;
            if !tops.iter().any(|other| covers(other, &top)) {
                tops.retain(|other| !covers(&top, other));
                tops.push(top);
            }
        }
        Self(tops)
    }

    /// Whether one task may fit there; what may not, certainly does not.
    pub fn may_hold(&self, bulk: &Bulk) -> bool {
        let memory = step(bulk.memory);
        self.0.iter().any(|top| top.0 >= bulk.devices && top.1 >= memory && top.2 >= bulk.cpu)
    }

    /// Whether one task may fit somewhere; what may not, certainly does not.
    pub fn may_fit(&self, need: &Need, kind: Option<KindIx>) -> bool {
        let (devices, memory, amount) = least(need, kind, 1);
        self.0.iter().any(|top| top.0 >= devices && top.1 >= memory && top.2 >= amount)
    }
}

/// The least that a node has with room for so many tasks: devices, memory in steps, CPUs or slots.
fn least(need: &Need, kind: Option<KindIx>, tasks: u32) -> (u32, u32, u64) {
    let devices = if kind.is_some() { (need.device_count() as u32).saturating_mul(tasks) } else { 0 };
    let memory = step(need.memory_bytes.saturating_mul(u64::from(tasks)));
    let each = if kind.is_some() || need.cpu_millis > 0 { need.cpu_millis } else { 1 };
    (devices, memory, each.saturating_mul(u64::from(tasks)))
}

/// The nodes with at least so much of everything, those with the fewest devices first, then those with the least memory.
fn steps(
    set: &BTreeSet<Spot>,
    (devices, memory, amount): (u32, u32, u64),
    mut see: impl FnMut(NodeIx) -> ControlFlow<()>,
) -> ControlFlow<()> {
    let mut next = set.range((devices, memory, 0, 0)..).next();
    while let Some(&(count, step, _, _)) = next {
        if step < memory {
            next = set.range((count, memory, 0, 0)..).next();
            continue;
        }
        let all = (count, step, amount, 0)..=(count, step, u64::MAX, NodeIx::MAX);
        set.range(all).try_for_each(|(_, _, _, ix)| see(*ix))?;
        next = set.range((count, step + 1, 0, 0)..).next();
    }
    ControlFlow::Continue(())
}
