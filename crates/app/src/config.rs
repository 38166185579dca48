//! `config.toml` in the data directory: what an operator may set.

use std::path::Path;
use std::time::Duration;

use anyhow::Context;
use muster_agent::device::Declared;
use muster_agent::tree::Preference;
use muster_model::quantity::{parse_bytes, parse_duration};
use serde::Deserialize;

use crate::keep::Keep;

/// A private server with nothing to do and nobody to talk to ends after this.
const IDLE_EXIT: Duration = Duration::from_secs(15 * 60);

/// The whole file. Every part may be absent.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Config {
    /// The server.
    #[serde(default)]
    pub server: Server,
    /// This machine as a node.
    #[serde(default)]
    pub local: Local,
    /// What is kept of what is over.
    #[serde(default)]
    pub keep: Keep,
}

/// `[server]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Server {
    /// How long it stays with nothing to do: `15m`, or `never`.
    idle_exit: Option<String>,
}

/// `[local]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Local {
    /// Simulated devices in place of the real ones: `["H100:8"]`.
    #[serde(default)]
    devices: Vec<String>,
    /// CPUs to offer, if not all.
    cpus: Option<f64>,
    /// Memory to offer, if not all: `64GB`.
    memory: Option<String>,
    /// How many tasks that ask for nothing may run at once.
    pub slots: Option<u32>,
    /// How a task's processes are found and killed: `auto`, `cgroup2`, `cgroup1` or `walk`.
    tree_kill: Option<String>,
}

impl Config {
    /// Reads the file; without one, everything is as it is without configuration.
    pub fn load(home: &Path) -> anyhow::Result<Self> {
        let path = home.join("config.toml");
        match std::fs::read_to_string(&path) {
            Ok(text) => toml::from_str(&text).with_context(|| format!("{} cannot be read", path.display())),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Self::default()),
            Err(error) => Err(error).with_context(|| format!("{} cannot be read", path.display())),
        }
    }
}

impl Server {
    /// After how long with nothing to do the server ends.
    pub fn idle_exit(&self) -> anyhow::Result<Option<Duration>> {
        match self.idle_exit.as_deref() {
            None => Ok(Some(IDLE_EXIT)),
            Some("never") => Ok(None),
            Some(text) => Ok(Some(parse_duration(text).context("config.toml: server.idle_exit")?)),
        }
    }
}

impl Local {
    /// CPUs to offer, in thousandths.
    pub fn cpu_millis(&self) -> Option<u64> {
        self.cpus.map(|cpus| (cpus * 1000.0) as u64)
    }

    /// Memory to offer.
    pub fn memory_bytes(&self) -> anyhow::Result<Option<u64>> {
        self.memory.as_deref().map(|text| parse_bytes(text).context("config.toml: local.memory")).transpose()
    }

    /// The declared devices.
    pub fn devices(&self) -> anyhow::Result<Vec<Declared>> {
        self.devices.iter().map(|text| text.parse().context("config.toml: local.devices")).collect()
    }

    /// How a task's processes are found and killed.
    pub fn tree_kill(&self) -> anyhow::Result<Preference> {
        let chosen =
            self.tree_kill.as_deref().map(|text| text.parse().context("config.toml: local.tree_kill"));
        Ok(chosen.transpose()?.unwrap_or_default())
    }
}
