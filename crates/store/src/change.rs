//! What can be written, as data. A batch of these is one transaction.

use std::collections::BTreeMap;

use muster_model::account::{Membership, Token, User, Workspace};
use muster_model::array::Element;
use muster_model::bundle::Source;
use muster_model::node::Capacity;
use muster_model::pool::Pool;
use muster_model::quota::{UserQuota, WorkspaceQuota};
use muster_model::spec::Target;
use muster_model::task::Outputs;
use muster_model::{AttemptId, BundleId, Job, JobId, JobSpec, NodeId, TaskId, Timestamp};
use serde_json::{Value, json};

/// One thing to write.
#[derive(Debug, Clone)]
pub enum Change {
    /// A job that was just accepted.
    NewJob(Box<NewJob>),
    /// A job that has moved, with what moved in its gang. Refused as stale unless the stored job still is of the
    /// generation the decision was based on. Between two writes each rank may begin at most one attempt.
    Job {
        /// The generation the stored job must have.
        before_generation: u64,
        /// The job as it is now.
        job: Box<Job>,
        /// The ranks whose task differs from what is stored.
        touched: Vec<u32>,
        /// When it moved: the attempt's start or end, if it began or ended one.
        at: Timestamp,
    },
    /// A job is called something else from now on. Refused as stale unless the stored job is of this generation.
    Rename {
        /// The job.
        job: JobId,
        /// The generation the stored job must have.
        generation: u64,
        /// Its new name.
        name: String,
    },
    /// A machine of a group is called something else from now on. Refused as stale unless the stored job is of this generation.
    NameMachine {
        /// The group.
        job: JobId,
        /// The generation the stored job must have.
        generation: u64,
        /// Which of its machines.
        rank: u32,
        /// Its own name; as its group says, if absent.
        name: Option<String>,
    },
    /// A job has another priority from now on. Refused as stale unless the stored job is of this generation.
    Reprioritise {
        /// The job.
        job: JobId,
        /// The generation the stored job must have.
        generation: u64,
        /// Its new priority.
        priority: u32,
    },
    /// Elements of an array that were run to an end. What is stored of one is its last run.
    Elements {
        /// The array.
        job: JobId,
        /// Which, and how.
        elements: Vec<Element>,
    },
    /// Something that happened.
    Event(NewEvent),
    /// A job goes, with everything that hangs on it: attempts, tasks, events, environment, and its spec if no other
    /// job has it. Its children must have gone before. From this moment its nodes owe the removal of its files.
    RemoveJob {
        /// The job.
        job: JobId,
        /// When.
        at: Timestamp,
    },
    /// A node has removed all that it had of a job that was removed.
    ConfirmRemoval {
        /// The node.
        node: NodeId,
        /// The job.
        job: JobId,
    },
    /// A node as it is now.
    Node(Box<NodeRow>),
    /// A node is nobody's any more: what is known of it goes.
    RemoveNode(NodeId),
    /// Whether a node is to get no new tasks.
    Drain {
        /// The node.
        node: NodeId,
        /// Since when; absent where it is to get them again. One that is drained already stays so since then.
        since: Option<Timestamp>,
    },
    /// What a node is labelled with, all of it.
    Labels {
        /// The node.
        node: NodeId,
        /// Its labels.
        labels: BTreeMap<String, String>,
    },
    /// What everybody has used; who is not named has used nothing that still counts.
    Usage(Vec<UsageRow>),
    /// What another scheduler keeps for an attempt, as it is now.
    Allocation(Box<AllocationRow>),
    /// What another scheduler kept for an attempt is gone; it is remembered for as long as the job is.
    CloseAllocation {
        /// The attempt.
        attempt: AttemptId,
        /// When that was known.
        at: Timestamp,
    },
    /// A pool as it is now, with all of its hosts.
    Pool(Pool),
    /// A pool goes, with its hosts.
    RemovePool(String),
    /// A bundle whose chunks are all there. One that is stored already stays as it is, but is used anew.
    Bundle {
        /// Its name.
        id: BundleId,
        /// The text of its manifest.
        manifest: String,
        /// When it was complete.
        at: Timestamp,
    },
    /// Bundles that nobody asked for since a moment and no job has.
    RemoveBundles {
        /// Since when nobody may have asked for them.
        unused_since: Timestamp,
        /// At most so many: a batch stays short.
        limit: u32,
    },
    /// What became of a task's files. The first word counts: what is stored already stays.
    Outputs {
        /// The task.
        task: TaskId,
        /// What became of them.
        outputs: Outputs,
    },
    /// What a job's tasks left behind was removed to make room.
    RemoveOutputs {
        /// The job.
        job: JobId,
        /// When.
        at: Timestamp,
    },
    /// The size of the logs of a job that is over.
    LogBytes {
        /// The job.
        job: JobId,
        /// All attempts and tasks together.
        bytes: u64,
    },
    /// A job's logs were removed to make room.
    RemoveLogs {
        /// The job.
        job: JobId,
        /// When.
        at: Timestamp,
    },
    /// People, workspaces, and what they are known by.
    Account(AccountChange),
    /// A secret as it is now.
    Secret(SecretRow),
    /// A secret goes.
    RemoveSecret {
        /// Of this workspace.
        workspace: String,
        /// Its name.
        name: String,
    },
    /// What a workspace may have from now on.
    WorkspaceQuota {
        /// Its name.
        workspace: String,
        /// What; absent where nothing is said of it any more.
        quota: Option<WorkspaceQuota>,
    },
    /// What a user may have from now on.
    UserQuota {
        /// Their name.
        user: String,
        /// What; absent where nothing is said of them any more.
        quota: Option<UserQuota>,
    },
    /// Something was done that must be known later.
    Audit(NewAudit),
    /// Entries of the audit log go that are older than this. An entry must say so before them, which [`NewAudit::removal`] makes; the
    /// database removes nothing without one.
    RemoveAudit {
        /// Entries from before this moment.
        before: Timestamp,
        /// At most so many: a batch stays short.
        limit: u32,
    },
    /// Requests older than this may be repeated as new ones.
    ForgetIdempotency {
        /// Keys used before this moment go.
        before: Timestamp,
    },
}

