//! Quotas and the queue on the wire: what everybody may have, has, and waits for.

use std::collections::BTreeMap;

use muster_model::quota::Quota;
use muster_model::{JobId, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

/// `PATCH /quota/workspaces/{workspace}`: what is absent stays.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeQuota {
    /// Its part of what is fair beside the others', from 0.001 to 1000; 1 is what everybody has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// CPUs, in thousandths.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<Quota>,
    /// Memory, in bytes.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<Quota>,
    /// Devices of all models together.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Quota>,
    /// Devices of one model, by its name, such as `H100`.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, Quota>,
    /// What has no bound any more: `cpu_millis`, `memory_bytes`, `gpus`, or a model.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schema(max_items = 100)]
    pub unlimited: Vec<String>,
}

/// `PATCH /quota/users/{user}`: what is absent stays.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeUserQuota {
    /// Their part of what is fair beside the others' of a workspace, from 0.001 to 1000; 1 is what everybody has.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub weight: Option<f64>,
    /// How many jobs, or elements of arrays, they may run at once; 0 takes the limit away.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u32>,
}

/// Whose quota to show, and for whom what can be had is counted.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct QuotaQuery {
    /// Only this workspace; and what can be had there. The one of a job that names none, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
}

/// `GET /quota`: who may have what, who has what, and what the caller can get now.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct QuotaView {
    /// Workspaces with a quota or with something in use, as far as the caller may see them, by name.
    pub workspaces: Vec<WorkspaceQuotaView>,
    /// Users with a quota, as far as the caller may see them, by name.
    pub users: Vec<UserQuotaView>,
    /// How many jobs whoever has no limit of their own may run at once.
    #[serde(default)]
    pub max_running: Option<u32>,
    /// The workspace that `available` is counted for.
    #[serde(default)]
    pub workspace: Option<String>,
    /// What the caller could start now, by place and model.
    pub available: Vec<AvailableView>,
}

/// What a workspace may have, and has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct WorkspaceQuotaView {
    /// Its name.
    pub workspace: String,
    /// Its part of what is fair, beside the others'.
    pub weight: f64,
    /// Each resource that has a quota or is in use.
    pub resources: Vec<ResourceView>,
}

/// What a workspace may have, and has, of one resource.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct ResourceView {
    /// `cpu_millis`, `memory_bytes`, `gpus`, or a model such as `H100`.
    pub resource: String,
    /// What is its own; without end, if absent.
    #[serde(default)]
    pub nominal: Option<u64>,
    /// How much more it may have of what others leave idle; without end, if absent.
    #[serde(default)]
    pub borrow: Option<u64>,
    /// How much of its own others may have while it is idle; all of it, if absent.
    #[serde(default)]
    pub lend: Option<u64>,
    /// What it has now.
    pub used: u64,
    /// What of that is not its own.
    pub borrowed: u64,
    /// What others have of its own. Everybody who lends has a part of what is borrowed, by how much they lend.
    pub lent: u64,
    /// How much more it may have now; without end, if absent.
    #[serde(default)]
    pub left: Option<u64>,
}

/// What a user may have, and has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct UserQuotaView {
    /// Who.
    pub user: String,
    /// Their part of what is fair, beside the others' of a workspace.
    pub weight: f64,
    /// How many jobs, or elements of arrays, they may run at once; as many as everybody, if absent.
    #[serde(default)]
    pub max_running: Option<u32>,
    /// How many they run.
    pub running: u32,
}

/// What somebody can get of one model now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AvailableView {
    /// Where a job has to say to run to come there: `local`, `ssh/gpu`.
    pub on: String,
    /// The model.
    pub model: String,
    /// How many there are.
    pub all: u64,
    /// How many are free.
    pub free: u64,
    /// How many more the workspace may have; without end, if absent.
    #[serde(default)]
    pub quota_left: Option<u64>,
    /// The largest job that starts now; none, if none does.
    #[serde(default)]
    pub largest: Option<LargestView>,
}

/// A job that would start now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LargestView {
    /// With so many nodes.
    pub nodes: u32,
    /// And so many devices on each.
    pub gpus: u32,
}

/// `PATCH /jobs/{job}`: what is absent stays.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChangeJob {
    /// Its priority, from 1 to 1000; the highest goes first.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub priority: Option<u32>,
}

/// Which jobs of the queue to show.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct QueueQuery {
    /// Only jobs of this workspace.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// Only jobs of this user.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// Only jobs that are to run there: `local`, `ssh/gpu`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub on: Option<String>,
    /// At most so many, up to 1,000; 100 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
}

/// `GET /queue`: who waits, those that are to start next first.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct QueueView {
    /// In the order of the scheduler; those that are not considered now come last.
    pub items: Vec<QueuedView>,
    /// How many jobs wait in all, whoever's they are.
    pub waiting: u64,
}

/// A job that waits.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, ToSchema)]
pub struct QueuedView {
    /// Its place among all that wait where it is to run, from 1; absent while it is not considered.
    #[serde(default)]
    pub position: Option<u64>,
    /// The job.
    pub job: JobId,
    /// Its name.
    pub name: String,
    /// What people call it, in any script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// Whose it is.
    pub user: String,
    /// Whom it counts for.
    pub workspace: String,
    /// Where it is to run.
    pub on: String,
    /// Its priority, from 1 to 1000.
    pub priority: u32,
    /// The size of its gang.
    pub nodes: u32,
    /// Devices on each node, as asked for: `H100:8`.
    #[serde(default)]
    pub gpus: Option<String>,
    /// CPUs of each task, in thousandths.
    #[serde(default)]
    pub cpu_millis: u64,
    /// Memory of each task.
    #[serde(default)]
    pub memory_bytes: u64,
    /// Each task has a node of its own.
    #[serde(default)]
    pub exclusive: bool,
    /// How many elements of an array wait; absent for what is none.
    #[serde(default)]
    pub elements: Option<u64>,
    /// Since when it waits.
    #[schema(value_type = String, format = DateTime)]
    pub waiting_since: Timestamp,
    /// What stands in its way, as `muster why` has it: `out_of_quota`, `no_capacity`, …
    pub code: String,
    /// The same in a line.
    pub summary: String,
    /// When it is expected to start, where something is kept for it.
    #[serde(default)]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub starts_at: Option<Timestamp>,
}
