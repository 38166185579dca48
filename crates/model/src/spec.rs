//! What a user asks for. YAML, JSON and command-line flags are three spellings of this one type.
//!
//! [`JobSpec::from_value`] reads any of them (a flag is a field set on top of a file) and reports every problem at
//! once, each with the field's name. What can only be known elsewhere (does any node have eight devices?) is not
//! decided here.

use std::collections::BTreeMap;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use serde::{Deserialize, Serialize};

use crate::framework::{CommandOn, Face, Framework};
use crate::quantity::{DeviceRequest, duration_text};
use crate::reason::Reason;
use crate::signal::Signal;

mod after;
mod array;
mod batch;
mod field;
mod glob;
mod kubernetes;
mod machine;
mod parse;
mod secret;
#[cfg(test)]
mod tests;

pub use after::{After, On};
pub use array::{Array, MAX_ELEMENTS, MAX_INDEX, MAX_LANES};
pub use batch::{Batch, Notice};
pub use field::{FieldCode, FieldError, nearest};
pub use kubernetes::Kubernetes;
pub use parse::is_label;
pub use secret::{MAX_SECRET, Secret};

/// The most tasks a gang may have: beyond any cluster, small enough that a typing error is caught.
pub const MAX_NODES: u32 = 100_000;
/// Priorities run from 0 to this; higher goes first.
pub const MAX_PRIORITY: u32 = 1000;
/// The most processes a task may run: beyond any machine's devices, and each may need a port.
pub const MAX_PROCESSES: u32 = 32;
/// The priority of a job that does not say.
pub const DEFAULT_PRIORITY: u32 = 500;
/// How long a task may take to end once it was told to, when its job does not say.
pub const DEFAULT_GRACE: Duration = Duration::from_secs(10);

/// What a user asked to run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobSpec {
    /// A name people use; made from the command when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// What people call it, in any script; never used as an identifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// What kind of job it is.
    #[serde(default)]
    pub kind: Kind,
    /// How many tasks its gang has.
    pub nodes: u32,
    /// The indices of its elements, each a run of the command of its own, where it has such.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, example = "1-1000%16"))]
    pub array: Option<Array>,
    /// What each task needs.
    #[serde(default)]
    pub resources: Resources,
    /// The container image, on engines that have images.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub image: Option<String>,
    /// The code directory on the submitter's machine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workdir: Option<String>,
    /// Variables set in every task.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub env: BTreeMap<String, String>,
    /// Secrets of its workspace that every task is given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<Secret>,
    /// A shell script run before the command, in the same directory.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup: Option<String>,
    /// A shell script run before `setup`, once on each node for the same script and the same files that it names: what it puts
    /// into `$MUSTER_SETUP_DIR` stays there for later tasks.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup_once: Option<String>,
    /// What every task runs; nothing, where it is a machine.
    #[serde(default, skip_serializing_if = "Command::is_nothing")]
    pub command: Command,
    /// The launch contract; found from the command when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub framework: Option<Framework>,
    /// Platforms whose variables and files it is given; found from the command and the code when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub faces: Option<Vec<Face>>,
    /// How many processes each task runs, under a framework; as many as it has devices, or one, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub processes: Option<u32>,
    /// Which tasks run the command; found from the command when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub command_on: Option<CommandOn>,
    /// Whether its tasks reach each other by ssh; found from the command and the code when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peers: Option<bool>,
    /// Higher goes first.
    pub priority: u32,
    /// May be sent back to the queue for a more important job.
    #[serde(default)]
    pub preemptible: bool,
    /// Jobs that must end before it may start.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub after: Vec<After>,
    /// Labels that its nodes must have.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub node_labels: BTreeMap<String, String>,
    /// Nodes that it is not to have: their ids, or the names of their hosts.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub exclude: Vec<String>,
    /// Keep it in the queue until somebody lets it go.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub hold: bool,
    /// When to try again.
    #[serde(default)]
    pub retries: Retries,
    /// The longest it may run.
    #[serde(default, with = "duration_text::option", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, example = "2h"))]
    pub timeout: Option<Duration>,
    /// How long a task may take to end once it was told to.
    #[serde(with = "duration_text")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "10s"))]
    pub grace: Duration,
    /// The signal that tells its tasks to end.
    #[serde(default, skip_serializing_if = "Signal::is_term")]
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "USR1"))]
    pub stop_signal: Signal,
    /// What one failing task means for the gang.
    #[serde(default)]
    pub on_failure: OnFailure,
    /// Patterns of files to keep when it ends.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub outputs: Vec<String>,
    /// Ports people reach through muster.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub endpoints: Vec<Endpoint>,
    /// Storage that appears in every task.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<Volume>,
    /// Do without the storage of its user and its workspace, where the server has such.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub without_volumes: bool,
    /// The group of people it counts for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub workspace: Option<String>,
    /// Where to run.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = String, example = "slurm/gpu"))]
    pub on: Target,
    /// Run in the code directory itself, not in a copy; only where the node is the submitter's machine.
    #[serde(default)]
    pub in_place: bool,
    /// Do not give the task the submitter's environment.
    #[serde(default)]
    pub clean_env: bool,
    /// Each task has a whole node, with all its devices, and nothing else runs there.
    #[serde(default)]
    pub exclusive: bool,
    /// Each machine has a home directory of its own, at `/root`; only on `local`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub own_home: bool,
    /// The batch script of Slurm's that it was made of; its command is what that is called, and its arguments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<Batch>,
    /// What it wants of Kubernetes alone; other engines do not look at it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub k8s: Option<Kubernetes>,
    /// What its user wants to find it by, or to remember of it.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
}