/// A job that was just accepted, with everything that never changes about it.
#[derive(Debug, Clone)]
pub struct NewJob {
    /// The job.
    pub job: Job,
    /// What people call it.
    pub name: String,
    /// Who submitted it.
    pub owner: String,
    /// Whom it counts for.
    pub workspace: String,
    /// What was asked for. Stored once, however many jobs share it.
    pub spec: JobSpec,
    /// The job it is a part of.
    pub parent: Option<JobId>,
    /// Its place among the parent's children.
    pub index: Option<u32>,
    /// Its code; the bundle must be stored already, or earlier in the same batch.
    pub bundle: Option<BundleId>,
    /// Where its code came from.
    pub source: Option<Source>,
    /// The submitter's environment.
    pub environment: Option<BTreeMap<String, String>>,
    /// The key of the request that made it, and the request's digest.
    pub idempotency: Option<(String, String)>,
    /// When it was accepted.
    pub submitted_at: Timestamp,
}

/// Something that happened, to a job or to the server.
#[derive(Debug, Clone, PartialEq)]
pub struct NewEvent {
    /// The job it happened to.
    pub job: Option<JobId>,
    /// The attempt it belongs to.
    pub attempt: Option<u32>,
    /// When.
    pub at: Timestamp,
    /// What: `submitted`, `starting`, …
    pub kind: String,
    /// The details of this kind.
    pub body: Value,
}

/// What another scheduler keeps for an attempt that was handed over to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AllocationRow {
    /// The attempt.
    pub attempt: AttemptId,
    /// Whose scheduler it is, and where in it.
    pub target: Target,
    /// The account that it was handed over under; none: the one that its engine has for all.
    pub account: Option<String>,
    /// The nodes of its agents, by rank.
    pub nodes: Vec<NodeId>,
    /// What the other scheduler calls it; absent until it has said so.
    pub external: Option<String>,
    /// Its machines there, once they are known.
    pub hosts: Vec<String>,
    /// When it was handed over.
    pub since: Timestamp,
    /// Its attempt is over, and it is being given back.
    pub closing: bool,
}

