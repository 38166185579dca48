//! What the core can be told or asked, and the handle others do it through.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use muster_api::pool::PoolView;
use muster_api::problem::{Code, Problem};
use muster_api::quota::{QueueView, QuotaView};
use muster_api::view::NodeView;
use muster_engine::GangChange;
use muster_link::message::{Hello, ToAgent, ToServer};
use muster_model::bundle::Source;
use muster_model::job::Event;
use muster_model::pool::PoolSpec;
use muster_model::spec::JobSpec;
use muster_model::{AttemptId, BundleId, JobId, NodeId, TaskId, Timestamp};
use muster_store::{Change, Quotas, Sight};
use tokio::sync::{mpsc, oneshot};

use super::queue::{QueueAsked, WaitingGang};
use super::quota::{Offers, QuotaAsked, QuotaChange};
use super::why::Question;
use crate::audit::{self, Record};
use crate::delegate::News;

/// Inputs that may wait while a commit is on its way to disk. Beyond it, callers wait: that is the back-pressure.
pub(crate) const WAITING_INPUTS: usize = 4096;

/// Answers with a problem when the thing asked for is not done.
pub(crate) type Reply<T> = oneshot::Sender<Result<T, Problem>>;

/// One connection of an agent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) struct ConnectionId(pub u64);

/// A job that passed every check that needs no state.
#[derive(Debug, Clone)]
pub(crate) struct Submission {
    pub spec: JobSpec,
    pub owner: String,
    pub bundle: Option<BundleId>,
    pub source: Option<Source>,
    pub environment: Option<BTreeMap<String, String>>,
    /// The key of the request, and the digest of its content.
    pub idempotency: Option<(String, String)>,
    /// What whoever submits it may see: of an earlier request of the same key, no more than that.
    pub sight: Sight,
}

/// Everything that reaches the core.
#[derive(Debug)]
pub(crate) enum Input {
    Submit(Box<Submission>, Reply<JobId>),
    /// The same checks as for a submission, and what would happen, without making a job.
    Preview(Box<JobSpec>, String, Reply<Question>),
    /// The account of somebody was changed: what waits of theirs may start elsewhere.
    Renew(String),
    Job(JobId, Event, Reply<()>),
    /// What someone wants of one of its tasks.
    Task {
        job: JobId,
        rank: u32,
        wish: Wish,
        reply: Reply<()>,
    },
    Rename(JobId, String, Reply<()>),
    /// A machine of a group is to have a name of its own.
    RenameTask {
        job: JobId,
        rank: u32,
        name: String,
        reply: Reply<()>,
    },
    Reprioritise(JobId, u32, Reply<()>),
    /// Which gang of a job waits at another scheduler, if one does.
    WaitingGang(JobId, Reply<Option<WaitingGang>>),
    /// A change of such a gang that its scheduler has taken.
    PassedOn(WaitingGang, GangChange, Reply<()>),
    Remove(JobId, Reply<()>),
    PutBundle(BundleId, String, Reply<()>),
    Why(JobId, Reply<Option<Question>>),
    Queue(Box<QueueAsked>, Reply<QueueView>),
    ChangeQuota(Box<QuotaChange>, Reply<()>),
    Quotas(Reply<Quotas>),
    QuotaView(Box<QuotaAsked>, Reply<(QuotaView, Offers)>),
    Nodes(Reply<Vec<NodeView>>),
    /// Answered when every node is connected, or a moment after the server's start: before, what is known of nodes is old.
    Settled(Reply<()>),
    Pools(Reply<Vec<PoolView>>),
    PutPool(Box<PoolSpec>, Put, Reply<()>),
    RemovePool {
        pool: String,
        force: bool,
        reply: Reply<()>,
    },
    /// The node is named as people do it.
    RemoveNode {
        node: String,
        force: bool,
        reply: Reply<()>,
    },
    Drain {
        node: String,
        drained: bool,
        /// What runs there is told to end, and runs elsewhere.
        evict: bool,
        reply: Reply<NodeId>,
    },
    /// What a node is labelled with; an absent value takes a label away.
    Label {
        node: String,
        labels: BTreeMap<String, Option<String>>,
        reply: Reply<NodeId>,
    },
    /// The pools of the configuration, all of them.
    Configure(Vec<PoolSpec>, Reply<()>),
    /// Rows that somebody else has decided on, with nothing of a job in them, and what is to be done once they are on disk.
    Write(Vec<Change>, Option<Then>, Reply<()>),
    /// An input of a recorded request. Its audit entry is written with its effect, or neither is.
    Recorded(Arc<Record>, Box<Input>),
    Unfinished(Reply<u64>),
    /// How much other schedulers keep that is still to be given back, or is in use.
    Kept(Reply<u64>),
    AgentConnected {
        connection: ConnectionId,
        hello: Box<Hello>,
        outbox: mpsc::Sender<ToAgent>,
        /// It came over TCP, and not by one of the server's sockets.
        is_tcp: bool,
    },
    AgentSaid {
        connection: ConnectionId,
        node: NodeId,
        message: ToServer,
    },
    AgentGone {
        connection: ConnectionId,
        node: NodeId,
    },
    /// What came of a gang at another scheduler.
    Delegated {
        attempt: AttemptId,
        news: News,
    },
    /// Somebody wants to see files of an attempt that another scheduler had. Says whether its agents come.
    Visit(AttemptId, Reply<bool>),
    /// A task's log was closed by its agent, and is on disk as far as it goes.
    LogClosed(TaskId),
    /// The log of a task of an array has grown.
    LogGrown(TaskId),
    /// End agents that have nothing to do, then say so.
    Dismiss(Reply<()>),
    /// What nodes keep from now on.
    Keep(muster_link::message::Keep),
    /// How much of a node's disk tasks that start from now on may fill.
    Disk(muster_link::message::DiskLimits),
    /// The tasks that are over and whose connected nodes have not sent all of their log and outputs.
    Unsettled(Reply<HashSet<TaskId>>),
    /// Remove bundles that no job has; says how many went.
    RemoveBundles {
        unused_since: Timestamp,
        limit: u32,
        reply: Reply<u64>,
    },
    /// Something of a job goes, so many bytes, to make room; files are the caller's to remove, afterwards.
    RemoveKept(Kept, u64, Reply<()>),
    /// How large the logs of jobs are that are over.
    LogBytes(Vec<(JobId, u64)>, Reply<()>),
    /// Have every connected node remove what it need not keep; says which were asked. What each freed is told later.
    Collect(mpsc::Sender<(NodeId, u64)>, Reply<Vec<NodeId>>),
}

