//! Where tasks run.
//!
//! An engine only knows how to start agents somewhere, stop them, and say what exists; agents do the rest the same
//! way everywhere. Adding an engine touches its own module and one line where engines are registered. Engines never
//! see the store, the scheduler or the API, and never parse text meant for people where a machine format exists.

#![warn(missing_docs)]

pub mod conformance;
pub mod environment;
pub mod local;
pub mod pod;
pub mod slurm;
pub mod ssh;

use std::collections::BTreeMap;
use std::fmt;
use std::net::IpAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_link::message::GivenVolume;
use muster_model::reason::TimeLimitSource;
use muster_model::spec::{FieldCode, FieldError, JobSpec};
use muster_model::{AttemptId, JobId, NodeId, Timestamp};

/// Whether muster or someone else's scheduler decides where tasks go.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Family {
    /// Muster owns the nodes: a long-lived agent on each, and muster's scheduler places tasks.
    Fleet,
    /// A scheduler is already there: it gets whole gangs, and agents live as long as their task.
    Delegating,
}

/// Under whose account tasks run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Accounts {
    /// Tasks are in containers, where accounts of machines mean nothing.
    Containers,
    /// Those of the machine that they are on; its agent says whose tasks it can run.
    Machines,
    /// That of whoever submits to the other scheduler; the server's own, if it is not named.
    Submitter(Option<String>),
    /// Those of the jobs' owners: each gang is submitted under the account that it is handed over with.
    Owners,
}

/// Why a gang is not submitted whose owner has no account, where gangs are their owners'.
pub const NO_ACCOUNT: &str = "jobs there run under the accounts of their owners, and this one's owner has none; have an admin say which it \
                              is: `muster user set NAME --account ACCOUNT`";

/// The account that an agent of a fleet runs under, as its engine knows it without asking the agent.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AgentAccount {
    /// The engine starts the agent itself, under this uid.
    Uid(u32),
    /// The engine logs in under this name, which the machine checks.
    Login(String),
    /// It cannot be known, for this reason.
    Unknown(String),
}

/// What an engine can do, as data for the scheduler and for validation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Capabilities {
    /// The name used in `--on` and `muster nodes`.
    pub name: &'static str,
    /// Who places tasks.
    pub family: Family,
    /// Tasks get the submitter's environment: the node is the submitter's machine, or of the same site.
    pub submitter_environment: bool,
    /// Tasks can run in the submitter's own directory.
    pub in_place: bool,
    /// Tasks can run in an image.
    pub images: bool,
    /// Volumes can be attached.
    pub volumes: bool,
    /// Under whose account tasks run.
    pub accounts: Accounts,
    /// What a task leaves in its directories stays where it ran.
    pub keeps_files: bool,
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

/// What agents are started for. It makes a start idempotent: however often it is repeated, there is one of each.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Key {
    /// A node of a fleet: one agent that stays.
    Node(NodeId),
    /// An attempt whose whole gang a delegating engine gets: an agent for each rank, for as long as the attempt lasts.
    Gang {
        /// Which attempt.
        attempt: AttemptId,
        /// What follows the engine's name in its target: an engine may speak with several schedulers.
        place: String,
        /// The account that it is handed over under; none: the one that the engine has for all.
        account: Option<String>,
    },
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Node(node) => node.fmt(f),
            Self::Gang { attempt, .. } => attempt.fmt(f),
        }
    }
}

/// What one agent needs to say hello.
#[derive(Clone, PartialEq, Eq)]
pub struct Seat {
    /// The node the agent will serve.
    pub node: NodeId,
    /// What the agent shows the server; never put on a command line.
    pub token: String,
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Seat").field(&self.node).finish()
    }
}

/// What a delegating engine tells its scheduler about a gang.
#[derive(Debug, Clone, PartialEq)]
pub struct Gang {
    /// The job's name, for people who look at that scheduler's own lists.
    pub name: String,
    /// What follows the engine's name in the target: the `gpu` of `slurm/gpu`.
    pub place: String,
    /// What the job asked for.
    pub spec: Arc<JobSpec>,
    /// Its part of each of the server's volumes, for engines that see to them.
    pub volumes: Vec<GivenVolume>,
}

/// A change to a gang that waits at another scheduler.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GangChange {
    /// Keep it from starting until it is released.
    Hold,
    /// Let it start when its turn comes.
    Release,
    /// Another priority, as a job's specification has it.
    Priority(u32),
}

/// Which agents to start.
#[derive(Debug, Clone, PartialEq)]
pub struct StartRequest {
    /// What they are for.
    pub key: Key,
    /// One for a node, one for each rank of a gang, in order.
    pub seats: Vec<Seat>,
    /// For a gang, what it needs.
    pub gang: Option<Gang>,
}

