//! What is done about an allocation next. It follows from what is known of it alone, so it can be asked at any time, as
//! often as one likes, and a server that has just started asks it of all.
//!
//! While its attempt goes on: an end whose cause is asked for is settled, a gang that is to stop and has no agents yet is
//! taken back, and one that is over at the other scheduler has its agents started again where their files are, to say what
//! they could not; who stays silent has ended as that scheduler says. When the attempt is over: agents tell the rest and
//! end, what does not end by itself within seconds is taken back, and what is still missing then is salvaged.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_engine::Verdict;
use muster_link::message::ToAgent;
use muster_model::job::{Event, State};
use muster_model::task::Outputs;
use muster_model::{AttemptId, NodeId, Reason, TaskId, Timestamp};
use muster_store::Change;
use serde_json::json;

use super::Core;
use super::allocation::{Allocation, Back, lapsed, settled};
use super::batch::Batch;
use super::live::Ended;
use crate::delegate::Word;

/// How long agents that are started again may take to tell how their tasks ended.
const TELL: Duration = Duration::from_secs(20);
/// How long they may take to send the rest of what their tasks left. They end by themselves before.
const SEND: Duration = Duration::from_secs(90);
/// How long agents may hold a place after their attempt, to send logs and outputs. What takes longer is read from the
/// disk once the place is given back: nobody's GPUs wait for a log.
const SHIP: Duration = Duration::from_secs(30);
/// The same where no disk keeps the files: an agent that is there and owes its task's outputs is given more time again and
/// again, but not for ever.
const SHIP_FILES: Duration = Duration::from_secs(3600);
/// What is said of outputs that did not come in that time, or whose place ended before.
const LOST: &str = "the place where it ran was gone before they were sent; what is large belongs on a volume";
/// How long an allocation without agents may take to end by itself.
const LINGER: Duration = Duration::from_secs(5);
/// When it is asked whether it has.
const GLANCE: Duration = Duration::from_secs(1);
/// How long the files of an attempt that is over can be looked at, after somebody asked.
const VISIT: Duration = Duration::from_secs(120);
/// How long agents may take to come for that, before they are started once more.
const COME: Duration = Duration::from_secs(15);

impl Core {
    /// Looks after the allocations about which something is new.
    pub(super) fn tend_all(&mut self, batch: &mut Batch, now: Timestamp) {
        for attempt in std::mem::take(&mut self.untended) {
            let is_under_way = !self.open_ranks(&attempt).is_empty();
            if is_under_way {
                self.tend_attempt(&attempt, batch, now);
            }
            // It may have been the last.
            if self.open_ranks(&attempt).is_empty() {
                self.tend_rest(&attempt, batch, now);
            }
        }
    }

    fn tend_attempt(&mut self, attempt: &AttemptId, batch: &mut Batch, now: Timestamp) {
        let is_stopping = self.jobs.get(&attempt.job).is_some_and(|live| live.job.state == State::Stopping);
        let Some(allocation) = self.allocation_mut(attempt, batch) else { return };
        let target = allocation.target();
        if allocation.ask_at.is_some_and(|at| at <= now) {
            allocation.ask_at = None;
            batch.words.push(Word::Look(attempt.clone()));
        }
        if is_stopping && !allocation.came && allocation.back == Back::No && allocation.ended.is_none() {
            allocation.back = Back::Asked;
            batch.words.push(Word::TakeBack { attempt: attempt.clone(), target });
        }
        let is_settled =
            is_stopping || allocation.ended.is_some() || allocation.verdict_by.is_some_and(|at| at <= now);
        if is_settled && !allocation.evicted.is_empty() {
            self.settle_evicted(attempt, batch, now);
        }
        self.tend_ended(attempt, batch, now);
    }

