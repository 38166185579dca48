//! Why a gang waits, in words a user understands, and what would help.

use muster_model::node::Device;
use muster_model::quantity::{DeviceRequest, format_bytes};

use crate::fit::Need;
use crate::fit::{Free, fits_ever, place_some};
use crate::once::Waiting;

/// What stands between a gang and its start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Obstacle {
    /// Stable.
    pub code: &'static str,
    /// One line.
    pub summary: String,
    /// The constraint that is not met.
    pub constraint: String,
    /// What would help.
    pub help: String,
}

/// Why `waiting` cannot start on what is free, or `None` if it can. `ahead` counts the jobs before it in the queue.
pub fn explain(nodes: &[Free], waiting: &Waiting, ahead: usize) -> Option<Obstacle> {
    let Waiting { nodes: gang, need, .. } = waiting;
    if nodes.is_empty() || nodes.iter().all(|node| !node.usable) {
        return Some(Obstacle {
            code: "no_node",
            summary: "no node is connected".into(),
            constraint: format!("needs {gang} places, and there is no node to give them"),
            help: "see `muster nodes`; a node's agent connects by itself when it is up".into(),
        });
    }
    if !fits_ever(nodes, *gang, need) {
        return Some(never_fits(nodes, *gang, need));
    }
    let placed = place_some(nodes, waiting).len();
    if placed == *gang as usize {
        return (ahead > 0).then(|| Obstacle {
            code: "behind_others",
            summary: format!("{ahead} jobs are before it in the queue"),
            constraint: "jobs of higher priority, or older, come first".into(),
            help: "raise --priority, or wait".into(),
        });
    }
    Some(Obstacle {
        code: "no_capacity",
        summary: match gang {
            1 => "waits for room on a node".into(),
            _ => format!("waits for room: {placed} of its {gang} tasks would fit now"),
        },
        constraint: format!("{}; {}", asks(need, *gang), free(nodes, need)),
        help: smaller(nodes, waiting, placed),
    })
}

fn never_fits(nodes: &[Free], gang: u32, need: &Need) -> Obstacle {
    let largest = largest_gang(nodes, need, gang);
    let most = |request| nodes.iter().map(|node| matching(node, request).len()).max().unwrap_or(0);
    let help = match (&need.devices, largest) {
        (Some(request), 0) if most(request) < request.count as usize => match most(request) {
            0 => "no node here has such a device; `muster nodes` shows what there is".into(),
            most => format!("the most of these devices on one node is {most}; ask for that many or fewer"),
        },
        (_, 0) => {
            let cpus = nodes.iter().map(|node| node.capacity.cpu_millis).max().unwrap_or(0) as f64 / 1000.0;
            let memory = nodes.iter().map(|node| node.capacity.memory_bytes).max().unwrap_or(0);
            format!("the largest node has {cpus} CPUs and {}; ask for that or less", format_bytes(memory))
        }
        (_, largest) => {
            format!("the largest gang of such tasks here is {largest}: use --nodes {largest} or fewer")
        }
    };
    Obstacle {
        code: "never_fits",
        summary: "it can never start here: it asks for more than there is".into(),
        constraint: format!("{}; {}", asks(need, gang), has(nodes, need)),
        help,
    }
}

fn largest_gang(nodes: &[Free], need: &Need, most: u32) -> u32 {
    let (mut low, mut high) = (0, most);
    while low < high {
        let middle = low + (high - low).div_ceil(2);
        if fits_ever(nodes, middle, need) { low = middle } else { high = middle - 1 }
    }
    low
}

/// A change that would let it start now, checked by trying it.
fn smaller(nodes: &[Free], waiting: &Waiting, placed: usize) -> String {
    if placed > 0 {
        return format!("starts now with --nodes {placed}, or as asked when running jobs end (`muster ps`)");
    }
    if let Some(request) = &waiting.need.devices {
        for count in (1..request.count).rev() {
            let mut tried = waiting.clone();
            tried.need.devices = Some(DeviceRequest { count, ..request.clone() });
            if place_some(nodes, &tried).len() == waiting.nodes as usize {
                return format!(
                    "starts now with {count} devices instead of {}, or as asked when running jobs end",
                    request.count
                );
            }
        }
    }
    "it starts when running jobs end (`muster ps`)".into()
}

fn matching<'a>(node: &'a Free, request: &DeviceRequest) -> Vec<&'a Device> {
    node.capacity.devices.iter().filter(|device| device.satisfies(request)).collect()
}

/// What the gang asks for, whole.
pub(crate) fn asks(need: &Need, gang: u32) -> String {
    match gang {
        1 => format!("needs {}", needs(need)),
        _ => format!("needs {} for each of {gang} tasks at once", needs(need)),
    }
}

fn counted(count: u64, one: &str) -> String {
    if count == 1 { format!("1 {one}") } else { format!("{count} {one}s") }
}

fn needs(need: &Need) -> String {
    let mut parts = Vec::new();
    if let Some(request) = &need.devices {
        let kind = request.model.clone().or(request.vendor.map(|vendor| vendor.to_string()));
        parts.push(format!(
            "{} {}",
            request.count,
            kind.map_or("devices".into(), |kind| format!("{kind} devices"))
        ));
    }
    if need.cpu_millis > 0 {
        parts.push(format!("{} CPUs", need.cpu_millis as f64 / 1000.0));
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

const FREE: &str = "free";

fn verb(count: usize) -> &'static str {
    if count == 1 { "has" } else { "have" }
}

fn free(nodes: &[Free], need: &Need) -> String {
    // What is on a node that takes nothing now is not free to anybody.
    let usable: Vec<Free> = nodes.iter().filter(|node| node.usable).cloned().collect();
    describe(
        &usable,
        need,
        FREE,
        |node, request| {
            matching(node, request).iter().filter(|device| node.devices.contains(&device.index)).count()
                as u64
        },
        |node| (node.cpu_millis, node.memory_bytes, u64::from(node.slots)),
    )
}

fn has(nodes: &[Free], need: &Need) -> String {
    describe(
        nodes,
        need,
        "in all",
        |node, request| matching(node, request).len() as u64,
        |node| (node.capacity.cpu_millis, node.capacity.memory_bytes, u64::from(node.capacity.slots)),
    )
}

fn describe(
    nodes: &[Free],
    need: &Need,
    what: &str,
    devices: impl Fn(&Free, &DeviceRequest) -> u64,
    amounts: impl Fn(&Free) -> (u64, u64, u64),
) -> String {
    let total = |pick: fn((u64, u64, u64)) -> u64| nodes.iter().map(|node| pick(amounts(node))).sum::<u64>();
    let mut parts = Vec::new();
    if need.exclusive && what == FREE {
        let empty = nodes.iter().filter(|node| node.usable && node.tasks == 0).count();
        return format!("{empty} of {} {} nothing on it", counted(nodes.len() as u64, "node"), verb(empty));
    }
    if let Some(request) = &need.devices {
        parts.push(counted(nodes.iter().map(|node| devices(node, request)).sum(), "such device"));
    }
    if need.cpu_millis > 0 {
        parts.push(format!("{} CPUs", total(|amounts| amounts.0) as f64 / 1000.0));
    }
    if need.memory_bytes > 0 {
        parts.push(format!("{} of memory", format_bytes(total(|amounts| amounts.1))));
    }
    if parts.is_empty() {
        parts.push(counted(total(|amounts| amounts.2), "slot"));
    }
    let verb = verb(nodes.len());
    format!("{} {verb} {} {what}", counted(nodes.len() as u64, "node"), parts.join(", "))
}
