//! What is said when an attached job is over: one line when all is well; else the task that failed first, with its
//! last words, and the others in one line.

use std::sync::Arc;

use muster_api::client::LogItem;
use muster_api::model::spec::OnFailure;
use muster_api::model::{Reason, State, Timestamp};
use muster_api::view::{JobDetail, LogsQuery, StreamEnd};

use crate::command::state::{run_time, tasks};
use crate::display::{Display, Mode};
use crate::error::Error;
use crate::follow::LogFollow;
use crate::session::Session;
use crate::terminal::{self, Colour};

/// How many of its last lines a failed task is shown with.
const LAST_LINES: u32 = 20;

/// Says how a job ended. The details are there if it failed.
pub(super) async fn show(
    session: &Arc<Session>,
    end: &StreamEnd,
    detail: Option<&JobDetail>,
    is_of_another: bool,
) {
    let job = &end.job;
    match job.state {
        State::Succeeded => terminal::remark(&format!("{} succeeded{}", job.id, after(end))),
        State::Failed => show_failure(session, end, detail, is_of_another).await,
        State::Queued
        | State::Starting
        | State::Running
        | State::Stopping
        | State::Stopped
        | State::Suspended => terminal::remark(&format!("{} {}{}", job.id, job.state, after(end))),
    }
}

/// ` after 12.3s`, if it ever ran.
fn after(end: &StreamEnd) -> String {
    let time = run_time(&end.job, Timestamp::now());
    if time.is_empty() { time } else { format!(" after {time}") }
}

async fn show_failure(
    session: &Arc<Session>,
    end: &StreamEnd,
    detail: Option<&JobDetail>,
    is_of_another: bool,
) {
    let code = end.job.reason.as_ref().map(|reason| format!("[{}]", reason.code())).unwrap_or_default();
    let mark = terminal::paint(&format!("error{code}:"), Colour::Red, terminal::stderr_has_colours());
    terminal::remark(&format!("{mark} {}", cause(end)));
    let gang_rank = end.failed_rank.filter(|_| end.job.nodes > 1);
    if let Some(rank) = gang_rank {
        terminal::remark(&format!("the last lines of task{rank}:"));
        // Its lines were shown before; that they cannot be shown again changes nothing.
        let _ = show_last_lines(session, end, rank, is_of_another).await;
    }
    if let Some(others) = gang_rank.and(detail).and_then(others) {
        terminal::remark(&others);
    }
    if let Some(hint) = end.job.reason.as_ref().and_then(|reason| reason.hint(end.job.attempt)) {
        terminal::hint(hint);
    }
    if let Some(rank) = gang_rank {
        terminal::hint(&format!("muster logs {} --task {rank}", end.job.id));
    }
}

/// `job_x failed after 3s: task1 exited with code 1`.
fn cause(end: &StreamEnd) -> String {
    let message = end.job.message.clone().or_else(|| end.job.reason.as_ref().map(Reason::message));
    let message = message.unwrap_or_else(|| "for a reason that was not recorded".into());
    let who =
        end.failed_rank.filter(|_| end.job.nodes > 1).map(|rank| format!("task{rank} ")).unwrap_or_default();
    format!("{} failed{}: {who}{message}", end.job.id, after(end))
}

/// What became of the rest of the gang, folded into a line.
fn others(job: &JobDetail) -> Option<String> {
    let others = job.summary.nodes.saturating_sub(1);
    match job.spec.on_failure {
        OnFailure::Stop if others == 1 => Some("1 other task was stopped".into()),
        OnFailure::Stop => Some(format!("{others} other tasks were stopped")),
        OnFailure::Continue => {
            let last = job.attempts.last()?;
            let failed = last.tasks.iter().filter(|task| task.failure.is_some()).count().saturating_sub(1);
            (failed > 0).then(|| format!("{failed} of the {} beside it failed too", tasks(others)))
        }
    }
}

async fn show_last_lines(
    session: &Arc<Session>,
    end: &StreamEnd,
    rank: u32,
    is_of_another: bool,
) -> Result<(), Error> {
    let query = LogsQuery { task: Some(rank), tail: Some(LAST_LINES), ..LogsQuery::default() };
    let mut log = LogFollow::start(session, end.job.id.as_str(), query);
    let mut display = Display::new(Mode::Labelled(end.job.nodes)).on_stderr();
    if is_of_another {
        display = display.of_another();
    }
    while let LogItem::Chunk(chunk) = log.next().await? {
        display.chunk(&chunk)?;
    }
    display.finish()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn end(nodes: u32, failed_rank: Value) -> StreamEnd {
        serde_json::from_value(json!({
            "job": {"id": "job_0123456789", "name": "x", "state": "failed",
                "reason": {"code": "exit_code", "exit_code": 3}, "message": null, "nodes": nodes, "gpus": null,
                "command": "false", "on": "local", "owner": "me", "attempt": 1, "exit_code": 3,
                "submitted_at": "1970-01-01T00:00:00Z", "started_at": "1970-01-01T00:00:01Z",
                "ended_at": "1970-01-01T00:00:03Z"},
            "failed_rank": failed_rank,
        }))
        .unwrap()
    }

    fn detail(on_failure: &str, failures: &[bool]) -> JobDetail {
        let nodes = failures.len();
        let task = |(rank, failed): (usize, &bool)| {
            let failure = failed.then(|| json!({"code": "exit_code", "exit_code": 1}));
            json!({"rank": rank, "node": "node_local", "devices": [], "phase": "ended", "address": null,
                "failure": failure, "message": null, "started_at": null, "ended_at": null})
        };
        let spec = muster_api::model::JobSpec::from_value(json!({
            "nodes": nodes, "command": "false", "on_failure": on_failure,
        }));
        let mut job = serde_json::to_value(end(nodes as u32, json!(0)).job).unwrap();
        let rest = json!({"spec": spec.unwrap(), "bundle": null, "failed_rank": 0, "attempts": [{
            "number": 1, "started_at": "1970-01-01T00:00:00Z", "ended_at": null, "reason": null,
            "tasks": failures.iter().enumerate().map(task).collect::<Vec<_>>()}]});
        job.as_object_mut().unwrap().extend(rest.as_object().unwrap().clone());
        serde_json::from_value(job).unwrap()
    }

    #[test]
    fn the_cause_names_the_task_of_a_gang() {
        assert_eq!(cause(&end(4, json!(1))), "job_0123456789 failed after 2.0s: task1 exited with code 3");
        assert_eq!(cause(&end(1, json!(0))), "job_0123456789 failed after 2.0s: exited with code 3");
        assert_eq!(cause(&end(4, Value::Null)), "job_0123456789 failed after 2.0s: exited with code 3");
    }

    #[test]
    fn the_others_are_folded_into_a_line() {
        assert_eq!(others(&detail("stop", &[true, true])).unwrap(), "1 other task was stopped");
        assert_eq!(
            others(&detail("stop", &[true, true, false, true])).unwrap(),
            "3 other tasks were stopped"
        );
        assert_eq!(others(&detail("continue", &[true, false])), None);
        assert_eq!(
            others(&detail("continue", &[true, true, false])).unwrap(),
            "1 of the 2 tasks beside it failed too"
        );
    }
}
