//! Tasks that are each on their own, as machines are: park, start and end one, and the others go on.

use std::sync::Arc;

use axum::extract::State;
use muster_api::problem::{Code, Problem};
use muster_api::view::{JobSummary, RenameJob};
use muster_model::{JobId, JobSpec};

use super::describe::{Always, OnJob, Reads, Takes};
use super::failure::{Failure, Json, Segments, TheJob};
use super::job::{read, row};
use crate::core::{Input, Wish};
use crate::state::Shared;
use crate::view;

/// Park one machine of a group: what runs there ends, and it holds nothing. The others go on.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/tasks/{rank}/suspend", tag = "jobs", operation_id = "suspend_task",
    params(("job" = String, Path), ("rank" = u32, Path)), responses((status = 200, body = JobSummary), Always, OnJob))]
pub(super) async fn suspend(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    Segments((_, rank)): Segments<(String, u32)>,
) -> Result<Json<JobSummary>, Failure> {
    wished(&shared, (job, rank), Wish::Suspend).await
}

/// Start one machine of a group anew, where it was if it can be; refused where there is no room now.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/tasks/{rank}/resume", tag = "jobs", operation_id = "resume_task",
    params(("job" = String, Path), ("rank" = u32, Path)), responses((status = 200, body = JobSummary), Always, OnJob))]
pub(super) async fn resume(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    Segments((_, rank)): Segments<(String, u32)>,
) -> Result<Json<JobSummary>, Failure> {
    wished(&shared, (job, rank), Wish::Resume).await
}

/// Give one machine of a group back for good. The others go on; its job is over with the last of them.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/tasks/{rank}/stop", tag = "jobs", operation_id = "stop_task",
    params(("job" = String, Path), ("rank" = u32, Path)), responses((status = 200, body = JobSummary), Always, OnJob))]
pub(super) async fn stop(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    Segments((_, rank)): Segments<(String, u32)>,
) -> Result<Json<JobSummary>, Failure> {
    wished(&shared, (job, rank), Wish::Stop).await
}

/// Give one machine of a group a name of its own, which stays when the group is renamed. Its name by its group, `taskN.JOB`, takes
/// that away again.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/tasks/{rank}/rename", tag = "jobs", operation_id = "rename_task",
    params(("job" = String, Path), ("rank" = u32, Path)), request_body = RenameJob,
    responses((status = 200, body = JobSummary), Always, OnJob, Reads, Takes))]
pub(super) async fn rename(
    State(shared): State<Arc<Shared>>,
    TheJob(id): TheJob,
    Segments((_, rank)): Segments<(String, u32)>,
    Json(request): Json<RenameJob>,
) -> Result<Json<JobSummary>, Failure> {
    let name = JobSpec::check_name(&request.name).map_err(|error| Problem::fields(vec![error]))?;
    let id = with_task(&shared, id, rank).await?;
    shared.core.ask(|reply| Input::RenameTask { job: id.clone(), rank, name, reply }).await?;
    let row = read(&shared, move |readers| row(readers, &id)).await?;
    Ok(Json(view::row_summary(&row)))
}

async fn wished(
    shared: &Arc<Shared>,
    (id, rank): (JobId, u32),
    wish: Wish,
) -> Result<Json<JobSummary>, Failure> {
    let id = with_task(shared, id, rank).await?;
    let ask = || shared.core.ask(|reply| Input::Task { job: id.clone(), rank, wish, reply });
    match ask().await {
        // A server that has just started is looked at again once its nodes have spoken.
        Err(problem) if problem.code == Code::NoRoom => {
            shared.core.ask(Input::Settled).await?;
            ask().await?;
        }
        answer => answer?,
    }
    let row = read(shared, move |readers| row(readers, &id)).await?;
    Ok(Json(view::row_summary(&row)))
}

/// The job, if it has such a task.
async fn with_task(shared: &Arc<Shared>, id: JobId, rank: u32) -> Result<JobId, Failure> {
    let found = read(shared, move |readers| {
        let nodes = row(readers, &id)?.spec.nodes;
        if rank < nodes {
            return Ok(id);
        }
        let message = format!("{id} has no task {rank}; its tasks are 0 to {}", nodes - 1);
        Err(Problem::new(Code::NotFound, message).hint(format!("`muster show {id}` lists them")))
    });
    Ok(found.await?)
}