    /// Ends the tasks whose place was taken back, for the reason that is known now.
    fn settle_evicted(&mut self, attempt: &AttemptId, batch: &mut Batch, now: Timestamp) {
        let nodes: BTreeMap<u32, NodeId> = self.open_ranks(attempt).into_iter().collect();
        let Some(allocation) = self.allocation_mut(attempt, batch) else { return };
        for (rank, (mut end, at)) in std::mem::take(&mut allocation.evicted) {
            let reason = |node| self.verdict_reason(attempt, node, end.failure.as_ref());
            if let Some(reason) = nodes.get(&rank).and_then(reason) {
                end.failure = Some(reason);
            }
            let event = Event::TaskEnded { attempt: attempt.number, rank, end, at };
            self.apply_quietly(&attempt.job, event, batch, now);
        }
    }

    /// An attempt goes on whose allocation is over.
    fn tend_ended(&mut self, attempt: &AttemptId, batch: &mut Batch, now: Timestamp) {
        let open = self.open_ranks(attempt);
        let is_away = |(_, node): &(u32, NodeId)| !self.is_connected(node);
        let is_any_away = open.iter().any(is_away);
        let Some(allocation) = self.allocation_mut(attempt, batch) else { return };
        let Some(verdict) = allocation.ended.clone().filter(|_| !open.is_empty()) else { return };
        let target = allocation.target();
        if allocation.came && is_any_away && !allocation.is_salvaged {
            allocation.is_salvaged = true;
            allocation.tell_by = None;
            batch.words.push(Word::Salvage { attempt: attempt.clone(), target });
        }
        match allocation.tell_by {
            None if allocation.came => {
                allocation.tell_by = Some(now + TELL);
                self.timers.insert(now + TELL);
            }
            Some(at) if at > now => {}
            Some(_) => {
                let reason = |core: &Self, node: &NodeId| {
                    let lost = Reason::NodeLost { node: core.name_of(node) };
                    core.verdict_reason(attempt, node, Some(&lost)).unwrap_or(lost)
                };
                let reasons: Vec<Reason> = open.iter().map(|(_, node)| reason(self, node)).collect();
                let by_node = |node: &NodeId| {
                    let at = open.iter().position(|(_, other)| other == node);
                    at.map_or(Reason::Evicted, |at| reasons[at].clone())
                };
                self.end_rest(attempt, by_node, batch, now);
            }
            None => {
                let reason = before_agents(&verdict, allocation.begun);
                self.end_rest(attempt, |_| reason.clone(), batch, now);
            }
        }
    }

    /// The attempt is over: what is left of it is told and given back.
    fn tend_rest(&mut self, attempt: &AttemptId, batch: &mut Batch, now: Timestamp) {
        let Some(allocation) = self.allocations.get(attempt) else { return };
        let nodes = allocation.row.nodes.clone();
        let is_owed = self.ended.keys().any(|task| task.attempt == *attempt);
        let is_just_over = batch.ended.iter().any(|(task, _)| task.attempt == *attempt);
        let connected: Vec<NodeId> = nodes.iter().filter(|node| self.is_connected(node)).cloned().collect();
        let owing = self.owing_files(attempt);
        let is_sending = owing.iter().any(|(_, node)| connected.contains(node));
        let is_alone = connected.is_empty() && !owing.iter().any(|(_, node)| self.is_awaited(node, now));
        let Some(allocation) = self.allocation_mut(attempt, batch) else { return };
        let ship = if is_alone { LINGER } else { SHIP };
        let mut timers = Vec::new();
        if !allocation.row.closing {
            allocation.row.closing = true;
            batch.first.push(Change::Allocation(Box::new(allocation.row.clone())));
        }
        // Whether anything is owed is known once the end is written.
        if is_just_over {
            return;
        }
        let close_by = *allocation.close_by.get_or_insert_with(|| {
            timers.push(now + ship);
            now + ship
        });
        let ship_by = *allocation.ship_by.get_or_insert(now + SHIP_FILES);
        if is_sending && close_by <= now && now < ship_by {
            allocation.close_by = Some(ship_by.min(now + SHIP));
            timers.extend(allocation.close_by);
        }
        let is_visited = allocation.visited_until.is_some_and(|at| at > now);
        if !is_owed && !is_visited {
            for node in connected.iter().filter(|node| !allocation.dismissed.contains(node)) {
                batch.messages.push((node.clone(), ToAgent::Shutdown));
            }
            if !connected.iter().all(|node| allocation.dismissed.contains(node)) {
                allocation.dismissed.extend(connected.iter().cloned());
                allocation.close_by = Some(close_by.min(now + LINGER));
                timers.extend(allocation.close_by);
            }
        }
        if allocation.is_over() {
            self.finish_allocation(attempt, is_owed, !connected.is_empty(), batch, now);
        } else {
            let word = give_back(allocation, connected.is_empty(), now);
            timers.extend(allocation.ask_at);
            batch.words.extend(word);
        }
        self.timers.extend(timers);
    }

