//! What other people's schedulers keep for attempts: what is known of it, and what it means.
//!
//! An allocation is written down with the attempt that is handed over, and stays until the other scheduler is known to keep
//! nothing any more: so nothing runs twice, and nothing is left behind. The delegate does what is said here, and says
//! what came of it; agents of the gang say the rest as agents anywhere. What follows is decided in [`super::tend`].

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use jiff::SignedDuration;
use muster_api::view::Why;
use muster_engine::{Family, Gang, Observed, Status, TimeLimit, Verdict, Wait};
use muster_model::job::{Event, Invalid, State};
use muster_model::node::Capacity;
use muster_model::reason::TimeLimitSource;
use muster_model::spec::Target;
use muster_model::task::{Placement, TaskEnd};
use muster_model::{AttemptId, JobId, NodeId, Reason, TaskId, Timestamp};
use muster_store::{AllocationRow, Change};
use serde_json::json;

use super::Core;
use super::batch::Batch;
use super::live::{Live, Node};
use crate::delegate::{GangTarget, News, Word};

/// How long the other scheduler may take to say why it took a place back.
pub(super) const VERDICT: Duration = Duration::from_secs(30);
/// How soon it is asked again meanwhile, at first and in the end: most verdicts are there in a moment.
const ASK: (Duration, Duration) = (Duration::from_millis(250), Duration::from_secs(2));
/// An agent that is away although its allocation goes on has this long to come, after it is known that it does.
const DOUBT: Duration = Duration::from_secs(5);

/// What another scheduler keeps for an attempt.
#[derive(Debug, Clone)]
pub(super) struct Allocation {
    pub row: AllocationRow,
    /// Why it has not begun, as the other scheduler said last.
    pub wait: Option<Why>,
    /// It is over there, for this reason.
    pub ended: Option<Verdict>,
    /// The other scheduler was seen to have begun it.
    pub begun: bool,
    /// An agent of it has come.
    pub came: bool,
    /// What keeps it from being given back.
    pub lingers: Option<String>,
    /// Tasks whose place was taken back, until it is known why.
    pub evicted: BTreeMap<u32, (TaskEnd, Timestamp)>,
    /// Until when that is asked.
    pub verdict_by: Option<Timestamp>,
    /// When to ask again.
    pub ask_at: Option<Timestamp>,
    pub back: Back,
    /// Until when agents may tell how their tasks ended, after it was over there.
    pub tell_by: Option<Timestamp>,
    /// Agents were started again for that.
    pub is_salvaged: bool,
    /// Until when agents that were started again may send what is missing, after all was over.
    pub fetch_by: Option<Timestamp>,
    /// When it is given back, whatever is still to be told.
    pub close_by: Option<Timestamp>,
    /// Until when that may be put off for outputs that are being sent.
    pub ship_by: Option<Timestamp>,
    /// Agents that were told to end.
    pub dismissed: BTreeSet<NodeId>,
    /// Agents that are away for too long, until it is known whether their allocation goes on.
    pub doubted: BTreeSet<NodeId>,
    /// Somebody wants to see its files.
    pub visited_until: Option<Timestamp>,
}

/// Whether an allocation is given back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Back {
    No,
    Asked,
    Done,
}

impl Allocation {
    pub fn new(row: AllocationRow) -> Self {
        Self {
            row,
            wait: None,
            ended: None,
            begun: false,
            came: false,
            lingers: None,
            evicted: BTreeMap::new(),
            verdict_by: None,
            ask_at: None,
            back: Back::No,
            tell_by: None,
            is_salvaged: false,
            fetch_by: None,
            close_by: None,
            ship_by: None,
            dismissed: BTreeSet::new(),
            doubted: BTreeSet::new(),
            visited_until: None,
        }
    }

    /// Where it is, and under which account.
    pub fn target(&self) -> GangTarget {
        target_of(&self.row)
    }

    /// Whether nothing of it is left at the other scheduler.
    pub fn is_over(&self) -> bool {
        self.ended.is_some() || self.back == Back::Done
    }

