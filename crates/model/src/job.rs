//! The life of a job: its states, and the one function that moves it between them.
//!
//! [`Job::apply`] is total: every event in every state either changes the job or is refused with a word of why, and
//! a refused event changes nothing. It decides and never acts; what must be done comes back as [`Effect`]s, which the
//! server carries out after the change is on disk, and says where it does not wait for that. It must never learn of engines, agents or SQL.

use std::sync::Arc;
use std::time::Duration;

use jiff::{SignedDuration, Timestamp};
use serde::{Deserialize, Serialize};

use crate::array::{Element, Grant, Marked};
use crate::framework::CommandOn;
use crate::id::{AttemptId, JobId, NodeId, TaskId};
use crate::reason::Reason;
use crate::spec::{Array, JobSpec, Kind, OnFailure, Retries};
use crate::task::{Address, Parting, Placement, Task, TaskEnd, TaskPhase};

mod array;
mod member;
mod state;
#[cfg(test)]
mod tests;
mod wish;

pub use array::{Lane, Progress};
pub use member::Standing;
pub use state::State;

/// What the state machine needs to know of a job's spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Policy {
    /// The size of the gang.
    pub nodes: u32,
    /// Whether one failing task ends the gang.
    pub on_failure: OnFailure,
    /// When to try again.
    pub retries: Retries,
    /// Whether the gang's work is done when rank 0's is: the others wait for it.
    pub leader: bool,
    /// Whether its tasks are each on their own: the end of one never ends the others, and it can be started anew alone.
    pub independent: bool,
    /// The elements that its tasks run one after the other, where it is an array.
    pub array: Option<Arc<Array>>,
}

impl From<&JobSpec> for Policy {
    fn from(spec: &JobSpec) -> Self {
        Self {
            nodes: spec.nodes,
            on_failure: spec.on_failure,
            retries: spec.retries.clone(),
            leader: spec.command_on == Some(CommandOn::First),
            independent: spec.kind == Kind::Machine || spec.array.is_some(),
            array: spec.array.clone().map(Arc::new),
        }
    }
}

/// Where a stopping gang goes once its last task is gone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "to", rename_all = "snake_case")]
pub enum Ending {
    /// It failed; the retry policy is asked unless someone has stopped the job meanwhile.
    Fail {
        /// Why.
        reason: Reason,
        /// Whether the retry policy is asked.
        retry: bool,
    },
    /// Back to the queue, at no cost to its retries.
    Requeue {
        /// Why.
        reason: Reason,
    },
    /// Rank 0 is done, and the others only waited for it.
    Succeed,
    /// Ended by its user.
    Stop,
    /// Parked until it is started again.
    Suspend,
}

/// A job and its gang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Job {
    /// Its id.
    pub id: JobId,
    /// The rules it follows.
    pub policy: Policy,
    /// Where it is.
    pub state: State,
    /// Where it goes from `Stopping`; set exactly in that state.
    pub ending: Option<Ending>,
    /// The number of the current or last attempt; 0 before the first.
    pub attempt: u32,
    /// How many attempts the retry policy has granted.
    pub retried: u32,
    /// Why the last attempt ended, or the job did.
    pub reason: Option<Reason>,
    /// The rank whose failure came first in the current attempt.
    pub failed_rank: Option<u32>,
    /// Kept in the queue until released.
    pub hold: bool,
    /// Not before this moment, while it waits between attempts.
    pub eligible_at: Option<Timestamp>,
    /// Counts every change, so that a write based on an older one is refused.
    pub generation: u64,
    /// The newest task of each rank.
    pub tasks: Vec<Task>,
    /// What became of its elements, where it is an array.
    pub array: Option<Box<Progress>>,
    /// When the last attempt's gang was running whole.
    pub started_at: Option<Timestamp>,
    /// When it reached a terminal state.
    pub ended_at: Option<Timestamp>,
}

