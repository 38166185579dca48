//! Moving a job by an event, and what follows from it.

use std::collections::BTreeMap;
use std::net::Ipv4Addr;
use std::time::Duration;

use muster_api::problem::{Code, Problem};
use muster_launch::{Gang, Member, Part, Parts, Port};
use muster_link::message::{GivenSecret, Launch, Prepare, SecretValue, ToAgent};
use muster_model::job::{Effect, Event, Invalid, Job, Standing, State};
use muster_model::launch::{Peer, Peers};
use muster_model::node::Account;
use muster_model::spec::{JobSpec, Kind, Secret, Target, shell};
use muster_model::task::{Address, Placement, TaskPhase};
use muster_model::{AttemptId, JobId, NodeId, Reason, Task, TaskId, Timestamp};
use muster_scheduler::Fate;
use serde_json::json;

use super::Core;
use super::batch::{Answer, Batch};
use super::input::Reply;
use super::live::{Ended, Live};
use super::schedule::millis;
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
        if let Event::TaskEnded { attempt, rank, .. } = &event {
            // What its log says of its elements counts before its end does.
            let task = AttemptId { job: id.clone(), number: *attempt }.task(*rank);
            self.account(&task, batch, now);
            self.parked.remove(&task);
        }
        let Some(live) = self.jobs.get_mut(id) else { return Err(Invalid::Stale) };
        let touched = batch.remember(live);
        let state = live.job.state;
        let was_under_way = live.job.is_under_way();
        let ended = event.rank().filter(|_| matches!(event, Event::TaskEnded { .. }));
        let member = member_word(&event, &live.job).zip(event.rank());
        let is_news = matches!(event, Event::TaskReady { .. } | Event::TaskEnded { .. });
        let event = with_usage(event, &live.job, &self.parts.metrics);
        let applied = live.job.apply(event, now)?;
        touched.ranks.extend(&applied.touched);
        touched.moved = true;
        touched.attempt_ended |= was_under_way && !live.job.is_under_way();
        if !applied.elements.is_empty() {
            batch.elements.push((id.clone(), applied.elements));
        }
        let live = live.clone();
        if self.allocations.contains_key(&live.job.attempt_id()) {
            self.untended.insert(live.job.attempt_id());
        }
        if is_news && live.job.has_members() {
            batch.introduced.insert(id.clone());
        }
        if let Some(rank) = ended {
            self.record_task_end(&live, rank, batch, now);
        }
        self.follow_scheduler(&live, was_under_way, now);
        // Also one that waits again, after it had waited elsewhere.
        if live.job.state != state || (was_under_way && live.job.is_waiting()) {
            self.record_move(&live, state, batch, now);
        }
        if let Some((kind, rank)) = member.filter(|(_, rank)| applied.touched.contains(rank)) {
            let node = self.name_of(&live.job.tasks[rank as usize].placement.node);
            let body = json!({ "rank": rank, "node": node });
            batch.event(id, live.job.attempt_of(rank).number, now, kind, body);
        }
        for effect in applied.effects {
            match &effect {
                Effect::Release { rank } => {
                    self.release(&live, *rank, now);
                    continue;
                }
                Effect::Prepare { ranks } => self.claim(&live, ranks),
                Effect::HandOver => self.claim_all(&live),
                Effect::Launch { .. } | Effect::Stop { .. } | Effect::Grant { .. } => {}
            }
            batch.effects.push((id.clone(), effect));
        }
        Ok(())
    }

    fn record_task_end(&mut self, live: &Live, rank: u32, batch: &mut Batch, now: Timestamp) {
        let task = &live.job.tasks[rank as usize];
        let end = task.end.as_ref();
        let failure = end.and_then(|end| end.failure.as_ref());
        let body = json!({ "rank": rank, "node": self.name_of(&task.placement.node), "failure": failure });
        batch.event(&live.job.id, task.attempt, now, "task_ended", body);
        let ended = Ended {
            node: task.placement.node.clone(),
            log_bytes: end.and_then(|end| end.log_bytes),
            // What never ran leaves nothing behind.
            owes_outputs: !live.spec.outputs.is_empty() && task.started_at.is_some(),
        };
        batch.ended.push((live.job.task_id(rank), ended));
    }

    fn record_move(&mut self, live: &Live, from: State, batch: &mut Batch, now: Timestamp) {
        let job = &live.job;
        let body = match job.state {
            State::Starting => {
                let placed = job.tasks.iter().filter(|task| !task.is_over()).map(|task| &task.placement);
                let shown = |Placement { node, devices }: &Placement| json!({ "node": self.name_of(node), "devices": devices });
                json!({ "tasks": placed.map(shown).collect::<Vec<_>>() })
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
        self.dirty |= job.is_waiting();
        if job.state.is_terminal() {
            self.over.insert(job.id.clone());
        }
    }

    /// Has the scheduler know how a job is: that its gang is over at once, the rest before it is next asked.
    fn follow_scheduler(&mut self, live: &Live, was_under_way: bool, now: Timestamp) {
        let (id, is_under_way) = (&live.job.id, live.job.is_under_way());
        if was_under_way && !is_under_way && live.job.array.is_none() {
            self.scheduler.ended(id, 0, Fate::Over, millis(now));
            self.note_usage(now);
            self.dirty = true;
        }
        // The plan has the start of a gang already; who of a group is there may be others than it had.
        if !is_under_way || live.job.policy.independent {
            self.untold.jobs.insert(id.clone());
        }
    }

    /// Has nodes know which tasks are theirs.
    pub(super) fn claim_all(&mut self, live: &Live) {
        self.claim(live, &live.job.ranks(|task| !task.is_over()));
    }

    fn claim(&mut self, live: &Live, ranks: &[u32]) {
        for rank in ranks {
            let placement = &live.job.tasks[*rank as usize].placement;
            if let Some(node) = self.nodes.get_mut(&placement.node) {
                node.tasks.insert(live.job.task_id(*rank));
            }
        }
    }

    fn release(&mut self, live: &Live, rank: u32, now: Timestamp) {
        let placement = &live.job.tasks[rank as usize].placement;
        if let Some(node) = self.nodes.get_mut(&placement.node) {
            node.tasks.remove(&live.job.task_id(rank));
        }
        match live.job.array {
            Some(_) => self.release_lane(live, rank, now),
            None => self.scheduler.task_ended(&live.job.id, 0, rank),
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
        // To whoever wants a job to go on, one that is held is as one that is suspended.
        let is_held = self.jobs.get(id).is_some_and(|live| live.job.is_held());
        let event = if event == Event::Resume && is_held { Event::Release } else { event };
        let word = match &event {
            Event::Hold => Some("held"),
            Event::Release => Some("released"),
            _ => None,
        };
        let done = self.apply(id, event, batch, now).map_err(|invalid| refusal(&invalid, wish));
        let has_changed = self.jobs.get(id).is_some_and(|live| live.job.is_held() != is_held);
        if let Some(word) = word.filter(|_| has_changed) {
            batch.event(id, 0, now, word, json!({}));
            self.dirty = true;
        }
        batch.answer(reply, done);
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
            let (title, before) = (title(&live.spec, &name), title(&live.spec, &live.name));
            if self.names.contains_key(&title) {
                return drop(reply.send(Err(name_taken(&name))));
            }
            batch.remember(live).is_renamed = true;
            let old = std::mem::replace(&mut live.name, name.clone());
            let attempt = live.job.attempt;
            batch.event(id, attempt, now, "renamed", json!({ "from": old, "to": name }));
            self.release_name(&before);
            *self.names.entry(title).or_default() += 1;
        }
        batch.answers.push(Answer::Done(reply));
    }

    /// Gives a machine of a group a name of its own, or takes that away again. What runs there goes on.
    pub(super) fn on_rename_task(
        &mut self,
        (id, rank): (&JobId, u32),
        name: String,
        reply: Reply<()>,
        batch: &mut Batch,
        now: Timestamp,
    ) {
        let Some(live) = self.jobs.get(id) else {
            let refused = "the group is over; only a machine of one that is not can be renamed";
            return drop(reply.send(Err(Problem::new(Code::InvalidState, refused))));
        };
        if live.spec.kind != Kind::Machine || live.spec.nodes < 2 {
            let refused = "only a machine of several has a name of its own; rename the job";
            return drop(reply.send(Err(Problem::new(Code::InvalidState, refused))));
        }
        let by_group = format!("task{rank}.{}", live.name);
        let before = live.machine_names.get(&rank).cloned();
        let after = (name != by_group).then_some(name);
        if before == after {
            return batch.answers.push(Answer::Done(reply));
        }
        if let Some(name) = &after {
            let is_by_group = is_name_by_group(name);
            if is_by_group || self.names.contains_key(&title(&live.spec, name)) {
                return drop(reply.send(Err(if is_by_group {
                    named_by_group(name)
                } else {
                    name_taken(name)
                })));
            }
        }
        batch.remember(live).renamed_machines.insert(rank);
        let titles = [&before, &after].map(|name| name.as_ref().map(|name| title(&live.spec, name)));
        let body = json!({
            "rank": rank,
            "from": before.as_ref().unwrap_or(&by_group),
            "to": after.as_ref().unwrap_or(&by_group),
        });
        batch.event(id, live.job.attempt, now, "renamed", body);
        if let Some(live) = self.jobs.get_mut(id) {
            match after {
                Some(name) => drop(live.machine_names.insert(rank, name)),
                None => drop(live.machine_names.remove(&rank)),
            }
        }
        let [before, after] = titles;
        before.iter().for_each(|title| self.release_name(title));
        if let Some(title) = after {
            *self.names.entry(title).or_default() += 1;
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
            Effect::Grant { rank, grant } => self.send_grant(&live, rank, grant),
            Effect::HandOver => {
                let word = self.word_of_hand_over(&live);
                word.into_iter().for_each(|word| self.tell_delegate(word));
            }
            // Resources are counted when the batch is decided.
            Effect::Release { .. } => {}
        }
    }

    pub(super) fn send_prepare(&mut self, live: &Live, rank: u32) {
        let task = &live.job.tasks[rank as usize];
        let in_place = self.directory(live, &task.placement.node);
        let attempt = live.job.attempt_of(rank);
        let before = attempt.number.checked_sub(1).filter(|number| *number > 0);
        let message = Prepare {
            previous: before
                .filter(|_| live.job.array.is_none())
                .map(|number| AttemptId { number, ..attempt.clone() }.task(rank)),
            task: attempt.task(rank),
            bundle: live.bundle.clone().filter(|_| in_place.is_none()),
            outputs: live.spec.outputs.clone(),
            in_place,
            goes_on: live.spec.kind == Kind::Machine,
            ports: muster_launch::ports(&live.spec),
            shared_port: Some(muster_launch::shared_port(&bond(live))),
            devices: task.placement.devices.clone(),
            memory_bytes: live.spec.resources.memory,
            account: live.need.account.clone(),
            volumes: if self.mounts_itself(live.target()) { Vec::new() } else { self.volumes_of(live) },
            disk: self.parts.disk.clone(),
        };
        let node = task.placement.node.clone();
        self.send(&node, ToAgent::Prepare(Box::new(message)));
    }

    /// The directory of the node that a task runs in, where it has none of its own. A host of a pool is used as if one had
    /// logged in there; on this machine the home directory is full of other things.
    pub(super) fn directory(&self, live: &Live, node: &NodeId) -> Option<String> {
        match (live.spec.kind, live.target()) {
            (Kind::Machine, Target::Local) => None,
            (Kind::Machine, _) if live.need.account.is_some() => Some("~".into()),
            (Kind::Machine, _) => self.nodes.get(node).map(|node| node.account.home.clone()),
            (Kind::Training, _) => live.spec.workdir.clone().filter(|_| live.spec.in_place),
        }
    }

    fn send_launch(&mut self, live: &Live, ranks: &[u32]) {
        let environment = match self.parts.readers.environment(&live.job.id) {
            // Who submits to a shared server sits elsewhere, and their variables mean nothing there.
            _ if live.need.account.is_some() => BTreeMap::new(),
            Ok(environment) => environment.unwrap_or_default(),
            Err(error) => {
                return tracing::error!(job = %live.job.id, %error, "the environment cannot be read");
            }
        };
        if live.job.array.is_some() {
            return self.send_lane_launches(live, ranks, &environment);
        }
        let Some(mut gang) = self.gang(live) else { return };
        let (secrets, withheld) = self.secrets_of(live);
        let all = self.peers(live, &gang);
        // What has started meanwhile, or before, has no need of it.
        let is_ready = |rank: &u32| live.job.tasks[*rank as usize].phase == TaskPhase::Ready;
        let ranks: Vec<u32> = ranks.iter().copied().filter(is_ready).collect();
        // Most gangs are of one attempt; of machines that start one by one, each is told its own.
        for ranks in ranks.chunk_by(|a, b| live.job.attempt_of(*a) == live.job.attempt_of(*b)) {
            gang.attempt = live.job.attempt_of(ranks[0]);
            let parts = Parts::of(&gang);
            for rank in ranks {
                let launch = launch_of(live, parts.part(*rank), gang.attempt.task(*rank), &environment, &all);
                let message = Launch { secrets: secrets.clone(), withheld: withheld.clone(), ..launch };
                let node = live.job.tasks[*rank as usize].placement.node.clone();
                self.send(&node, ToAgent::Launch(Box::new(message)));
            }
        }
    }

    /// The values of a job's secrets as they are now, or why its tasks cannot be started.
    pub(super) fn secrets_of(&self, live: &Live) -> (Vec<GivenSecret>, Option<String>) {
        // The owner may have lost the right to run the job since its tasks were prepared.
        if let Some(why) = self.owner_obstacle(live) {
            return (Vec::new(), Some(why));
        }
        let spec = &live.spec;
        match self.parts.vault.given(&self.parts.readers, spec) {
            Ok(values) => {
                let given = |(secret, value): (&Secret, Vec<u8>)| GivenSecret {
                    env: secret.env.clone(),
                    file: secret.file.clone(),
                    value: SecretValue(value),
                };
                (spec.secrets.iter().zip(values).map(given).collect(), None)
            }
            Err(wrong) => {
                let why: Vec<String> = wrong.into_iter().map(|(_, why)| why).collect();
                (Vec::new(), Some(why.join("; ")))
            }
        }
    }

    /// The gang of a job, once every member has said where it is.
    fn gang<'a>(&self, live: &'a Live) -> Option<Gang<'a>> {
        let members = live.job.tasks.iter().map(|task| self.member(task).or_else(|| absent(live, task)));
        let mut members = members.collect::<Option<Vec<_>>>()?;
        muster_launch::tell_apart(&mut members);
        Some(Gang {
            members,
            attempt: live.job.attempt_id(),
            job_name: live.name.clone(),
            workspace: live.spec.workspace.clone().unwrap_or_else(|| DEFAULT_WORKSPACE.into()),
            spec: &live.spec,
            shares_directories: self.shares_directories(live.target()),
        })
    }

    /// Whether a directory of the submitter's is the same one on the nodes of a target.
    pub(super) fn shares_directories(&self, target: &Target) -> bool {
        let engine = self.parts.engines.get(target.engine());
        engine.is_some_and(|engine| engine.capabilities().in_place)
    }

    pub(super) fn member(&self, task: &Task) -> Option<Member> {
        let node = self.nodes.get(&task.placement.node)?;
        Some(Member {
            host: node.host.clone(),
            account: task.address.as_ref()?.account.clone().unwrap_or_else(|| node.account.clone()),
            address: task.address.clone()?,
            devices: muster_launch::given(&node.capacity.devices, &task.placement.devices),
        })
    }

    /// The same, as far as anybody can be reached.
    pub(super) fn peers_of(&self, live: &Live) -> Option<Peers> {
        Some(self.peers(live, &self.gang(live)?))
    }

    /// How the members of a gang reach each other.
    pub(super) fn peers(&self, live: &Live, gang: &Gang) -> Peers {
        let secret = blake3::keyed_hash(&self.parts.gang_key, bond(live).to_string().as_bytes());
        let is_over = |rank: u32| live.job.policy.independent && live.job.tasks[rank as usize].is_over();
        let peer = |(rank, member): (u32, &Member)| Peer {
            names: muster_launch::names(gang, rank),
            // Nobody is to knock for a minute where somebody was.
            ip: if is_over(rank) { Ipv4Addr::UNSPECIFIED.into() } else { member.ip() },
            port: member.port(Port::Ssh),
        };
        Peers { secret: secret.to_hex().to_string(), members: (0..).zip(&gang.members).map(peer).collect() }
    }

    pub(super) fn send_stop(&mut self, live: &Live, rank: u32, grace: Duration) {
        let node = live.job.tasks[rank as usize].placement.node.clone();
        let task = live.job.task_id(rank);
        let reason = live.job.stop_reason(rank).map_or("", |reason| reason.code()).to_owned();
        self.send(&node, ToAgent::Stop { task, grace_ms: grace.as_millis() as u64, reason });
    }

    pub(super) fn send(&mut self, node: &NodeId, message: ToAgent) {
        if let Some(node) = self.nodes.get_mut(node) {
            node.send(message);
        }
    }

    /// The spec's parts that live in memory, for a job that is loaded or made.
    pub(super) fn adopt(&mut self, mut live: Live) {
        self.wait_for_others(&mut live);
        for title in titles(&live) {
            *self.names.entry(title).or_default() += 1;
        }
        self.jobs.insert(live.job.id.clone(), live);
    }
}