/// A node as it is stored.
#[derive(Debug, Clone, PartialEq)]
pub struct NodeRow {
    /// Its id.
    pub id: NodeId,
    /// The engine that offers it.
    pub engine: String,
    /// The name its engine gave it.
    pub name: String,
    /// The machine's host name.
    pub host: String,
    /// Which life of the agent's records this is; absent before its first hello.
    pub incarnation: Option<String>,
    /// What it has.
    pub capacity: Capacity,
    /// What its token must hash to.
    pub token_hash: Option<String>,
    /// When its agent last spoke.
    pub last_seen_at: Option<Timestamp>,
}

/// A person, a workspace, a membership or a token: as it is now, or gone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AccountChange {
    /// A person as they are now.
    User(User),
    /// A person goes, with memberships and tokens.
    RemoveUser(String),
    /// A workspace as it is now.
    Workspace(Workspace),
    /// A workspace goes, with memberships and the tokens that are good there alone.
    RemoveWorkspace(String),
    /// What somebody is in a workspace now.
    Membership(Membership),
    /// Somebody is nothing there any more.
    RemoveMembership {
        /// The workspace.
        workspace: String,
        /// The person.
        user: String,
    },
    /// A token as it is now.
    Token(Token),
    /// A token goes.
    RemoveToken(String),
}

/// A secret, as nobody can read it without the key.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SecretRow {
    /// Whose it is.
    pub workspace: String,
    /// What it is called there.
    pub name: String,
    /// The value, sealed.
    pub sealed: Vec<u8>,
    /// How many bytes the value has.
    pub size: u64,
    /// Who has put it.
    pub put_by: String,
    /// When.
    pub put_at: Timestamp,
}

/// Something that was done, or was not allowed.
#[derive(Debug, Clone, PartialEq)]
pub struct NewAudit {
    /// When.
    pub at: Timestamp,
    /// By whom, as far as that is known.
    pub user: Option<String>,
    /// With which token.
    pub token: Option<String>,
    /// From where.
    pub address: Option<String>,
    /// What: the name of an operation of the API.
    pub operation: String,
    /// To what.
    pub target: String,
    /// `started`, `done`, or the code of the problem.
    pub outcome: String,
    /// What else matters; never a secret.
    pub detail: Option<Value>,
    /// The request. Rows with the same request are one entry, and the last one counts.
    pub request: Option<String>,
    /// The HTTP status of the reply.
    pub status: Option<u16>,
    /// The job that the operation made, changed or read.
    pub job: Option<JobId>,
    /// How many requests this entry stands for.
    pub count: u64,
}

impl NewAudit {
    /// An entry about a single operation by an unknown caller; callers set the rest.
    pub fn new(at: Timestamp, operation: &str, outcome: &str) -> Self {
        Self {
            at,
            user: None,
            token: None,
            address: None,
            operation: operation.to_owned(),
            target: String::new(),
            outcome: outcome.to_owned(),
            detail: None,
            request: None,
            status: None,
            job: None,
            count: 1,
        }
    }

    /// That entries from before a moment go, and how many there are.
    pub fn removal(at: Timestamp, before: Timestamp, entries: u64) -> Self {
        Self {
            user: Some("server".into()),
            target: before.to_string(),
            detail: Some(json!({ "before_us": before.as_microsecond(), "entries": entries })),
            ..Self::new(at, "remove_audit", "done")
        }
    }
}

/// What a batch became.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Committed {
    /// The number of each new event, in the order of the batch.
    pub events: Vec<u64>,
    /// The number of each new job, in the order of the batch.
    pub jobs: Vec<u64>,
    /// How many bundles were removed.
    pub removed_bundles: u64,
}

impl Committed {
    /// The number of the last event written, if there was one.
    pub fn last_event(&self) -> Option<u64> {
        self.events.last().copied()
    }
}

/// What a workspace, or one of its users, has used in the mean.
#[derive(Debug, Clone, PartialEq)]
pub struct UsageRow {
    /// The workspace.
    pub workspace: String,
    /// The user in it; the workspace itself, if absent.
    pub user: Option<String>,
    /// How many devices it came to.
    pub mean: f64,
    /// As of when.
    pub at: Timestamp,
}
