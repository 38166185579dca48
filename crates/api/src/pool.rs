//! Pools of SSH hosts on the wire.

use std::net::IpAddr;

use muster_model::pool::HostSpec;
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use crate::view::NodeView;

/// `PUT /pools/{pool}`: all of a pool. Hosts that are not named go, if they have no tasks.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutPool {
    /// Its hosts.
    #[schema(max_items = 10000)]
    pub hosts: Vec<HostSpec>,
    /// A directory that all of its hosts share.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<String>,
}

/// `POST /pools/{pool}/hosts`: more hosts. A pool that is not there is made; a host that is there already is reached as it is
/// said here from now on, and tried at once if it is away.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct AddHosts {
    /// Which.
    #[schema(max_items = 10000)]
    pub hosts: Vec<HostSpec>,
    /// A directory that all hosts of the pool share; as it was, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared: Option<String>,
}

/// `POST /nodes/{node}/drain`.
#[derive(Debug, Clone, Copy, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct DrainNode {
    /// What runs there is told to end, with its notice and its grace, and waits again at its old place.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub evict: bool,
}

/// A pool.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PoolView {
    /// Its name.
    pub name: String,
    /// What a job's `on` says to run there: `ssh/NAME`.
    pub on: String,
    /// It is in the server's config.toml, and changed there.
    pub configured: bool,
    /// A directory that all of its hosts share.
    #[serde(default)]
    pub shared: Option<String>,
    /// Its hosts, in the order they were given.
    pub hosts: Vec<HostView>,
}

/// A host of a pool.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct HostView {
    /// What `ssh` is called with.
    pub destination: String,
    /// The port of its sshd, where the SSH configuration does not say it.
    #[serde(default)]
    pub port: Option<u16>,
    /// The private key to show, a file on the server's machine.
    #[serde(default)]
    pub key: Option<String>,
    /// The address at which the other hosts reach it, if not the one that its sshd is reached at.
    #[serde(default)]
    #[schema(value_type = Option<String>)]
    pub address: Option<IpAddr>,
    /// The host as a node: whether it is there, and what it has.
    pub node: NodeView,
}

/// All pools.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct PoolList {
    /// By name.
    pub items: Vec<PoolView>,
}

/// How to show a pool.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct ShowPool {
    /// Wait this many milliseconds, at most 30000, until each host is there or a try to reach it has failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub wait_ms: Option<u64>,
}

/// How to remove a host, or a pool with its hosts.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct RemoveHosts {
    /// Also while it has tasks: they are stopped and end as `node_lost`.
    #[serde(default)]
    pub force: bool,
}
