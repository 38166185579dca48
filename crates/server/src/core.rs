//! The one place where jobs change.
//!
//! A single thread takes a batch of inputs, decides with the pure state machine and the pure scheduler, writes
//! everything in one transaction, and only then acts: answers callers, tells agents, wakes followers. Inputs that
//! arrive during a commit form the next batch, so a slow disk makes batches larger, not latencies longer. What one
//! message to agents need not wait for is in [`ahead`].
//!
//! If the commit fails, memory goes back to what is on disk: callers are told that nothing changed, and agents whose
//! words were lost are disconnected, because on reconnecting they say everything again. The core does no other I/O
//! than the store's; it never waits for an agent, an engine or a reader.

mod agent;
mod ahead;
mod allocation;
mod apply;
mod array;
mod batch;
mod claim;
mod clock;
mod dependency;
mod evict;
mod input;
mod keep;
mod label;
mod live;
mod member;
mod owner;
mod pool;
mod query;
mod queue;
mod quota;
mod removal;
mod schedule;
mod serve;
mod start;
mod submit;
mod tend;
#[cfg(test)]
mod tests;
mod why;
mod workspace;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

pub(crate) use input::{ConnectionId, Handle, Input, Kept, Put, Submission, Then, Wish};
use muster_api::problem::Problem;
use muster_link::message::ToAgent;
use muster_model::job::State;
use muster_model::pool::Pool;
use muster_model::task::TaskEnd;
use muster_model::{AttemptId, JobId, NodeId, TaskId, Timestamp};
use muster_scheduler::{Policy, Scheduler, Usage};
use muster_store::{Change, Committed, Quotas, Readers, Writer};
pub(crate) use query::internal;
pub(crate) use queue::{QueueAsked, WaitingGang};
pub(crate) use quota::{QuotaAsked, QuotaChange};
pub(crate) use serve::account_of;
pub(crate) use submit::DEFAULT_WORKSPACE;
use tokio::sync::{mpsc, watch};
pub(crate) use why::Question;

use self::allocation::Allocation;
use self::batch::{Answer, Batch};
use self::clock::ClockReading;
use self::input::Reply;
use self::live::{Ended, Live, Node};
use self::schedule::Untold;
use crate::accounts::Accounts;
use crate::audit::Record;
use crate::delegate::{News, Troubles};
use crate::disk::DiskReserve;
use crate::engines::Engines;
use crate::keeper::Word;
use crate::log_store::LogStore;
use crate::metrics::{Commits, Metrics};
use crate::starts::Starts;
use crate::vault::Vault;
use crate::volume::Volume;

/// Inputs decided together: bounded, so that no caller waits for thousands of others.
const MAX_BATCH: usize = 1024;
/// With nothing else to do, the core looks at its timers and at the clock at least this often.
const LONGEST_SLEEP: Duration = Duration::from_secs(60);

/// What the core is made of.
pub(crate) struct Parts {
    pub writer: Writer,
    pub readers: Readers,
    pub engines: Arc<Engines>,
    pub logs: Arc<LogStore>,
    /// What nodes measured: asked for what a task had used whose node cannot say it any more.
    pub metrics: Arc<Metrics>,
    pub commits: Arc<Commits>,
    /// The number of the newest event, for followers.
    pub news: watch::Sender<u64>,
    /// Which nodes there are and whose agent is there, for whoever starts agents. One word for each change of a node.
    pub words: mpsc::UnboundedSender<Word>,
    /// What is to be done at other people's schedulers.
    pub delegate: mpsc::UnboundedSender<crate::delegate::Word>,
    /// Which of them do not answer, for words about jobs that wait there.
    pub troubles: Arc<Troubles>,
    /// Why agents could not be started, for words about nodes that are away.
    pub starts: Arc<Starts>,
    /// The data directory, for words about its disk.
    pub home: PathBuf,
    /// What is given up when the disk is full.
    pub reserve: Arc<DiskReserve>,
    /// What the secrets of gangs are derived from.
    pub gang_key: [u8; 32],
    /// Opens the secrets that tasks are given.
    pub vault: Arc<Vault>,
    /// What nodes may keep.
    pub keep: muster_link::message::Keep,
    /// How much of a node's disk a task may fill.
    pub disk: muster_link::message::DiskLimits,
    /// Who has which account, where people have them.
    pub accounts: Option<Arc<Accounts>>,
    /// The server's own account.
    pub owner: String,
    /// What tasks find at the same path everywhere.
    pub volumes: Vec<Volume>,
    /// How queues are kept.
    pub policy: Policy,
}