/// Done once something is on disk, whether or not anybody still waits for it.
pub(crate) struct Then(pub Box<dyn FnOnce() + Send>);

impl std::fmt::Debug for Then {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Then")
    }
}

/// What someone wants of one task of a job whose tasks are each on their own.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    /// It is to end for now.
    Suspend,
    /// It is to start anew, at once.
    Resume,
    /// It is to end for good.
    Stop,
}

/// What is said of a pool.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Put {
    /// All of it: hosts that are not named go.
    Whole,
    /// More hosts.
    More,
}

/// How everything else talks to the core.
#[derive(Debug, Clone)]
pub(crate) struct Handle {
    inputs: mpsc::Sender<Input>,
}

impl Handle {
    pub fn new() -> (Self, mpsc::Receiver<Input>) {
        let (inputs, receiver) = mpsc::channel(WAITING_INPUTS);
        (Self { inputs }, receiver)
    }

    /// Tells the core something; an error means the server is stopping.
    pub async fn tell(&self, input: Input) -> Result<(), Problem> {
        let input = match audit::current() {
            Some(record) => Input::Recorded(record, Box::new(input)),
            None => input,
        };
        self.inputs.send(input).await.map_err(|_| stopping())
    }

    /// Asks the core something and waits for its answer, which comes after the commit.
    pub async fn ask<T>(&self, input: impl FnOnce(Reply<T>) -> Input) -> Result<T, Problem> {
        let (reply, answer) = oneshot::channel();
        self.tell(input(reply)).await?;
        answer.await.unwrap_or_else(|_| Err(stopping()))
    }
}

fn stopping() -> Problem {
    Problem::new(Code::Unavailable, "the server is stopping").hint("try again in a moment")
}

/// What is kept of a job that is over, as long as there is room.
#[derive(Debug)]
pub(crate) enum Kept {
    Logs(JobId),
    /// What its tasks left behind.
    Outputs(JobId),
}
