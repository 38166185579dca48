//! Sessions of tasks: named shells that keep their state between commands. They live in the task, and are asked there.

use std::sync::Arc;

use axum::body::Bytes;
use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::http::{HeaderMap, StatusCode, header};
use axum::response::{IntoResponse, Response};
use muster_api::problem::{Code, Problem};
use muster_api::view::{
    AttachQuery, CommandList, CommandQuery, OpenSession, OutputQuery, RunCommand, SendSignal, SessionList,
    SessionsQuery,
};
use muster_link::control::{self, Received};
use muster_link::message::{Call, SessionAnswer, SessionAsk};
use muster_link::session::Stream;
use muster_model::JobId;
use muster_model::session::{Session, SessionCommand};
use tokio::io::BufReader;

use super::call::{PIECE, call, connect, upgradable};
use super::describe::{Always, Conflicts, OnJob, Reads, Takes};
use super::failure::{Failure, Json, Params, Segments, TheJob, optional};
use super::file::{find, pieces};
use super::job::idempotency_key;
use crate::accounts::Caller;
use crate::state::Shared;

/// List a task's sessions.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/sessions", tag = "sessions", operation_id = "list_sessions",
    params(("job" = String, Path), SessionsQuery), responses((status = 200, body = SessionList), Always, OnJob, Reads, Conflicts))]
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    Params(query): Params<SessionsQuery>,
) -> Result<Json<SessionList>, Failure> {
    match ask(&shared, job, query.task, SessionAsk::List).await? {
        (SessionAnswer::Sessions { items }, _) => Ok(Json(SessionList { items })),
        other => Err(strange(&other.0)),
    }
}

/// Show a session.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/sessions/{name}", tag = "sessions", operation_id = "get_session",
    params(("job" = String, Path), ("name" = String, Path), SessionsQuery),
    responses((status = 200, body = Session), Always, OnJob, Reads, Conflicts))]
pub(super) async fn show(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    Segments((_, name)): Segments<(String, String)>,
    Params(query): Params<SessionsQuery>,
) -> Result<Json<Session>, Failure> {
    one(ask(&shared, job, query.task, SessionAsk::Show { name }).await?)
}

/// Open a session, unless it is open.
#[utoipa::path(put, path = "/api/v1/jobs/{job}/sessions/{name}", tag = "sessions", operation_id = "open_session",
    params(("job" = String, Path), ("name" = String, Path), SessionsQuery), request_body = Option<OpenSession>,
    responses((status = 200, body = Session), Always, OnJob, Reads, Takes, Conflicts))]
pub(super) async fn open(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    Segments((_, name)): Segments<(String, String)>,
    Params(query): Params<SessionsQuery>,
    body: Bytes,
) -> Result<Json<Session>, Failure> {
    let OpenSession { fresh } = optional(&body)?;
    one(ask(&shared, job, query.task, SessionAsk::Open { name, fresh }).await?)
}

/// End a session's shell, and remove what is left of its commands.
#[utoipa::path(delete, path = "/api/v1/jobs/{job}/sessions/{name}", tag = "sessions", operation_id = "remove_session",
    params(("job" = String, Path), ("name" = String, Path), SessionsQuery),
    responses((status = 204, description = "It is gone."), Always, OnJob, Reads, Conflicts))]
pub(super) async fn remove(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    Segments((_, name)): Segments<(String, String)>,
    Params(query): Params<SessionsQuery>,
) -> Result<StatusCode, Failure> {
    ask(&shared, job, query.task, SessionAsk::Remove { name }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Give a session a command, behind those that it has, and answer at once or when it is over.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/sessions/{name}/commands", tag = "sessions", operation_id = "run_command",
    params(("job" = String, Path), ("name" = String, Path), CommandQuery,
        ("Idempotency-Key" = Option<String>, Header, description = "Repeating a request with the same key gives the command once.")),
    request_body = RunCommand, responses((status = 201, body = SessionCommand), Always, OnJob, Reads, Takes, Conflicts))]