pub(crate) struct Core {
    parts: Parts,
    jobs: HashMap<JobId, Live>,
    /// Workspaces and names of jobs that are not over, with how many have each.
    names: HashMap<(String, String), u32>,
    scheduler: Scheduler,
    untold: Untold,
    /// When what people have used is written down.
    usage_due: Option<Timestamp>,
    /// Who waits for the end of a job.
    dependants: HashMap<JobId, BTreeSet<JobId>>,
    /// Jobs that have ended, as far as nobody has looked who waits for them.
    over: BTreeSet<JobId>,
    nodes: BTreeMap<NodeId, Node>,
    /// What workspaces and users may have.
    quotas: Quotas,
    pools: BTreeMap<String, Pool>,
    /// Nodes that are nobody's any more, until what ran there has ended.
    leaving: BTreeSet<NodeId>,
    /// What other schedulers keep.
    allocations: BTreeMap<AttemptId, Allocation>,
    /// Those about which something is new.
    untended: BTreeSet<AttemptId>,
    /// What was heard of them in a batch that was not written.
    unheard: Vec<(AttemptId, News)>,
    /// Who asks for nodes while the server has just started and they are on their way, and until when they may be.
    settling: Vec<Reply<()>>,
    settles_at: Timestamp,
    /// Notices a clock that is set.
    clock: ClockReading,
    /// Tasks that are over but not yet forgotten by their node.
    ended: HashMap<TaskId, Ended>,
    /// Who waits for nodes to say what they removed.
    collecting: Option<mpsc::Sender<(NodeId, u64)>>,
    /// Moments at which to look again.
    timers: BTreeSet<Timestamp>,
    next_seq: u64,
    /// Something changed that may let a waiting job start.
    dirty: bool,
    /// What could not be decided in the last batch, since that had to be written first.
    later: Vec<Input>,
    /// Connections that were not let in, until they have ended.
    refused: HashSet<ConnectionId>,
    /// Lanes whose log may say more than is known.
    unread: BTreeSet<TaskId>,
    /// The ends of lanes that wait for the rest of their logs.
    parked: HashMap<TaskId, (TaskEnd, Timestamp)>,
}

impl Core {
    /// Runs until every handle is gone. Called on a thread of its own.
    pub fn run(mut self, mut inputs: mpsc::Receiver<Input>) {
        let runtime = match tokio::runtime::Builder::new_current_thread().enable_time().build() {
            Ok(runtime) => runtime,
            Err(error) => return tracing::error!(%error, "the core cannot start"),
        };
        let mut batch = Vec::with_capacity(MAX_BATCH);
        runtime.block_on(async {
            loop {
                let sleep = self.until_next_timer();
                match tokio::time::timeout(sleep, inputs.recv_many(&mut batch, MAX_BATCH)).await {
                    Ok(0) => return self.fold_in(),
                    Ok(_) | Err(_) => self.turn(batch.drain(..)),
                }
            }
        });
    }

    fn until_next_timer(&self) -> Duration {
        if self.dirty || !self.untended.is_empty() || !self.later.is_empty() || !self.unread.is_empty() {
            return Duration::ZERO;
        }
        let until = |at: &Timestamp| Duration::try_from(at.duration_since(now())).unwrap_or(Duration::ZERO);
        self.timers.first().map_or(LONGEST_SLEEP, until).min(LONGEST_SLEEP)
    }

    fn turn(&mut self, inputs: impl Iterator<Item = Input>) {
        let mut batch = Batch::default();
        let now = now();
        self.follow_clock(now, Instant::now());
        for (attempt, news) in std::mem::take(&mut self.unheard) {
            self.on_delegated(attempt, news, &mut batch, now);
        }
        for input in std::mem::take(&mut self.later).into_iter().chain(inputs) {
            self.handle(input, &mut batch, now);
        }
        self.read_on(&mut batch, now);
        self.on_timers(&mut batch, now);
        self.tend_all(&mut batch, now);
        self.follow_dependencies(&mut batch, now);
        self.schedule(&mut batch, now);
        self.launch_ahead(&mut batch);
        self.commit(batch, now);
        self.finish_leaving(now);
        self.settle(now);
    }

