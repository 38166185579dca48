//! What is free on a node, and whether a task fits there.

use std::collections::BTreeMap;

use muster_model::NodeId;
use muster_model::node::{Capacity, Device};
use muster_model::quantity::DeviceRequest;
use muster_model::spec::JobSpec;
use muster_model::task::Placement;

use crate::once::Waiting;

/// What one task claims. One that asks for nothing takes a slot.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Need {
    /// CPUs in thousandths.
    pub cpu_millis: u64,
    /// Memory.
    pub memory_bytes: u64,
    /// Accelerators, each whole.
    pub devices: Option<DeviceRequest>,
    /// A node with nothing else on it, and all of its devices.
    pub exclusive: bool,
    /// The account that it must run under; an empty one where nobody has said which that is, and nothing can run.
    pub account: Option<String>,
    /// The volumes that it must have.
    pub volumes: Vec<String>,
}

impl From<&JobSpec> for Need {
    fn from(spec: &JobSpec) -> Self {
        let resources = &spec.resources;
        Self {
            cpu_millis: resources.cpu_millis(),
            memory_bytes: resources.memory.unwrap_or(0),
            devices: resources.gpus.clone(),
            exclusive: spec.exclusive,
            ..Self::default()
        }
    }
}

impl Need {
    /// A task that claims CPUs or devices is bounded by those; any other by the node's slots.
    pub(crate) fn slots(&self) -> u32 {
        u32::from(self.cpu_millis == 0 && self.devices.is_none())
    }

    pub(crate) fn device_count(&self) -> usize {
        self.devices.as_ref().map_or(0, |request| request.count as usize)
    }
}

/// What a node has left.
#[derive(Debug, Clone, PartialEq)]
pub struct Free {
    /// The node.
    pub node: NodeId,
    /// What it has in all.
    pub capacity: Capacity,
    /// Whether new tasks may start there now.
    pub usable: bool,
    /// CPUs left, in thousandths.
    pub cpu_millis: u64,
    /// Memory left.
    pub memory_bytes: u64,
    /// Slots left.
    pub slots: u32,
    /// Devices left, by number.
    pub devices: Vec<u32>,
    /// How many tasks are there.
    pub tasks: u32,
    /// Whom and what it serves.
    pub serves: Serves,
}

/// Whom and what a node serves.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Serves {
    /// The only account whose tasks it runs; everybody's, if absent.
    pub only: Option<String>,
    /// The volumes that tasks cannot have there, and why; none if that is not known yet.
    pub lacks: Option<BTreeMap<String, String>>,
}

impl Serves {
    /// Whether a task can be there, as far as that is not a matter of room. What is not known yet may be.
    pub fn may_serve(&self, need: &Need) -> bool {
        self.obstacle(need).is_none()
    }

    pub(crate) fn serves(&self, need: &Need) -> bool {
        self.obstacle(need).is_none() && (need.volumes.is_empty() || self.lacks.is_some())
    }

    /// What keeps a task from being there.
    pub fn obstacle(&self, need: &Need) -> Option<String> {
        if need.account.as_deref() == Some("") {
            return Some("no admin has said which account of the machines its user has".into());
        }
        if let (Some(only), Some(wanted)) = (&self.only, &need.account)
            && only != wanted
        {
            return Some(format!(
                "its agent is not root's and runs tasks of `{only}` alone, not of `{wanted}`"
            ));
        }
        let lacks = self.lacks.as_ref()?;
        need.volumes.iter().find_map(|name| Some(format!("volume `{name}`: {}", lacks.get(name)?)))
    }
}

impl Free {
    /// A node on which nothing runs.
    pub fn whole(node: NodeId, capacity: Capacity) -> Self {
        let devices = capacity.devices.iter().map(|device| device.index).collect();
        Self {
            node,
            usable: true,
            cpu_millis: capacity.cpu_millis,
            memory_bytes: capacity.memory_bytes,
            slots: capacity.slots,
            devices,
            tasks: 0,
            capacity,
            serves: Serves::default(),
        }
    }

