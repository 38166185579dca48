//! The machine's clock, where it is set.
//!
//! Waits are moments of that clock, because they are stored with what waits. A clock that is set back would make a pause of
//! seconds one of hours; one that is set forward would end every wait, and give up nodes that are away for a moment. So every
//! wait moves with it. The monotonic clock says how far the other one was set.

use std::time::{Duration, Instant};

use jiff::SignedDuration;
use muster_model::Timestamp;
use muster_scheduler::Usage;

use super::Core;
use super::schedule::{Untold, millis};

/// A clock that is corrected by less is left alone: waits are not that exact.
const TOLERANCE: Duration = Duration::from_secs(1);

/// Both clocks as they were last read.
pub(super) struct ClockReading {
    wall: Timestamp,
    at: Instant,
}

impl ClockReading {
    pub fn now() -> Self {
        Self { wall: super::now(), at: Instant::now() }
    }

    /// Reads them again. How far the clock was set meanwhile, if it was: forward, or back where this is negative.
    fn set_by(&mut self, wall: Timestamp, at: Instant) -> Option<SignedDuration> {
        let expected = self.wall + at.saturating_duration_since(self.at);
        *self = Self { wall, at };
        let by = wall.duration_since(expected);
        (by.unsigned_abs() > TOLERANCE).then_some(by)
    }
}

impl Core {
    /// Keeps the length of every wait when the clock was set.
    pub(super) fn follow_clock(&mut self, now: Timestamp, at: Instant) {
        let Some(by) = self.clock.set_by(now, at) else { return };
        tracing::warn!(seconds = by.as_secs(), "the clock was set; what waits moves with it");
        let milliseconds = i64::try_from(by.as_millis()).unwrap_or(0);
        let used = self.scheduler.usage(millis(now - by)).into_iter();
        let used: Vec<Usage> =
            used.map(|used| Usage { at: used.at.saturating_add_signed(milliseconds), ..used }).collect();
        let shift = |at: &mut Option<Timestamp>| *at = at.map(|at| at + by);
        self.jobs.values_mut().for_each(|live| live.job.move_waits(by));
        for node in self.nodes.values_mut() {
            shift(&mut node.lost_at);
            shift(&mut node.leaves_at);
        }
        self.allocations.values_mut().for_each(|allocation| allocation.move_waits(by));
        shift(&mut self.usage_due);
        self.settles_at += by;
        self.timers = std::mem::take(&mut self.timers).into_iter().map(|at| at + by).collect();
        self.untold = Untold::default();
        self.scheduler = self.scheduler_anew(&used, now);
        self.dirty = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_clock_that_was_set_is_noticed_once() {
        let (wall, at) = (Timestamp::from_second(1_000_000).unwrap(), Instant::now());
        let after = Duration::from_secs(10);
        let cases =
            [(10, None), (3600, Some(3590)), (9, None), (11, None), (-3590, Some(-3600)), (0, Some(-10))];
        for (moved, found) in cases {
            let mut reading = ClockReading { wall, at };
            let now = Timestamp::from_second(1_000_000 + moved).unwrap();
            assert_eq!(reading.set_by(now, at + after), found.map(SignedDuration::from_secs), "{moved}");
            assert_eq!(reading.set_by(now + after, at + 2 * after), None, "it is noticed once");
        }
    }
}