    fn handle(&mut self, input: Input, batch: &mut Batch, now: Timestamp) {
        match input {
            Input::Submit(submission, reply) => self.on_submit(*submission, reply, batch, now),
            Input::Renew(owner) => self.renew(&owner),
            Input::Preview(spec, owner, reply) => {
                let preview = self.preview(&owner, &spec, now);
                if preview.is_err() {
                    self.look_again(&spec);
                }
                // Whoever has gone does not want to know.
                let _ = reply.send(preview);
            }
            Input::Job(job, event, reply) => self.on_job_event(&job, event, reply, batch, now),
            Input::Task { job, rank, wish, reply } => {
                self.on_task_wish((job, rank), wish, reply, batch, now);
            }
            Input::Rename(job, name, reply) => self.on_rename(&job, name, reply, batch, now),
            Input::RenameTask { job, rank, name, reply } => {
                self.on_rename_task((&job, rank), name, reply, batch, now);
            }
            Input::Reprioritise(job, priority, reply) => {
                self.on_reprioritise(&job, priority, reply, batch, now);
            }
            Input::WaitingGang(job, reply) => drop(reply.send(Ok(self.waiting_gang(&job)))),
            Input::PassedOn(gang, change, reply) => self.on_passed_on(&gang, change, reply, batch, now),
            Input::Remove(job, reply) => self.on_remove(job, reply, batch),
            Input::PutBundle(id, manifest, reply) => self.on_put_bundle(id, manifest, reply, batch, now),
            Input::Why(job, reply) => drop(reply.send(Ok(self.why(&job, now)))),
            Input::Queue(asked, reply) => drop(reply.send(Ok(self.queue_view(&asked)))),
            Input::ChangeQuota(change, reply) => self.on_change_quota(*change, reply, batch),
            Input::Quotas(reply) => drop(reply.send(Ok(self.quotas.clone()))),
            Input::QuotaView(asked, reply) => drop(reply.send(Ok(self.quota_view(&asked)))),
            Input::Nodes(reply) => drop(reply.send(Ok(self.node_views()))),
            Input::Settled(reply) => self.settling.push(reply),
            Input::Pools(reply) => drop(reply.send(Ok(self.pool_views()))),
            Input::PutPool(spec, how, reply) => {
                let done = self.on_put_pool(*spec, how, batch, now);
                batch.answer(reply, done);
            }
            Input::RemovePool { pool, force, reply } => {
                let done = self.on_remove_pool(&pool, force, batch, now);
                batch.answer(reply, done);
            }
            Input::RemoveNode { node, force, reply } => {
                let done = self.on_remove_node(&node, force, batch, now);
                batch.answer(reply, done);
            }
            Input::Label { node, labels, reply } => self.on_label(&node, labels, reply, batch),
            Input::Drain { node, drained, evict, reply } => {
                self.on_drain(&node, drained, reply, batch, now);
                if evict {
                    self.evict(&node, batch, now);
                }
            }
            Input::Configure(pools, reply) => {
                self.on_configure(pools, batch, now);
                batch.answer(reply, Ok(()));
            }
            Input::Write(changes, then, reply) => self.on_write(changes, then, reply, batch),
            Input::Recorded(record, input) => self.on_recorded(&record, *input, batch, now),
            Input::Unfinished(reply) => {
                // What is suspended or held waits for its user, and not for this process.
                let waits = |live: &&Live| live.job.state != State::Suspended && !live.job.is_held();
                drop(reply.send(Ok(self.jobs.values().filter(waits).count() as u64)));
            }
            Input::Kept(reply) => {
                let is_kept = |one: &&Allocation| one.visited_until.is_none();
                drop(reply.send(Ok(self.allocations.values().filter(is_kept).count() as u64)));
            }
            Input::AgentConnected { connection, hello, outbox, is_tcp } => {
                self.on_agent_connected(connection, *hello, (outbox, is_tcp), batch, now);
            }
            Input::AgentSaid { connection, node, message } => {
                self.on_agent_said(connection, &node, message, batch, now);
            }
            Input::AgentGone { connection, node } => self.on_agent_gone(connection, &node, now),
            Input::Delegated { attempt, news } => self.on_delegated(attempt, news, batch, now),
            Input::Visit(attempt, reply) => {
                drop(reply.send(Ok(self.on_visit(&attempt, batch, now))));
            }
            Input::LogGrown(task) => self.on_log_grown(&task, batch, now),
            Input::LogClosed(task) => {
                self.on_log_grown(&task, batch, now);
                self.forget_if_complete(&task, &mut batch.messages);
            }
            Input::Dismiss(reply) => self.on_dismiss(reply, batch),
            Input::Keep(keep) => self.on_keep(keep),
            Input::Disk(disk) => self.parts.disk = disk,
            Input::Unsettled(reply) => {
                let is_here =
                    |node: &NodeId| self.nodes.get(node).is_some_and(|node| node.connection.is_some());
                let owed = self.ended.iter().filter(|(_, ended)| is_here(&ended.node));
                drop(reply.send(Ok(owed.map(|(task, _)| task.clone()).collect())));
            }
            Input::RemoveBundles { unused_since, limit, reply } => {
                batch.last.push(Change::RemoveBundles { unused_since, limit });
                batch.answers.push(Answer::Bundles(reply));
            }
            Input::RemoveKept(kept, bytes, reply) => self.on_remove_kept(kept, bytes, reply, batch, now),
            Input::LogBytes(sizes, reply) => self.on_log_bytes(sizes, reply, batch),
            Input::Collect(collected, reply) => self.on_collect(collected, reply),
        }
    }

