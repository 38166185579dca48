//! Writes the audit entry of a request, with its outcome. Which requests have one, and when it is written: [`Recording`].

use std::sync::Arc;

use axum::http::StatusCode;
use axum::response::Response;
use muster_api::problem::Problem;
use muster_store::{Change, NewAudit};

use super::failure::ProblemCode;
use super::rules::{Rule, Ruled};
use crate::audit::{self, CountedKind, DONE, HUNG_UP, Record, STARTED};
use crate::core::Input;
use crate::state::Shared;

/// Sent often, and change nothing by themselves: only refusals are recorded.
const UPLOADS: &[&str] = &["missing_chunks", "put_chunks", "put_bundle"];
/// Act on the server itself and not through the core.
const BESIDE_CORE: &[&str] = &["collect_garbage", "stop_server", "reload_server", "back_up_server"];
/// Read what a job's tasks wrote, or names of secrets and tokens.
const CONTENT: &[&str] = &[
    "follow_logs",
    "download_logs",
    "list_files",
    "get_file",
    "get_diff",
    "list_sessions",
    "get_session",
    "list_commands",
    "get_command",
    "get_command_output",
    "list_secrets",
    "list_tokens",
    "show_user",
];

/// When the entry of a permitted request is written.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Recording {
    /// Only if the handler refuses it.
    Refusal,
    /// By the core, in the transaction of its effect.
    WithEffect,
    /// Before the handler is called, and its outcome after.
    Before,
    /// As before, once per window: repeated reads are counted.
    ForeignRead,
}

impl Recording {
    pub fn of(ruled: Option<Ruled>, is_get: bool, is_foreign: bool) -> Self {
        let Some(Ruled { operation, rule }) = ruled else { return Self::Refusal };
        if rule == Rule::EnterJob || BESIDE_CORE.contains(&operation) {
            return Self::Before;
        }
        if is_get {
            let is_content = is_foreign && CONTENT.contains(&operation);
            return if is_content { Self::ForeignRead } else { Self::Refusal };
        }
        if UPLOADS.contains(&operation) { Self::Refusal } else { Self::WithEffect }
    }
}

/// Records one request.
pub(super) struct Recorder {
    shared: Arc<Shared>,
    record: Arc<Record>,
    recording: Recording,
    /// Whether the handler runs and the outcome is not recorded yet.
    is_open: bool,
}

impl Recorder {
    /// Called once a request is permitted. What acts beside the core, or reads, waits until its entry is written.
    pub async fn open(shared: &Arc<Shared>, entry: NewAudit, recording: Recording) -> Result<Self, Problem> {
        if shared.trail.is_enabled() {
            let row = || vec![Change::Audit(entry.clone())];
            match recording {
                Recording::Before => shared.core.ask(|reply| Input::Write(row(), None, reply)).await?,
                Recording::ForeignRead => shared.trail.begin_read(&shared.core, &entry).await?,
                Recording::Refusal | Recording::WithEffect => {}
            }
        }
        Ok(Self { shared: shared.clone(), record: Record::new(entry), recording, is_open: false })
    }

    /// Calls the handler, and records the outcome.
    pub async fn run(mut self, handler: impl Future<Output = Response>) -> Response {
        if !self.shared.trail.is_enabled() {
            return handler.await;
        }
        self.is_open = true;
        let response = match self.recording {
            Recording::WithEffect => audit::scope(self.record.clone(), handler).await,
            Recording::Refusal | Recording::Before | Recording::ForeignRead => handler.await,
        };
        self.is_open = false;
        self.close(&response);
        response
    }

    /// Records a request that the guard refused.
    pub fn refused(shared: &Shared, entry: NewAudit, response: Response) -> Response {
        shared.trail.count(ended(entry, &response), CountedKind::Refusal);
        response
    }

    fn close(&self, response: &Response) {
        let entry = ended(self.record.entry(), response);
        let (is_done, is_written) = (entry.outcome == DONE, self.record.is_written());
        let (trail, status) = (&self.shared.trail, response.status());
        match self.recording {
            Recording::Before => trail.push(entry),
            Recording::ForeignRead => trail.count(entry, CountedKind::ForeignRead),
            // The core wrote `done` with the effect.
            Recording::WithEffect if is_written && is_done => {}
            Recording::WithEffect if is_written => trail.push(entry),
            Recording::WithEffect if is_done && !self.record.skips_success() => trail.push(entry),
            Recording::WithEffect | Recording::Refusal if is_done => {}
            // A permitted read that failed, or found nothing, was not refused.
            Recording::Refusal if status.is_server_error() || status == StatusCode::NOT_FOUND => {}
            Recording::WithEffect | Recording::Refusal => trail.count(entry, CountedKind::Refusal),
        }
    }
}

impl Drop for Recorder {
    /// The caller disconnected, and the handler was dropped before its reply.
    fn drop(&mut self) {
        if !self.is_open {
            return;
        }
        let mut entry = self.record.entry();
        if entry.outcome == STARTED {
            entry.outcome = HUNG_UP.to_owned();
        }
        let is_upload = UPLOADS.contains(&entry.operation.as_str());
        let trail = &self.shared.trail;
        match self.recording {
            Recording::Before => trail.push(entry),
            Recording::ForeignRead => trail.count(entry, CountedKind::ForeignRead),
            // The core wrote `done` with the effect, or nothing would have been done.
            Recording::WithEffect if self.record.is_written() || self.record.skips_success() => {}
            Recording::WithEffect => {
                // The core may still write `done` for the request: that is an entry of its own.
                entry.request = Some(super::guard::request_id());
                trail.count(entry, CountedKind::Refusal);
            }
            Recording::Refusal if is_upload => trail.count(entry, CountedKind::Refusal),
            // A read that the caller no longer wants, such as a wait.
            Recording::Refusal => {}
        }
    }
}

/// The entry with the outcome of its request.
fn ended(entry: NewAudit, response: &Response) -> NewAudit {
    let status = response.status();
    let outcome = match response.extensions().get::<ProblemCode>() {
        Some(ProblemCode(code)) => (*code).to_owned(),
        None if status.is_client_error() || status.is_server_error() => format!("http_{}", status.as_u16()),
        None => DONE.to_owned(),
    };
    NewAudit { outcome, status: Some(status.as_u16()), ..entry }
}
