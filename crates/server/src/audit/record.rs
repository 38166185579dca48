//! The audit record of the request that is being served.
//!
//! The guard opens a record before it calls a handler. Every input that the handler sends to the core carries the record,
//! and the core writes the entry with the first input that has an effect. A handler therefore cannot forget it.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use muster_api::problem::Problem;
use muster_model::JobId;
use muster_store::{Change, NewAudit};

use crate::core::{Handle, Input};

tokio::task_local! {
    static CURRENT: Arc<Record>;
}

/// The entry of one request, and whether the core has written it.
#[derive(Debug)]
pub(crate) struct Record {
    entry: Mutex<NewAudit>,
    is_written: AtomicBool,
    skips_success: AtomicBool,
}

impl Record {
    pub fn new(entry: NewAudit) -> Arc<Self> {
        Arc::new(Self {
            entry: Mutex::new(entry),
            is_written: AtomicBool::new(false),
            skips_success: AtomicBool::new(false),
        })
    }

    /// The entry as it is known so far.
    pub fn entry(&self) -> NewAudit {
        self.lock().clone()
    }

    /// The row to write with an effect, once. `job` is the job that the effect made.
    pub fn take(&self, job: Option<&JobId>) -> Option<NewAudit> {
        if self.is_written.swap(true, Ordering::AcqRel) {
            return None;
        }
        let mut entry = self.lock();
        if let Some(job) = job {
            entry.job = Some(job.clone());
        }
        Some(NewAudit { outcome: super::DONE.to_owned(), ..entry.clone() })
    }

    /// The batch with the row was not written, and neither was its effect.
    pub fn put_back(&self) {
        self.is_written.store(false, Ordering::Release);
    }

    /// Whether the row is on disk, or in a batch of the core.
    pub fn is_written(&self) -> bool {
        self.is_written.load(Ordering::Acquire)
    }

    /// Whether a success needs no entry, because nothing was done.
    pub fn skips_success(&self) -> bool {
        self.skips_success.load(Ordering::Relaxed)
    }

    fn lock(&self) -> MutexGuard<'_, NewAudit> {
        self.entry.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Runs a handler with its record.
pub(crate) async fn scope<F: Future>(record: Arc<Record>, handler: F) -> F::Output {
    CURRENT.scope(record, handler).await
}

/// The record of the present request, if it has one that is not written yet.
pub(crate) fn current() -> Option<Arc<Record>> {
    CURRENT.try_with(Clone::clone).ok().filter(|record| !record.is_written())
}

/// Writes that the present request has begun, before it acts on something that is not in the core. How it ends is written with
/// the effect in the core, or afterwards.
pub(crate) async fn write_start(core: &Handle) -> Result<(), Problem> {
    // Without a record there is no audit log.
    let Some(record) = current() else { return Ok(()) };
    let rows = vec![Change::Audit(record.entry())];
    // The row is not an effect of the request, which would have an entry of its own.
    let written = Record::new(record.entry());
    written.is_written.store(true, Ordering::Release);
    CURRENT.scope(written, core.ask(|reply| Input::Write(rows, None, reply))).await
}

/// Takes target and detail from an entry that a handler made. False if the present task serves no recorded request.
pub(crate) fn describe(from: &NewAudit) -> bool {
    let described = CURRENT.try_with(|record| {
        let mut entry = record.lock();
        entry.user.clone_from(&from.user);
        entry.target.clone_from(&from.target);
        entry.detail.clone_from(&from.detail);
    });
    described.is_ok()
}

/// Names the account that an unauthenticated request is about.
pub(crate) fn name_user(name: &str) {
    // Without a record there is no audit log.
    let _ = CURRENT.try_with(|record| record.lock().user = Some(name.to_owned()));
}

/// States how the request ends, for handlers that wait before they reply: the caller may disconnect meanwhile.
pub(crate) fn state_refusal(problem: &Problem) {
    let code = problem.code.entry().code;
    // Without a record there is no audit log.
    let _ = CURRENT.try_with(|record| {
        let mut entry = record.lock();
        entry.outcome = code.to_owned();
        entry.status = Some(problem.code.status());
    });
}

/// The request changes nothing, a dry run for example: a success needs no entry.
pub(crate) fn skip_success() {
    // Without a record there is no audit log.
    let _ = CURRENT.try_with(|record| record.skips_success.store(true, Ordering::Relaxed));
}