/// What happened. Events of tasks name the task's attempt: those of another one are stale and change nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The scheduler found a place for the whole gang.
    Admit {
        /// One for each rank that is [wanted](Job::wanted).
        placements: Vec<Placement>,
    },
    /// The gang goes to somebody else's scheduler, which finds the places.
    HandOver {
        /// What stands for the place of each rank until its agent has come.
        placements: Vec<Placement>,
    },
    /// The agent of a rank that was handed over has come, and says what it was given.
    TaskSeated {
        /// Its attempt.
        attempt: u32,
        /// Its rank.
        rank: u32,
        /// The devices, by their number on the node.
        devices: Vec<u32>,
    },
    /// A task is prepared and its address is known.
    TaskReady {
        /// Its attempt.
        attempt: u32,
        /// Its rank.
        rank: u32,
        /// Where peers reach it.
        address: Address,
    },
    /// A task's command started.
    TaskStarted {
        /// Its attempt.
        attempt: u32,
        /// Its rank.
        rank: u32,
        /// When.
        at: Timestamp,
    },
    /// A task is over, and nothing of it is left on its node.
    TaskEnded {
        /// Its attempt.
        attempt: u32,
        /// Its rank.
        rank: u32,
        /// How.
        end: TaskEnd,
        /// When.
        at: Timestamp,
    },
    /// Its user wants it to end.
    Stop {
        /// How long its tasks may take to say goodbye, if not as the spec says.
        grace: Option<Duration>,
    },
    /// Its place is needed: it goes back to the queue.
    Preempt {
        /// The attempt it was decided for.
        attempt: u32,
        /// For what.
        reason: Reason,
    },
    /// Park it.
    Suspend,
    /// Bring it back from suspension.
    Resume,
    /// One of its tasks is to end; the others go on.
    StopTask {
        /// Its rank.
        rank: u32,
        /// For now, or for good.
        parting: Parting,
    },
    /// One of its tasks that is over starts anew, beside the others.
    StartTask {
        /// Its rank.
        rank: u32,
        /// Where.
        placement: Placement,
    },
    /// The log of an array's task says more about its elements.
    Marks {
        /// Its attempt.
        attempt: u32,
        /// Its rank.
        rank: u32,
        /// What it says.
        marks: Vec<Marked>,
        /// Up to where the log was read.
        offset: u64,
        /// Somebody else waits for room: it gets nothing more to do.
        is_crowded: bool,
    },
    /// The place of one task of an array is needed.
    StopLane {
        /// Its attempt.
        attempt: u32,
        /// Its rank.
        rank: u32,
        /// For what.
        reason: Reason,
    },
    /// It can never start.
    GiveUp {
        /// Why.
        reason: Reason,
    },
    /// Keep it in the queue.
    Hold,
    /// Let it go on in the queue.
    Release,
}

impl Event {
    /// The task that it is about, where it is about one.
    pub fn rank(&self) -> Option<u32> {
        match self {
            Self::TaskSeated { rank, .. }
            | Self::TaskReady { rank, .. }
            | Self::TaskStarted { rank, .. }
            | Self::TaskEnded { rank, .. }
            | Self::StopTask { rank, .. }
            | Self::StartTask { rank, .. }
            | Self::Marks { rank, .. }
            | Self::StopLane { rank, .. } => Some(*rank),
            Self::Admit { .. }
            | Self::HandOver { .. }
            | Self::Stop { .. }
            | Self::Preempt { .. }
            | Self::Suspend
            | Self::Resume
            | Self::GiveUp { .. }
            | Self::Hold
            | Self::Release => None,
        }
    }
}

/// What must be done about a change, once it is on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
    /// Give the gang to its engine's scheduler.
    HandOver,
    /// Tell the nodes of these ranks to prepare them.
    Prepare {
        /// Which.
        ranks: Vec<u32>,
    },
    /// The gang is whole: send these ranks their launch.
    Launch {
        /// Which.
        ranks: Vec<u32>,
    },
    /// Stop these ranks.
    Stop {
        /// Which.
        ranks: Vec<u32>,
        /// How long they may take, if not as the spec says.
        grace: Option<Duration>,
    },
    /// Tell the task of this rank which elements it has besides.
    Grant {
        /// Which task.
        rank: u32,
        /// Which elements.
        grant: Grant,
    },
    /// What this rank held is free again.
    Release {
        /// Which.
        rank: u32,
    },
}