pub(super) fn launch_of(
    live: &Live,
    part: Part,
    task: TaskId,
    environment: &BTreeMap<String, String>,
    all: &Peers,
) -> Launch {
    let Part { env, defaults, paths, files, surroundings, work, peers, .. } = part;
    // What the platform knows goes on top of what people say, and that on top of what the platform advises.
    let mut whole = defaults;
    whole.extend(environment.clone());
    whole.extend(live.spec.env.clone());
    whole.extend(env);
    Launch {
        task,
        env: whole,
        setup: live.spec.setup.as_deref().map(shell),
        setup_once: live.spec.setup_once.clone(),
        work,
        paths,
        files,
        surroundings,
        peers: peers.then(|| all.clone()),
        secrets: Vec::new(),
        withheld: None,
        elements: None,
        timeout_ms: live.spec.timeout.map(|timeout| timeout.as_millis() as u64),
        grace_ms: live.spec.grace.as_millis() as u64,
        stop_signal: live.spec.stop_signal,
    }
}

/// A member that the others do without, where they may: nobody reaches it.
fn absent(live: &Live, task: &Task) -> Option<Member> {
    live.job.policy.independent.then(|| Member {
        host: task.placement.node.to_string(),
        account: Account::default(),
        address: task.address.clone().unwrap_or_else(|| Address::new(Ipv4Addr::UNSPECIFIED, Vec::new())),
        devices: Vec::new(),
    })
}

