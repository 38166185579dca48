//! What agents say: hello, progress of tasks, and goodbye.
//!
//! An agent knows what runs on its node; the database knows what should. On every hello the two are compared and the
//! difference is closed, so nothing depends on a message having arrived.

use std::collections::BTreeMap;

use muster_link::message::{Hello, ReportPhase, ToAgent, ToServer};
use muster_model::job::{Event, State};
use muster_model::task::{Address, TaskEnd, TaskPhase};
use muster_model::{NodeId, Reason, Task, TaskId, Timestamp};
use muster_scheduler::Serves;
use muster_store::{Change, NodeRow};
use tokio::sync::mpsc;

use super::Core;
use super::batch::{Answer, Batch};
use super::input::{ConnectionId, Reply};
use super::live::{Connection, Ended, Node};
use super::schedule::millis;
use crate::keeper::Word;

impl Core {
    pub(super) fn on_agent_connected(
        &mut self,
        connection: ConnectionId,
        hello: Hello,
        (outbox, is_tcp): (mpsc::Sender<ToAgent>, bool),
        batch: &mut Batch,
        now: Timestamp,
    ) {
        let known = self.nodes.get(&hello.node).filter(|node| node.leaves_at.is_none());
        let Some(target) = known.map(|node| node.target.clone()) else {
            return tracing::warn!(node = %hello.node, "an agent of no known node");
        };
        let only = match self.check_claim(&target, &hello, is_tcp) {
            Ok(only) => only,
            Err(why) => return self.refuse_agent(connection, &hello, why),
        };
        let incarnation = self.node_mut(&hello.node).incarnation.clone();
        let same = incarnation.as_ref().is_none_or(|known| *known == hello.incarnation);
        batch.incarnations_before.push((hello.node.clone(), incarnation));
        self.refresh_node(connection, &hello, outbox, only);
        batch.first.push(Change::Node(Box::new(NodeRow {
            id: hello.node.clone(),
            engine: target.engine().into(),
            name: target.to_string(),
            host: hello.host.clone(),
            incarnation: Some(hello.incarnation.clone()),
            capacity: hello.capacity.clone(),
            token_hash: None,
            last_seen_at: Some(now),
        })));
        batch.speakers.insert(hello.node.clone());
        let welcome = self.welcome();
        batch.messages.push((hello.node.clone(), welcome));
        let newer = self.newer_binary(target.engine(), &hello.build);
        let changes_over = newer.is_some();
        if let Some(path) = newer {
            tracing::info!(node = %hello.node, "the agent runs another build; it is asked to change over");
            batch.messages.push((hello.node.clone(), ToAgent::Upgrade { path }));
        }
        self.on_seated(&hello.node, &hello.capacity, batch, now);
        self.tell_keeper(Word::Arrived(hello.node.clone()));
        self.parts.starts.close(&hello.node);
        self.untold.nodes.insert(hello.node.clone());
        let node = hello.node.clone();
        self.reconcile(hello, same, batch, now);
        self.tell_removals(&node, changes_over, batch);
        self.dirty = true;
    }

    /// The binary that an agent of this build should run instead.
    fn newer_binary(&self, engine: &str, build: &str) -> Option<String> {
        let binary = self.parts.engines.get(engine)?.agent()?;
        (binary.build != build).then_some(binary.path)
    }

    fn node_mut(&mut self, id: &NodeId) -> &mut Node {
        self.nodes.get_mut(id).expect("the caller looked it up")
    }

    fn refresh_node(
        &mut self,
        connection: ConnectionId,
        hello: &Hello,
        outbox: mpsc::Sender<ToAgent>,
        only: Option<String>,
    ) {
        let node = self.node_mut(&hello.node);
        let (version, protocol) = (hello.version.clone(), hello.protocol);
        node.connection = Some(Connection { id: connection, outbox, pid: hello.pid, version, protocol });
        node.incarnation = Some(hello.incarnation.clone());
        node.host = hello.host.clone();
        node.account = hello.account.clone();
        node.serves = Serves { only, lacks: None };
        node.lost_at = None;
        node.is_doubted = false;
        node.capacity = hello.capacity.clone();
    }