pub(super) async fn run(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    Segments((_, name)): Segments<(String, String)>,
    Params(query): Params<CommandQuery>,
    headers: HeaderMap,
    Json(request): Json<RunCommand>,
) -> Result<Response, Failure> {
    let key = idempotency_key(&headers)?;
    let asked = SessionAsk::Run { name: name.clone(), text: request.command, key };
    let mut given = one_command(ask(&shared, job.clone(), query.task, asked).await?)?;
    // Whoever runs one command after the other asks once for each, and not twice.
    if let Some(seconds) = query.wait.filter(|_| !given.0.state.is_over()) {
        let (number, wait_ms) = (given.0.number, u64::from(seconds) * 1000);
        let asked = SessionAsk::Command { name, number, wait_ms };
        given = one_command(ask(&shared, job, query.task, asked).await?)?;
    }
    Ok((StatusCode::CREATED, given).into_response())
}

/// List a session's last commands, up to 100.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/sessions/{name}/commands", tag = "sessions", operation_id = "list_commands",
    params(("job" = String, Path), ("name" = String, Path), SessionsQuery),
    responses((status = 200, body = CommandList), Always, OnJob, Reads, Conflicts))]
pub(super) async fn commands(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    Segments((_, name)): Segments<(String, String)>,
    Params(query): Params<SessionsQuery>,
) -> Result<Json<CommandList>, Failure> {
    match ask(&shared, job, query.task, SessionAsk::Commands { name }).await? {
        (SessionAnswer::Commands { items }, _) => Ok(Json(CommandList { items })),
        other => Err(strange(&other.0)),
    }
}

/// Show a command, at once or when it is over.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/sessions/{name}/commands/{number}", tag = "sessions", operation_id = "get_command",
    params(("job" = String, Path), ("name" = String, Path), ("number" = u32, Path), CommandQuery),
    responses((status = 200, body = SessionCommand), Always, OnJob, Reads, Conflicts))]
pub(super) async fn command(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    Segments((_, name, number)): Segments<(String, String, u32)>,
    Params(query): Params<CommandQuery>,
) -> Result<Json<SessionCommand>, Failure> {
    let wait_ms = u64::from(query.wait.unwrap_or(0)) * 1000;
    one_command(ask(&shared, job, query.task, SessionAsk::Command { name, number, wait_ms }).await?)
}

/// Send what a command has written, both of its outputs together.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/sessions/{name}/commands/{number}/output", tag = "sessions",
    operation_id = "get_command_output",
    params(("job" = String, Path), ("name" = String, Path), ("number" = u32, Path), OutputQuery),
    responses((status = 200, description = "The bytes.", content(
        (inline(super::describe::Bytes) = "application/octet-stream"))), Always, OnJob, Reads, Conflicts))]
pub(super) async fn output(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    Segments((_, name, number)): Segments<(String, String, u32)>,
    Params(query): Params<OutputQuery>,
) -> Result<Response, Failure> {
    let asked = SessionAsk::Output { name, number, offset: query.offset, follow: query.follow };
    match ask(&shared, job, query.task, asked).await? {
        (SessionAnswer::Output, stream) => {
            Ok(([(header::CONTENT_TYPE, "application/octet-stream")], pieces(stream)).into_response())
        }
        other => Err(strange(&other.0)),
    }
}

/// Send a signal to what runs in a session.
#[utoipa::path(post, path = "/api/v1/jobs/{job}/sessions/{name}/signal", tag = "sessions", operation_id = "signal_session",
    params(("job" = String, Path), ("name" = String, Path), SessionsQuery), request_body = Option<SendSignal>,
    responses((status = 204, description = "It was sent."), Always, OnJob, Reads, Takes, Conflicts))]
