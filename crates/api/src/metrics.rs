//! What was measured, as requests and replies show it.

use muster_model::metrics::{DeviceUse, NodeUse, TaskUse, Usage};
use muster_model::{JobId, NodeId, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// Which measurements to show.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct MetricsQuery {
    /// Only what was measured from then on: RFC 3339, or a duration back from now such as `10m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// At most so many of each, the newest; up to 10,000, and 1,000 when absent. With 0, only what is so now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(minimum = 0, maximum = 10000)]
    pub limit: Option<u32>,
}

/// What a node measured at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NodePoint {
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// The machine.
    #[serde(flatten)]
    pub node: NodeUse,
    /// Its devices, those that can be asked.
    pub devices: Vec<DeviceUse>,
}

/// What a task used at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TaskPoint {
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// Its processes.
    #[serde(flatten)]
    pub task: TaskUse,
    /// The devices that it was given, those that can be asked.
    pub devices: Vec<DeviceUse>,
}

/// `GET /jobs/{job}/metrics`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct JobMetrics {
    /// The job.
    pub job: JobId,
    /// Its current or last attempt; 0 before the first.
    pub attempt: u32,
    /// The gang of that attempt, by rank.
    pub tasks: Vec<TaskMetrics>,
}

/// One member of a gang.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TaskMetrics {
    /// Its rank.
    pub rank: u32,
    /// Where it runs.
    pub node: NodeId,
    /// What it uses now; absent when it does not run, or its node is away.
    pub now: Option<TaskPoint>,
    /// What it has used from its start on.
    pub usage: Option<Usage>,
    /// What was measured, the oldest first: of the last hour at most, and gone when the server restarts.
    pub history: Vec<TaskPoint>,
}

/// `GET /nodes/{node}/metrics`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NodeMetrics {
    /// The node.
    pub node: NodeId,
    /// What is in use now; absent when the node is away, or measures nothing.
    pub now: Option<NodePoint>,
    /// What was measured, the oldest first: of the last hour at most, and gone when the server restarts.
    pub history: Vec<NodePoint>,
}