    /// The clock was set by this much: every wait keeps its length.
    pub fn move_waits(&mut self, by: SignedDuration) {
        let waits = [
            &mut self.verdict_by,
            &mut self.ask_at,
            &mut self.tell_by,
            &mut self.fetch_by,
            &mut self.close_by,
            &mut self.ship_by,
            &mut self.visited_until,
        ];
        waits.into_iter().for_each(|at| *at = at.map(|at| at + by));
    }
}

/// Where an allocation was handed over, and under which account.
pub(super) fn target_of(row: &AllocationRow) -> GangTarget {
    GangTarget { target: row.target.clone(), account: row.account.clone() }
}

impl Core {
    /// Whether somebody else decides where the jobs of a target run.
    pub(super) fn is_delegated(&self, target: &Target) -> bool {
        let engine = self.parts.engines.get(target.engine());
        engine.is_some_and(|engine| engine.capabilities().family == Family::Delegating)
    }

    /// Whether an attempt of a job still has something at another scheduler. What it has yet to tell is no reason for the next
    /// one to wait.
    pub(super) fn has_allocation(&self, job: &JobId) -> bool {
        self.open_allocation(job).is_some()
    }

    /// What that is.
    pub(super) fn open_allocation(&self, job: &JobId) -> Option<&Allocation> {
        let from = AttemptId { job: job.clone(), number: 0 };
        let mut own = self.allocations.range(from..).take_while(|(attempt, _)| attempt.job == *job);
        own.find(|(_, allocation)| !allocation.is_over()).map(|(_, allocation)| allocation)
    }

    /// Gives a waiting job to its scheduler.
    pub(super) fn hand_over(&mut self, id: &JobId, batch: &mut Batch, now: Timestamp) -> Result<(), Invalid> {
        let live = self.jobs.get(id).cloned().ok_or(Invalid::Stale)?;
        let attempt = AttemptId { job: id.clone(), number: live.job.attempt + 1 };
        let ranks = live.job.wanted().into_iter();
        let nodes: Vec<NodeId> = ranks.filter_map(|rank| seat(live.target(), &attempt, rank)).collect();
        let row = AllocationRow {
            attempt: attempt.clone(),
            target: live.target().clone(),
            account: self.submission_account(live.target(), live.need.account.clone()),
            nodes: nodes.clone(),
            external: None,
            hosts: Vec::new(),
            since: now,
            closing: false,
        };
        batch.allocations_before.entry(attempt.clone()).or_insert(None);
        batch.first.push(Change::Allocation(Box::new(row.clone())));
        self.adopt_allocation(Allocation::new(row));
        let placements = nodes.into_iter().map(|node| Placement { node, devices: Vec::new() }).collect();
        self.apply(id, Event::HandOver { placements }, batch, now)?;
        batch.event(id, attempt.number, now, "handed_over", json!({ "on": live.target().to_string() }));
        Ok(())
    }

    /// Has an allocation and the nodes of its agents in memory.
    pub(super) fn adopt_allocation(&mut self, allocation: Allocation) {
        let attempt = &allocation.row.attempt;
        for id in &allocation.row.nodes {
            let target = allocation.row.target.clone();
            let node = Node::new(id.clone(), target, Capacity::default());
            self.nodes.insert(id.clone(), Node { allocation: Some(attempt.clone()), ..node });
        }
        self.untended.insert(attempt.clone());
        self.allocations.insert(attempt.clone(), allocation);
    }

    /// Drops an allocation and the nodes of its agents from memory.
    pub(super) fn drop_allocation(&mut self, attempt: &AttemptId) {
        let Some(allocation) = self.allocations.remove(attempt) else { return };
        for id in &allocation.row.nodes {
            if let Some(mut node) = self.nodes.remove(id) {
                node.send(muster_link::message::ToAgent::Shutdown);
            }
        }
        self.ended.retain(|task, _| task.attempt != *attempt);
    }