    /// Compares what the agent has with what it should have.
    fn reconcile(&mut self, hello: Hello, same: bool, batch: &mut Batch, now: Timestamp) {
        let mut reports: BTreeMap<TaskId, ReportPhase> =
            hello.tasks.into_iter().map(|report| (report.task, report.phase)).collect();
        let expected = self.node_mut(&hello.node).tasks.clone();
        for task in expected {
            match reports.remove(&task) {
                Some(phase) => self.on_report(&hello.node, &task, phase, batch, now),
                None => self.on_missing(&hello.node, &task, same, batch, now),
            }
        }
        let node = self.node_mut(&hello.node);
        node.stale.clear();
        for (task, phase) in reports {
            self.on_unexpected(&hello.node, task, phase, batch);
        }
        self.node_mut(&hello.node).refresh();
    }

    /// A task both sides know.
    fn on_report(
        &mut self,
        node: &NodeId,
        task: &TaskId,
        phase: ReportPhase,
        batch: &mut Batch,
        now: Timestamp,
    ) {
        match phase {
            ReportPhase::Preparing => {}
            ReportPhase::Ready { address } => {
                self.on_task_message(node, ToServer::Ready { task: task.clone(), address }, batch, now)
            }
            ReportPhase::Running { at, address } => {
                self.on_late_address(node, task, address, batch, now);
                self.on_task_message(node, ToServer::Started { task: task.clone(), at }, batch, now)
            }
            ReportPhase::Ended { end, at, started_at, address } => {
                if let Some(at) = started_at {
                    self.on_late_address(node, task, address, batch, now);
                    self.on_task_message(node, ToServer::Started { task: task.clone(), at }, batch, now);
                }
                self.on_task_message(node, ToServer::Ended { task: task.clone(), end, at }, batch, now);
            }
        }
        self.repeat_stop(task, batch);
        self.introduce_again(task, batch);
        // What a lane did while its agent was away may be here already, and then its log does not grow again.
        self.on_log_grown(task, batch, now);
        self.grant_again(task, batch);
    }

    /// A task that runs was ready before. A server that launched it and ended before that was written down hears of it
    /// here, and those of its gang who missed their launch need to know where it is.
    fn on_late_address(
        &mut self,
        node: &NodeId,
        task: &TaskId,
        address: Option<Address>,
        batch: &mut Batch,
        now: Timestamp,
    ) {
        let known = self.jobs.get(&task.attempt.job).and_then(|live| live.job.tasks.get(task.rank as usize));
        if let Some(address) = address
            && known.is_some_and(|known| known.phase == TaskPhase::Assigned)
        {
            self.on_task_message(node, ToServer::Ready { task: task.clone(), address }, batch, now);
        }
    }

    /// A node that came back in the middle of a stop may not have heard of it.
    fn repeat_stop(&self, task: &TaskId, batch: &mut Batch) {
        let Some(live) = self.jobs.get(&task.attempt.job) else { return };
        let is_leaving = live.job.is_leaving(task.rank);
        let stopping =
            |known: &&Task| live.job.state == State::Stopping || known.parting.is_some() || is_leaving;
        let known = live.job.tasks.get(task.rank as usize).filter(stopping);
        if let Some(known) = known.filter(|known| known.attempt == task.attempt.number && !known.is_over()) {
            let grace_ms = live.spec.grace.as_millis() as u64;
            let reason = live.job.stop_reason(task.rank).map_or("", |reason| reason.code()).to_owned();
            let stop = ToAgent::Stop { task: task.clone(), grace_ms, reason };
            batch.messages.push((known.placement.node.clone(), stop));
        }
    }

