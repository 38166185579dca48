//! The queue: who waits, and a job's place in it.

use std::sync::Arc;

use axum::extract::State;
use muster_api::problem::Problem;
use muster_api::quota::{ChangeJob, QueueQuery, QueueView};
use muster_api::view::JobSummary;
use muster_engine::GangChange;
use muster_model::spec::{FieldCode, FieldError, MAX_PRIORITY};

use super::describe::{Always, OnJob, Reads, Takes};
use super::failure::{Failure, Json, Params, TheJob};
use super::job::{read, row};
use super::limits;
use super::pass_on::pass_on;
use crate::accounts::Caller;
use crate::core::{Input, QueueAsked};
use crate::state::Shared;
use crate::view;

/// Jobs on a page when the caller does not say, and the most.
const DEFAULT_PAGE: u32 = 100;
const MAX_PAGE: u32 = 1000;

/// List who waits, those that are to start next first. Others' jobs count in the places of one's own.
#[utoipa::path(get, path = "/api/v1/queue", tag = "quota", operation_id = "list_queue", params(QueueQuery),
    responses((status = 200, body = QueueView), Always, Reads))]
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Params(query): Params<QueueQuery>,
) -> Result<Json<QueueView>, Failure> {
    let QueueQuery { workspace, user, on, limit } = query;
    let limit = limit.unwrap_or(DEFAULT_PAGE);
    if !(1..=MAX_PAGE).contains(&limit) {
        let message = format!("{limit} is not from 1 to {MAX_PAGE}");
        return Err(Problem::fields(vec![FieldError::new("limit", FieldCode::OutOfRange, message)]).into());
    }
    let sight = caller.rights.sight();
    let asked = QueueAsked { sight, workspace, user, on, limit: limit as usize };
    Ok(Json(shared.core.ask(|reply| Input::Queue(Box::new(asked), reply)).await?))
}

/// Change a job that is not over: its priority.
#[utoipa::path(patch, path = "/api/v1/jobs/{job}", tag = "jobs", operation_id = "change_job", params(("job" = String, Path)),
    request_body = ChangeJob,
    responses((status = 200, body = JobSummary), Always, OnJob, Reads, Takes))]
pub(super) async fn change(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    TheJob(id): TheJob,
    Json(request): Json<ChangeJob>,
) -> Result<Json<JobSummary>, Failure> {
    let wanted = id.clone();
    let found = read(&shared, move |readers| row(readers, &wanted)).await?;
    if let Some(priority) = request.priority {
        if priority > MAX_PRIORITY {
            let message = format!("{priority} is not from 0 to {MAX_PRIORITY}");
            return Err(
                Problem::fields(vec![FieldError::new("priority", FieldCode::OutOfRange, message)]).into()
            );
        }
        limits::check_priority(&shared, &caller, &found.workspace, priority)?;
        pass_on(&shared, &id, GangChange::Priority(priority)).await?;
        shared.core.ask(|reply| Input::Reprioritise(id.clone(), priority, reply)).await?;
    }
    let row = read(&shared, move |readers| row(readers, &id)).await?;
    Ok(Json(view::row_summary(&row)))
}