/// Why an event changes nothing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Invalid {
    /// It speaks of another attempt, or of a task that is further on.
    #[error("stale: it speaks of an attempt or a task that is over")]
    Stale,
    /// There is no such rank.
    #[error("there is no rank {rank}")]
    UnknownRank {
        /// The rank.
        rank: u32,
    },
    /// A plan that does not fill the gang.
    #[error("a gang of {nodes} was offered {offered} places")]
    WrongGang {
        /// The gang's size.
        nodes: u32,
        /// The places offered.
        offered: usize,
    },
    /// Its tasks are not each on their own.
    #[error("its tasks start and end together")]
    Together,
    /// It cannot happen to this task now.
    #[error("task{rank} is {standing}")]
    Task {
        /// Its rank.
        rank: u32,
        /// How it is.
        standing: Standing,
    },
    /// It cannot happen in this state.
    #[error("not possible while the job is {state}")]
    State {
        /// The state.
        state: State,
    },
}

/// What came of an event.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Applied {
    /// What to do now.
    pub effects: Vec<Effect>,
    /// The ranks whose task changed.
    pub touched: Vec<u32>,
    /// Elements that are over, or are to be tried again.
    pub elements: Vec<Element>,
}

impl Applied {
    fn effect(effect: Effect) -> Self {
        Self { effects: vec![effect], ..Self::default() }
    }
}

impl Job {
    /// A job nobody has tried yet.
    pub fn new(id: JobId, policy: Policy) -> Self {
        Self {
            id,
            array: policy.array.as_ref().map(|array| Box::new(Progress::new(array.count()))),
            policy,
            state: State::Queued,
            ending: None,
            attempt: 0,
            retried: 0,
            reason: None,
            failed_rank: None,
            hold: false,
            eligible_at: None,
            generation: 0,
            tasks: Vec::new(),
            started_at: None,
            ended_at: None,
        }
    }

    /// The id of the current or last attempt.
    pub fn attempt_id(&self) -> AttemptId {
        AttemptId { job: self.id.clone(), number: self.attempt }
    }

    /// The attempt that a rank's task belongs to; the job's, before there is one.
    pub fn attempt_of(&self, rank: u32) -> AttemptId {
        let number = self.tasks.get(rank as usize).map_or(self.attempt, |task| task.attempt);
        AttemptId { job: self.id.clone(), number }
    }

    /// The id of a rank's task.
    pub fn task_id(&self, rank: u32) -> TaskId {
        self.attempt_of(rank).task(rank)
    }

    /// The ranks that an admission finds places for: all, save those that were given back for good.
    pub fn wanted(&self) -> Vec<u32> {
        let is_killed = |rank: &u32| self.tasks.get(*rank as usize).is_some_and(Task::is_killed);
        (0..self.policy.nodes).filter(|rank| !is_killed(rank)).collect()
    }

    /// Whether the scheduler may admit it, or hand it over, now.
    pub fn is_eligible(&self, now: Timestamp) -> bool {
        self.is_waiting() && !self.hold && self.eligible_at.is_none_or(|at| at <= now)
    }

    /// Whether it waits for somebody to let it go.
    pub fn is_held(&self) -> bool {
        self.hold && self.is_waiting()
    }

    /// Whether it waits here, for us to find it a place.
    pub fn is_waiting(&self) -> bool {
        self.state == State::Queued && !self.is_under_way()
    }

    /// Whether it waits in somebody else's queue.
    pub fn is_handed_over(&self) -> bool {
        self.state == State::Queued && self.is_under_way()
    }

    /// Whether it has a task that is not over: an attempt goes on.
    pub fn is_under_way(&self) -> bool {
        self.tasks.iter().any(|task| task.phase != TaskPhase::Ended)
    }

