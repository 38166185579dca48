//! Moving a job by an event, and what follows from it.

use std::time::Duration;

use muster_api::problem::{Code, Problem};
use muster_launch::{Gang, Member, Part, Parts, Port};
use muster_link::message::{Launch, Prepare, ToAgent};
use muster_model::job::{Effect, Event, Invalid, Job, State};
use muster_model::launch::{Peer, Peers};
use muster_model::spec::{Kind, Target, shell};
use muster_model::task::TaskPhase;
use muster_model::{AttemptId, JobId, NodeId, Reason, Timestamp};
use serde_json::json;

use super::Core;
use super::batch::{Answer, Batch};
use super::input::Reply;
use super::live::{Ended, Live};
use super::submit::DEFAULT_WORKSPACE;
use crate::metrics::Metrics;

impl Core {
    /// Moves a job. What must be written and done is added to the batch.
    pub(super) fn apply(
        &mut self,
        id: &JobId,
        event: Event,
        batch: &mut Batch,
        now: Timestamp,
    ) -> Result<(), Invalid> {
        let Some(live) = self.jobs.get_mut(id) else { return Err(Invalid::Stale) };
        let touched = batch.remember(live);
        let (state, attempt) = (live.job.state, live.job.attempt);
        let ended = ended_rank(&event);
        let event = with_usage(event, &live.job, &self.parts.metrics);
        let applied = live.job.apply(event, now)?;
        touched.ranks.extend(&applied.touched);
        touched.moved = true;
        if live.job.state != state
            && State::HOLDS_RESOURCES.contains(&state)
            && !State::HOLDS_RESOURCES.contains(&live.job.state)
        {
            touched.attempt_ended = true;
        }
        if live.job.attempt != attempt {
            touched.ranks = (0..live.job.policy.nodes).collect();
        }
        if live.job.state == State::Queued {
            live.wait_anew();
        }
        let live = live.clone();
        if let Some(rank) = ended {
            self.record_task_end(&live, rank, batch, now);
        }
        if live.job.state != state {
            self.record_move(&live, state, batch, now);
        }
        for effect in applied.effects {
            if let Effect::Release { rank } = effect {
                self.release(&live, rank);
            } else {
                batch.effects.push((id.clone(), effect));
            }
        }
        Ok(())
    }

    fn record_task_end(&mut self, live: &Live, rank: u32, batch: &mut Batch, now: Timestamp) {
        let task = &live.job.tasks[rank as usize];
        let end = task.end.as_ref();
        let failure = end.and_then(|end| end.failure.as_ref());
        let body = json!({ "rank": rank, "node": task.placement.node, "failure": failure });
        batch.event(&live.job.id, live.job.attempt, now, "task_ended", body);
        let ended = Ended {
            node: task.placement.node.clone(),
            log_bytes: end.and_then(|end| end.log_bytes),
            // What never ran leaves nothing behind.
            owes_outputs: !live.spec.outputs.is_empty() && task.started_at.is_some(),
        };
        batch.ended.push((live.job.attempt_id().task(rank), ended));
    }

    fn record_move(&mut self, live: &Live, from: State, batch: &mut Batch, now: Timestamp) {
        let job = &live.job;
        let body = match job.state {
            State::Starting => {
                json!({ "tasks": job.tasks.iter().map(|task| &task.placement).collect::<Vec<_>>() })
            }
            State::Stopping => json!({ "ending": job.ending }),
            State::Queued
            | State::Running
            | State::Succeeded
            | State::Failed
            | State::Stopped
            | State::Suspended => {
                json!({ "from": from, "reason": job.reason, "failed_rank": job.failed_rank })
            }
        };
        batch.event(&job.id, job.attempt, now, job.state.as_str(), body);
        if from == State::Queued
            && let Some(queue) = self.queues.get_mut(live.target())
        {
            queue.remove(&live.order);
        }
        self.requeue_if_waiting(live);
        self.claim_new_attempt(live, from);
        self.dirty |= job.state == State::Queued;
    }

    pub(super) fn requeue_if_waiting(&mut self, live: &Live) {
        if live.job.state == State::Queued {
            self.queues.entry(live.target().clone()).or_default().insert(live.order, live.job.id.clone());
            self.timers.extend(live.job.eligible_at);
        }
    }

    fn claim_new_attempt(&mut self, live: &Live, from: State) {
        if from == State::Queued && live.job.state == State::Starting {
            self.claim_all(live);
        }
    }

    /// Counts what the job's tasks hold.
    pub(super) fn claim_all(&mut self, live: &Live) {
        let attempt = live.job.attempt_id();
        for (rank, task) in (0..).zip(&live.job.tasks).filter(|(_, task)| task.phase != TaskPhase::Ended) {
            if let Some(node) = self.nodes.get_mut(&task.placement.node) {
                node.free.claim(live.need(), &task.placement.devices);
                node.tasks.insert(attempt.task(rank));
            }
        }
    }