impl JobSpec {
    /// How many processes each task runs, under a framework.
    pub fn processes_per_task(&self) -> u32 {
        self.processes.unwrap_or_else(|| self.resources.device_count().clamp(1, MAX_PROCESSES))
    }
}

/// Kinds of job.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Kind {
    /// Runs a command to its end.
    #[default]
    Training,
    /// Holds nodes, runs nothing of its own, and lasts until it is stopped.
    Machine,
}

impl Kind {
    /// As people write them.
    pub const WORDS: &[(&str, Kind)] = &[("training", Kind::Training), ("machine", Kind::Machine)];
}

impl FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let names = || Self::WORDS.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(" or ");
        let found = Self::WORDS.iter().find(|(name, _)| *name == text).map(|(_, kind)| *kind);
        found.ok_or_else(|| format!("must be {}, not `{text}`", names()))
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let word = Self::WORDS.iter().find(|(_, kind)| kind == self).map_or("", |(word, _)| word);
        f.write_str(word)
    }
}

/// What each task needs. CPUs and memory are claimed only if asked for.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Resources {
    /// CPUs; parts are allowed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<f64>,
    /// Memory in bytes; read from `16GB` and the like.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<u64>,
    /// Accelerators, each claimed whole.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, example = "H100:8"))]
    pub gpus: Option<DeviceRequest>,
    /// Shared memory in bytes, on engines that limit it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shm: Option<u64>,
}

impl Resources {
    /// CPUs in thousandths, the unit claims are counted in.
    pub fn cpu_millis(&self) -> u64 {
        self.cpus.map_or(0, |cpus| (cpus * 1000.0).round() as u64)
    }

    /// How many devices each task claims.
    pub fn device_count(&self) -> u32 {
        self.gpus.as_ref().map_or(0, |request| request.count)
    }
}

/// What a task runs: a list of words executed as they are, or a line for the shell.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(untagged)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Command {
    /// A program and its arguments.
    Argv(Vec<String>),
    /// A script for the shell.
    Shell(String),
}

impl Default for Command {
    /// What a machine runs.
    fn default() -> Self {
        Self::Argv(Vec::new())
    }
}

impl Command {
    /// Whether there is nothing to run.
    pub fn is_nothing(&self) -> bool {
        matches!(self, Self::Argv(words) if words.is_empty())
    }

    /// The words to execute.
    pub fn argv(&self) -> Vec<String> {
        match self {
            Self::Argv(argv) => argv.clone(),
            Self::Shell(script) => shell(script),
        }
    }
}

/// The words that run a script in the shell every host has.
pub fn shell(script: &str) -> Vec<String> {
    vec!["/bin/sh".into(), "-c".into(), script.into()]
}

