//! What jobs ask for and what nodes have, in words and numbers.

use muster_model::node::Device;
use muster_model::quantity::{DeviceRequest, format_bytes};

use crate::fit::Need;
use crate::room::Node;

/// What a gang asks for, whole.
pub(crate) fn asks(need: &Need, gang: u32) -> String {
    match gang {
        1 => format!("needs {}", needs(need)),
        _ => format!("needs {} for each of {gang} tasks at once", needs(need)),
    }
}

fn needs(need: &Need) -> String {
    let mut parts = Vec::new();
    if let Some(request) = &need.devices {
        let kind = request.model.clone().or(request.vendor.map(|vendor| vendor.to_string()));
        let what = kind.map_or("device".into(), |kind| format!("{kind} device"));
        parts.push(counted(u64::from(request.count), &what));
    }
    if need.cpu_millis > 0 {
        parts.push(cpus(need.cpu_millis));
    }
    if need.memory_bytes > 0 {
        parts.push(format!("{} of memory", format_bytes(need.memory_bytes)));
    }
    match (need.exclusive, parts.is_empty()) {
        (true, true) => "a whole node".into(),
        (true, false) => format!("a whole node with {}", parts.join(", ")),
        (false, true) => "a slot".into(),
        (false, false) => parts.join(", "),
    }
}

/// What would be small enough for a job of which no task fits any node.
pub(crate) fn smaller_task<'a>(nodes: impl Iterator<Item = &'a Node> + Clone, need: &Need) -> String {
    let most = |request| nodes.clone().map(|node| matching(node, request).count() as u32).max().unwrap_or(0);
    if let Some(request) = need.devices.as_ref().filter(|request| most(request) < request.count) {
        return match most(request) {
            0 => "no node here has such a device; `muster nodes` shows what there is".into(),
            most => format!("the most of these devices on one node is {most}; ask for that many or fewer"),
        };
    }
    let capacities = || nodes.clone().map(|node| &node.state.capacity);
    let most = capacities().map(|it| it.cpu_millis).max().unwrap_or(0);
    let memory = capacities().map(|it| it.memory_bytes).max().unwrap_or(0);
    format!("the largest node has {} and {}; ask for that or less", cpus(most), format_bytes(memory))
}

/// What nodes have in all, of what a job asks for.
pub(crate) fn has<'a>(nodes: impl Iterator<Item = &'a Node> + Clone, need: &Need) -> String {
    let amounts = |node: &Node| {
        let capacity = &node.state.capacity;
        (capacity.cpu_millis, capacity.memory_bytes, u64::from(capacity.slots))
    };
    let devices = |node: &Node, request: &DeviceRequest| matching(node, request).count();
    describe(nodes, need, "in all", devices, amounts)
}

/// What nodes have left, of what a job asks for. What is on a node that takes nothing now is not free to anybody.
pub(crate) fn free<'a>(nodes: impl Iterator<Item = &'a Node> + Clone, need: &Need) -> String {
    let usable = nodes.filter(|node| node.state.usable);
    if need.exclusive {
        let all = usable.clone().count();
        let empty = usable.filter(|node| node.tasks() == 0).count();
        return format!("{empty} of {} {} nothing on it", counted(all as u64, "node"), has_or_have(empty));
    }
    let amounts = |node: &Node| {
        let left = node.left(None);
        let is_open = u64::from(node.is_open());
        (left.cpu * is_open, left.memory * is_open, left.slots * is_open)
    };
    let devices = |node: &Node, request: &DeviceRequest| {
        let is_free = |device: &&Device| node.devices.iter().any(|kind| kind.free.contains(&device.index));
        matching(node, request).filter(is_free).count()
    };
    describe(usable, need, "free", devices, amounts)
}

fn describe<'a>(
    nodes: impl Iterator<Item = &'a Node> + Clone,
    need: &Need,
    what: &str,
    devices: impl Fn(&Node, &DeviceRequest) -> usize,
    amounts: impl Fn(&Node) -> (u64, u64, u64),
) -> String {
    let total = |pick: fn((u64, u64, u64)) -> u64| nodes.clone().map(|node| pick(amounts(node))).sum::<u64>();
    let mut parts = Vec::new();
    if let Some(request) = &need.devices {
        let count: usize = nodes.clone().map(|node| devices(node, request)).sum();
        parts.push(counted(count as u64, "such device"));
    }
    if need.cpu_millis > 0 {
        parts.push(cpus(total(|amounts| amounts.0)));
    }
    if need.memory_bytes > 0 {
        parts.push(format!("{} of memory", format_bytes(total(|amounts| amounts.1))));
    }
    if parts.is_empty() {
        parts.push(counted(total(|amounts| amounts.2), "slot"));
    }
    let count = nodes.clone().count();
    format!("{} {} {} {what}", counted(count as u64, "node"), has_or_have(count), parts.join(", "))
}

fn matching<'a>(node: &'a Node, request: &'a DeviceRequest) -> impl Iterator<Item = &'a Device> {
    node.state.capacity.devices.iter().filter(|device| device.satisfies(request))
}

fn cpus(millis: u64) -> String {
    if millis == 1000 { "1 CPU".into() } else { format!("{} CPUs", millis as f64 / 1000.0) }
}

fn counted(count: u64, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

fn has_or_have(count: usize) -> &'static str {
    if count == 1 { "has" } else { "have" }
}
