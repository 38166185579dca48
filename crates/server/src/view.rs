//! From stored rows to what the API shows.

use std::time::Duration;

use muster_api::problem::Problem;
use muster_api::view::{
    AllocationView, Asks, AttemptView, EventView, JobDetail, JobSummary, LaunchView, OwedRemovals, StreamEnd,
    TaskView, Why,
};
use muster_launch::Plan;
use muster_model::job::State;
use muster_model::quantity::parse_duration;
use muster_model::task::{Outputs, TaskEnd};
use muster_model::{CommandOn, JobId, JobSpec, Reason, Task};
use muster_store::{EventRow, JobRow, JobSummaryRow, Readers};

use crate::core::internal;

/// A list shows this many characters of a command; the job itself has the whole of it.
const MAX_LISTED_COMMAND: usize = 1000;

/// A job in a list.
pub(crate) fn summary(row: JobSummaryRow) -> JobSummary {
    let timeout = row.timeout.as_deref().and_then(|text| parse_duration(text).ok());
    JobSummary {
        asks: Asks {
            workspace: row.workspace,
            priority: row.priority,
            preemptible: row.preemptible,
            exclusive: row.exclusive,
            cpu_millis: row.cpu_millis,
            memory_bytes: row.memory_bytes,
            timeout_ms: timeout.map(millis),
        },
        message: row.reason.as_ref().map(Reason::message),
        id: row.id,
        name: row.name,
        display_name: row.display_name,
        kind: row.kind,
        labels: row.labels,
        state: row.state,
        reason: row.reason,
        nodes: row.nodes,
        gpus: row.gpus,
        command: listed_command(row.command),
        on: row.on,
        owner: row.owner,
        attempt: row.attempt,
        exit_code: row.exit_code,
        submitted_at: row.submitted_at,
        started_at: row.started_at,
        ended_at: row.ended_at,
        elements: row.elements,
    }
}

fn listed_command(mut command: String) -> String {
    if let Some((end, _)) = command.char_indices().nth(MAX_LISTED_COMMAND) {
        command.truncate(end);
        command.push('…');
    }
    command
}

/// The same of a whole row.
pub(crate) fn row_summary(row: &JobRow) -> JobSummary {
    let job = &row.job;
    JobSummary {
        id: job.id.clone(),
        name: row.name.clone(),
        display_name: row.spec.display_name.clone(),
        kind: row.spec.kind,
        labels: row.spec.labels.clone(),
        state: job.state,
        reason: job.reason.clone(),
        message: job.reason.as_ref().map(Reason::message),
        nodes: row.spec.nodes,
        gpus: row.spec.resources.gpus.as_ref().map(ToString::to_string),
        command: row.spec.command.to_string(),
        on: row.spec.on.to_string(),
        owner: row.owner.clone(),
        attempt: job.attempt,
        exit_code: job.exit_code(),
        submitted_at: row.submitted_at,
        started_at: job.started_at,
        ended_at: job.ended_at,
        asks: Asks {
            workspace: row.workspace.clone(),
            priority: row.priority,
            preemptible: row.spec.preemptible,
            exclusive: row.spec.exclusive,
            cpu_millis: row.spec.resources.cpu_millis(),
            memory_bytes: row.spec.resources.memory.unwrap_or(0),
            timeout_ms: row.spec.timeout.map(millis),
        },
        elements: job.array.as_ref().map(|progress| progress.counts()),
    }
}

