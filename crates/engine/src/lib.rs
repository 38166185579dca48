//! Where tasks run.
//!
//! An engine only knows how to start agents somewhere, stop them, and say what exists; agents do the rest the same
//! way everywhere. Adding an engine touches its own module and one line where engines are registered. Engines never
//! see the store, the scheduler or the API, and never parse text meant for people where a machine format exists.

#![warn(missing_docs)]

pub mod conformance;
pub mod local;
pub mod ssh;

use std::net::IpAddr;
use std::path::PathBuf;
use std::time::Duration;

use async_trait::async_trait;
use muster_model::NodeId;
use muster_model::spec::{FieldCode, FieldError, JobSpec};

/// Whether muster or someone else's scheduler decides where tasks go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Muster owns the nodes: a long-lived agent on each, and muster's scheduler places tasks.
    Fleet,
    /// A scheduler is already there: it gets whole gangs, and agents live as long as their task.
    Delegating,
}

/// What an engine can do, as data for the scheduler and for validation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// The name used in `--on` and `muster nodes`.
    pub name: &'static str,
    /// Who places tasks.
    pub family: Family,
    /// Tasks get the submitter's environment, because the node is the submitter's machine.
    pub submitter_environment: bool,
    /// Tasks can run in the submitter's own directory.
    pub in_place: bool,
    /// Tasks can run in an image.
    pub images: bool,
    /// Volumes can be attached.
    pub volumes: bool,
    /// An agent silent for this long is lost, and its tasks with it.
    pub lost_after: Duration,
}

impl Capabilities {
    /// Every field of a spec that this engine cannot honour.
    pub fn check(&self, spec: &JobSpec) -> Vec<FieldError> {
        let mut errors = Vec::new();
        let mut refuse = |field: &str, remedy: &str| {
            let message = format!("is not possible on {}; {remedy}", self.name);
            errors.push(FieldError::new(field, FieldCode::NotSupported, message));
        };
        if spec.image.is_some() && !self.images {
            refuse("image", "leave it out: tasks here run with the software of the node");
        }
        if !spec.volumes.is_empty() && !self.volumes {
            refuse("volumes", "leave them out: tasks here see the node's own files");
        }
        if spec.in_place && !self.in_place {
            refuse("in_place", "leave it out: tasks there get a copy of the code");
        }
        errors
    }
}

/// What went wrong, as far as a retry policy needs to know.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Class {
    /// The same call may work later.
    Retryable,
    /// It will not.
    Terminal,
    /// The thing is not there.
    NotFound,
}

/// A call to an engine that failed.
#[derive(Debug, thiserror::Error)]
#[error("{what}")]
pub struct Error {
    /// What was tried, in a lowercase fragment.
    pub what: String,
    /// How to go on.
    pub class: Class,
    /// Why it failed.
    #[source]
    pub source: Option<std::io::Error>,
}

impl Error {
    /// An I/O failure that may pass.
    pub fn retryable(what: impl Into<String>, source: std::io::Error) -> Self {
        Self { what: what.into(), class: Class::Retryable, source: Some(source) }
    }

    /// Something that trying again does not mend.
    pub fn terminal(what: impl Into<String>) -> Self {
        Self { what: what.into(), class: Class::Terminal, source: None }
    }
}

/// Which agents to start. The key makes it idempotent: a node for a fleet, an attempt for a delegating engine.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StartRequest {
    /// The node the agent will serve.
    pub node: NodeId,
    /// What the agent shows the server; never put on a command line.
    pub token: String,
}

/// A machine that somebody has configured for an engine: a node, and how it is reached.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Machine {
    /// What it is called everywhere else.
    pub node: NodeId,
    /// `host`, `user@host`, or a name of the user's own SSH configuration.
    pub destination: String,
    /// Where that is not what the SSH configuration says.
    pub port: Option<u16>,
    /// The private key to show, and no other.
    pub key: Option<PathBuf>,
    /// Where peers reach it, if not at the address at which its sshd is reached.
    pub address: Option<IpAddr>,
}

/// The binary that an engine's agents should run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AgentBinary {
    /// Where it is on the node: absolute, or relative to the directory that holds the agent's own.
    pub path: String,
    /// What an agent that runs it says of itself.
    pub build: String,
}

/// What an engine knows of an agent without asking it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AgentStatus {
    /// It runs.
    Running,
    /// It does not.
    Gone,
}

/// Starts agents somewhere. Every method has a deadline of its caller's and may be repeated.
#[async_trait]
pub trait Engine: Send + Sync {
    /// What it can do; never changes.
    fn capabilities(&self) -> &Capabilities;

    /// What somebody configured; it replaces what was adopted before. Agents on machines that are no longer among them go on,
    /// and are not reached any more.
    fn adopt(&self, _machines: Vec<Machine>) {}

    /// What the agents of this engine should run; one that runs another build is asked to change over. None where nothing
    /// can be said, as when the file was replaced since.
    fn agent(&self) -> Option<AgentBinary>;

    /// The nodes it offers now. After an error nothing is known about them.
    async fn nodes(&self) -> Result<Vec<NodeId>, Error>;

    /// Makes sure an agent runs for the node. It returns when the agent was started, not when it has dialled home.
    /// Starting one that runs changes nothing. After an error the agent may or may not run; calling again is safe.
    async fn start(&self, request: &StartRequest) -> Result<(), Error>;

    /// Whether each node's agent runs, in the order asked; one call for all.
    async fn status(&self, nodes: &[NodeId]) -> Result<Vec<AgentStatus>, Error>;

    /// Ends the node's agent; tasks it supervises go on. Stopping one that is gone changes nothing.
    async fn stop(&self, node: &NodeId) -> Result<(), Error>;
}
