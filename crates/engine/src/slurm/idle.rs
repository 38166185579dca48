//! When a gate has had no work for so long that it is to end.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use tokio::time::Instant;

/// What a gate has to do.
#[derive(Debug)]
pub(super) struct GateWork(Mutex<WorkState>);

#[derive(Debug)]
struct WorkState {
    /// Callers who have the gate, and connections of agents.
    open: usize,
    /// When the last one ended.
    last_used_at: Instant,
    /// It is ending; the next request opens another gate.
    is_closed: bool,
}

/// Something that goes on.
#[derive(Debug)]
pub(super) struct OpenWork(Arc<GateWork>);

impl GateWork {
    pub(super) fn new() -> Arc<Self> {
        let state = WorkState { open: 0, last_used_at: Instant::now(), is_closed: false };
        Arc::new(Self(Mutex::new(state)))
    }

    /// Keeps the gate open until this is dropped; none if it is ending.
    pub(super) fn begin(self: &Arc<Self>) -> Option<OpenWork> {
        let mut state = self.state();
        state.open += usize::from(!state.is_closed);
        (!state.is_closed).then(|| OpenWork(Arc::clone(self)))
    }

    /// Returns once there was nothing for so long; from then on the gate takes no work.
    pub(super) async fn until_idle(&self, limit: Duration) {
        while let Some(wait) = self.left(limit) {
            tokio::time::sleep(wait).await;
        }
    }

    /// How long it has at least; none once it is closed.
    fn left(&self, limit: Duration) -> Option<Duration> {
        let mut state = self.state();
        let idle = if state.open > 0 { Duration::ZERO } else { state.last_used_at.elapsed() };
        let left = limit.saturating_sub(idle);
        state.is_closed = left.is_zero();
        (!state.is_closed).then_some(left)
    }

    fn state(&self) -> MutexGuard<'_, WorkState> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for OpenWork {
    fn drop(&mut self) {
        let mut state = self.0.state();
        state.open -= 1;
        state.last_used_at = Instant::now();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LIMIT: Duration = Duration::from_secs(300);

    #[tokio::test(start_paused = true)]
    async fn a_gate_ends_once_it_has_had_no_work_for_long_and_is_then_nobodys() {
        let (work, begun) = (GateWork::new(), Instant::now());
        drop(work.begin().unwrap());
        work.until_idle(LIMIT).await;
        assert_eq!(begun.elapsed(), LIMIT);
        assert!(work.begin().is_none(), "whoever comes now takes another");
    }

    #[tokio::test(start_paused = true)]
    async fn agents_that_are_connected_and_questions_keep_a_gate() {
        let (work, begun) = (GateWork::new(), Instant::now());
        let agent = work.begin().unwrap();
        let others = async {
            tokio::time::sleep(LIMIT * 10).await;
            drop(agent);
            tokio::time::sleep(LIMIT / 2).await;
            drop(work.begin().expect("it is not ending"));
        };
        tokio::join!(work.until_idle(LIMIT), others);
        assert!(begun.elapsed() >= LIMIT * 10 + LIMIT / 2 + LIMIT, "{:?}", begun.elapsed());
    }
}