    /// The nodes, by rank, to which it returns if it can: those it had before it was suspended, where its files are.
    pub fn preferred(&self) -> Vec<NodeId> {
        // Whoever comes back to the queue in another way has a reason, and may have the node to blame.
        if self.is_waiting() && self.reason.is_none() {
            let wanted = self.tasks.iter().filter(|task| !task.is_killed());
            wanted.map(|task| task.placement.node.clone()).collect()
        } else {
            Vec::new()
        }
    }

    /// What `muster run` exits with; known once the job is over.
    pub fn exit_code(&self) -> Option<i32> {
        match self.state {
            State::Succeeded => Some(0),
            State::Failed | State::Stopped => Some(self.reason.as_ref().map_or(1, Reason::exit_code)),
            State::Queued | State::Starting | State::Running | State::Stopping | State::Suspended => None,
        }
    }

    /// Moves the job, or says why the event changes nothing.
    pub fn apply(&mut self, event: Event, now: Timestamp) -> Result<Applied, Invalid> {
        let applied = match event {
            Event::Admit { placements } => self.on_admit(placements),
            Event::HandOver { placements } => self.on_hand_over(placements),
            Event::TaskSeated { attempt, rank, devices } => self.on_task_seated(attempt, rank, devices),
            Event::TaskReady { attempt, rank, address } => self.on_task_ready(attempt, rank, address),
            Event::TaskStarted { attempt, rank, at } => self.on_task_started(attempt, rank, at),
            Event::TaskEnded { attempt, rank, end, at } => self.on_task_ended(attempt, rank, end, at, now),
            Event::Stop { grace } => self.on_stop(grace, now),
            Event::Preempt { attempt, reason } => self.on_preempt(attempt, reason),
            Event::Suspend => self.on_suspend(),
            Event::Resume => self.on_resume(),
            Event::StopTask { rank, parting } => self.on_stop_task(rank, parting, now),
            Event::StartTask { rank, placement } => self.on_start_task(rank, placement, now),
            Event::Marks { attempt, rank, marks, offset, is_crowded } => {
                self.on_marks((attempt, rank), marks, offset, is_crowded, now)
            }
            Event::StopLane { attempt, rank, reason } => self.on_stop_lane(attempt, rank, reason),
            Event::GiveUp { reason } => self.on_give_up(reason, now),
            Event::Hold => self.set_hold(true),
            Event::Release => self.set_hold(false),
        }?;
        self.generation += 1;
        Ok(applied)
    }

    /// The clock was set by this much: what waits for a moment waits as long as before.
    pub fn move_waits(&mut self, by: SignedDuration) {
        self.eligible_at = self.eligible_at.map(|at| at + by);
        if let Some(progress) = &mut self.array {
            progress.move_waits(by);
        }
    }

    /// No pause is longer now than it may be at all; a clock that was set back unnoticed would make it so.
    pub fn limit_waits(&mut self, now: Timestamp) {
        let lanes = self.array.as_ref().map_or(0, |progress| progress.retried());
        let nth = self.retried.max(lanes);
        let latest = now + self.policy.retries.delay(nth);
        self.eligible_at = self.eligible_at.map(|at| at.min(latest));
        if let Some(progress) = &mut self.array {
            progress.limit_waits(&self.policy.retries, now);
        }
    }

    fn refuse<T>(&self) -> Result<T, Invalid> {
        Err(Invalid::State { state: self.state })
    }

    fn on_admit(&mut self, placements: Vec<Placement>) -> Result<Applied, Invalid> {
        let ranks = self.begin_attempt(placements)?;
        self.state = State::Starting;
        Ok(Applied { touched: ranks.clone(), effects: vec![Effect::Prepare { ranks }], ..Applied::default() })
    }

    /// It still waits, though elsewhere: it starts when the first of its agents has come.
    fn on_hand_over(&mut self, placements: Vec<Placement>) -> Result<Applied, Invalid> {
        let ranks = self.begin_attempt(placements)?;
        Ok(Applied { touched: ranks, effects: vec![Effect::HandOver], ..Applied::default() })
    }

