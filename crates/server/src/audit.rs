//! The audit trail: one entry for each operation that changed something, entered a task, read what belongs to another
//! person, or was refused. An entry states how the operation ended.
//!
//! No operation takes effect without an entry. The core writes the entry in the transaction of the operation's effect
//! ([`record`]). An operation that acts beside the core waits until its entry is written as `started`; a second row with
//! the outcome follows. Refusals and reads are counted per caller and operation ([`tally`]), so that a flood of requests
//! writes a bounded number of rows.

mod record;
mod tally;

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use muster_api::problem::Problem;
use muster_store::{Change, NewAudit};
use tokio::sync::Notify;
use tokio_util::sync::CancellationToken;

pub(crate) use self::record::{
    Record, current, describe, name_user, scope, skip_success, state_refusal, write_start,
};
pub(crate) use self::tally::CountedKind;
use self::tally::Tally;
use crate::core::{Handle, Input};
use crate::state::Shared;

/// Outcome of an operation that has begun.
pub(crate) const STARTED: &str = "started";
/// Outcome of an operation that succeeded.
pub(crate) const DONE: &str = "done";
/// Outcome of an operation whose caller disconnected before the reply.
pub(crate) const HUNG_UP: &str = "hung_up";

/// Rows are gathered for this long, so that a burst of requests is one transaction.
const GATHER: Duration = Duration::from_millis(200);
/// Rows kept while the database cannot be written; the oldest go first.
const MAX_QUEUE: usize = 10_000;

/// Rows that are not written yet, and the counts of repeated requests.
pub(crate) struct Trail {
    /// Only a server with accounts has an audit log.
    is_enabled: bool,
    state: Mutex<TrailState>,
    queued: Notify,
    /// Held while rows are on their way to the disk: a reader waits for them.
    flushing: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct TrailState {
    queue: Vec<NewAudit>,
    tally: Tally,
}

impl Trail {
    pub fn new(is_enabled: bool) -> Self {
        Self {
            is_enabled,
            state: Mutex::default(),
            queued: Notify::new(),
            flushing: tokio::sync::Mutex::default(),
        }
    }

    pub fn is_enabled(&self) -> bool {
        self.is_enabled
    }

    /// Queues the row that states how an operation ended.
    pub fn push(&self, row: NewAudit) {
        if self.is_enabled {
            self.state().queue.push(row);
            self.queued.notify_one();
        }
    }

    /// Counts a refusal, or a read of what belongs to another person.
    pub fn count(&self, entry: NewAudit, kind: CountedKind) {
        if !self.is_enabled {
            return;
        }
        let state = &mut *self.state();
        let first = state.tally.count(entry, kind, Instant::now());
        state.queue.extend(first);
        self.queued.notify_one();
    }

    /// Writes that a read begins, before it does. A read like it in the same window is only counted.
    pub async fn begin_read(&self, core: &Handle, entry: &NewAudit) -> Result<(), Problem> {
        let first = self.state().tally.count(entry.clone(), CountedKind::ForeignRead, Instant::now());
        let Some(row) = first else { return Ok(()) };
        let written = core.ask(|reply| Input::Write(vec![Change::Audit(row)], None, reply)).await;
        if written.is_err() {
            self.state().tally.forget(entry, CountedKind::ForeignRead);
        }
        written
    }

    /// Writes the queued rows, and the counts whose window has ended.
    pub async fn flush(&self, core: &Handle) -> Result<(), Problem> {
        let _turn = self.flushing.lock().await;
        let rows = {
            let TrailState { queue, tally } = &mut *self.state();
            queue.extend(tally.expire(Instant::now()));
            std::mem::take(queue)
        };
        self.write(core, rows).await
    }

    /// Writes everything, counts included. The server is stopping.
    pub async fn close(&self, core: &Handle) -> Result<(), Problem> {
        let counts = self.state().tally.expire_all();
        self.state().queue.extend(counts);
        self.flush(core).await
    }

    async fn write(&self, core: &Handle, rows: Vec<NewAudit>) -> Result<(), Problem> {
        if rows.is_empty() {
            return Ok(());
        }
        let changes = rows.iter().cloned().map(Change::Audit).collect();
        let written = core.ask(|reply| Input::Write(changes, None, reply)).await;
        if written.is_err() {
            self.put_back(rows);
        }
        written
    }

    fn put_back(&self, mut rows: Vec<NewAudit>) {
        let queue = &mut self.state().queue;
        rows.append(queue);
        let lost = rows.len().saturating_sub(MAX_QUEUE);
        if lost > 0 {
            rows.drain(..lost);
            tracing::error!(
                lost,
                "dropped outcomes and refusals from the audit log; the database cannot be written"
            );
        }
        *queue = rows;
    }

    fn next_due(&self) -> Option<Instant> {
        self.state().tally.next_due()
    }

    fn state(&self) -> MutexGuard<'_, TrailState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Writes what was queued and counted, until cancelled.
pub(crate) async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let trail = &shared.trail;
    if !trail.is_enabled {
        return;
    }
    let work = async {
        loop {
            let due = async {
                match trail.next_due() {
                    Some(due) => tokio::time::sleep_until(due.into()).await,
                    None => std::future::pending().await,
                }
            };
            tokio::select! {
                () = trail.queued.notified() => tokio::time::sleep(GATHER).await,
                () = due => {}
            }
            if let Err(problem) = trail.flush(&shared.core).await {
                tracing::warn!(%problem, "audit entries were not written; the next flush tries again");
            }
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = work => {}
    }
}