impl StartRequest {
    /// For a node of a fleet.
    pub fn node(node: NodeId, token: String) -> Self {
        Self { key: Key::Node(node.clone()), seats: vec![Seat { node, token }], gang: None }
    }
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

/// What an engine knows of the agents of a key without asking them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Status {
    /// There are none, and nothing is kept for them: they never were, were stopped, or are forgotten.
    Gone,
    /// They run, or are about to.
    Running,
    /// The other scheduler has the gang and has not begun it.
    Waiting(Wait),
    /// What the other scheduler kept for the gang is over, and it still knows how.
    Ended(Verdict),
    /// The scheduler that has this one does not answer, for this reason: nothing is known. Of an engine that speaks with
    /// several, one that is away does not hide what the others say.
    Unanswered(String),
}

/// Why the other scheduler has not begun a gang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Wait {
    /// One of the codes that `muster why` has for every engine: `no_capacity`, `behind_others`, …
    pub code: &'static str,
    /// One line for people.
    pub summary: String,
    /// What would help.
    pub help: Option<String>,
    /// When the other scheduler thinks that it begins.
    pub starts_at: Option<Timestamp>,
}

/// Why the other scheduler ended what it kept for a gang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Its agents ended by themselves.
    Completed,
    /// Somebody ended it there, behind our back.
    Cancelled {
        /// Who, where that is known.
        by: Option<String>,
    },
    /// Its time was up.
    TimeLimit {
        /// The limit that the other scheduler gave it, where that is known.
        limit: Option<TimeLimit>,
    },
    /// More important work needed the place.
    Preempted,
    /// The machine was needed for something else than a job: it is emptied, or short of memory or disk.
    Evicted {
        /// The other scheduler's words.
        message: String,
    },
    /// A machine failed.
    NodeFailed {
        /// Which, where that is known.
        node: Option<String>,
    },
    /// It used more memory than it may.
    OutOfMemory,
    /// Its image could not be had.
    ImagePull {
        /// The other scheduler's words.
        message: String,
    },
    /// It can never be begun as it is.
    Refused {
        /// The other scheduler's words.
        message: String,
    },
    /// It could not be begun, or its agents could not.
    Failed {
        /// The other scheduler's words.
        message: String,
    },
    /// It is over, and nobody says why.
    Unknown,
}

/// A time limit of the other scheduler's.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TimeLimit {
    /// How long it lets the gang run.
    pub span: Duration,
    /// Who set it: never the job, whose own limit the server knows.
    pub set_by: TimeLimitSource,
}

/// What an engine knows of a key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Observed {
    /// How far it is.
    pub status: Status,
    /// What the other scheduler calls it: Slurm's job id.
    pub external: Option<String>,
    /// The machines that it has there, by rank where that is known.
    pub hosts: Vec<String>,
}

impl From<Status> for Observed {
    fn from(status: Status) -> Self {
        Self { status, external: None, hosts: Vec::new() }
    }
}

/// A machine that an engine has: a node of a fleet's own, or one of the other scheduler's, for people to look at.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Offer {
    /// What it is called where it is.
    pub name: String,
    /// The node that it is here. None for a machine that somebody else places on.
    pub node: Option<NodeId>,
    /// What of `ENGINE/PLACE` leads to it, the default one first: partitions, namespaces.
    pub places: Vec<String>,
    /// The other scheduler's word: `idle`, `mixed`, `allocated`, `drained`, `down`.
    pub state: String,
    /// What it has.
    pub total: Amounts,
    /// What of it nobody has now.
    pub free: Amounts,
    /// Why it is not to be had, or what else people should know.
    pub note: Option<String>,
    /// This is no machine: the machines of its places cannot be shown, for this reason.
    pub hidden: Option<String>,
}

/// The limits that a place of the other scheduler's has for each job: a partition of Slurm's.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct PlaceLimits {
    /// What follows `ENGINE/` in a target.
    pub place: String,
    /// Jobs that name no place go here.
    pub is_default: bool,
    /// The longest time limit of a job; `None`: any.
    pub max_time: Option<Duration>,
    /// The time limit of a job that names none; `None`: the longest.
    pub default_time: Option<Duration>,
    /// How many nodes a job may have; `None`: any number.
    pub max_nodes: Option<u32>,
}

impl Offer {
    /// A place whose machines cannot be shown: its scheduler does not answer, or does not let us look. The others are
    /// shown all the same.
    pub fn hidden(place: impl Into<String>, why: impl Into<String>) -> Self {
        Self { places: vec![place.into()], hidden: Some(why.into()), ..Self::default() }
    }

