//! What other people's schedulers have: for people to look at, since nothing is placed there by us.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// A cluster with a scheduler of its own.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterView {
    /// The engine that speaks with it.
    pub engine: String,
    /// Its machines; empty where it does not answer.
    pub nodes: Vec<ClusterNode>,
    /// The limits of its places for each job, where it has any: Slurm's partitions.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<PlaceLimitsView>,
    /// Why the limits are not known, where it answers otherwise.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub limits_error: Option<String>,
    /// Places whose machines cannot be shown.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub hidden: Vec<HiddenPlace>,
    /// Why it does not answer.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
}

/// The limits that a place has for each job.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct PlaceLimitsView {
    /// What a job says to run there: `slurm/gpu`.
    pub on: String,
    /// Jobs that name no place go here.
    #[serde(default)]
    pub is_default: bool,
    /// The longest time limit of a job, in milliseconds; absent: any.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_time_ms: Option<u64>,
    /// The time limit of a job that names none, in milliseconds; absent: the longest.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub default_time_ms: Option<u64>,
    /// How many nodes a job may have; absent: any number.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_nodes: Option<u32>,
}

/// A place of which nothing can be shown, beside others of which something can.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct HiddenPlace {
    /// What a job says to run there: `k8s/prod`.
    pub on: String,
    /// Why: it does not answer, or does not let us look.
    pub why: String,
}

/// A machine of a cluster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterNode {
    /// What its scheduler calls it.
    pub name: String,
    /// What a job says to run there: `slurm/gpu`.
    pub on: Vec<String>,
    /// Its scheduler's word: `idle`, `mixed`, `allocated`, `drained`, `down`.
    pub state: String,
    /// CPUs, in thousandths.
    pub cpu_millis: u64,
    /// How many of them nobody has.
    pub cpu_millis_free: u64,
    /// Memory.
    pub memory_bytes: u64,
    /// How much of it nobody has.
    pub memory_bytes_free: u64,
    /// Accelerators, by what they are called in a request.
    pub devices: BTreeMap<String, DeviceCount>,
    /// What else its scheduler says of it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub note: Option<String>,
}

/// How many accelerators of a kind there are.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DeviceCount {
    /// In all.
    pub total: u32,
    /// That nobody has.
    pub free: u32,
}

/// All clusters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ClusterList {
    /// The clusters.
    pub items: Vec<ClusterView>,
}