    /// What the delegate needs to hand a gang over.
    pub(super) fn word_of_hand_over(&self, live: &Live) -> Option<Word> {
        let attempt = live.job.attempt_id();
        let allocation = self.allocations.get(&attempt)?;
        let place = live.target().place().to_owned();
        let volumes = if self.mounts_itself(live.target()) { self.volumes_of(live) } else { Vec::new() };
        let gang = Gang { name: live.name.clone(), place, spec: live.spec.clone(), volumes };
        let (target, nodes) = (allocation.target(), allocation.row.nodes.clone());
        Some(Word::HandOver { attempt, target, nodes, gang: Box::new(gang) })
    }

    /// An allocation that is about to change, remembered as it was.
    pub(super) fn allocation_mut(
        &mut self,
        attempt: &AttemptId,
        batch: &mut Batch,
    ) -> Option<&mut Allocation> {
        let allocation = self.allocations.get_mut(attempt)?;
        batch.allocations_before.entry(attempt.clone()).or_insert_with(|| Some(allocation.clone()));
        Some(allocation)
    }

    pub(super) fn on_delegated(&mut self, attempt: AttemptId, news: News, batch: &mut Batch, now: Timestamp) {
        // If the batch is not written, this has not been heard.
        batch.news.push((attempt.clone(), news.clone()));
        let Some(allocation) = self.allocation_mut(&attempt, batch) else { return };
        match news {
            News::Accepted { external } => {
                allocation.wait = None;
                if allocation.row.external != external {
                    allocation.row.external = external.clone();
                    batch.first.push(Change::Allocation(Box::new(allocation.row.clone())));
                    batch.event(&attempt.job, attempt.number, now, "accepted", json!({ "id": external }));
                }
            }
            News::Failing { message } => {
                allocation.wait = Some(Why {
                    code: "engine_away".into(),
                    summary: format!(
                        "{} could not be given the job yet; it is tried again",
                        allocation.row.target
                    ),
                    constraint: Some(message),
                    ..Why::default()
                });
            }
            News::Lingering { message } => allocation.lingers = Some(message),
            News::Refused { message } => {
                allocation.ended = Some(Verdict::Unknown);
                allocation.back = Back::Done;
                self.end_rest(&attempt, |_| Reason::Refused { message: message.clone() }, batch, now);
            }
            News::TakenBack => {
                allocation.back = Back::Done;
                self.end_rest(&attempt, |_| Reason::StoppedByUser, batch, now);
            }
            News::Observed(observed) => self.on_observed(&attempt, observed, batch, now),
        }
        // The next attempt may have waited for it.
        if self.allocations.get(&attempt).is_some_and(Allocation::is_over) {
            self.untold.jobs.insert(attempt.job.clone());
            self.dirty = true;
        }
        self.untended.insert(attempt);
    }

    fn on_observed(&mut self, attempt: &AttemptId, observed: Observed, batch: &mut Batch, now: Timestamp) {
        let Some(allocation) = self.allocation_mut(attempt, batch) else { return };
        let Observed { status, external, hosts } = observed;
        let row = &mut allocation.row;
        let is_new =
            (external.is_some() && row.external != external) || (!hosts.is_empty() && row.hosts != hosts);
        if is_new {
            row.external = external.or(row.external.take());
            if !hosts.is_empty() {
                row.hosts = hosts;
            }
            batch.first.push(Change::Allocation(Box::new(row.clone())));
        }
        let status = match status {
            Status::Ended(verdict) => Status::Ended(self.with_failed_node(attempt, verdict)),
            status => status,
        };
        let Some(allocation) = self.allocation_mut(attempt, batch) else { return };
        match status {
            Status::Waiting(wait) => allocation.wait = Some(why(wait)),
            Status::Running => {
                allocation.begun = true;
                allocation.wait = None;
                let doubted = std::mem::take(&mut allocation.doubted);
                if let Some(by) = allocation.verdict_by.filter(|_| !allocation.evicted.is_empty()) {
                    let waited = Duration::try_from(now.duration_since(by - VERDICT)).unwrap_or_default();
                    let at = now + waited.clamp(ASK.0, ASK.1);
                    allocation.ask_at = Some(at);
                    self.timers.insert(at);
                }
                doubted.iter().for_each(|node| self.doubt(node, now));
            }
            Status::Ended(verdict) => drop(allocation.ended.get_or_insert(verdict)),
            Status::Gone => {
                // Nobody knows of it, and none of its agents was ever there.
                allocation.begun = false;
                allocation.ended.get_or_insert(Verdict::Unknown);
            }
            // Whoever does not answer says nothing; the delegate asks again.
            Status::Unanswered(_) => {}
        }
    }