fn millis(span: Duration) -> u64 {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// A job in full.
pub(crate) fn detail(readers: &Readers, row: JobRow) -> Result<JobDetail, Problem> {
    let mut attempts = readers.attempts(&row.job.id).map_err(|error| internal(&error))?;
    // Each lane has its own; the last has them all.
    if row.job.array.is_some() {
        attempts.drain(..attempts.len().saturating_sub(1));
    }
    let views = attempts.into_iter().map(|attempt| {
        let tasks = readers.tasks(&row.job.id, attempt.number).map_err(|error| internal(&error))?;
        let mut outputs = readers.outputs(&row.job.id, attempt.number).map_err(|error| internal(&error))?;
        Ok(AttemptView {
            number: attempt.number,
            started_at: attempt.started_at,
            ended_at: attempt.ended_at,
            reason: attempt.reason,
            tasks: (0..)
                .zip(tasks)
                .map(|(rank, task)| {
                    let name = row.machine_names.get(&rank).cloned();
                    TaskView { name, ..self::task(rank, task, outputs.remove(&rank)) }
                })
                .collect(),
        })
    });
    let allocations = readers.allocations(&row.job.id).map_err(|error| internal(&error))?;
    let allocation = allocations.into_iter().rfind(|one| one.attempt.number == row.job.attempt);
    let mut spec = (*row.spec).clone();
    // Whoever submits it again means the job as it is called now.
    spec.name = spec.name.map(|_| row.name.clone());
    Ok(JobDetail {
        summary: row_summary(&row),
        attempts: views.collect::<Result<_, Problem>>()?,
        launch: launch(&row.spec),
        allocation: allocation.map(|one| AllocationView { id: one.external, hosts: one.hosts }),
        spec,
        bundle: row.bundle,
        source: row.source,
        failed_rank: row.job.failed_rank,
    })
}

/// How the tasks of a job are started; a machine's are not.
pub(crate) fn launch(spec: &JobSpec) -> Option<LaunchView> {
    let plan = Plan::of(spec);
    (!plan.idle).then(|| LaunchView {
        framework: plan.framework,
        argv: plan.argv(&spec.command),
        command_on: spec.command_on.unwrap_or(CommandOn::All),
        processes: plan.started(),
    })
}

fn task(rank: u32, task: Task, outputs: Option<Outputs>) -> TaskView {
    let TaskEnd { failure, usage, notice, saved_at, .. } = task.end.unwrap_or(TaskEnd::new(None, None));
    TaskView {
        rank,
        name: None,
        attempt: task.attempt,
        node: task.placement.node,
        devices: task.placement.devices,
        phase: task.phase,
        parting: task.parting,
        notice: notice.map(|notice| *notice),
        saved_at,
        address: task.address,
        message: failure.as_ref().map(Reason::message),
        failure,
        outputs,
        now: None,
        usage: usage.map(|usage| *usage),
        started_at: task.started_at,
        ended_at: task.ended_at,
    }
}

pub(crate) fn event(row: EventRow) -> EventView {
    EventView { seq: row.seq, job: row.job, at: row.at, attempt: row.attempt, kind: row.kind, body: row.body }
}

pub(crate) fn owed_removals(row: muster_store::OwedRemovals) -> OwedRemovals {
    let muster_store::OwedRemovals { node, jobs, since } = row;
    OwedRemovals { node, jobs, since }
}

pub(crate) fn end(row: &JobRow) -> StreamEnd {
    StreamEnd {
        job: row_summary(row),
        failed_rank: row.job.failed_rank,
        missing: Vec::new(),
        damaged: Vec::new(),
    }
}

/// Why a job that is over ended as it did.
pub(crate) fn why_over(row: &JobRow) -> Why {
    let job = &row.job;
    let Some(reason) = job.reason.as_ref().filter(|_| job.state != State::Succeeded) else {
        return Why { code: "succeeded".into(), summary: "it succeeded".into(), ..Why::default() };
    };
    let id: &JobId = &job.id;
    let task = job.failed_rank.map(|rank| {
        format!("task{rank} of {} failed first; see `muster logs {id} --task {rank}`", row.spec.nodes)
    });
    Why {
        code: reason.code().into(),
        summary: format!("{}: {}", job.state, reason.message()),
        constraint: task.filter(|_| job.state == State::Failed),
        help: reason.hint(job.attempt).map(str::to_owned),
        ..Why::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_shows_the_beginning_of_a_long_command() {
        assert_eq!(listed_command("é".repeat(MAX_LISTED_COMMAND)), "é".repeat(MAX_LISTED_COMMAND));
        let cut = listed_command("é".repeat(MAX_LISTED_COMMAND + 1));
        assert_eq!(cut, format!("{}…", "é".repeat(MAX_LISTED_COMMAND)));
    }
}