    /// A task the agent has never heard of, or has lost.
    fn on_missing(&mut self, node: &NodeId, task: &TaskId, same: bool, batch: &mut Batch, now: Timestamp) {
        let Some(live) = self.jobs.get(&task.attempt.job).cloned() else { return };
        let Some(known) = live.job.tasks.get(task.rank as usize) else { return };
        let ends = live.job.state == State::Stopping || known.parting.is_some();
        let failure = match known.phase {
            TaskPhase::Assigned | TaskPhase::Ready if same && ends => Reason::StoppedByUser,
            // It never got the message; an agent writes its record before it acts, so nothing has run.
            TaskPhase::Assigned | TaskPhase::Ready if same => {
                batch
                    .effects
                    .push((live.job.id.clone(), muster_model::Effect::Prepare { ranks: vec![task.rank] }));
                return;
            }
            // The node's records are gone, and with them all knowledge of what ran.
            _ => Reason::NodeLost { node: node.to_string() },
        };
        let end = TaskEnd::new(Some(failure), None);
        let event = Event::TaskEnded { attempt: task.attempt.number, rank: task.rank, end, at: now };
        self.apply_quietly(&task.attempt.job, event, batch, now);
    }

    /// A task the server has given up, or does not know: it must not go on.
    fn on_unexpected(&mut self, node: &NodeId, task: TaskId, phase: ReportPhase, batch: &mut Batch) {
        match phase {
            ReportPhase::Ended { end, .. } => self.on_unexpected_end(node, task, &end, batch),
            ReportPhase::Preparing | ReportPhase::Ready { .. } | ReportPhase::Running { .. } => {
                tracing::warn!(%task, %node, "stopping a task that should not run");
                self.node_mut(node).stale.insert(task.clone());
                batch
                    .messages
                    .push((node.clone(), ToAgent::Stop { task, grace_ms: 0, reason: String::new() }));
            }
        }
    }

    /// The end of a task that was given up, or whose end is known and not yet forgotten.
    fn on_unexpected_end(&mut self, node: &NodeId, task: TaskId, end: &TaskEnd, batch: &mut Batch) {
        if batch.ended.iter().any(|(ending, _)| *ending == task) {
            return;
        }
        let debt = match self.parts.readers.debt(&task) {
            Ok(debt) => debt,
            Err(error) => return tracing::error!(%task, %error, "the task cannot be looked up"),
        };
        // Nobody asks for the log of a job that was removed, or whose log was.
        let log_bytes = end.log_bytes.filter(|_| debt.as_ref().is_some_and(|debt| debt.log));
        let owes_outputs = debt.is_some_and(|debt| debt.outputs);
        self.ended.insert(task.clone(), Ended { node: node.clone(), log_bytes, owes_outputs });
        self.forget_if_complete(&task, &mut batch.messages);
    }

    pub(super) fn on_agent_said(
        &mut self,
        connection: ConnectionId,
        node: &NodeId,
        message: ToServer,
        batch: &mut Batch,
        now: Timestamp,
    ) {
        let current =
            self.nodes.get(node).and_then(|node| node.connection.as_ref()).map(|connection| connection.id);
        if current == Some(connection) {
            batch.speakers.insert(node.clone());
            self.on_task_message(node, message, batch, now);
        }
    }

    fn on_task_message(&mut self, node: &NodeId, message: ToServer, batch: &mut Batch, now: Timestamp) {
        let (task, event) = match message {
            ToServer::Ready { task, address } => {
                let event = Event::TaskReady { attempt: task.attempt.number, rank: task.rank, address };
                (task, event)
            }
            ToServer::Started { task, at } => {
                let event =
                    Event::TaskStarted { attempt: task.attempt.number, rank: task.rank, at: stored(at) };
                (task, event)
            }
            ToServer::Ended { task, end, at } => {
                if self.nodes.get_mut(node).is_some_and(|node| node.stale.remove(&task)) {
                    self.node_mut(node).refresh();
                    self.untold.nodes.insert(node.clone());
                    self.dirty = true;
                }
                if !self.is_expected(node, &task) {
                    return self.on_unexpected(
                        node,
                        task,
                        ReportPhase::Ended { end, at, started_at: None, address: None },
                        batch,
                    );
                }
                let at = stored(at);
                let Some(end) = self.judge(node, &task, end, at, batch, now) else { return };
                if !self.may_end(&task, &end, at, batch, now) {
                    return;
                }
                let event = Event::TaskEnded { attempt: task.attempt.number, rank: task.rank, end, at };
                (task, event)
            }
            ToServer::Outputs { task, outputs } => return self.on_outputs(node, task, outputs, batch, now),
            ToServer::Collected { bytes } => return self.on_collected(node, bytes),
            ToServer::Removed { job } => return self.on_removed(node, job, batch),
            ToServer::Volumes { lacks } => {
                self.node_mut(node).serves.lacks = Some(lacks);
                self.untold.nodes.insert(node.clone());
                self.dirty = true;
                return;
            }
            ToServer::Saved { task, at } => return self.on_saved(node, &task, at),
            ToServer::Hello(_) | ToServer::Metrics(_) | ToServer::Ping => return,
            ToServer::Unsupported { what } => {
                return tracing::warn!(%node, %what, "the agent does not know a message");
            }
        };
        // An agent speaks for its own node only.
        if self.is_expected(node, &task) {
            self.apply_quietly(&task.attempt.job, event, batch, now);
        }
    }

