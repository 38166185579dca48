//! What was measured: of a job, of a node, and of everything as a page for Prometheus.

mod page;
mod text;

use std::sync::Arc;

use axum::extract::State;
use muster_api::metrics::{JobMetrics, MetricsQuery, NodeMetrics, TaskMetrics};
use muster_api::problem::{Code, Problem};
use muster_api::view::JobDetail;
use muster_model::spec::{FieldCode, FieldError};
use muster_model::task::TaskPhase;
use muster_model::{AttemptId, NodeId, Timestamp};

use super::describe::{Always, OnJob, OnNode, Reads};
use super::failure::{Failure, Json, Params, Segment, TheJob};
use super::job::{read, row};
use super::log::moment;
use crate::core::Input;
use crate::state::Shared;

pub(super) use page::show;

/// Points of each thing when the caller does not say.
const DEFAULT_LIMIT: u32 = 1000;
/// And at most.
const MAX_LIMIT: u32 = 10_000;

/// What a job uses, has used, and used at each moment of the last hour.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/metrics", tag = "jobs", operation_id = "show_job_metrics", params(MetricsQuery, ("job" = String, Path, description = "id, prefix, name or `last`")),
    responses((status = 200, body = JobMetrics), Always, OnJob, Reads))]
pub(super) async fn of_job(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    Params(query): Params<MetricsQuery>,
) -> Result<Json<JobMetrics>, Failure> {
    let (since, limit) = wanted(&query)?;
    let job = read(&shared, move |readers| Ok(row(readers, &job)?.job)).await?;
    let tasks = (0..).zip(job.tasks.clone()).map(|(rank, task)| {
        let id = job.task_id(rank);
        let node = task.placement.node;
        let current = if task.phase == TaskPhase::Ended { None } else { shared.metrics.task(&node, &id) };
        let (now, usage) = current.map(|current| (current.point, current.usage)).unzip();
        TaskMetrics {
            rank,
            node,
            now,
            usage: usage.or(task.end.and_then(|end| end.usage).map(|usage| *usage)),
            history: shared.metrics.task_history(&id, since, limit),
        }
    });
    Ok(Json(JobMetrics { job: job.id.clone(), attempt: job.attempt, tasks: tasks.collect() }))
}

/// What is in use of a node, and was at each moment of the last hour.
#[utoipa::path(get, path = "/api/v1/nodes/{node}/metrics", tag = "nodes", operation_id = "show_node_metrics", params(MetricsQuery, ("node" = String, Path, description = "the node's id")),
    responses((status = 200, body = NodeMetrics), Always, OnNode, Reads))]
pub(super) async fn of_node(
    State(shared): State<Arc<Shared>>,
    Segment(node): Segment,
    Params(query): Params<MetricsQuery>,
) -> Result<Json<NodeMetrics>, Failure> {
    let (since, limit) = wanted(&query)?;
    let known = shared.core.ask(Input::Nodes).await?;
    let known = known.into_iter().find(|known| known.id.as_str() == node).map(|known| known.id);
    let id: NodeId = known.ok_or_else(|| {
        let shown: String = node.chars().take(80).collect();
        Problem::new(Code::NodeNotFound, format!("there is no node `{shown}`"))
            .hint("`muster nodes` lists them")
    })?;
    let (now, history) = (shared.metrics.node(&id), shared.metrics.node_history(&id, since, limit));
    Ok(Json(NodeMetrics { node: id, now, history }))
}

fn wanted(query: &MetricsQuery) -> Result<(Option<Timestamp>, usize), Problem> {
    let mut errors = Vec::new();
    let since = query.since.as_deref().map(|text| moment("since", text, crate::core::now()));
    let since = since.transpose().unwrap_or_else(|error| {
        errors.push(error);
        None
    });
    let limit = query.limit.unwrap_or(DEFAULT_LIMIT);
    if limit > MAX_LIMIT {
        let message = format!("must be a whole number from 0 to {MAX_LIMIT}");
        errors.push(FieldError::new("limit", FieldCode::OutOfRange, message));
    }
    if errors.is_empty() { Ok((since, limit as usize)) } else { Err(Problem::fields(errors)) }
}

/// Adds what its running tasks use now to a job.
pub(super) fn add_present(shared: &Shared, job: &mut JobDetail) {
    let id = job.summary.id.clone();
    let Some(attempt) = job.attempts.last_mut() else { return };
    for task in attempt.tasks.iter_mut().filter(|task| task.phase != TaskPhase::Ended) {
        let name = AttemptId { job: id.clone(), number: task.attempt };
        if let Some(current) = shared.metrics.task(&task.node, &name.task(task.rank)) {
            task.now = Some(current.point);
            task.usage = Some(current.usage);
        }
    }
}