    /// Gives every rank of a job that waits a task of the next attempt.
    fn begin_attempt(&mut self, placements: Vec<Placement>) -> Result<Vec<u32>, Invalid> {
        match self.state {
            State::Queued if self.hold || self.is_under_way() || self.array.is_some() => self.refuse(),
            State::Queued => {
                let ranks = self.wanted();
                if placements.len() != ranks.len() {
                    return Err(Invalid::WrongGang { nodes: ranks.len() as u32, offered: placements.len() });
                }
                self.attempt += 1;
                self.failed_rank = None;
                self.eligible_at = None;
                self.started_at = None;
                self.assign(&ranks, placements);
                Ok(ranks)
            }
            State::Starting
            | State::Running
            | State::Stopping
            | State::Succeeded
            | State::Failed
            | State::Stopped
            | State::Suspended => self.refuse(),
        }
    }

    /// Gives these ranks new tasks of the current attempt.
    fn assign(&mut self, ranks: &[u32], placements: Vec<Placement>) {
        let attempt = self.attempt;
        let assigned = placements.into_iter().map(|placement| Task::assigned(attempt, placement));
        if self.tasks.is_empty() {
            self.tasks = assigned.collect();
        } else {
            ranks.iter().zip(assigned).for_each(|(rank, task)| self.tasks[*rank as usize] = task);
        }
    }

    /// The task an event speaks of, unless the event is stale.
    fn task(&mut self, attempt: u32, rank: u32) -> Result<&mut Task, Invalid> {
        let unknown = if attempt == self.attempt { Invalid::UnknownRank { rank } } else { Invalid::Stale };
        let task = self.tasks.get_mut(rank as usize).ok_or(unknown)?;
        if task.attempt != attempt || task.is_over() { Err(Invalid::Stale) } else { Ok(task) }
    }

    fn all(&self, predicate: impl Fn(&Task) -> bool) -> bool {
        self.tasks.iter().all(predicate)
    }

    fn on_task_seated(&mut self, attempt: u32, rank: u32, devices: Vec<u32>) -> Result<Applied, Invalid> {
        let task = self.task(attempt, rank)?;
        task.placement.devices = devices;
        Ok(Applied { touched: vec![rank], ..Applied::default() })
    }

    /// A gang that was handed over starts with the first word of one of its tasks.
    fn leave_queue(&mut self) {
        if self.state == State::Queued {
            self.state = State::Starting;
        }
    }

    fn on_task_ready(&mut self, attempt: u32, rank: u32, address: Address) -> Result<Applied, Invalid> {
        let task = self.task(attempt, rank)?;
        if task.phase > TaskPhase::Ready {
            return Err(Invalid::Stale);
        }
        let repeated = task.phase == TaskPhase::Ready;
        let is_parting = task.parting.is_some();
        task.phase = TaskPhase::Ready;
        task.address = Some(address);
        self.leave_queue();
        let mut applied = Applied { touched: vec![rank], ..Applied::default() };
        if self.array.is_some() {
            self.after_lane_ready(&mut applied, rank);
            return Ok(applied);
        }
        if is_parting && self.state != State::Stopping {
            applied.effects.push(Effect::Stop { ranks: vec![rank], grace: None });
        }
        match self.state {
            State::Starting => {
                if self.all(|task| task.phase >= TaskPhase::Ready) {
                    let mut ranks = self.unlaunched();
                    // A node that says it again, after a lost connection, missed its launch.
                    ranks.retain(|other| !repeated || *other == rank);
                    applied.effects.extend((!ranks.is_empty()).then_some(Effect::Launch { ranks }));
                }
            }
            State::Running if is_parting => {}
            // The others have long been launched: whoever joins them does not wait for anybody.
            State::Running => applied.effects.push(Effect::Launch { ranks: vec![rank] }),
            State::Stopping => applied.effects.push(Effect::Stop { ranks: vec![rank], grace: None }),
            // A task that is not over exists only in the states that hold resources, and in the queue of somebody else, which
            // it has just left.
            State::Queued | State::Succeeded | State::Failed | State::Stopped | State::Suspended => {}
        }
        Ok(applied)
    }