    /// Nothing is left at the other scheduler. What was not told is fetched, if it can be; then it is closed.
    fn finish_allocation(
        &mut self,
        attempt: &AttemptId,
        is_owed: bool,
        is_connected: bool,
        batch: &mut Batch,
        now: Timestamp,
    ) {
        let Some(allocation) = self.allocation_mut(attempt, batch) else { return };
        let target = allocation.target();
        let is_visited = allocation.visited_until.is_some_and(|at| at > now);
        let may_tell = is_owed && allocation.came;
        if may_tell && !is_connected && allocation.fetch_by.is_none() {
            allocation.fetch_by = Some(now + SEND);
            batch.words.push(Word::Salvage { attempt: attempt.clone(), target });
        }
        let fetch_by = allocation.fetch_by.filter(|at| *at > now);
        let is_late = allocation.fetch_by.is_some_and(|at| at <= now);
        let may_still_tell = may_tell && !is_late && (is_connected || fetch_by.is_some());
        // Agents that were told to end have a moment to do so.
        let is_leaving = is_connected && allocation.close_by.is_some_and(|at| at > now);
        if may_still_tell || is_leaving || is_visited {
            return self.timers.extend(fetch_by);
        }
        self.give_up_files(attempt, batch, now);
        let Some(allocation) = self.allocation_mut(attempt, batch) else { return };
        batch.first.push(Change::CloseAllocation { attempt: attempt.clone(), at: now });
        batch.first.extend(allocation.row.nodes.iter().cloned().map(Change::RemoveNode));
        batch.closed.push(attempt.clone());
    }

    /// The tasks of an attempt whose outputs have yet to come, and go with their place, each with its node.
    fn owing_files(&self, attempt: &AttemptId) -> Vec<(TaskId, NodeId)> {
        let Some(allocation) = self.allocations.get(attempt) else { return Vec::new() };
        let engine = self.parts.engines.get(allocation.row.target.engine());
        if engine.is_none_or(|engine| engine.capabilities().keeps_files) {
            return Vec::new();
        }
        let owes = |(task, ended): &(&TaskId, &Ended)| task.attempt == *attempt && ended.owes_outputs;
        self.ended.iter().filter(owes).map(|(task, ended)| (task.clone(), ended.node.clone())).collect()
    }

    /// What has not come is lost, which is not to pass in silence.
    fn give_up_files(&self, attempt: &AttemptId, batch: &mut Batch, now: Timestamp) {
        for (task, _) in self.owing_files(attempt) {
            if batch.outputs.contains(&task) {
                continue;
            }
            let outputs = Outputs::Failed { message: LOST.into() };
            let body = json!({ "rank": task.rank, "outputs": outputs });
            batch.event(&attempt.job, attempt.number, now, "outputs", body);
            batch.first.push(Change::Outputs { task, outputs });
        }
    }

    /// After a commit: what was closed goes from memory, and whoever waited for it may start.
    pub(super) fn let_go(&mut self, closed: Vec<AttemptId>) {
        for attempt in closed {
            self.untold.jobs.insert(attempt.job.clone());
            if let Some(target) = self.allocations.get(&attempt).map(Allocation::target) {
                self.drop_allocation(&attempt);
                self.tell_delegate(Word::Closed { attempt, target });
            }
            self.dirty = true;
        }
    }