    /// A fleet's own node; what it has its agent says.
    pub fn own(node: NodeId) -> Self {
        Self { name: node.to_string(), node: Some(node), ..Self::default() }
    }
}

/// How much of everything.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Amounts {
    /// CPUs, in thousandths.
    pub cpu_millis: u64,
    /// Memory.
    pub memory_bytes: u64,
    /// Accelerators, by what they are called in a request; those without a name as `gpu`.
    pub devices: BTreeMap<String, u32>,
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
    /// can be said, as when the file was replaced since, or where agents do not change over because they end with their task.
    fn agent(&self) -> Option<AgentBinary>;

    /// The account that the agent of a node runs under. An agent says so itself, and its word counts only within this; where the
    /// account is unknown, the agent is not let in on a server whose users have accounts. Asked of fleets alone, once the
    /// node's agent was started: an agent in somebody else's allocation serves its own gang, whatever it says.
    fn agent_account(&self, _node: &NodeId) -> AgentAccount {
        AgentAccount::Unknown("the engine does not say".into())
    }

    /// The image pull secrets that every user may name in a job for this place; all others are an admin's to name.
    fn open_pull_secrets(&self, _place: &str) -> Vec<String> {
        Vec::new()
    }

    /// What it has now: a fleet its nodes, a delegating engine the machines of its cluster. After an error nothing is known
    /// about them.
    async fn nodes(&self) -> Result<Vec<Offer>, Error>;

    /// The limits of the other scheduler's places, for those that have any. After an error nothing is known about them.
    async fn limits(&self) -> Result<Vec<PlaceLimits>, Error> {
        Ok(Vec::new())
    }

    /// What the other scheduler would refuse of a gang, as fields of our own specification. It is asked before a job is taken,
    /// and people wait for it. Nothing is begun or kept there. After an error nothing is known: the gang may still be refused when it is started.
    /// The account is that of its key.
    async fn check(&self, _gang: &Gang, _account: Option<&str>) -> Result<Vec<FieldError>, Error> {
        Ok(Vec::new())
    }

    /// Makes sure that agents run for the key, or will once the other scheduler has room, and says what that scheduler
    /// calls it. It returns when they were started or handed over, not when they have dialled home. Starting what runs or
    /// waits changes nothing, and neither does starting a gang that has ended: a gang runs once. After an error they may or
    /// may not run; calling again is safe. [`Class::Terminal`] says that the other scheduler will never take this gang,
    /// and has not.
    async fn start(&self, request: &StartRequest) -> Result<Option<String>, Error>;

    /// Passes a change of a waiting gang on to its scheduler. [`Class::Terminal`] says that the scheduler does not take it, and why;
    /// after any other error it may or may not be in effect, and may be tried again.
    async fn change(&self, _key: &Key, _change: GangChange) -> Result<(), Error> {
        let name = self.capabilities().name;
        Err(Error::terminal(format!("{name} has the job in its own queue, and cannot be told of this")))
    }

    /// What is known of each key, in the order asked; one call for all, whose cost does not grow with their number. After
    /// an error nothing is known about any of them.
    async fn status(&self, keys: &[Key]) -> Result<Vec<Observed>, Error>;

    /// Returns when there is something new about gangs, and names them: [`Engine::status`] then knows it without asking anyone.
    /// What happens while nobody waits here is named to whoever comes next; a call that is cut off loses nothing but names,
    /// which the next look at all makes good. Never, where the other scheduler tells nothing by itself.
    async fn changed(&self) -> Vec<Key> {
        std::future::pending().await
    }

    /// Removes what the attempts of a job that were handed over under an account have left with a delegating engine, which are all
    /// over: no further question about it follows. After an error some of it may be left, and goes when its time has come.
    async fn remove(&self, _job: &JobId, _account: Option<&str>) -> Result<(), Error> {
        Ok(())
    }

    /// Ends the agents of the key. A node's tasks go on; what another scheduler kept for a gang is given back, with all that
    /// ran in it. It returns when they are gone. Stopping what is gone or never was changes nothing.
    async fn stop(&self, key: &Key) -> Result<(), Error>;

    /// Nothing more will be asked about a gang that is over: what the other scheduler keeps to remember it may go. It may never
    /// be called, as when the server is killed, so nothing is to depend on it.
    async fn close(&self, _key: &Key) -> Result<(), Error> {
        Ok(())
    }

    /// Has agents of a gang that is over started again where their files are, to say what they could not: they dial home
    /// as before, and end by themselves. Nothing where files do not outlive the gang.
    async fn salvage(&self, _key: &Key) -> Result<(), Error> {
        Ok(())
    }
}