    /// A verdict that a node failed, with its name. Where the scheduler does not name it, it is the one whose agent fell silent
    /// while another told how its task ended: that scheduler ends the others with it. If all are silent, nothing is known.
    fn with_failed_node(&self, attempt: &AttemptId, verdict: Verdict) -> Verdict {
        if verdict != (Verdict::NodeFailed { node: None }) {
            return verdict;
        }
        let Some(allocation) = self.allocations.get(attempt) else { return verdict };
        let has_told = |rank: u32, node: &NodeId| {
            let is_over = !self.open_ranks(attempt).iter().any(|(open, _)| *open == rank);
            is_over || allocation.evicted.contains_key(&rank) || self.is_connected(node)
        };
        let ranks = (0..).zip(&allocation.row.nodes);
        let (told, silent): (Vec<_>, Vec<_>) = ranks.partition(|(rank, node)| has_told(*rank, node));
        match silent.first() {
            Some((_, node)) if !told.is_empty() => Verdict::NodeFailed { node: Some(self.name_of(node)) },
            _ => verdict,
        }
    }

    /// The other scheduler answers, and keeps the allocation: an agent that does not come now is lost.
    fn doubt(&mut self, id: &NodeId, now: Timestamp) {
        if let Some(node) = self.nodes.get_mut(id).filter(|node| node.connection.is_none()) {
            node.is_doubted = true;
            node.lost_at = Some(now + DOUBT);
            self.timers.extend(node.lost_at);
        }
    }

    /// Whether it is to be found out first if a node's allocation goes on, before its agent counts as lost. While the other
    /// scheduler does not answer, nothing is known: it may be the way there that is cut.
    pub(super) fn is_doubtful(&mut self, id: &NodeId, batch: &mut Batch) -> bool {
        let Some(node) = self.nodes.get(id).filter(|node| !node.is_doubted) else { return false };
        let Some(attempt) = node.allocation.clone() else { return false };
        let Some(allocation) = self.allocation_mut(&attempt, batch) else { return false };
        allocation.doubted.insert(id.clone());
        batch.words.push(Word::Look(attempt));
        true
    }

    /// Ends all tasks of an attempt that are not over.
    pub(super) fn end_rest(
        &mut self,
        attempt: &AttemptId,
        reason: impl Fn(&NodeId) -> Reason,
        batch: &mut Batch,
        now: Timestamp,
    ) {
        for (rank, node) in self.open_ranks(attempt) {
            let end = TaskEnd::new(Some(reason(&node)), None);
            let event = Event::TaskEnded { attempt: attempt.number, rank, end, at: now };
            self.apply_quietly(&attempt.job, event, batch, now);
        }
    }

    /// The tasks of an attempt that are not over, with their nodes.
    pub(super) fn open_ranks(&self, attempt: &AttemptId) -> Vec<(u32, NodeId)> {
        let Some(live) = self.jobs.get(&attempt.job).filter(|live| live.job.attempt == attempt.number) else {
            return Vec::new();
        };
        let open = live.job.ranks(|task| task.phase != muster_model::TaskPhase::Ended);
        open.into_iter().map(|rank| (rank, live.job.tasks[rank as usize].placement.node.clone())).collect()
    }

