//! What nodes measured: the last hour or so of it, in memory.
//!
//! It comes straight from the links and goes straight to whoever asks: the core and its transactions know nothing of it, and
//! when the server ends it is gone. What a task used in all is another matter: its node says so with its end, and that is
//! stored like any other word of it.
//!
//! Bounded by construction: two histories, one of nodes and one of tasks, each of at most [`BUDGET`] bytes, each dropping its
//! oldest points first, whosever they are. So a few nodes have their hour, and a thousand have some minutes each. Queues may
//! have grown into twice the room they need, which makes 128 MiB the most there can be; a laptop's hour takes some hundred KiB.

mod commits;
mod history;

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::mem::size_of;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use muster_api::metrics::{NodePoint, TaskPoint};
use muster_model::metrics::{DeviceUse, Sample, Usage};
use muster_model::{NodeId, TaskId, Timestamp};

pub(crate) use commits::{BOUNDS, Commits};
use history::History;

use crate::core::ConnectionId;

/// What each of the two histories may take.
const BUDGET: usize = 32 << 20;
/// How far back they go.
const KEEP: Duration = Duration::from_secs(3600);
/// A node that measured nothing for so long is not what it was: it measures at least once a minute.
const STALE: Duration = Duration::from_secs(150);
/// Tasks of one measurement that are kept; a node with more has other worries.
const MAX_TASKS: usize = 16_384;

/// What nodes measured.
#[derive(Debug)]
pub(crate) struct Metrics {
    state: Mutex<State>,
}

#[derive(Debug)]
struct State {
    nodes: History<NodeId, NodePoint>,
    tasks: History<TaskId, TaskPoint>,
    latest: BTreeMap<NodeId, Latest>,
}

/// The last that a node said.
#[derive(Debug)]
struct Latest {
    at: Instant,
    /// On which connection, until that is gone.
    connection: Option<ConnectionId>,
    point: NodePoint,
    tasks: HashMap<TaskId, Current>,
}

/// A task that runs.
#[derive(Debug, Clone)]
pub(crate) struct Current {
    pub point: TaskPoint,
    pub usage: Usage,
}

/// Everything that is so now, for `/metrics`.
#[derive(Debug, Default)]
pub(crate) struct Now {
    pub nodes: Vec<(NodeId, NodePoint)>,
    pub tasks: Vec<(TaskId, NodeId, Current)>,
}

impl Metrics {
    pub fn new() -> Self {
        let nodes = History::new(BUDGET, KEEP);
        let tasks = History::new(BUDGET, KEEP);
        Self { state: Mutex::new(State { nodes, tasks, latest: BTreeMap::new() }) }
    }

    /// A node has measured. What it says of a task is believed as far as it goes: it is shown, and nothing follows from it.
    pub fn put(&self, node: &NodeId, connection: ConnectionId, sample: Sample) {
        let now = Instant::now();
        let Sample { at, node: machine, devices, tasks } = sample;
        let point = NodePoint { at, node: machine, devices };
        let mut current = HashMap::new();
        let mut state = self.lock();
        for task in tasks.into_iter().take(MAX_TASKS) {
            let held = |device: &&DeviceUse| task.devices.contains(&device.index);
            let devices = point.devices.iter().filter(held).cloned().collect();
            let point = TaskPoint { at, task: task.now, devices };
            state.tasks.push(task.task.clone(), point.clone(), task_bytes(&point), now);
            current.insert(task.task, Current { point, usage: task.usage });
        }
        state.nodes.push(node.clone(), point.clone(), node_bytes(&point), now);
        state
            .latest
            .insert(node.clone(), Latest { at: now, connection: Some(connection), point, tasks: current });
    }

    /// A node is away: what it said last is no longer so. What it said before is history.
    pub fn gone(&self, node: &NodeId, connection: ConnectionId) {
        // Its next connection may have come before the end of this one was noticed.
        if let Some(latest) = self.lock().latest.get_mut(node).filter(|it| it.connection == Some(connection))
        {
            latest.connection = None;
        }
    }

    /// What a node uses now.
    pub fn node(&self, node: &NodeId) -> Option<NodePoint> {
        self.lock().latest.get(node).filter(|latest| latest.is_fresh()).map(|latest| latest.point.clone())
    }

    /// What a task uses now.
    pub fn task(&self, node: &NodeId, task: &TaskId) -> Option<Current> {
        let state = self.lock();
        let latest = state.latest.get(node).filter(|latest| latest.is_fresh())?;
        latest.tasks.get(task).cloned()
    }

    /// What a task had used when its node was last heard, however long ago.
    pub fn usage(&self, node: &NodeId, task: &TaskId) -> Option<Usage> {
        let state = self.lock();
        state.latest.get(node)?.tasks.get(task).map(|current| current.usage.clone())
    }

