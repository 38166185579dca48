//! A job's output: all of it, a part of it, or as it comes; as events or as a file.
//!
//! A reader pulls: it reads the server's copies at its own speed and waits for growth, so a slow one slows nobody. One
//! that is gone is dropped with its connection, and its files with it: nothing here outlives the reply.

mod cursor;
mod download;
mod element;
mod follower;
mod lines;
mod source;
#[cfg(test)]
mod tests;

use std::collections::VecDeque;
use std::sync::Arc;
use std::time::Duration;

use axum::extract::State;
use axum::response::Response;
use axum::response::sse::Event;
use base64::Engine as _;
use cursor::Cursor;
pub(super) use download::{__path_download, download};
use follower::{Follower, Patience, Turn};
use lines::Grep;
use muster_api::problem::Problem;
use muster_api::view::{LogChunk, LogStream, LogsQuery};
use muster_launch::contract::logged_processes;
use muster_link::log::Stream;
use muster_model::quantity::parse_duration;
use muster_model::spec::{FieldCode, FieldError};
use muster_model::{JobId, Task, Timestamp};
use muster_store::JobRow;
use source::{Piece, Selection};

use super::describe::{Always, LogEvents, OnJob, Reads};
use super::failure::{Failure, Params, TheJob};
use super::job::{has_logs, read, row};
use super::sse::{self, Feed};
use crate::state::Shared;

/// Read or follow a job's output. Server-sent events `log` (a `LogChunk`) and, last, `end`.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/logs", tag = "jobs", operation_id = "follow_logs", params(LogsQuery, ("job" = String, Path)),
    responses((status = 200, body = LogEvents, content_type = "text/event-stream"),
        Always, Reads, OnJob))]
pub(super) async fn follow(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    Params(query): Params<LogsQuery>,
) -> Result<Response, Failure> {
    let follower = open(shared, job, query, Form::Pieces).await?;
    let attempt = follower.attempt();
    Ok(sse::feed(EventFeed { follower, attempt, unsent: Vec::new().into_iter() }))
}

/// What is made of several tasks' output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Form {
    /// As it was written; the reader puts lines together.
    Pieces,
    /// Whole lines.
    Lines,
}

/// Checks a query, and opens the logs it asks for.
async fn open(shared: Arc<Shared>, job: JobId, query: LogsQuery, form: Form) -> Result<Follower, Problem> {
    let row = read(&shared, move |readers| row(readers, &job)).await?;
    has_logs(&row)?;
    let (query, element) = element::find(&shared, &row, query).await?;
    let (query, process) = one_process(&row, query).map_err(|error| Problem::fields(vec![error]))?;
    let cursor = query.cursor.as_deref().map(Cursor::parse).transpose()?;
    let mut selection = selection(&query, crate::core::now())?;
    let is_shared = row.spec.nodes > 1 || logged_processes(&row.spec) > 1;
    selection.by_line = form == Form::Lines && is_shared && query.task.is_none();
    selection.element = element;
    selection.process = process;
    check(&query, &row).map_err(|error| Problem::fields(vec![error]))?;
    let follower = Follower::new(shared, row, query, selection, Patience::default());
    Ok(follower.begin(cursor).await)
}

/// A query about the task that has the process of a rank, and the number of the process there.
fn one_process(row: &JobRow, query: LogsQuery) -> Result<(LogsQuery, Option<u8>), FieldError> {
    let Some(rank) = query.process_rank else { return Ok((query, None)) };
    let wrong = |code, message: String| Err(FieldError::new("process_rank", code, message));
    if row.job.policy.array.is_some() {
        return wrong(FieldCode::NotSupported, "is not for arrays, which have elements".into());
    }
    let processes = logged_processes(&row.spec);
    let world = row.spec.nodes * processes;
    if rank >= world {
        return wrong(
            FieldCode::OutOfRange,
            format!(
                "there is no rank {rank}; the ranks of the job's processes are 0 to {}",
                world.max(1) - 1
            ),
        );
    }
    let task = rank / processes;
    if query.task.is_some_and(|wanted| wanted != task) {
        return wrong(FieldCode::InvalidValue, format!("rank {rank} is in task {task}; leave out `task`"));
    }
    let process = (processes > 1).then(|| u8::try_from(rank % processes).unwrap_or(u8::MAX));
    Ok((LogsQuery { task: Some(task), ..query }, process))
}

