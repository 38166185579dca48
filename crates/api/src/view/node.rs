//! Nodes: what they have, who has it, and what they are labelled with.

use std::collections::BTreeMap;

use muster_model::metrics::{DeviceUse, NodeUse};
use muster_model::node::Device;
use muster_model::{JobId, NodeId, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// What a node is to be labelled with.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct LabelNode {
    /// Labels to set; one of `null` goes. Others stay as they are.
    pub labels: BTreeMap<String, Option<String>>,
}

/// A node.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NodeView {
    /// Its id.
    pub id: NodeId,
    /// The engine that offers it.
    pub engine: String,
    /// The pool it is a host of.
    #[serde(default)]
    pub pool: Option<String>,
    /// The machine's host name.
    pub host: String,
    /// Whether its agent is connected.
    pub connected: bool,
    /// It gets no new tasks.
    #[serde(default)]
    pub drained: bool,
    /// What it is labelled with.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Why it is away, as far as the last try to start its agent could tell.
    #[serde(default)]
    pub error: Option<NodeError>,
    /// The agent's process on that machine.
    pub agent_pid: Option<u32>,
    /// The agent's version.
    pub agent_version: Option<String>,
    /// CPUs, in thousandths.
    pub cpu_millis: u64,
    /// CPUs claimed, in thousandths.
    pub cpu_millis_used: u64,
    /// Memory.
    pub memory_bytes: u64,
    /// Memory claimed.
    pub memory_bytes_used: u64,
    /// Places for tasks.
    pub slots: u32,
    /// Places taken.
    pub slots_used: u32,
    /// What is in use of the machine, by muster or not; absent when it is away, or measures nothing.
    #[serde(default)]
    pub now: Option<NodeUse>,
    /// Its accelerators.
    pub devices: Vec<DeviceView>,
}

/// A try to start a node's agent that failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodeError {
    /// What failed, and what helps.
    pub message: String,
    /// The same may work later, without anybody doing anything; it is tried again soon.
    pub may_pass: bool,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
}

/// An accelerator and who has it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct DeviceView {
    /// The device.
    #[serde(flatten)]
    pub device: Device,
    /// The job that has it, where the caller may know it.
    pub job: Option<JobId>,
    /// Whether a job has it, or is about to.
    #[serde(default)]
    pub in_use: bool,
    /// How it is used and how it is; absent when it cannot be asked.
    #[serde(default)]
    pub now: Option<DeviceUse>,
}

impl DeviceView {
    /// Whether the device is in use. A server of an older build names the job instead.
    pub fn is_in_use(&self) -> bool {
        self.in_use || self.job.is_some()
    }
}

/// All nodes.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NodeList {
    /// The nodes.
    pub items: Vec<NodeView>,
}