/// The attempt that what the members of a gang have in common is made of. Those that start one by one have it in common
/// with the ones that were there before.
fn bond(live: &Live) -> AttemptId {
    let number = if live.job.policy.independent { 1 } else { live.job.attempt };
    AttemptId { job: live.job.id.clone(), number }
}

/// A node that is lost says nothing of its tasks any more; what it said last is better than nothing.
fn with_usage(mut event: Event, job: &Job, metrics: &Metrics) -> Event {
    if let Event::TaskEnded { rank, end, .. } = &mut event
        && let Some(Reason::NodeLost { .. }) = &end.failure
        && end.usage.is_none()
        && let Some(task) = job.tasks.get(*rank as usize)
    {
        let usage = metrics.usage(&task.placement.node, &job.task_id(*rank));
        end.usage = usage.map(Box::new);
    }
    event
}

/// What someone wanted, for a refusal.
fn wish(event: &Event) -> &'static str {
    match event {
        Event::Suspend => "; one that waits or runs can be suspended",
        Event::Resume => "; only one that is suspended can be resumed",
        Event::Hold => "; one that waits can be held, one that runs can be suspended: `muster suspend`",
        Event::Release => "; only one that is held can be released",
        Event::Admit { .. }
        | Event::HandOver { .. }
        | Event::TaskSeated { .. }
        | Event::TaskReady { .. }
        | Event::TaskStarted { .. }
        | Event::TaskEnded { .. }
        | Event::Stop { .. }
        | Event::Preempt { .. }
        | Event::StopTask { .. }
        | Event::StartTask { .. }
        | Event::Marks { .. }
        | Event::StopLane { .. }
        | Event::GiveUp { .. } => "",
    }
}