/// What a query asks for must exist.
fn check(query: &LogsQuery, row: &JobRow) -> Result<(), FieldError> {
    let tasks = if row.job.array.is_some() { row.job.tasks.len() as u32 } else { row.spec.nodes };
    if let Some(rank) = query.task.filter(|rank| *rank >= tasks) {
        let message = format!("there is no task {rank}; the job's tasks are 0 to {}", tasks.max(1) - 1);
        return Err(FieldError::new("task", FieldCode::OutOfRange, message));
    }
    let last = row.job.attempt;
    // A follower may come before the attempt that it waits for.
    let is_wrong = |attempt: u32| attempt == 0 || (attempt > last && row.job.state.is_terminal());
    if let Some(attempt) = query.attempt.filter(|attempt| is_wrong(*attempt)) {
        let message = match last {
            0 => format!("there is no attempt {attempt}; the job was never started"),
            _ => format!("there is no attempt {attempt}; the job's attempts are 1 to {last}"),
        };
        return Err(FieldError::new("attempt", FieldCode::OutOfRange, message));
    }
    Ok(())
}

/// Every field that is wrong, or what is wanted.
fn selection(query: &LogsQuery, now: Timestamp) -> Result<Selection, Problem> {
    let mut errors = Vec::new();
    let mut micros = |field: &'static str, text: &Option<String>| {
        let moment = text.as_deref().map(|text| moment(field, text, now)).transpose();
        // As records have it: microseconds since the Unix epoch.
        let micros = moment.map(|it| it.map(|it| u64::try_from(it.as_microsecond()).unwrap_or(0)));
        micros.unwrap_or_else(|error| {
            errors.push(error);
            None
        })
    };
    let (since, until) = (micros("since", &query.since), micros("until", &query.until));
    if since.zip(until).is_some_and(|(since, until)| until < since) {
        errors.push(FieldError::new(
            "until",
            FieldCode::OutOfRange,
            "is before `since`, so there is nothing between them",
        ));
    }
    let grep = query.grep.as_deref().map(|grep| Grep::new(grep, query.ignore_case, query.invert_match));
    let grep = grep.transpose().unwrap_or_else(|error| {
        errors.push(error);
        None
    });
    if grep.is_none() && query.grep.is_none() && (query.ignore_case || query.invert_match) {
        let field = if query.ignore_case { "ignore_case" } else { "invert_match" };
        errors.push(FieldError::new(
            field,
            FieldCode::InvalidValue,
            "says how to search, and `grep` does not say what for",
        ));
    }
    if !errors.is_empty() {
        return Err(Problem::fields(errors));
    }
    Ok(Selection { since, until, grep, by_line: false, tail: query.tail, element: None, process: None })
}

/// A moment, or how long ago it was.
pub(super) fn moment(field: &'static str, text: &str, now: Timestamp) -> Result<Timestamp, FieldError> {
    let ago = |span: Duration| now.checked_sub(span).unwrap_or(Timestamp::UNIX_EPOCH);
    text.parse().or_else(|_| parse_duration(text).map(ago)).map_err(|_| {
        let shown: String = text.chars().take(40).collect();
        let message =
            format!("`{shown}` is not a time; write 10m or 2h30m for how long ago, or 2026-11-15T10:00:00Z");
        FieldError::new(field, FieldCode::InvalidValue, message)
    })
}

/// Whether a task that is over has written more than this.
fn lacks(task: &Task, offset: u64) -> bool {
    task.end.as_ref().and_then(|end| end.log_bytes).is_some_and(|length| offset < length)
}

/// A follower whose pieces become events one by one: as JSON they take several times as much memory, and a reader may stop at
/// any of them.
struct EventFeed {
    follower: Follower,
    attempt: u32,
    unsent: std::vec::IntoIter<Piece>,
}

impl Feed for EventFeed {
    async fn turn(&mut self, ready: &mut VecDeque<Event>) -> Result<bool, Problem> {
        if let Some(piece) = self.unsent.next() {
            let process_rank = self.follower.process_rank(&piece);
            ready.push_back(sse::event("log", None, &chunk(self.attempt, process_rank, piece)));
            return Ok(true);
        }
        match self.follower.turn().await? {
            Turn::Pieces(attempt, pieces) => {
                (self.attempt, self.unsent) = (attempt, pieces.into_iter());
            }
            Turn::Again => {}
            Turn::End(end) => {
                ready.push_back(sse::event("end", None, &end));
                return Ok(false);
            }
            Turn::Stopped => return Ok(false),
        }
        Ok(true)
    }
}

fn chunk(attempt: u32, process_rank: Option<u32>, piece: Piece) -> LogChunk {
    let (text, base64) = match String::from_utf8(piece.bytes) {
        Ok(text) => (Some(text), None),
        Err(error) => (None, Some(base64::engine::general_purpose::STANDARD.encode(error.as_bytes()))),
    };
    LogChunk {
        attempt,
        rank: piece.rank,
        process_rank,
        stream: match piece.stream {
            Stream::Stdout => LogStream::Stdout,
            Stream::Stderr => LogStream::Stderr,
        },
        at: i64::try_from(piece.time_micros)
            .ok()
            .and_then(|micros| Timestamp::from_microsecond(micros).ok())
            .unwrap_or(Timestamp::UNIX_EPOCH),
        text,
        base64,
        next: piece.next,
        skip: piece.skip,
        cut: piece.is_cut,
    }
}