    /// Less is lost now if the task's job makes room for another.
    fn on_saved(&mut self, node: &NodeId, task: &TaskId, at: Timestamp) {
        if self.is_expected(node, task) {
            let saved = muster_scheduler::Change::Saved { element: 0, at: millis(at) };
            self.scheduler.change(&task.attempt.job, saved);
        }
    }

    fn is_expected(&self, node: &NodeId, task: &TaskId) -> bool {
        self.nodes.get(node).is_some_and(|node| node.tasks.contains(task))
    }

    pub(super) fn on_agent_gone(&mut self, connection: ConnectionId, id: &NodeId, now: Timestamp) {
        if self.refused.remove(&connection) {
            return;
        }
        let lost_after = self
            .nodes
            .get(id)
            .and_then(|node| self.parts.engines.get(node.target.engine()))
            .map(|engine| engine.capabilities().lost_after);
        let Some(node) = self.nodes.get_mut(id) else { return };
        if node.connection.as_ref().is_some_and(|current| current.id != connection) {
            return;
        }
        node.connection = None;
        node.refresh();
        self.untold.nodes.insert(id.clone());
        node.lost_at = lost_after.map(|after| now + after);
        self.timers.extend(node.lost_at);
        if let Some(attempt) = node.allocation.clone() {
            // The other scheduler may know why.
            self.tell_delegate(crate::delegate::Word::Look(attempt.clone()));
            self.untended.insert(attempt);
        }
        self.tell_keeper(Word::Away(id.clone()));
    }

    /// Lets a node forget a task once its end, its outputs and its whole log are safe here.
    pub(super) fn forget_if_complete(&mut self, task: &TaskId, messages: &mut Vec<(NodeId, ToAgent)>) {
        let Some(ended) = self.ended.get(task).filter(|ended| !ended.owes_outputs) else { return };
        // One that was given up and still runs must not be forgotten by the only one who can end it.
        if self.nodes.get(&ended.node).is_some_and(|node| node.stale.contains(task)) {
            return;
        }
        if self.parts.logs.is_complete(task, ended.log_bytes)
            && let Some(ended) = self.ended.remove(task)
        {
            let live = self.jobs.get(&task.attempt.job);
            self.untended.extend(self.allocations.contains_key(&task.attempt).then(|| task.attempt.clone()));
            // One that just ended is still in memory.
            let continues = live.is_some_and(|live| !live.job.state.is_terminal());
            messages.push((ended.node, ToAgent::Forget { task: task.clone(), continues }));
        }
    }

    /// Agents with nothing to do end; those with tasks stay with them.
    pub(super) fn on_dismiss(&mut self, reply: Reply<()>, batch: &mut Batch) {
        for (id, node) in &self.nodes {
            // A gang's agents are told to end when all they know is here.
            if node.tasks.is_empty() && node.stale.is_empty() && node.allocation.is_none() {
                batch.messages.push((id.clone(), ToAgent::Shutdown));
            }
        }
        batch.answers.push(Answer::Done(reply));
    }
}

/// An agent's time, in the precision it is stored in.
fn stored(at: Timestamp) -> Timestamp {
    Timestamp::from_microsecond(at.as_microsecond()).unwrap_or(at)
}