/// Why what someone wanted is not done.
pub(super) fn refusal(invalid: &Invalid, wish: &str) -> Problem {
    let refused = match invalid {
        Invalid::State { state } => format!("the job is {state}{wish}"),
        // Only jobs that are not over are in memory.
        Invalid::Stale => format!("the job is over{wish}"),
        Invalid::Together => {
            return Problem::new(
                Code::InvalidState,
                "its tasks start and end together; only machines do not",
            )
            .hint("`muster suspend JOB` and `muster stop JOB` are for all of its tasks");
        }
        Invalid::Task { standing: Standing::Killed, .. } => {
            return Problem::new(Code::InvalidState, invalid.to_string())
                .hint("it does not come back; `muster machine create` makes another, under another name");
        }
        Invalid::UnknownRank { .. } | Invalid::WrongGang { .. } | Invalid::Task { .. } => invalid.to_string(),
    };
    Problem::new(Code::InvalidState, refused)
}

/// What happened to one member of a gang whose members come and go, for whoever follows the job.
fn member_word(event: &Event, job: &Job) -> Option<&'static str> {
    match event {
        Event::StopTask { .. } | Event::StopLane { .. } => Some("task_stopping"),
        Event::StartTask { .. } if job.array.is_none() => Some("task_starting"),
        // Of those that start together, the job's own state says it.
        Event::TaskStarted { .. } if job.state == State::Running => Some("task_running"),
        // Everything else is told by the job's own moves, or by the end of the task.
        _ => None,
    }
}

