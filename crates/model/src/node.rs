//! Machines and their accelerators, and what a node has to give.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::quantity::DeviceRequest;

/// Who makes an accelerator.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Vendor {
    /// Huawei Ascend NPUs.
    Ascend,
    /// NVIDIA GPUs.
    Nvidia,
}

impl FromStr for Vendor {
    type Err = ();

    fn from_str(text: &str) -> Result<Self, ()> {
        match text {
            "ascend" => Ok(Self::Ascend),
            "nvidia" => Ok(Self::Nvidia),
            _ => Err(()),
        }
    }
}

impl fmt::Display for Vendor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Ascend => "ascend",
            Self::Nvidia => "nvidia",
        })
    }
}

/// An accelerator of a node.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Device {
    /// Its number among all devices of the node.
    pub index: u32,
    /// Its maker.
    pub vendor: Vendor,
    /// The short name people ask for: `H100`, `910B`.
    pub model: String,
    /// The driver's own identifier.
    pub uuid: String,
    /// Its memory.
    pub memory_bytes: u64,
    /// Declared in configuration, not real.
    pub simulated: bool,
    /// Its own network address, where it has one: Ascend devices speak RoCE among themselves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub ip: Option<IpAddr>,
}

impl Device {
    /// Whether a request may be served by this device.
    pub fn satisfies(&self, request: &DeviceRequest) -> bool {
        request.vendor.is_none_or(|vendor| vendor == self.vendor)
            && request.model.as_ref().is_none_or(|model| model.eq_ignore_ascii_case(&self.model))
    }
}

/// An account of a machine, which tasks run under.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Account {
    /// Its name.
    pub name: String,
    /// Its number.
    pub uid: u32,
    /// The number of its group.
    pub gid: u32,
    /// Its home directory.
    pub home: String,
}

impl Default for Account {
    /// Nobody in particular, for an agent of before this was said.
    fn default() -> Self {
        Self { name: "nobody".into(), uid: 65_534, gid: 65_534, home: "/".into() }
    }
}

/// What a node has in all.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, Default)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Capacity {
    /// CPUs, in thousandths.
    pub cpu_millis: u64,
    /// Memory.
    pub memory_bytes: u64,
    /// How many tasks that ask for nothing may run at once.
    pub slots: u32,
    /// Its accelerators.
    pub devices: Vec<Device>,
}
