//! The machine's clock, where it is set back.
//!
//! Waits are moments of that clock, because they are stored with what waits. A clock that is set back would make a pause of
//! seconds one of hours, so that every wait moves with it. The monotonic clock says how far the other one was set.

use std::time::{Duration, Instant};

use muster_model::Timestamp;
use muster_scheduler::Usage;

use super::Core;
use super::schedule::{Untold, millis, span};

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

    /// Reads them again. How far the clock was set back meanwhile, if it was.
    fn set_back(&mut self, wall: Timestamp, at: Instant) -> Option<Duration> {
        let expected = self.wall + at.saturating_duration_since(self.at);
        *self = Self { wall, at };
        // A clock that was set forward gives a negative span, which is none.
        let by = Duration::try_from(expected.duration_since(wall)).ok()?;
        (by > TOLERANCE).then_some(by)
    }
}

impl Core {
    /// Keeps the length of every wait when the clock was set back.
    pub(super) fn follow_clock(&mut self, now: Timestamp, at: Instant) {
        let Some(by) = self.clock.set_back(now, at) else { return };
        tracing::warn!(seconds = by.as_secs(), "the clock was set back; what waits moves with it");
        let used = self.scheduler.usage(millis(now + by)).into_iter();
        let used: Vec<Usage> =
            used.map(|used| Usage { at: used.at.saturating_sub(span(by)), ..used }).collect();
        let back = |at: &mut Option<Timestamp>| *at = at.map(|at| at - by);
        self.jobs.values_mut().for_each(|live| live.job.move_waits(by));
        for node in self.nodes.values_mut() {
            back(&mut node.lost_at);
            back(&mut node.leaves_at);
        }
        self.allocations.values_mut().for_each(|allocation| allocation.move_waits(by));
        back(&mut self.usage_due);
        self.settles_at -= by;
        self.timers = std::mem::take(&mut self.timers).into_iter().map(|at| at - by).collect();
        self.untold = Untold::default();
        self.scheduler = self.scheduler_anew(&used, now);
        self.dirty = true;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_clock_that_was_set_back_is_noticed() {
        let (wall, at) = (Timestamp::from_second(1_000_000).unwrap(), Instant::now());
        let after = Duration::from_secs(10);
        for (moved, found) in [(10, None), (3600, None), (9, None), (-3590, Some(3600)), (0, Some(10))] {
            let mut reading = ClockReading { wall, at };
            let now = Timestamp::from_second(1_000_000 + moved).unwrap();
            assert_eq!(reading.set_back(now, at + after), found.map(Duration::from_secs), "{moved}");
            assert_eq!(reading.set_back(now + after, at + 2 * after), None, "it is noticed once");
        }
    }
}