    /// An agent of a gang has come: what it was given is what its task has.
    pub(super) fn on_seated(&mut self, id: &NodeId, capacity: &Capacity, batch: &mut Batch, now: Timestamp) {
        let Some(attempt) = self.nodes.get(id).and_then(|node| node.allocation.clone()) else { return };
        let devices: Vec<u32> = capacity.devices.iter().map(|device| device.index).collect();
        if let Some(allocation) = self.allocation_mut(&attempt, batch) {
            allocation.came = true;
            allocation.wait = None;
            allocation.dismissed.remove(id);
            allocation.doubted.remove(id);
        }
        for (rank, _) in self.open_ranks(&attempt).into_iter().filter(|(_, node)| node == id) {
            let known =
                self.jobs.get(&attempt.job).map(|live| &live.job.tasks[rank as usize].placement.devices);
            if known != Some(&devices) {
                let devices = devices.clone();
                let event = Event::TaskSeated { attempt: attempt.number, rank, devices };
                self.apply_quietly(&attempt.job, event, batch, now);
            }
        }
        self.untended.insert(attempt);
    }

    /// An agent of a gang says how a task ended. Where its place was taken back, the other scheduler knows why; until it has
    /// said so, the end is kept and `None` comes back.
    pub(super) fn judge(
        &mut self,
        node: &NodeId,
        task: &TaskId,
        end: TaskEnd,
        at: Timestamp,
        batch: &mut Batch,
        now: Timestamp,
    ) -> Option<TaskEnd> {
        if self.nodes.get(node).is_none_or(|node| node.allocation.is_none()) {
            return Some(end);
        }
        let is_stopping =
            self.jobs.get(&task.attempt.job).is_some_and(|live| live.job.state == State::Stopping);
        let reason = self.verdict_reason(&task.attempt, node, end.failure.as_ref());
        let is_open = end.failure == Some(Reason::Evicted) && !is_stopping;
        let Some(allocation) =
            self.allocation_mut(&task.attempt, batch).filter(|_| is_open || reason.is_some())
        else {
            return Some(end);
        };
        if allocation.ended.is_some() || !is_open {
            return Some(TaskEnd { failure: reason.or(end.failure), ..end });
        }
        allocation.evicted.insert(task.rank, (end, at));
        allocation.verdict_by.get_or_insert(now + VERDICT);
        self.timers.insert(now + VERDICT);
        batch.words.push(Word::Look(task.attempt.clone()));
        None
    }

    /// What the other scheduler's verdict makes of a failure that says nothing by itself.
    pub(super) fn verdict_reason(
        &self,
        attempt: &AttemptId,
        node: &NodeId,
        failure: Option<&Reason>,
    ) -> Option<Reason> {
        let is_vague =
            matches!(failure, Some(Reason::Evicted | Reason::NodeLost { .. } | Reason::SupervisorLost));
        let allocation = self.allocations.get(attempt).filter(|_| is_vague)?;
        let verdict = allocation.ended.as_ref()?;
        settled(verdict).or_else(|| match verdict {
            Verdict::TimeLimit { limit } => Some(self.time_limit_reason(attempt, *limit)),
            Verdict::NodeFailed { node: Some(host) } => Some(Reason::NodeLost { node: host.clone() }),
            Verdict::NodeFailed { node: None } => Some(Reason::NodeLost { node: self.name_of(node) }),
            Verdict::OutOfMemory => Some(Reason::OutOfMemory),
            // Its agents themselves say that they have left before anything began.
            Verdict::Completed | Verdict::Unknown
                if failure == Some(&Reason::Evicted) && !self.has_started(attempt) =>
            {
                Some(lapsed(verdict))
            }
            Verdict::Completed | Verdict::Failed { .. } | Verdict::Unknown => None,
            // What these mean does not depend on how far it was.
            Verdict::Cancelled { .. }
            | Verdict::Preempted
            | Verdict::Evicted { .. }
            | Verdict::ImagePull { .. }
            | Verdict::Refused { .. } => None,
        })
    }

    /// Whether a task of an attempt is known to have begun.
    fn has_started(&self, attempt: &AttemptId) -> bool {
        let Some(live) = self.jobs.get(&attempt.job).filter(|live| live.job.attempt == attempt.number) else {
            return true;
        };
        live.job.tasks.iter().any(|task| task.started_at.is_some())
    }

