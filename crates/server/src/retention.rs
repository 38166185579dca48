//! What the server keeps, for how long, and how much of it.
//!
//! Logs and outputs of jobs that are over go when they are too old or too many, those of the job that ended first before
//! others; the job itself stays, with an event and a word about what is gone. Code that no job has any more goes after a
//! grace ([`crate::chunk_store`] says why that is safe). It runs when the server starts, every hour, and when somebody asks.
//! It takes what it removes out of the database first and off the disk afterwards; what a killed server left between the
//! two is found by the next run. Where people have accounts, old entries of the audit log go likewise, and what is over of theirs.

mod people;
mod round;

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

pub(crate) use round::collect;

use crate::state::Shared;

/// How often it looks, and how much later at most, so that servers that were started together do not do it together.
const PERIOD: Duration = Duration::from_secs(3600);
const JITTER: Duration = Duration::from_secs(600);
/// After a start, whoever started the server is served first.
const FIRST: Duration = Duration::from_secs(10);

/// How much of something is kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Limit {
    /// All of it together.
    pub bytes: u64,
    /// Since the job ended; `None`: for ever.
    pub age: Option<Duration>,
}

/// What a server keeps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Keep {
    /// Logs of jobs that are over.
    pub logs: Limit,
    /// What tasks left behind.
    pub outputs: Limit,
    /// Code that no job has, since it was last asked for.
    pub unused: Duration,
    /// What was done, in the audit log; `None`: for ever.
    pub audit: Option<Duration>,
    /// What each node keeps.
    pub node: muster_link::message::Keep,
}

impl Default for Keep {
    /// A quarter of work on an ordinary disk.
    fn default() -> Self {
        let days = |days: u64| Duration::from_secs(days * 24 * 3600);
        Self {
            logs: Limit { bytes: 10 << 30, age: Some(days(90)) },
            outputs: Limit { bytes: 50 << 30, age: Some(days(90)) },
            unused: days(1),
            // Its own bound is its age alone: by number, whoever makes many would push out what tells of them.
            audit: Some(days(365)),
            node: muster_link::message::Keep::default(),
        }
    }
}

/// Runs until cancelled.
pub(crate) async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let mut pause = FIRST;
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(pause) => {}
        }
        match collect(&shared, false).await {
            Ok(report) => tracing::info!(
                logs_bytes = report.logs_bytes,
                outputs_bytes = report.outputs_bytes,
                bundles = report.bundles,
                chunks = report.chunks,
                chunk_bytes = report.chunk_bytes,
                "removed what need not be kept"
            ),
            Err(problem) => tracing::warn!(%problem, "what need not be kept could not be removed"),
        }
        crate::memory::give_back();
        pause = PERIOD + JITTER.mul_f64(crate::random::bits() as f64 / u64::MAX as f64);
    }
}