    fn on_task_started(&mut self, attempt: u32, rank: u32, at: Timestamp) -> Result<Applied, Invalid> {
        let task = self.task(attempt, rank)?;
        if task.phase == TaskPhase::Running {
            return Err(Invalid::Stale);
        }
        let is_parting = task.parting.is_some();
        task.phase = TaskPhase::Running;
        task.started_at = Some(at);
        self.leave_queue();
        let mut applied = Applied { touched: vec![rank], ..Applied::default() };
        if self.array.is_some() {
            self.after_lane_started(&mut applied, rank, at);
            return Ok(applied);
        }
        if is_parting && self.state != State::Stopping {
            applied.effects.push(Effect::Stop { ranks: vec![rank], grace: None });
        }
        match self.state {
            State::Starting => self.run_when_all_started(at),
            State::Stopping => applied.effects.push(Effect::Stop { ranks: vec![rank], grace: None }),
            State::Running
            | State::Queued
            | State::Succeeded
            | State::Failed
            | State::Stopped
            | State::Suspended => {}
        }
        Ok(applied)
    }

    /// Why a task that is to end is to; nothing, where the work of the others is done.
    pub fn stop_reason(&self, rank: u32) -> Option<Reason> {
        if let Some(reason) = self.leaving(rank) {
            return Some(reason.clone());
        }
        let parting = self.tasks.get(rank as usize).and_then(|task| task.parting);
        parting.map(Parting::reason).or_else(|| match self.ending.as_ref()? {
            Ending::Fail { reason, .. } | Ending::Requeue { reason } => Some(reason.clone()),
            Ending::Stop => Some(Reason::StoppedByUser),
            Ending::Suspend => Some(Reason::Suspended),
            Ending::Succeed => None,
        })
    }

    /// The ranks that wait for their launch.
    fn unlaunched(&self) -> Vec<u32> {
        self.ranks(|task| task.phase == TaskPhase::Ready && task.parting.is_none())
    }

    fn run_when_all_started(&mut self, at: Timestamp) {
        if self.all(|task| task.phase >= TaskPhase::Running) {
            self.state = State::Running;
            self.started_at = Some(at);
        }
    }

    fn on_task_ended(
        &mut self,
        attempt: u32,
        rank: u32,
        end: TaskEnd,
        at: Timestamp,
        now: Timestamp,
    ) -> Result<Applied, Invalid> {
        // Where one has started all were ready, also if not all have said so again since.
        let launched = self.all(|task| task.phase >= TaskPhase::Ready)
            || self.tasks.iter().any(|task| task.started_at.is_some());
        let (was_whole, parting) = (self.all(|task| task.phase >= TaskPhase::Ready), self.parting());
        let task = self.task(attempt, rank)?;
        let failure = end.failure.clone();
        task.phase = TaskPhase::Ended;
        task.ended_at = Some(at);
        task.end = Some(end.clone());
        task.part(parting);
        self.leave_queue();
        let mut applied =
            Applied { effects: vec![Effect::Release { rank }], touched: vec![rank], ..Applied::default() };
        if self.array.is_some() {
            self.after_lane_ended(&mut applied, rank, (&end, at), now);
            return Ok(applied);
        }
        match self.state {
            State::Starting | State::Running if self.policy.independent => {
                self.after_member_ended(&mut applied, was_whole, at, now);
            }
            State::Starting | State::Running => match failure.filter(|_| self.failed_rank.is_none()) {
                Some(reason) if reason.requeues() => self.after_place_taken(&mut applied, reason, now),
                first => {
                    if let Some(reason) = first {
                        self.failed_rank = Some(rank);
                        self.reason = Some(reason);
                    }
                    self.after_task_ended(&mut applied, launched, at, now);
                }
            },
            State::Stopping => {
                if self.all(|task| task.phase == TaskPhase::Ended) {
                    self.finish(now);
                }
            }
            State::Queued | State::Succeeded | State::Failed | State::Stopped | State::Suspended => {}
        }
        Ok(applied)
    }