    /// The same node, with nothing on it.
    pub fn emptied(&self) -> Self {
        Self { serves: self.serves.clone(), ..Self::whole(self.node.clone(), self.capacity.clone()) }
    }

    /// Whether any task at all could start here.
    pub fn has_room(&self) -> bool {
        self.usable && (self.slots > 0 || self.cpu_millis > 0 || !self.devices.is_empty())
    }

    /// Takes what a task needs. What is already over-claimed stays at nothing left.
    pub fn claim(&mut self, need: &Need, devices: &[u32]) {
        self.tasks += 1;
        if need.exclusive {
            return self.clear();
        }
        self.cpu_millis = self.cpu_millis.saturating_sub(need.cpu_millis);
        self.memory_bytes = self.memory_bytes.saturating_sub(need.memory_bytes);
        self.slots = self.slots.saturating_sub(need.slots());
        self.devices.retain(|device| !devices.contains(device));
    }

    /// Gives back what a task had.
    pub fn release(&mut self, need: &Need, devices: &[u32]) {
        self.tasks = self.tasks.saturating_sub(1);
        if need.exclusive {
            let (usable, tasks) = (self.usable, self.tasks);
            *self = Self { usable, tasks, ..self.emptied() };
            return;
        }
        self.cpu_millis = (self.cpu_millis + need.cpu_millis).min(self.capacity.cpu_millis);
        self.memory_bytes = (self.memory_bytes + need.memory_bytes).min(self.capacity.memory_bytes);
        self.slots = (self.slots + need.slots()).min(self.capacity.slots);
        self.devices.extend(
            devices.iter().filter(|device| !self.devices.contains(device)).copied().collect::<Vec<_>>(),
        );
        self.devices.sort_unstable();
    }

    /// Leaves nothing for anybody.
    fn clear(&mut self) {
        (self.cpu_millis, self.memory_bytes, self.slots) = (0, 0, 0);
        self.devices.clear();
    }

    /// The devices a task would get here: of one model, so that a gang's ranks are alike; the model with the fewest
    /// left over is used up first.
    fn choose_devices(&self, need: &Need) -> Option<Vec<u32>> {
        let Some(request) = &need.devices else { return Some(Vec::new()) };
        let fitting = |device: &&Device| device.satisfies(request) && self.devices.contains(&device.index);
        let mut by_model: Vec<(&str, Vec<u32>)> = Vec::new();
        for device in self.capacity.devices.iter().filter(fitting) {
            match by_model.iter_mut().find(|(model, _)| *model == device.model) {
                Some((_, devices)) => devices.push(device.index),
                None => by_model.push((&device.model, vec![device.index])),
            }
        }
        let count = need.device_count();
        by_model.retain(|(_, devices)| devices.len() >= count);
        by_model.into_iter().min_by_key(|(_, devices)| devices.len()).map(|(_, mut devices)| {
            devices.truncate(count);
            devices
        })
    }

    fn place(&self, need: &Need) -> Option<Vec<u32>> {
        let enough = self.usable
            && self.cpu_millis >= need.cpu_millis
            && self.memory_bytes >= need.memory_bytes
            && self.slots >= need.slots()
            && (self.tasks == 0 || !need.exclusive)
            && self.serves.serves(need);
        let chosen = if enough { self.choose_devices(need) } else { None };
        if need.exclusive { chosen.map(|_| self.devices.clone()) } else { chosen }
    }

    /// Leaves nothing of what a task asks for.
    fn set_aside(&mut self, need: &Need) {
        if need.exclusive {
            return self.clear();
        }
        if need.cpu_millis > 0 {
            self.cpu_millis = 0;
        }
        if need.memory_bytes > 0 {
            self.memory_bytes = 0;
        }
        if need.slots() > 0 {
            self.slots = 0;
        }
        if let Some(request) = &need.devices {
            let wanted =
                |index: u32| self.capacity.devices.iter().any(|d| d.index == index && d.satisfies(request));
            let kept: Vec<u32> = self.devices.iter().copied().filter(|index| !wanted(*index)).collect();
            self.devices = kept;
        }
    }