impl fmt::Display for Command {
    /// As a person would type it: words with anything odd in them are quoted.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Shell(script) => f.write_str(script),
            Self::Argv(argv) => {
                let plain = |c: char| c.is_alphanumeric() || "-_./=:,@%+".contains(c);
                for (i, word) in argv.iter().enumerate() {
                    let space = if i == 0 { "" } else { " " };
                    if !word.is_empty() && word.chars().all(plain) {
                        write!(f, "{space}{word}")?;
                    } else {
                        write!(f, "{space}'{}'", word.replace('\'', r"'\''"))?;
                    }
                }
                Ok(())
            }
        }
    }
}

/// What one failing task means for its gang.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum OnFailure {
    /// The others are stopped at once.
    #[default]
    Stop,
    /// The others run to their end.
    Continue,
}

/// When a failed job is tried again.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Retries {
    /// How many more attempts it gets.
    #[serde(default)]
    pub max: u32,
    /// The codes of the reasons that are retried; all that another attempt may mend when empty.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub on: Vec<String>,
    /// The pause before the first retry; it doubles each time.
    #[serde(default, with = "duration_text::option", skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, example = "30s"))]
    pub backoff: Option<Duration>,
}

impl Retries {
    /// The longest pause between attempts: beyond it, people think the job is stuck.
    const MAX_DELAY: Duration = Duration::from_secs(3600);

    /// Whether a job that ended so may be tried again.
    pub fn allows(&self, reason: &Reason) -> bool {
        if self.on.is_empty() { reason.retry() } else { self.on.iter().any(|code| code == reason.code()) }
    }

    /// The pause before the n-th retry, from 1.
    pub fn delay(&self, nth: u32) -> Duration {
        let factor = 2u32.saturating_pow(nth.saturating_sub(1));
        self.backoff.unwrap_or_default().saturating_mul(factor).min(Self::MAX_DELAY)
    }
}

/// A port of a task that people reach through muster.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Endpoint {
    /// What it is called.
    pub name: String,
    /// The port the task listens on.
    pub port: u16,
}

/// Storage that appears at the same path in every task.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Volume {
    /// The volume's name.
    pub name: String,
    /// Where it appears.
    pub path: String,
    /// Tasks may not write to it.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub read_only: bool,
}

/// Where to run: an engine and, on most, a part of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub enum Target {
    /// This machine, or the server's.
    #[default]
    Local,
    /// A pool of SSH hosts.
    Ssh(String),
    /// A Slurm partition; the cluster's default one, if it is not named.
    Slurm(String),
    /// A Kubernetes context; the one that is current, if it is not named.
    Kubernetes(String),
}

impl Target {
    /// The engine's name, as in `muster nodes`.
    pub fn engine(&self) -> &'static str {
        match self {
            Self::Local => "local",
            Self::Ssh(_) => "ssh",
            Self::Slurm(_) => "slurm",
            Self::Kubernetes(_) => "k8s",
        }
    }

    /// What follows the engine's name; empty where that is all, or where the engine has a place of its own choice.
    pub fn place(&self) -> &str {
        match self {
            Self::Local => "",
            Self::Ssh(place) | Self::Slurm(place) | Self::Kubernetes(place) => place,
        }
    }
}

impl FromStr for Target {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            None if text == "local" => Ok(Self::Local),
            None if text == "slurm" => Ok(Self::Slurm(String::new())),
            None if text == "k8s" || text == "kubernetes" => Ok(Self::Kubernetes(String::new())),
            Some(("ssh", pool)) if !pool.is_empty() => Ok(Self::Ssh(pool.into())),
            Some(("slurm", partition)) if !partition.is_empty() => Ok(Self::Slurm(partition.into())),
            Some(("k8s" | "kubernetes", context)) if !context.is_empty() => {
                Ok(Self::Kubernetes(context.into()))
            }
            _ => Err(format!(
                "`{text}` is not a place to run; write local, ssh/POOL, slurm, slurm/PARTITION, k8s or k8s/CONTEXT"
            )),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Local => f.write_str("local"),
            Self::Ssh(pool) => write!(f, "ssh/{pool}"),
            Self::Slurm(partition) if partition.is_empty() => f.write_str("slurm"),
            Self::Slurm(partition) => write!(f, "slurm/{partition}"),
            Self::Kubernetes(context) if context.is_empty() => f.write_str("k8s"),
            Self::Kubernetes(context) => write!(f, "k8s/{context}"),
        }
    }
}

impl TryFrom<String> for Target {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Target> for String {
    fn from(target: Target) -> String {
        target.to_string()
    }
}