    /// Somebody else's scheduler took a place back: nobody has failed, and the gang waits again whole.
    fn after_place_taken(&mut self, applied: &mut Applied, reason: Reason, now: Timestamp) {
        let alive = self.ranks(|task| task.phase != TaskPhase::Ended);
        self.ending = Some(Ending::Requeue { reason });
        if alive.is_empty() {
            self.finish(now);
        } else {
            self.state = State::Stopping;
            applied.effects.push(Effect::Stop { ranks: alive, grace: None });
        }
    }

    /// Decides what one task's end means for a gang that nobody has asked to stop.
    fn after_task_ended(&mut self, applied: &mut Applied, launched: bool, at: Timestamp, now: Timestamp) {
        let failure = self.failed_rank.and(self.reason.clone());
        let alive = self.ranks(|task| task.phase != TaskPhase::Ended);
        match failure {
            Some(reason) if alive.is_empty() => {
                self.ending = Some(Ending::Fail { reason, retry: true });
                self.finish(now);
            }
            // A gang starts together or not at all: before its launch, `continue` has nothing to continue.
            Some(reason) if self.policy.on_failure == OnFailure::Stop || !launched => {
                self.state = State::Stopping;
                self.ending = Some(Ending::Fail { reason, retry: true });
                applied.effects.push(Effect::Stop { ranks: alive, grace: None });
            }
            None if self.policy.leader && !alive.is_empty() && !alive.contains(&0) => {
                self.state = State::Stopping;
                self.ending = Some(Ending::Succeed);
                self.started_at = self.started_at.or(Some(at));
                // They only wait: nobody has anything to save.
                applied.effects.push(Effect::Stop { ranks: alive, grace: None });
            }
            Some(_) | None if !alive.is_empty() => {
                if self.state == State::Starting {
                    self.run_when_all_started(at);
                }
            }
            Some(_) | None => {
                self.started_at = self.started_at.or(Some(at));
                self.succeed(now);
            }
        }
    }

    fn succeed(&mut self, now: Timestamp) {
        self.state = State::Succeeded;
        self.reason = None;
        self.ended_at = Some(now);
    }

    /// The last task of a gang that was to end is gone.
    fn finish(&mut self, now: Timestamp) {
        let ending = self.ending.take().unwrap_or(Ending::Stop);
        // Where every member was given back for good, there is nothing to come back to.
        let ending = if self.wanted().is_empty() { Ending::Stop } else { ending };
        match ending {
            Ending::Fail { reason, retry } => {
                if retry && self.retried < self.policy.retries.max && self.policy.retries.allows(&reason) {
                    self.retried += 1;
                    self.state = State::Queued;
                    self.eligible_at = Some(now + self.policy.retries.delay(self.retried));
                } else {
                    self.state = State::Failed;
                    self.ended_at = Some(now);
                }
                self.reason = Some(reason);
            }
            Ending::Requeue { reason } => {
                self.state = State::Queued;
                self.reason = Some(reason);
            }
            Ending::Succeed => self.succeed(now),
            Ending::Stop => self.end_as_stopped(now),
            Ending::Suspend => {
                self.state = State::Suspended;
                self.reason = Some(Reason::Suspended);
            }
        }
    }

    fn end_as_stopped(&mut self, now: Timestamp) {
        self.state = State::Stopped;
        self.reason = Some(Reason::StoppedByUser);
        self.eligible_at = None;
        self.ended_at = Some(now);
    }

    /// The ranks whose task satisfies a predicate.
    pub fn ranks(&self, predicate: impl Fn(&Task) -> bool) -> Vec<u32> {
        (0..).zip(&self.tasks).filter(|(_, task)| predicate(task)).map(|(rank, _)| rank).collect()
    }
}