    fn release(&mut self, live: &Live, rank: u32) {
        let placement = &live.job.tasks[rank as usize].placement;
        if let Some(node) = self.nodes.get_mut(&placement.node) {
            node.free.release(live.need(), &placement.devices);
            node.tasks.remove(&live.job.attempt_id().task(rank));
        }
        self.dirty = true;
    }

    /// A user's wish.
    pub(super) fn on_job_event(
        &mut self,
        id: &JobId,
        event: Event,
        reply: Reply<()>,
        batch: &mut Batch,
        now: Timestamp,
    ) {
        let wish = wish(&event);
        let refused = match self.apply(id, event, batch, now) {
            Ok(()) => return batch.answers.push(Answer::Done(reply)),
            Err(Invalid::State { state }) => format!("the job is {state}{wish}"),
            // Only jobs that are not over are in memory.
            Err(Invalid::Stale) => format!("the job is over{wish}"),
            Err(other @ (Invalid::UnknownRank { .. } | Invalid::WrongGang { .. })) => other.to_string(),
        };
        drop(reply.send(Err(Problem::new(Code::InvalidState, refused))));
    }

    /// Calls a job something else. What runs goes on under the old name until it starts anew.
    pub(super) fn on_rename(
        &mut self,
        id: &JobId,
        name: String,
        reply: Reply<()>,
        batch: &mut Batch,
        now: Timestamp,
    ) {
        let Some(live) = self.jobs.get_mut(id) else {
            let refused = "the job is over; only one that is not can be renamed";
            return drop(reply.send(Err(Problem::new(Code::InvalidState, refused))));
        };
        if live.name != name {
            if self.names.contains_key(&name) {
                return drop(reply.send(Err(name_taken(&name))));
            }
            batch.remember(live).is_renamed = true;
            let old = std::mem::replace(&mut live.name, name.clone());
            let attempt = live.job.attempt;
            batch.event(id, attempt, now, "renamed", json!({ "from": old, "to": name }));
            self.release_name(&old);
            *self.names.entry(name).or_default() += 1;
        }
        batch.answers.push(Answer::Done(reply));
    }

    /// Does what a change on disk asks for.
    pub(super) fn perform(&mut self, id: &JobId, effect: Effect) {
        let Some(live) = self.jobs.get(id).cloned() else { return };
        match effect {
            Effect::Prepare { ranks } => ranks.into_iter().for_each(|rank| self.send_prepare(&live, rank)),
            Effect::Launch { ranks } => self.send_launch(&live, &ranks),
            Effect::Stop { ranks, grace } => {
                let grace = grace.unwrap_or(live.spec.grace);
                ranks.into_iter().for_each(|rank| self.send_stop(&live, rank, grace));
            }
            // Resources are counted when the batch is decided.
            Effect::Release { .. } => {}
        }
    }

    pub(super) fn send_prepare(&mut self, live: &Live, rank: u32) {
        let task = &live.job.tasks[rank as usize];
        let in_place = self.directory(live, &task.placement.node);
        let attempt = live.job.attempt_id();
        let before = attempt.number.checked_sub(1).filter(|number| *number > 0);
        let message = Prepare {
            previous: before.map(|number| AttemptId { number, ..attempt.clone() }.task(rank)),
            task: attempt.task(rank),
            bundle: live.bundle.clone().filter(|_| in_place.is_none()),
            outputs: live.spec.outputs.clone(),
            in_place,
            goes_on: live.spec.kind == Kind::Machine,
            ports: muster_launch::ports(&live.spec),
            shared_port: Some(muster_launch::shared_port(&attempt)),
            devices: task.placement.devices.clone(),
            memory_bytes: live.spec.resources.memory,
        };
        let node = task.placement.node.clone();
        self.send(&node, ToAgent::Prepare(Box::new(message)));
    }

    /// The directory of the node that a task runs in, where it has none of its own. A host of a pool is used as if one had
    /// logged in there; on this machine the home directory is full of other things.
    pub(super) fn directory(&self, live: &Live, node: &NodeId) -> Option<String> {
        match (live.spec.kind, live.target()) {
            (Kind::Machine, Target::Local) => None,
            (Kind::Machine, _) => self.nodes.get(node).map(|node| node.account.home.clone()),
            (Kind::Training, _) => live.spec.workdir.clone().filter(|_| live.spec.in_place),
        }
    }