    /// How much would be left after one more task: fuller nodes are filled first, so that whole ones stay free.
    fn slack(&self) -> (usize, u64, u32) {
        (self.devices.len(), self.cpu_millis, self.slots)
    }
}

/// Whether a gang would fit if nothing else ran.
pub fn fits_ever(nodes: &[Free], gang: u32, need: &Need) -> bool {
    let mut left = gang;
    for node in nodes {
        let mut whole = node.emptied();
        while left > 0 {
            let Some(devices) = whole.place(need) else { break };
            whole.claim(need, &devices);
            left -= 1;
        }
    }
    left == 0
}

/// A place for every task of a gang, or none at all.
pub(crate) fn place(nodes: &[Free], waiting: &Waiting) -> Option<Vec<Placement>> {
    let placements = place_some(nodes, waiting);
    (placements.len() == waiting.nodes as usize).then_some(placements)
}

/// Places for as many tasks of a gang as fit, on as few nodes as possible.
pub(crate) fn place_some(nodes: &[Free], waiting: &Waiting) -> Vec<Placement> {
    let mut order: Vec<&Free> = nodes.iter().filter(|node| node.has_room()).collect();
    let is_strange = |node: &Free| !waiting.prefer.contains(&node.node);
    order.sort_by(|a, b| {
        let habit = is_strange(a).cmp(&is_strange(b));
        habit.then_with(|| a.slack().cmp(&b.slack())).then_with(|| a.node.cmp(&b.node))
    });
    let mut placements = Vec::new();
    for node in order {
        let mut node = node.clone();
        while placements.len() < waiting.nodes as usize {
            let Some(devices) = node.place(&waiting.need) else { break };
            node.claim(&waiting.need, &devices);
            placements.push(Placement { node: node.node.clone(), devices });
        }
    }
    by_habit(placements, &waiting.prefer)
}

/// Gives every rank the node it prefers, if that is among those the gang has; the rest follows in order.
fn by_habit(mut placements: Vec<Placement>, prefer: &[NodeId]) -> Vec<Placement> {
    if prefer.is_empty() {
        return placements;
    }
    let mut own: Vec<Option<Placement>> = Vec::new();
    for rank in 0..placements.len() {
        let at = prefer.get(rank).and_then(|node| placements.iter().position(|place| place.node == *node));
        own.push(at.map(|at| placements.remove(at)));
    }
    let mut rest = placements.into_iter();
    own.into_iter().filter_map(|place| place.or_else(|| rest.next())).collect()
}

/// Keeps for a blocked gang what it could already have: a place for each task that fits, and for each that does not
/// yet, the rest of the emptiest node that could hold it, in the kinds of resource it asks for and no others.
pub(crate) fn reserve(nodes: &mut [Free], waiting: &Waiting) {
    let placed = place_some(nodes, waiting);
    let outstanding = waiting.nodes as usize - placed.len();
    for placement in &placed {
        claim(nodes, placement, &waiting.need);
    }
    let could_hold = |node: &&mut Free| node.usable && node.emptied().place(&waiting.need).is_some();
    let mut candidates: Vec<&mut Free> = nodes.iter_mut().filter(could_hold).collect();
    candidates.sort_by(|a, b| b.slack().cmp(&a.slack()).then_with(|| a.node.cmp(&b.node)));
    for node in candidates.into_iter().take(outstanding) {
        node.set_aside(&waiting.need);
    }
}

pub(crate) fn claim(nodes: &mut [Free], placement: &Placement, need: &Need) {
    if let Some(node) = nodes.iter_mut().find(|node| node.node == placement.node) {
        node.claim(need, &placement.devices);
    }
}