    /// Somebody wants to see files of an attempt that is over: its agents are started again, if they are not there.
    pub(super) fn on_visit(&mut self, attempt: &AttemptId, batch: &mut Batch, now: Timestamp) -> bool {
        if !self.allocations.contains_key(attempt) {
            let row = match self.parts.readers.allocations(&attempt.job) {
                Ok(rows) => rows.into_iter().find(|row| row.attempt == *attempt),
                Err(error) => {
                    tracing::error!(%attempt, %error, "the allocation cannot be looked up");
                    return false;
                }
            };
            let Some(row) = row else { return false };
            batch.allocations_before.entry(attempt.clone()).or_insert(None);
            let over = Allocation::new(row);
            self.adopt_allocation(Allocation { came: true, back: Back::Done, close_by: Some(now), ..over });
        }
        let Some(allocation) = self.allocation_mut(attempt, batch).filter(|one| one.is_over()) else {
            return false;
        };
        // Who asked a moment ago has asked for everybody.
        let is_asked = allocation.visited_until.is_some_and(|at| at > now + VISIT - COME);
        allocation.visited_until = Some(now + VISIT);
        let (target, nodes) = (allocation.target(), allocation.row.nodes.clone());
        self.timers.insert(now + VISIT);
        if !is_asked && !nodes.iter().all(|node| self.is_connected(node)) {
            batch.words.push(Word::Salvage { attempt: attempt.clone(), target });
        }
        true
    }

    /// Whether an agent that is away may be on its way.
    fn is_awaited(&self, node: &NodeId, now: Timestamp) -> bool {
        self.nodes.get(node).is_some_and(|node| node.lost_at.is_some_and(|at| at > now))
    }

    pub(super) fn is_connected(&self, node: &NodeId) -> bool {
        self.nodes.get(node).is_some_and(|node| node.connection.is_some())
    }

    pub(super) fn tell_delegate(&self, word: Word) {
        // Whoever speaks with schedulers may be gone, when the server stops.
        drop(self.parts.delegate.send(word));
    }
}

/// Whether an allocation whose attempt is over is taken back now, or asked for whether it has ended by itself.
fn give_back(allocation: &mut Allocation, is_alone: bool, now: Timestamp) -> Option<Word> {
    let (attempt, target) = (allocation.row.attempt.clone(), allocation.target());
    let is_due = !allocation.came || allocation.close_by.is_some_and(|at| at <= now);
    match allocation.back {
        Back::No if is_due => {
            allocation.back = Back::Asked;
            Some(Word::TakeBack { attempt, target })
        }
        Back::No if is_alone => match allocation.ask_at {
            None => {
                allocation.ask_at = Some(now + GLANCE);
                None
            }
            Some(at) if at <= now => {
                allocation.ask_at = Some(now + GLANCE * 2);
                Some(Word::Look(attempt))
            }
            Some(_) => None,
        },
        Back::No | Back::Asked | Back::Done => None,
    }
}

/// Why a gang is over whose agents never came. If this server has seen that it had begun, they were looked for in vain; else
/// it was the server that was away.
fn before_agents(verdict: &Verdict, begun: bool) -> Reason {
    let failed = |message: &str| Reason::AllocationFailed { message: message.into() };
    settled(verdict).unwrap_or_else(|| match verdict {
        Verdict::NodeFailed { node: Some(node) } => failed(&format!("{node} failed")),
        Verdict::NodeFailed { node: None } => failed("a machine failed"),
        Verdict::TimeLimit { .. } => failed("its time was up"),
        Verdict::OutOfMemory => failed("it ran out of memory"),
        Verdict::Failed { message } => failed(message),
        Verdict::Evicted { message } | Verdict::ImagePull { message } | Verdict::Refused { message } => {
            failed(message)
        }
        Verdict::Completed | Verdict::Unknown if !begun => lapsed(verdict),
        Verdict::Completed => failed("its agents ended without having reached this server"),
        Verdict::Unknown | Verdict::Cancelled { .. } | Verdict::Preempted => failed("nobody says why"),
    })
}