    fn send_launch(&mut self, live: &Live, ranks: &[u32]) {
        let Some(gang) = self.gang(live) else { return };
        let environment = match self.parts.readers.environment(&live.job.id) {
            Ok(environment) => environment.unwrap_or_default(),
            Err(error) => {
                return tracing::error!(job = %live.job.id, %error, "the environment cannot be read");
            }
        };
        let parts = Parts::of(&gang);
        let all = self.peers(&gang);
        for rank in ranks {
            let Part { env, defaults, paths, files, surroundings, work, peers, .. } = parts.part(*rank);
            // What the platform knows goes on top of what people say, and that on top of what the platform advises.
            let mut whole = defaults;
            whole.extend(environment.clone());
            whole.extend(live.spec.env.clone());
            whole.extend(env);
            let message = Launch {
                task: gang.attempt.task(*rank),
                env: whole,
                setup: live.spec.setup.as_deref().map(shell),
                work,
                paths,
                files,
                surroundings,
                peers: peers.then(|| all.clone()),
                timeout_ms: live.spec.timeout.map(|timeout| timeout.as_millis() as u64),
                grace_ms: live.spec.grace.as_millis() as u64,
            };
            let node = live.job.tasks[*rank as usize].placement.node.clone();
            self.send(&node, ToAgent::Launch(Box::new(message)));
        }
    }

    /// The gang of a job, once every member has said where it is.
    fn gang<'a>(&self, live: &'a Live) -> Option<Gang<'a>> {
        let members = live.job.tasks.iter().map(|task| {
            let node = self.nodes.get(&task.placement.node)?;
            Some(Member {
                host: node.host.clone(),
                account: node.account.clone(),
                address: task.address.clone()?,
                devices: muster_launch::given(&node.free.capacity.devices, &task.placement.devices),
            })
        });
        Some(Gang {
            members: members.collect::<Option<_>>()?,
            attempt: live.job.attempt_id(),
            job_name: live.name.clone(),
            workspace: live.spec.workspace.clone().unwrap_or_else(|| DEFAULT_WORKSPACE.into()),
            spec: &live.spec,
        })
    }

    /// How the members of a gang reach each other.
    fn peers(&self, gang: &Gang) -> Peers {
        let secret = blake3::keyed_hash(&self.parts.gang_key, gang.attempt.to_string().as_bytes());
        let peer = |(rank, member): (u32, &Member)| Peer {
            names: muster_launch::names(gang, rank),
            ip: member.ip(),
            port: member.port(Port::Ssh),
        };
        Peers { secret: secret.to_hex().to_string(), members: (0..).zip(&gang.members).map(peer).collect() }
    }

    pub(super) fn send_stop(&mut self, live: &Live, rank: u32, grace: Duration) {
        let node = live.job.tasks[rank as usize].placement.node.clone();
        let task = live.job.attempt_id().task(rank);
        self.send(&node, ToAgent::Stop { task, grace_ms: grace.as_millis() as u64 });
    }

    fn send(&mut self, node: &NodeId, message: ToAgent) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.send(message);
        }
    }

    /// The spec's parts that live in memory, for a job that is loaded or made.
    pub(super) fn adopt(&mut self, live: Live) {
        *self.names.entry(live.name.clone()).or_default() += 1;
        self.requeue_if_waiting(&live);
        self.jobs.insert(live.job.id.clone(), live);
    }
}

/// A node that is lost says nothing of its tasks any more; what it said last is better than nothing.
fn with_usage(mut event: Event, job: &Job, metrics: &Metrics) -> Event {
    if let Event::TaskEnded { rank, end, .. } = &mut event
        && let Some(Reason::NodeLost { .. }) = &end.failure
        && end.usage.is_none()
        && let Some(task) = job.tasks.get(*rank as usize)
    {
        let usage = metrics.usage(&task.placement.node, &job.attempt_id().task(*rank));
        end.usage = usage.map(Box::new);
    }
    event
}

/// What someone wanted, for a refusal.
fn wish(event: &Event) -> &'static str {
    match event {
        Event::Suspend => "; one that waits or runs can be suspended",
        Event::Resume => "; only one that is suspended can be resumed",
        Event::Admit { .. }
        | Event::TaskReady { .. }
        | Event::TaskStarted { .. }
        | Event::TaskEnded { .. }
        | Event::Stop { .. }
        | Event::Preempt { .. }
        | Event::Hold
        | Event::Release => "",
    }
}

/// Why a machine cannot be called so.
pub(super) fn name_taken(name: &str) -> Problem {
    Problem::new(Code::NameTaken, format!("`{name}` is the name of a job that is not over"))
        .hint(format!("choose another name; `muster show {name}` shows the job that has it"))
}

fn ended_rank(event: &Event) -> Option<u32> {
    match event {
        Event::TaskEnded { rank, .. } => Some(*rank),
        Event::Admit { .. }
        | Event::TaskReady { .. }
        | Event::TaskStarted { .. }
        | Event::Stop { .. }
        | Event::Preempt { .. }
        | Event::Suspend
        | Event::Resume
        | Event::Hold
        | Event::Release => None,
    }
}
