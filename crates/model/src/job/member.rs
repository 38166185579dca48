//! Gangs whose members are each on their own: machines. One of them ends, or starts anew, and the others go on.
//!
//! The job is over, or parked, when its last member is. A member that was given back for good is never placed again; its
//! rank stays empty, so that the others keep their names.

use std::fmt;

use super::{Applied, Effect, Ending, Invalid, Job, State};
use crate::Timestamp;
use crate::reason::Reason;
use crate::task::{Parting, Placement, Task, TaskPhase};

/// How a member is, for whoever asks something of it that cannot be.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Standing {
    /// It starts or runs.
    Live,
    /// It was asked to end, and has not yet.
    Ending,
    /// It was given back for now.
    Suspended,
    /// It was given back for good.
    Killed,
    /// It is over, and nobody had asked for it.
    Over,
}

impl fmt::Display for Standing {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Live => "not over",
            Self::Ending => "just ending",
            Self::Suspended => "suspended",
            Self::Killed => "gone for good",
            Self::Over => "over",
        })
    }
}

impl Task {
    /// How it is, as a member.
    pub fn standing(&self) -> Standing {
        match (self.is_over(), self.parting) {
            (false, None) => Standing::Live,
            (false, Some(_)) => Standing::Ending,
            (true, Some(Parting::Suspend)) => Standing::Suspended,
            (true, Some(Parting::Stop)) => Standing::Killed,
            (true, None) => Standing::Over,
        }
    }

    /// Notes why it is over, where it alone or its group was asked to end: however it did, it is no failure.
    pub(super) fn part(&mut self, group: Option<Parting>) {
        self.parting = self.parting.or(group);
        if let Some((parting, end)) = self.parting.zip(self.end.as_mut()) {
            end.failure = Some(parting.reason());
        }
    }
}

impl Job {
    /// Whether there are several, each on its own.
    pub fn has_members(&self) -> bool {
        self.policy.independent && self.policy.nodes > 1
    }

    /// What the members of a group that ends are asked together.
    pub(super) fn parting(&self) -> Option<Parting> {
        match &self.ending {
            _ if !self.policy.independent => None,
            Some(Ending::Suspend) => Some(Parting::Suspend),
            Some(Ending::Stop) => Some(Parting::Stop),
            Some(Ending::Fail { .. } | Ending::Requeue { .. } | Ending::Succeed) | None => None,
        }
    }

    pub(super) fn on_stop_task(
        &mut self,
        rank: u32,
        parting: Parting,
        now: Timestamp,
    ) -> Result<Applied, Invalid> {
        match self.state {
            _ if !self.policy.independent || self.array.is_some() => Err(Invalid::Together),
            State::Starting | State::Running | State::Suspended => {
                let applied = self.part_with(rank, parting)?;
                self.blame();
                if self.state == State::Suspended {
                    self.settle(false, now);
                }
                Ok(applied)
            }
            // All of them are parked, this one too.
            State::Stopping if self.parting() == Some(parting) => Ok(Applied::default()),
            State::Queued | State::Stopping | State::Succeeded | State::Failed | State::Stopped => {
                self.refuse()
            }
        }
    }

    /// Asks a member to end, or has one that is over be gone for good. One that is so already is left as it is.
    fn part_with(&mut self, rank: u32, parting: Parting) -> Result<Applied, Invalid> {
        let task = self.tasks.get_mut(rank as usize).ok_or(Invalid::UnknownRank { rank })?;
        let standing = task.standing();
        match (standing, parting) {
            // What is to go for good does not stay after all.
            (Standing::Ending, Parting::Suspend) if task.parting == Some(Parting::Stop) => {
                Err(Invalid::Task { rank, standing })
            }
            (Standing::Live | Standing::Ending, _) => {
                task.parting = Some(parting);
                let stop = Effect::Stop { ranks: vec![rank], grace: None };
                Ok(Applied { touched: vec![rank], ..Applied::effect(stop) })
            }
            (Standing::Suspended | Standing::Over, Parting::Stop) => {
                task.parting = None;
                task.part(Some(parting));
                Ok(Applied { touched: vec![rank], ..Applied::default() })
            }
            (Standing::Suspended, Parting::Suspend) | (Standing::Killed, Parting::Stop) => {
                Ok(Applied::default())
            }
            (Standing::Killed | Standing::Over, Parting::Suspend) => Err(Invalid::Task { rank, standing }),
        }
    }

    /// Whether a member could start anew if there were a place for it.
    pub fn check_start(&self, rank: u32) -> Result<(), Invalid> {
        match self.state {
            _ if !self.policy.independent || self.array.is_some() => Err(Invalid::Together),
            State::Starting | State::Running | State::Suspended => {
                let task = self.tasks.get(rank as usize).ok_or(Invalid::UnknownRank { rank })?;
                match task.standing() {
                    Standing::Suspended | Standing::Over => Ok(()),
                    standing @ (Standing::Live | Standing::Ending | Standing::Killed) => {
                        Err(Invalid::Task { rank, standing })
                    }
                }
            }
            State::Queued | State::Stopping | State::Succeeded | State::Failed | State::Stopped => {
                self.refuse()
            }
        }
    }

    pub(super) fn on_start_task(
        &mut self,
        rank: u32,
        placement: Placement,
        now: Timestamp,
    ) -> Result<Applied, Invalid> {
        if self.array.is_some() {
            return self.start_lane(rank, placement, now);
        }
        self.check_start(rank)?;
        self.attempt += 1;
        self.assign(&[rank], vec![placement]);
        if self.state == State::Suspended {
            self.state = State::Starting;
            self.started_at = None;
        }
        self.blame();
        Ok(Applied {
            touched: vec![rank],
            effects: vec![Effect::Prepare { ranks: vec![rank] }],
            ..Applied::default()
        })
    }

    /// What one member's end means for the others: nothing, unless it was the last, or they waited for it.
    pub(super) fn after_member_ended(
        &mut self,
        applied: &mut Applied,
        was_whole: bool,
        at: Timestamp,
        now: Timestamp,
    ) {
        self.blame();
        if self.all(Task::is_over) {
            return self.settle(true, now);
        }
        if self.state == State::Starting {
            if !was_whole && self.all(|task| task.phase >= TaskPhase::Ready) {
                let ranks = self.unlaunched();
                applied.effects.extend((!ranks.is_empty()).then_some(Effect::Launch { ranks }));
            }
            self.run_when_all_started(at);
        }
    }

    /// The failure that came first, of those that nobody has mended by starting the member anew.
    fn blame(&mut self) {
        let failed =
            (0..).zip(&self.tasks).filter_map(|(rank, task)| Some((task.ended_at, rank, task.failure()?)));
        let first = failed.min_by_key(|(at, rank, _)| (*at, *rank));
        (self.failed_rank, self.reason) = first.map(|(_, rank, reason)| (rank, reason.clone())).unzip();
    }

    /// Nobody is left: what that makes of the job.
    fn settle(&mut self, retry: bool, now: Timestamp) {
        if self.tasks.iter().any(Task::is_suspended) {
            self.state = State::Suspended;
            self.reason = Some(Reason::Suspended);
            return;
        }
        self.ending = Some(match self.reason.clone().filter(|_| self.failed_rank.is_some()) {
            Some(reason) if reason.requeues() => Ending::Requeue { reason },
            Some(reason) => Ending::Fail { reason, retry },
            None if self.tasks.iter().any(Task::is_killed) => Ending::Stop,
            None => Ending::Succeed,
        });
        self.finish(now);
    }
}
