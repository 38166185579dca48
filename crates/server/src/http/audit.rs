//! What was done, and what was not allowed.

use std::io;
use std::sync::Arc;

use axum::body::{Body, Bytes};
use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use futures::stream;
use muster_api::account::{AuditEntry, AuditLinesQuery, AuditPage, AuditQuery};
use muster_model::spec::{FieldCode, FieldError};
use muster_store::{AuditFilter, AuditRow};

use super::account::accounts;
use super::describe::{Always, Conflicts, Reads};
use super::failure::{Failure, Json, Params};
use super::job::read;
use crate::core::internal;
use crate::state::Shared;

/// Entries read at once for an export.
const EXPORT_PAGE: u32 = 500;
/// Entries on a page when the caller does not say.
const DEFAULT_PAGE: u32 = 100;

/// Read the audit log, newest first.
#[utoipa::path(get, path = "/api/v1/audit", tag = "people", operation_id = "list_audit", params(AuditQuery),
    responses((status = 200, body = AuditPage), Always, Reads, Conflicts))]
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    Params(query): Params<AuditQuery>,
) -> Result<Json<AuditPage>, Failure> {
    accounts(&shared)?;
    shared.trail.flush(&shared.core).await?;
    let limit = query.limit.unwrap_or(DEFAULT_PAGE);
    let mut errors = Vec::new();
    if !(1..=1000).contains(&limit) {
        errors.push(FieldError::new("limit", FieldCode::OutOfRange, "must be a whole number from 1 to 1000"));
    }
    let before = query.cursor.as_ref().map(|cursor| cursor.parse::<u64>());
    if matches!(before, Some(Err(_))) {
        let message = "is not one this server gave; start without it";
        errors.push(FieldError::new("cursor", FieldCode::InvalidValue, message));
    }
    super::account::refuse(errors)?;
    // What the database counts with ends earlier than what the text can say.
    let before = before.and_then(Result::ok).map(|seq| seq.min(i64::MAX as u64));
    let filter = AuditFilter { user: query.user, operation: query.operation, before };
    let rows =
        read(&shared, move |readers| readers.audit(&filter, limit + 1).map_err(|error| internal(&error)));
    let rows: Vec<AuditRow> = rows.await?;
    let more = rows.len() > limit as usize;
    let next_cursor = rows.get(limit as usize - 1).filter(|_| more).map(|row| row.seq.to_string());
    Ok(Json(AuditPage { items: rows.into_iter().take(limit as usize).map(view).collect(), next_cursor }))
}

/// Export the audit log as JSON lines, oldest first.
///
/// A collector passes the last `seq` that it has as `after`. An entry whose outcome or count has changed comes again, with a new `seq`
/// and the same `request`.
#[utoipa::path(get, path = "/api/v1/audit/lines", tag = "people", operation_id = "export_audit", params(AuditLinesQuery),
    responses((status = 200, description = "One entry on each line.", content((AuditEntry = "application/x-ndjson"))),
        Always, Reads, Conflicts))]
pub(super) async fn lines(
    State(shared): State<Arc<Shared>>,
    Params(query): Params<AuditLinesQuery>,
) -> Result<Response, Failure> {
    accounts(&shared)?;
    shared.trail.flush(&shared.core).await?;
    let after = query.after.unwrap_or(0).min(i64::MAX as u64);
    let pages = stream::try_unfold((shared, after), async |(shared, after)| {
        let page: Vec<AuditRow> = read(&shared, move |readers| {
            readers.audit_after(after, EXPORT_PAGE).map_err(|error| internal(&error))
        })
        .await
        .map_err(io::Error::other)?;
        let Some(last) = page.last() else { return Ok::<_, io::Error>(None) };
        let next = (shared, last.seq);
        Ok(Some((to_lines(page)?, next)))
    });
    let kind = [(header::CONTENT_TYPE, "application/x-ndjson")];
    Ok((kind, Body::from_stream(pages)).into_response())
}

fn to_lines(page: Vec<AuditRow>) -> io::Result<Bytes> {
    let mut text = Vec::new();
    for row in page {
        serde_json::to_writer(&mut text, &view(row))?;
        text.push(b'\n');
    }
    Ok(text.into())
}

fn view(AuditRow { seq, entry }: AuditRow) -> AuditEntry {
    AuditEntry {
        seq,
        request: entry.request,
        at: entry.at,
        user: entry.user,
        token: entry.token,
        address: entry.address,
        operation: entry.operation,
        target: entry.target,
        job: entry.job,
        outcome: entry.outcome,
        status: entry.status,
        count: entry.count,
        detail: entry.detail,
    }
}
