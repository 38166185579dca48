//! What was measured: of a node, of its devices, of the tasks on it, and of a task over its whole life.
//!
//! Whole numbers throughout, each with its unit in its name. What a machine, a driver or a kernel does not tell is absent
//! and never 0.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::TaskId;

/// What a node measured at one moment.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Sample {
    /// When, by the node's clock.
    pub at: Timestamp,
    /// The machine.
    pub node: NodeUse,
    /// Its devices, those that can be asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceUse>,
    /// The tasks that run on it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub tasks: Vec<TaskSample>,
}

/// What of a task is measured at one moment, as its node tells it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct TaskSample {
    /// The task.
    pub task: TaskId,
    /// The node's devices that it was given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<u32>,
    /// What it uses now.
    pub now: TaskUse,
    /// What it used from its start until now.
    pub usage: Usage,
}

/// What is in use of a machine. Rates are means since the measurement before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NodeUse {
    /// CPUs of the machine, in thousandths.
    pub cpu_total_millis: u64,
    /// CPUs that are busy, in thousandths; waiting for a disk is not being busy.
    pub cpu_millis: u64,
    /// Memory of the machine.
    pub memory_total_bytes: u64,
    /// Memory that cannot be had without taking it from a program.
    pub memory_bytes: u64,
    /// What came in over its network, InfiniBand included.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub received_bytes_per_second: Option<u64>,
    /// What went out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sent_bytes_per_second: Option<u64>,
    /// What was read from its disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bytes_per_second: Option<u64>,
    /// What was written to them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_bytes_per_second: Option<u64>,
}

/// How a device is used and how it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeviceUse {
    /// Its number among all devices of the node.
    pub index: u32,
    /// In how much of the last moment it computed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub utilisation_percent: Option<u32>,
    /// Its memory in use.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<u64>,
    /// Its memory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_total_bytes: Option<u64>,
    /// What it draws.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub power_watts: Option<u32>,
    /// How hot it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub temperature_celsius: Option<u32>,
    /// Memory errors that were corrected, since the driver was loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc_corrected: Option<u64>,
    /// Memory errors that were not, since the driver was loaded.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ecc_uncorrected: Option<u64>,
}

/// What a task uses: all its processes together. Rates are means since the measurement before.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskUse {
    /// CPUs, in thousandths.
    pub cpu_millis: u64,
    /// Memory, without what the kernel keeps of files only because nobody else wants the room.
    pub memory_bytes: u64,
    /// How many processes it is.
    pub processes: u32,
    /// What it reads from disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bytes_per_second: Option<u64>,
    /// What it writes to disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_bytes_per_second: Option<u64>,
}

/// What a task used from its start until now, or until its end. Peaks are those of the measurements: what came and went
/// between two of them is not seen, but for a single process that was larger than all of them.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Usage {
    /// How often it was measured.
    pub samples: u64,
    /// CPU time, in milliseconds.
    pub cpu_milliseconds: u64,
    /// CPUs, in thousandths, on average.
    pub mean_cpu_millis: u64,
    /// CPUs, in thousandths, at most.
    pub peak_cpu_millis: u64,
    /// Memory on average, if it was measured at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_memory_bytes: Option<u64>,
    /// Memory at most.
    pub peak_memory_bytes: u64,
    /// Processes at most, if it was measured at all.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_processes: Option<u32>,
    /// What it read from disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub read_bytes: Option<u64>,
    /// What it wrote to disks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub written_bytes: Option<u64>,
    /// Its devices, those that can be asked.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub devices: Vec<DeviceUsage>,
}

/// How a device was used while a task had it.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct DeviceUsage {
    /// Its number among all devices of the node.
    pub index: u32,
    /// In how much of the time it computed, on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_utilisation_percent: Option<u32>,
    /// The same at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_utilisation_percent: Option<u32>,
    /// Its memory in use, on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_memory_bytes: Option<u64>,
    /// Its memory in use, at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_memory_bytes: Option<u64>,
    /// What it drew, on average.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub mean_power_watts: Option<u32>,
    /// What it drew, at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_power_watts: Option<u32>,
    /// How hot it was, at most.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_temperature_celsius: Option<u32>,
}