    /// The audit entry of a request goes into the batch with the request's first effect. What is refused or only read has none,
    /// and is recorded by the guard.
    fn on_recorded(&mut self, record: &Arc<Record>, input: Input, batch: &mut Batch, now: Timestamp) {
        let (effects, deferred) = (batch.effects_so_far(), self.later.len());
        self.handle(input, batch, now);
        if self.later.len() > deferred
            && let Some(input) = self.later.pop()
        {
            return self.later.push(Input::Recorded(record.clone(), Box::new(input)));
        }
        if batch.effects_so_far() > effects {
            let row = record.take(batch.made_job());
            batch.audit.extend(row.map(|row| (record.clone(), row)));
        }
    }

    fn commit(&mut self, mut batch: Batch, now: Timestamp) {
        let changes = batch.changes(&self.jobs, now);
        if !changes.is_empty() {
            let begun = Instant::now();
            match self.write(&changes) {
                Ok(committed) => {
                    self.parts.commits.count(begun.elapsed());
                    batch.removed_bundles = committed.removed_bundles;
                    if let Some(seq) = committed.last_event() {
                        self.parts.news.send_replace(seq);
                    }
                }
                Err(error) => {
                    tracing::error!(error = %error, "a batch was not written");
                    return self.roll_back(batch, &batch::not_written(&error, &self.parts.home));
                }
            }
        }
        self.act(batch);
    }

    /// Writes a batch. On a full disk it is tried again as long as room can be made.
    fn write(&mut self, changes: &[Change]) -> muster_store::Result<Committed> {
        let mut has_folded = false;
        loop {
            match self.parts.writer.commit(changes) {
                Err(error) if error.is_disk_full() && self.free_disk(&mut has_folded) => {}
                committed => return committed,
            }
        }
    }

    /// Folds the journal into the database, once, and then gives up the reserve piece by piece.
    fn free_disk(&mut self, has_folded: &mut bool) -> bool {
        let is_first = !std::mem::replace(has_folded, true);
        (is_first && matches!(self.parts.writer.checkpoint(), Ok(true))) || self.parts.reserve.give_up_piece()
    }

    /// Carries out what is now on disk.
    fn act(&mut self, mut batch: Batch) {
        // A welcome comes before anything else an agent is told, and a dismissal before the answer that it was given.
        self.send_all(std::mem::take(&mut batch.messages));
        // Nodes before callers: what is to start is worth more than knowing that it will.
        for (job, effect) in std::mem::take(&mut batch.effects) {
            self.perform(&job, effect);
        }
        for job in std::mem::take(&mut batch.introduced) {
            self.introduce(&job);
        }
        for answer in std::mem::take(&mut batch.answers) {
            answer.give(&batch);
        }
        let mut over = Vec::new();
        for (task, ended) in std::mem::take(&mut batch.ended) {
            self.parts.logs.on_ended(&task);
            self.ended.insert(task.clone(), ended);
            if self.allocations.contains_key(&task.attempt) {
                self.untended.insert(task.attempt.clone());
            }
            over.push(task);
        }
        for task in std::mem::take(&mut batch.outputs) {
            if let Some(ended) = self.ended.get_mut(&task) {
                ended.owes_outputs = false;
                over.push(task);
            }
        }
        let mut messages = Vec::new();
        over.iter().for_each(|task| self.forget_if_complete(task, &mut messages));
        self.send_all(messages);
        self.follow_pools(&batch);
        std::mem::take(&mut batch.words).into_iter().for_each(|word| self.tell_delegate(word));
        self.let_go(std::mem::take(&mut batch.closed));
        self.drop_finished(&batch);
        if !batch.removed.is_empty() {
            self.fold_in();
        }
    }