    /// The time limit that an attempt reached: the job's own, unless the other scheduler gave it less; or that scheduler's. Where
    /// it does not say how long that is, for how long the attempt ran.
    fn time_limit_reason(&self, attempt: &AttemptId, given: Option<TimeLimit>) -> Reason {
        let live = self.jobs.get(&attempt.job);
        let own = live.and_then(|live| live.spec.timeout);
        let started_at = live.and_then(|live| live.job.tasks.iter().filter_map(|task| task.started_at).min());
        let ran = || {
            let ran = started_at.and_then(|at| Duration::try_from(super::now().duration_since(at)).ok());
            TimeLimit { span: ran.unwrap_or_default(), set_by: TimeLimitSource::Cluster }
        };
        let limit = match (own, given) {
            (Some(own), given) if given.is_none_or(|given| own <= given.span) => {
                TimeLimit { span: own, set_by: TimeLimitSource::Job }
            }
            (_, given) => given.unwrap_or_else(ran),
        };
        Reason::Timeout { limit_ms: limit.span.as_secs() * 1000, set_by: limit.set_by }
    }

    /// A node as people know it: one of a gang by its machine. What the other scheduler calls that comes first: an agent that
    /// was started again for its files is elsewhere.
    pub(super) fn name_of(&self, id: &NodeId) -> String {
        let of_gang = self.nodes.get(id).filter(|node| node.allocation.is_some());
        let row = of_gang.and_then(|node| self.allocations.get(node.allocation.as_ref()?)).map(|it| &it.row);
        let rank = row.and_then(|row| row.nodes.iter().position(|node| node == id));
        let host = row.zip(rank).and_then(|(row, rank)| row.hosts.get(rank));
        let host = host.or_else(|| of_gang.map(|node| &node.host)).filter(|host| !host.is_empty());
        host.cloned().unwrap_or_else(|| id.to_string())
    }
}

/// Why nothing has run of a gang that is over.
pub(super) fn lapsed(verdict: &Verdict) -> Reason {
    let message = match verdict {
        Verdict::Completed => "its turn came while this server was away",
        _ => "the other scheduler has forgotten it",
    };
    Reason::AllocationLapsed { message: message.into() }
}

/// What a verdict says of a gang, whether its agents had come or not.
pub(super) fn settled(verdict: &Verdict) -> Option<Reason> {
    match verdict {
        Verdict::Cancelled { by } => Some(Reason::CancelledOutside { by: by.clone() }),
        Verdict::Preempted => Some(Reason::Preempted),
        Verdict::Evicted { message } => Some(Reason::Displaced { message: message.clone() }),
        Verdict::ImagePull { message } => Some(Reason::ImagePullFailed { message: message.clone() }),
        Verdict::Refused { message } => Some(Reason::Refused { message: message.clone() }),
        Verdict::TimeLimit { .. }
        | Verdict::NodeFailed { .. }
        | Verdict::OutOfMemory
        | Verdict::Failed { .. }
        | Verdict::Completed
        | Verdict::Unknown => None,
    }
}

/// The node that stands for a rank of an attempt that was handed over.
fn seat(target: &Target, attempt: &AttemptId, rank: u32) -> Option<NodeId> {
    let job = attempt.job.as_str().trim_start_matches(JobId::PREFIX);
    format!("{}{}.{job}.{}.{rank}", NodeId::PREFIX, target.engine(), attempt.number).parse().ok()
}

/// What the other scheduler says, as it is shown. Behind a job without a time limit it has to guess, and says so by a date
/// that lies a year ahead.
fn why(wait: Wait) -> Why {
    let Wait { code, summary, help, starts_at } = wait;
    let horizon = super::now() + Duration::from_secs(180 * 24 * 3600);
    let starts_at = starts_at.filter(|at| *at < horizon);
    Why { code: code.into(), summary, help, starts_at, ..Why::default() }
}
