//! What the core keeps in memory of jobs and nodes: a cache of the database and of what agents said, nothing more.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_link::message::ToAgent;
use muster_model::job::Job;
use muster_model::node::{Account, Capacity};
use muster_model::spec::{After, JobSpec, Target};
use muster_model::{AttemptId, BundleId, JobId, NodeId, TaskId, Timestamp};
use muster_scheduler::{Need, NodeState, Serves};
use tokio::sync::mpsc;

use super::input::ConnectionId;

/// A job that is not over.
#[derive(Debug, Clone)]
pub(super) struct Live {
    pub job: Job,
    pub name: String,
    pub owner: String,
    pub spec: Arc<JobSpec>,
    pub bundle: Option<BundleId>,
    /// What each of its tasks needs of a node.
    pub need: Arc<Need>,
    /// Its number, by which it is older than others.
    pub seq: u64,
    pub submitted_at: Timestamp,
    /// When it was ended for others, lately.
    pub preempted: Vec<Timestamp>,
    /// What it still waits for, before it may be tried at all.
    pub after: Vec<After>,
    /// What machines of it are called that have names of their own, by rank.
    pub machine_names: BTreeMap<u32, String>,
}

impl Live {
    pub fn target(&self) -> &Target {
        &self.spec.on
    }
}

/// A task that is over and not yet forgotten by its node.
#[derive(Debug, Clone)]
pub(super) struct Ended {
    pub node: NodeId,
    /// The length of its log, where the node lived to tell.
    pub log_bytes: Option<u64>,
    /// What became of its files is not known yet.
    pub owes_outputs: bool,
}

/// A connected agent.
#[derive(Debug)]
pub(super) struct Connection {
    pub id: ConnectionId,
    pub outbox: mpsc::Sender<ToAgent>,
    pub pid: u32,
    pub version: String,
    pub protocol: u32,
}

/// A node, whether or not its agent is connected.
#[derive(Debug)]
pub(super) struct Node {
    pub target: Target,
    pub host: String,
    /// Whom its tasks run as.
    pub account: Account,
    pub incarnation: Option<String>,
    pub connection: Option<Connection>,
    pub id: NodeId,
    pub capacity: Capacity,
    /// Whom and what it serves.
    pub serves: Serves,
    pub labels: BTreeMap<String, String>,
    /// Whether new tasks may start there now.
    pub usable: bool,
    /// Tasks of jobs that are not over.
    pub tasks: BTreeSet<TaskId>,
    /// Tasks that still run there although the server has given them up; until they are gone, nothing new starts.
    pub stale: BTreeSet<TaskId>,
    /// When its tasks are given up, while its agent is away.
    pub lost_at: Option<Timestamp>,
    /// It gets no new tasks: somebody wants it so.
    pub drained: bool,
    /// The attempt that it stands for a place of. Nothing else is ever planned on such a node.
    pub allocation: Option<AttemptId>,
    /// Its agent is away although its allocation is known to go on.
    pub is_doubted: bool,
    /// It is nobody's any more, and goes when what ran there has ended, or at this moment.
    pub leaves_at: Option<Timestamp>,
    /// The last removal that it was told of, where there may be more.
    pub last_removal: Option<JobId>,
}

impl Node {
    pub fn new(id: NodeId, target: Target, capacity: Capacity) -> Self {
        Self {
            target,
            host: String::new(),
            account: Account::default(),
            incarnation: None,
            connection: None,
            id,
            capacity,
            serves: Serves::default(),
            labels: BTreeMap::new(),
            usable: false,
            tasks: BTreeSet::new(),
            stale: BTreeSet::new(),
            lost_at: None,
            drained: false,
            allocation: None,
            is_doubted: false,
            leaves_at: None,
            last_removal: None,
        }
    }

    /// Whether it is a node to people: somebody's, and not just a place of a gang.
    pub fn is_shown(&self) -> bool {
        self.leaves_at.is_none() && self.allocation.is_none()
    }

    /// Whether new tasks may start there follows from the rest.
    pub fn refresh(&mut self) {
        let is_wanted = !self.drained && self.leaves_at.is_none();
        self.usable = is_wanted && self.connection.is_some() && self.stale.is_empty();
    }

    /// As the scheduler is told of it. Nothing but its own attempt is ever placed on a node that stands for a place of one.
    pub fn state(&self) -> NodeState {
        NodeState {
            node: self.id.clone(),
            pool: self.target.to_string(),
            capacity: self.capacity.clone(),
            labels: self.labels.clone(),
            usable: self.usable,
            serves: self.serves.clone(),
        }
    }

    /// Sends to the agent if it is there. One that does not take its messages is cut off: when it comes back it says
    /// what it has, and is told what it missed.
    pub fn send(&mut self, message: ToAgent) {
        let Some(connection) = &self.connection else { return };
        if connection.outbox.try_send(message).is_err() {
            tracing::warn!(node = %self.id, "the agent does not take its messages; disconnected");
            self.connection = None;
            self.refresh();
        }
    }
}