pub(super) async fn signal(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    Segments((_, name)): Segments<(String, String)>,
    Params(query): Params<SessionsQuery>,
    body: Bytes,
) -> Result<StatusCode, Failure> {
    let SendSignal { signal } = optional(&body)?;
    let signal = number(signal.as_deref().unwrap_or("INT"))?;
    ask(&shared, job, query.task, SessionAsk::Signal { name, signal }).await?;
    Ok(StatusCode::NO_CONTENT)
}

/// Sit down at a session's terminal, over a WebSocket.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/sessions/{name}/attach", tag = "sessions", operation_id = "attach_session",
    params(("job" = String, Path), ("name" = String, Path), AttachQuery), responses(
        (status = 101, description = "Binary messages carry bytes. What comes is what the terminal shows; what goes are \
            records: 0 for what is typed or 1 for a new size, the length of what follows (2 bytes, little endian), and \
            that; a size is columns and rows, 2 bytes each."),
        Always, OnJob, Reads, Conflicts))]
pub(super) async fn attach(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    caller: Caller,
    Segments((_, name)): Segments<(String, String)>,
    Params(query): Params<AttachQuery>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Failure> {
    let upgrade = upgradable(upgrade)?;
    let asked = SessionAsk::Attach { name, columns: query.columns, rows: query.rows };
    match ask(&shared, job, query.task, asked).await? {
        (SessionAnswer::Attached, stream) => Ok(connect(shared, caller, upgrade, stream, PIECE)),
        other => Err(strange(&other.0)),
    }
}

/// Asks a task, and reads the line that it answers; what follows it is in the stream.
async fn ask(
    shared: &Shared,
    job: JobId,
    task: Option<u32>,
    ask: SessionAsk,
) -> Result<(SessionAnswer, BufReader<Stream>), Problem> {
    let place = find(shared, job, None, task).await?;
    let mut stream = call(shared, &place, Call::Session { ask }).await?;
    match control::receive(&mut stream).await {
        Ok(Some(Received::Message(answer))) => Ok((answer, stream)),
        Ok(Some(Received::Unknown { .. }) | None) | Err(_) => {
            let message = format!("{} broke off in the middle of its answer", place.task);
            Err(Problem::new(Code::Unavailable, message).hint("try again"))
        }
    }
}

fn one((answer, _): (SessionAnswer, BufReader<Stream>)) -> Result<Json<Session>, Failure> {
    match answer {
        SessionAnswer::Session { session } => Ok(Json(session)),
        other => Err(strange(&other)),
    }
}

fn one_command((answer, _): (SessionAnswer, BufReader<Stream>)) -> Result<Json<SessionCommand>, Failure> {
    match answer {
        SessionAnswer::Command { command } => Ok(Json(command)),
        other => Err(strange(&other)),
    }
}

/// Only a node of another version answers something that was not asked.
fn strange(answer: &SessionAnswer) -> Failure {
    tracing::warn!(?answer, "a task answered something else than it was asked");
    let problem = Problem::new(Code::Unavailable, "the task answered something else than it was asked");
    Failure(problem.hint("server and node may differ too much in version"))
}

/// The signals that are of use to a program that runs.
fn number(name: &str) -> Result<i32, Problem> {
    use rustix::process::Signal;
    let known = [
        ("HUP", Signal::HUP),
        ("INT", Signal::INT),
        ("QUIT", Signal::QUIT),
        ("KILL", Signal::KILL),
        ("USR1", Signal::USR1),
        ("USR2", Signal::USR2),
        ("TERM", Signal::TERM),
        ("CONT", Signal::CONT),
        ("STOP", Signal::STOP),
        ("TSTP", Signal::TSTP),
    ];
    let plain = name.to_ascii_uppercase();
    let plain = plain.strip_prefix("SIG").unwrap_or(&plain);
    let found = known.iter().find(|(name, signal)| *name == plain || signal.as_raw().to_string() == plain);
    let names = known.map(|(name, _)| name).join(", ");
    let problem = || Problem::new(Code::InvalidRequest, format!("signal: `{name}` is none of {names}"));
    found.map(|(_, signal)| signal.as_raw()).ok_or_else(problem)
}