    /// Empties the database's journal, so that what was removed, environments above all, is not on disk any more.
    /// A reader in its way puts it off until the next removal, or the end.
    fn fold_in(&mut self) {
        if let Err(error) = self.parts.writer.checkpoint() {
            tracing::warn!(error = %error, "the journal could not be folded into the database");
        }
    }

    fn send_all(&mut self, messages: Vec<(NodeId, ToAgent)>) {
        for (node, message) in messages {
            if let Some(node) = self.nodes.get_mut(&node) {
                node.send(message);
            }
        }
    }

    /// Jobs that are over leave memory; what they were is on disk.
    fn drop_finished(&mut self, batch: &Batch) {
        for id in batch.jobs.keys() {
            if self.jobs.get(id).is_some_and(|live| live.job.state.is_terminal())
                && let Some(live) = self.jobs.remove(id)
            {
                apply::titles(&live).iter().for_each(|title| self.release_name(title));
            }
        }
    }

    fn roll_back(&mut self, batch: Batch, problem: &Problem) {
        for (id, touched) in batch.jobs {
            match touched.before {
                Some(before) => drop(self.jobs.insert(id, before)),
                None => drop(self.jobs.remove(&id)),
            }
        }
        for (attempt, before) in batch.allocations_before {
            match before {
                Some(before) => drop(self.allocations.insert(attempt, before)),
                None => self.drop_allocation(&attempt),
            }
        }
        self.unheard = batch.news;
        batch.audit.iter().for_each(|(record, _)| record.put_back());
        if let Some(before) = batch.pools_before {
            self.restore_pools(before);
        }
        self.quotas = batch.quotas_before.unwrap_or_else(|| std::mem::take(&mut self.quotas));
        for (id, drained) in batch.drained_before {
            if let Some(node) = self.nodes.get_mut(&id) {
                node.drained = drained;
            }
        }
        for (id, labels) in batch.labels_before.into_iter().rev() {
            if let Some(node) = self.nodes.get_mut(&id) {
                node.labels = labels;
            }
        }
        // A node that has lost its records says so again.
        for (id, incarnation) in batch.incarnations_before.into_iter().rev() {
            if let Some(node) = self.nodes.get_mut(&id) {
                node.incarnation = incarnation;
            }
        }
        for answer in batch.answers {
            answer.refuse(problem.clone());
        }
        for node in &batch.speakers {
            if let Some(node) = self.nodes.get_mut(node) {
                node.connection = None;
            }
        }
        let usage = self.scheduler.usage(schedule::millis(now()));
        self.rebuild(&usage);
        self.doubt_lanes();
        // What was decided is not lost, only late: look again soon, but not in a busy loop.
        self.dirty = false;
        self.timers.insert(now() + Duration::from_secs(1));
    }

    /// Derives names, dependencies and the scheduler from the jobs: after a start and after a batch that failed.
    fn rebuild(&mut self, usage: &[Usage]) {
        self.names.clear();
        self.dependants.clear();
        self.over.clear();
        for node in self.nodes.values_mut() {
            node.tasks.clear();
            node.refresh();
        }
        let ids: Vec<JobId> = self.jobs.keys().cloned().collect();
        for id in ids {
            let Some(mut live) = self.jobs.get(&id).cloned() else { continue };
            self.wait_for_others(&mut live);
            self.jobs.insert(id, live.clone());
            for title in apply::titles(&live) {
                *self.names.entry(title).or_default() += 1;
            }
            self.claim_all(&live);
        }
        self.untold = Untold::default();
        self.scheduler = self.scheduler_anew(usage, now());
    }

    fn release_name(&mut self, title: &(String, String)) {
        if let Some(count) = self.names.get_mut(title) {
            *count -= 1;
            if *count == 0 {
                self.names.remove(title);
            }
        }
    }
}

/// The time, in the precision it is stored in.
pub(crate) fn now() -> Timestamp {
    let now = Timestamp::now();
    Timestamp::from_microsecond(now.as_microsecond()).unwrap_or(now)
}
