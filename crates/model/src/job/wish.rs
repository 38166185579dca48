//! What people, and the scheduler, want of a whole job: that it ends, makes room, is parked, held, or given up.
//!
//! A wish that is fulfilled already is no error: a client that lost the answer repeats its request.

use std::time::Duration;

use jiff::Timestamp;

use super::{Applied, Effect, Ending, Invalid, Job, State};
use crate::reason::Reason;
use crate::task::TaskPhase;

impl Job {
    pub(super) fn on_stop(&mut self, grace: Option<Duration>, now: Timestamp) -> Result<Applied, Invalid> {
        match self.state {
            State::Queued | State::Suspended if !self.is_under_way() => {
                self.end_as_stopped(now);
                Ok(Applied::default())
            }
            State::Queued | State::Suspended | State::Starting | State::Running => {
                Ok(self.wind_down(Ending::Stop, grace))
            }
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

    pub(super) fn on_preempt(&mut self, attempt: u32, reason: Reason) -> Result<Applied, Invalid> {
        if attempt != self.attempt {
            return Err(Invalid::Stale);
        }
        match self.state {
            State::Queued if !self.is_under_way() => self.refuse(),
            State::Queued | State::Starting | State::Running => {
                Ok(self.wind_down(Ending::Requeue { reason }, None))
            }
            State::Stopping | State::Succeeded | State::Failed | State::Stopped | State::Suspended => {
                self.refuse()
            }
        }
    }

    pub(super) fn on_suspend(&mut self) -> Result<Applied, Invalid> {
        match self.state {
            State::Queued if !self.is_under_way() => {
                self.state = State::Suspended;
                self.reason = Some(Reason::Suspended);
                Ok(Applied::default())
            }
            State::Queued | State::Starting | State::Running => Ok(self.wind_down(Ending::Suspend, None)),
            // Where it goes instead is nobody's business but its user's.
            State::Stopping if matches!(self.ending, Some(Ending::Requeue { .. })) => {
                self.ending = Some(Ending::Suspend);
                Ok(Applied::default())
            }
            State::Stopping if self.ending == Some(Ending::Suspend) => Ok(Applied::default()),
            State::Suspended => Ok(Applied::default()),
            State::Stopping | State::Succeeded | State::Failed | State::Stopped => self.refuse(),
        }
    }

    pub(super) fn on_resume(&mut self) -> Result<Applied, Invalid> {
        match self.state {
            State::Suspended => {
                self.state = State::Queued;
                self.reason = None;
                // Whoever asks for it now does not mean to wait out a pause between attempts.
                self.eligible_at = None;
                Ok(Applied::default())
            }
            State::Queued | State::Starting | State::Running => Ok(Applied::default()),
            State::Stopping | State::Succeeded | State::Failed | State::Stopped => self.refuse(),
        }
    }

    pub(super) fn on_give_up(&mut self, reason: Reason, now: Timestamp) -> Result<Applied, Invalid> {
        match self.state {
            State::Queued if self.is_under_way() => self.refuse(),
            State::Queued | State::Suspended => {
                self.ending = Some(Ending::Fail { reason, retry: false });
                self.finish(now);
                Ok(Applied::default())
            }
            State::Starting
            | State::Running
            | State::Stopping
            | State::Succeeded
            | State::Failed
            | State::Stopped => self.refuse(),
        }
    }

    pub(super) fn set_hold(&mut self, hold: bool) -> Result<Applied, Invalid> {
        match self.state {
            // Somebody else has it already, and would not know.
            State::Queued if hold && self.is_under_way() => self.refuse(),
            State::Queued => {
                self.hold = hold;
                Ok(Applied::default())
            }
            State::Starting | State::Running if !hold => Ok(Applied::default()),
            State::Starting
            | State::Running
            | State::Stopping
            | State::Succeeded
            | State::Failed
            | State::Stopped
            | State::Suspended => self.refuse(),
        }
    }

    pub(super) fn wind_down(&mut self, ending: Ending, grace: Option<Duration>) -> Applied {
        self.state = State::Stopping;
        self.ending = Some(ending);
        Applied::effect(Effect::Stop { ranks: self.ranks(|task| task.phase != TaskPhase::Ended), grace })
    }
}