/// Why a machine cannot be called so.
/// What a job is known by: names are the business of those who share a workspace.
pub(super) fn title(spec: &JobSpec, name: &str) -> (String, String) {
    (spec.workspace.clone().unwrap_or_else(|| DEFAULT_WORKSPACE.into()), name.to_owned())
}

/// The same with what machines of it are called by names of their own.
pub(super) fn titles(live: &Live) -> Vec<(String, String)> {
    let names = [&live.name].into_iter().chain(live.machine_names.values());
    names.map(|name| title(&live.spec, name)).collect()
}

/// Whether a name has the form of those that machines have by their group.
fn is_name_by_group(name: &str) -> bool {
    let rank = |machine: &str| machine.strip_prefix("task").is_some_and(|rank| rank.parse::<u32>().is_ok());
    name.split_once('.').is_some_and(|(machine, group)| rank(machine) && !group.is_empty())
}

fn named_by_group(name: &str) -> Problem {
    let (machine, group) = name.split_once('.').unwrap_or((name, ""));
    let message = format!("`{name}` is what {machine} of the group `{group}` is called");
    Problem::new(Code::NameTaken, message).hint("a machine's own name does not begin with taskN and a dot")
}

pub(super) fn name_taken(name: &str) -> Problem {
    Problem::new(Code::NameTaken, format!("`{name}` is the name of a job that is not over"))
        .hint(format!("choose another name; `muster show {name}` shows the job that has it"))
}
