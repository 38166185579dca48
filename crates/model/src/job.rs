//! The life of a job: its states, and the one function that moves it between them.
//!
//! [`Job::apply`] is total: every event in every state either changes the job or is refused with a word of why, and
//! a refused event changes nothing. It decides and never acts; what must be done comes back as [`Effect`]s, which the
//! server carries out only after the change is on disk. It must never learn of engines, agents or SQL.

use std::time::Duration;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::framework::CommandOn;
use crate::id::{AttemptId, JobId, NodeId};
use crate::reason::Reason;
use crate::spec::{JobSpec, OnFailure, Retries};
use crate::task::{Address, Placement, Task, TaskEnd, TaskPhase};

mod state;
#[cfg(test)]
mod tests;

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
}

impl From<&JobSpec> for Policy {
    fn from(spec: &JobSpec) -> Self {
        Self {
            nodes: spec.nodes,
            on_failure: spec.on_failure,
            retries: spec.retries.clone(),
            leader: spec.command_on == Some(CommandOn::First),
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

/// A job and the gang of its current attempt.
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
    /// The gang of the current or last attempt, by rank.
    pub tasks: Vec<Task>,
    /// When the last attempt's gang was running whole.
    pub started_at: Option<Timestamp>,
    /// When it reached a terminal state.
    pub ended_at: Option<Timestamp>,
}

/// What happened. Events of tasks name their attempt: those of another one are stale and change nothing.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The scheduler found a place for the whole gang.
    Admit {
        /// One for each rank.
        placements: Vec<Placement>,
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
    /// The scheduler needs its place.
    Preempt {
        /// The attempt it was decided for.
        attempt: u32,
    },
    /// Park it.
    Suspend,
    /// Bring it back from suspension.
    Resume,
    /// Keep it in the queue.
    Hold,
    /// Let it go on in the queue.
    Release,
}

/// What must be done about a change, once it is on disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Effect {
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
}

impl Applied {
    fn effect(effect: Effect) -> Self {
        Self { effects: vec![effect], touched: Vec::new() }
    }
}

impl Job {
    /// A job nobody has tried yet.
    pub fn new(id: JobId, policy: Policy) -> Self {
        Self {
            id,
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

    /// Whether the scheduler may admit it now.
    pub fn is_eligible(&self, now: Timestamp) -> bool {
        self.state == State::Queued && !self.hold && self.eligible_at.is_none_or(|at| at <= now)
    }

    /// The nodes, by rank, to which it returns if it can: those it had before it was suspended, where its files are.
    pub fn preferred(&self) -> Vec<NodeId> {
        // Whoever comes back to the queue in another way has a reason, and may have the node to blame.
        if self.state == State::Queued && self.reason.is_none() {
            self.tasks.iter().map(|task| task.placement.node.clone()).collect()
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
            Event::TaskReady { attempt, rank, address } => self.on_task_ready(attempt, rank, address),
            Event::TaskStarted { attempt, rank, at } => self.on_task_started(attempt, rank, at),
            Event::TaskEnded { attempt, rank, end, at } => self.on_task_ended(attempt, rank, end, at, now),
            Event::Stop { grace } => self.on_stop(grace, now),
            Event::Preempt { attempt } => self.on_preempt(attempt),
            Event::Suspend => self.on_suspend(),
            Event::Resume => self.on_resume(),
            Event::Hold => self.set_hold(true),
            Event::Release => self.set_hold(false),
        }?;
        self.generation += 1;
        Ok(applied)
    }

    fn refuse<T>(&self) -> Result<T, Invalid> {
        Err(Invalid::State { state: self.state })
    }

    fn on_admit(&mut self, placements: Vec<Placement>) -> Result<Applied, Invalid> {
        match self.state {
            State::Queued if self.hold => self.refuse(),
            State::Queued if placements.len() != self.policy.nodes as usize => {
                Err(Invalid::WrongGang { nodes: self.policy.nodes, offered: placements.len() })
            }
            State::Queued => {
                self.state = State::Starting;
                self.attempt += 1;
                self.failed_rank = None;
                self.eligible_at = None;
                self.started_at = None;
                self.tasks = placements.into_iter().map(Task::assigned).collect();
                let ranks: Vec<u32> = (0..self.policy.nodes).collect();
                Ok(Applied { touched: ranks.clone(), effects: vec![Effect::Prepare { ranks }] })
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

    /// The task an event speaks of, unless the event is stale.
    fn task(&mut self, attempt: u32, rank: u32) -> Result<&mut Task, Invalid> {
        if attempt != self.attempt {
            return Err(Invalid::Stale);
        }
        let task = self.tasks.get_mut(rank as usize).ok_or(Invalid::UnknownRank { rank })?;
        if task.phase == TaskPhase::Ended { Err(Invalid::Stale) } else { Ok(task) }
    }

    fn all(&self, predicate: impl Fn(&Task) -> bool) -> bool {
        self.tasks.iter().all(predicate)
    }

    fn on_task_ready(&mut self, attempt: u32, rank: u32, address: Address) -> Result<Applied, Invalid> {
        let task = self.task(attempt, rank)?;
        if task.phase > TaskPhase::Ready {
            return Err(Invalid::Stale);
        }
        let repeated = task.phase == TaskPhase::Ready;
        task.phase = TaskPhase::Ready;
        task.address = Some(address);
        let mut applied = Applied { effects: Vec::new(), touched: vec![rank] };
        match self.state {
            State::Starting => {
                if self.all(|task| task.phase >= TaskPhase::Ready) {
                    // A node that says it again, after a lost connection, missed its launch.
                    let ranks =
                        if repeated { vec![rank] } else { self.ranks(|task| task.phase == TaskPhase::Ready) };
                    applied.effects.push(Effect::Launch { ranks });
                }
            }
            State::Stopping => applied.effects.push(Effect::Stop { ranks: vec![rank], grace: None }),
            // A task that is not over exists only in the states that hold resources.
            State::Running
            | State::Queued
            | State::Succeeded
            | State::Failed
            | State::Stopped
            | State::Suspended => {}
        }
        Ok(applied)
    }

    fn on_task_started(&mut self, attempt: u32, rank: u32, at: Timestamp) -> Result<Applied, Invalid> {
        let task = self.task(attempt, rank)?;
        if task.phase == TaskPhase::Running {
            return Err(Invalid::Stale);
        }
        task.phase = TaskPhase::Running;
        task.started_at = Some(at);
        let mut applied = Applied { effects: Vec::new(), touched: vec![rank] };
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
        let launched = self.all(|task| task.phase >= TaskPhase::Ready);
        let task = self.task(attempt, rank)?;
        let failure = end.failure.clone();
        task.phase = TaskPhase::Ended;
        task.ended_at = Some(at);
        task.end = Some(end);
        let mut applied = Applied { effects: vec![Effect::Release { rank }], touched: vec![rank] };
        match self.state {
            State::Starting | State::Running => {
                let first = self.failed_rank.is_none();
                if let Some(reason) = failure.filter(|_| first) {
                    self.failed_rank = Some(rank);
                    self.reason = Some(reason);
                }
                self.after_task_ended(&mut applied, launched, at, now);
            }
            State::Stopping => {
                if self.all(|task| task.phase == TaskPhase::Ended) {
                    self.finish(now);
                }
            }
            State::Queued | State::Succeeded | State::Failed | State::Stopped | State::Suspended => {}
        }
        Ok(applied)
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
        match self.ending.take().unwrap_or(Ending::Stop) {
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

    fn on_stop(&mut self, grace: Option<Duration>, now: Timestamp) -> Result<Applied, Invalid> {
        match self.state {
            State::Queued | State::Suspended => {
                self.end_as_stopped(now);
                Ok(Applied::default())
            }
            State::Starting | State::Running => Ok(self.wind_down(Ending::Stop, grace)),
            State::Stopping => {
                // A gang that already fails stays failed, but is not tried again.
                let ending = match self.ending.take() {
                    Some(Ending::Fail { reason, .. }) => Ending::Fail { reason, retry: false },
                    // The work was done before anybody asked.
                    Some(Ending::Succeed) => Ending::Succeed,
                    Some(Ending::Requeue { .. } | Ending::Stop | Ending::Suspend) | None => Ending::Stop,
                };
                Ok(self.wind_down(ending, grace))
            }
            State::Succeeded | State::Failed | State::Stopped => self.refuse(),
        }
    }

    fn on_preempt(&mut self, attempt: u32) -> Result<Applied, Invalid> {
        if attempt != self.attempt {
            return Err(Invalid::Stale);
        }
        match self.state {
            State::Starting | State::Running => {
                Ok(self.wind_down(Ending::Requeue { reason: Reason::Preempted }, None))
            }
            State::Queued
            | State::Stopping
            | State::Succeeded
            | State::Failed
            | State::Stopped
            | State::Suspended => self.refuse(),
        }
    }

    fn on_suspend(&mut self) -> Result<Applied, Invalid> {
        match self.state {
            State::Queued => {
                self.state = State::Suspended;
                self.reason = Some(Reason::Suspended);
                Ok(Applied::default())
            }
            State::Starting | State::Running => Ok(self.wind_down(Ending::Suspend, None)),
            // Where it goes instead is nobody's business but its user's.
            State::Stopping if matches!(self.ending, Some(Ending::Requeue { .. })) => {
                self.ending = Some(Ending::Suspend);
                Ok(Applied::default())
            }
            State::Stopping | State::Succeeded | State::Failed | State::Stopped | State::Suspended => {
                self.refuse()
            }
        }
    }

    fn on_resume(&mut self) -> Result<Applied, Invalid> {
        match self.state {
            State::Suspended => {
                self.state = State::Queued;
                self.reason = None;
                // Whoever asks for it now does not mean to wait out a pause between attempts.
                self.eligible_at = None;
                Ok(Applied::default())
            }
            State::Queued
            | State::Starting
            | State::Running
            | State::Stopping
            | State::Succeeded
            | State::Failed
            | State::Stopped => self.refuse(),
        }
    }

    fn set_hold(&mut self, hold: bool) -> Result<Applied, Invalid> {
        match self.state {
            State::Queued => {
                self.hold = hold;
                Ok(Applied::default())
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

    fn wind_down(&mut self, ending: Ending, grace: Option<Duration>) -> Applied {
        self.state = State::Stopping;
        self.ending = Some(ending);
        Applied::effect(Effect::Stop { ranks: self.ranks(|task| task.phase != TaskPhase::Ended), grace })
    }

    /// The ranks whose task satisfies a predicate.
    pub fn ranks(&self, predicate: impl Fn(&Task) -> bool) -> Vec<u32> {
        (0..).zip(&self.tasks).filter(|(_, task)| predicate(task)).map(|(rank, _)| rank).collect()
    }
}