    /// The newest points of a node that are not older than a moment, the oldest first.
    pub fn node_history(&self, node: &NodeId, since: Option<Timestamp>, limit: usize) -> Vec<NodePoint> {
        self.lock().nodes.newest(node, limit, |point| since.is_none_or(|since| point.at >= since))
    }

    /// The same of a task.
    pub fn task_history(&self, task: &TaskId, since: Option<Timestamp>, limit: usize) -> Vec<TaskPoint> {
        self.lock().tasks.newest(task, limit, |point| since.is_none_or(|since| point.at >= since))
    }

    /// Everything that is so now.
    pub fn now(&self) -> Now {
        let state = self.lock();
        let mut now = Now::default();
        let mut seen = BTreeSet::new();
        for (node, latest) in state.latest.iter().filter(|(_, latest)| latest.is_fresh()) {
            now.nodes.push((node.clone(), latest.point.clone()));
            // Two nodes that claim one task, by mistake or not, must not make two series of one name.
            let tasks = latest.tasks.iter().filter(|(task, _)| seen.insert((*task).clone()));
            now.tasks.extend(tasks.map(|(task, current)| (task.clone(), node.clone(), current.clone())));
        }
        now.tasks.sort_by(|(one, ..), (other, ..)| one.cmp(other));
        now
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Whatever a broken thread left half done is only a picture.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Latest {
    fn is_fresh(&self) -> bool {
        self.connection.is_some() && self.at.elapsed() < STALE
    }
}

fn node_bytes(point: &NodePoint) -> usize {
    size_of::<NodePoint>() + point.devices.len() * size_of::<DeviceUse>()
}

fn task_bytes(point: &TaskPoint) -> usize {
    size_of::<TaskPoint>() + point.devices.len() * size_of::<DeviceUse>()
}

#[cfg(test)]
mod tests {
    use muster_model::metrics::{NodeUse, TaskSample, TaskUse};

    use super::*;

    fn sample(second: i64, tasks: &[(&str, u64)]) -> Sample {
        let task = |(task, memory_bytes): &(&str, u64)| TaskSample {
            task: task.parse().unwrap(),
            devices: vec![1],
            now: TaskUse { memory_bytes: *memory_bytes, ..TaskUse::default() },
            usage: Usage { peak_memory_bytes: *memory_bytes, ..Usage::default() },
        };
        Sample {
            at: Timestamp::from_second(second).unwrap(),
            node: NodeUse { cpu_millis: second as u64, ..NodeUse::default() },
            devices: [0, 1].map(|index| DeviceUse { index, ..DeviceUse::default() }).into(),
            tasks: tasks.iter().map(task).collect(),
        }
    }

    const FIRST: ConnectionId = ConnectionId(1);
    const TASK: &str = "task0.job_0000000001.1";

    #[test]
    fn a_task_is_seen_with_its_own_devices_until_its_node_no_longer_speaks_of_it() {
        let (metrics, node, task) = (Metrics::new(), "node_a".parse().unwrap(), TASK.parse().unwrap());
        metrics.put(&node, FIRST, sample(1, &[(TASK, 7)]));
        let current = metrics.task(&node, &task).unwrap();
        assert_eq!((current.point.task.memory_bytes, current.point.devices[0].index), (7, 1));
        assert_eq!(current.point.devices.len(), 1);
        metrics.put(&node, FIRST, sample(2, &[]));
        assert!(metrics.task(&node, &task).is_none());
        assert_eq!(metrics.task_history(&task, None, 10).len(), 1);
        assert_eq!(metrics.now().nodes.len(), 1);
    }

    #[test]
    fn a_node_that_is_away_has_a_history_and_no_present() {
        let (metrics, node) = (Metrics::new(), "node_a".parse().unwrap());
        for second in 1..=5 {
            metrics.put(&node, FIRST, sample(second, &[(TASK, 7)]));
        }
        metrics.gone(&node, ConnectionId(2));
        assert!(metrics.node(&node).is_some());
        metrics.gone(&node, FIRST);
        assert!(metrics.node(&node).is_none() && metrics.now().tasks.is_empty());
        let since = Timestamp::from_second(3).unwrap();
        let seconds = |since, limit| {
            let points = metrics.node_history(&node, since, limit);
            points.iter().map(|point| point.at.as_second()).collect::<Vec<_>>()
        };
        assert_eq!(seconds(None, 10), [1, 2, 3, 4, 5]);
        assert_eq!(seconds(Some(since), 10), [3, 4, 5]);
        assert_eq!(seconds(None, 2), [4, 5]);
        assert_eq!(seconds(None, 0), [0; 0]);
    }

    #[test]
    fn a_task_that_two_nodes_claim_is_shown_once() {
        let metrics = Metrics::new();
        metrics.put(&"node_a".parse().unwrap(), FIRST, sample(1, &[(TASK, 1)]));
        metrics.put(&"node_b".parse().unwrap(), FIRST, sample(1, &[(TASK, 2)]));
        assert_eq!(metrics.now().tasks.len(), 1);
    }
}
