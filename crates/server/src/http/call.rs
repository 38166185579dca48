//! Calls on tasks.
//!
//! A refusal is an ordinary reply, before the upgrade; after it there are only bytes, from the client to the task's node and
//! back.

use std::io;
use std::sync::Arc;

use axum::extract::State;
use axum::extract::ws::WebSocketUpgrade;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::response::Response;
use muster_api::problem::{Code, Problem};
use muster_api::view::{CopyQuery, SshQuery};
use muster_link::control::{self, Received};
use muster_link::message::{Call, Called, StreamHeader};
use muster_link::session::Stream;
use tokio::io::{AsyncWriteExt, BufReader, copy_bidirectional_with_sizes};

use super::describe::{Always, Conflicts, OnJob, Reads};
use super::failure::{Failure, Params, TheJob};
use super::file::{Place, find};
use crate::accounts::Caller;
use crate::link;
use crate::state::{Shared, Visit};

/// How much is moved at once, in each direction.
pub(super) const PIECE: usize = 64 << 10;
/// The same for a copy, of which nobody has many at a time.
const COPY_PIECE: usize = 256 << 10;

/// Speak SSH with a task, over a WebSocket. The task lets in whoever shows the key that the request names.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/ssh", tag = "calls", operation_id = "ssh",
    params(("job" = String, Path), SshQuery), responses(
        (status = 101, description = "Binary messages carry the bytes of the SSH connection."), Always, OnJob, Reads, Conflicts))]
pub(super) async fn ssh(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    caller: Caller,
    Params(query): Params<SshQuery>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Failure> {
    let upgrade = upgradable(upgrade)?;
    let place = find(&shared, job, None, query.task).await?;
    let stream = call(&shared, &place, Call::Ssh { key: query.key }).await?;
    Ok(connect(shared, caller, upgrade, stream, PIECE))
}

/// Copy files to or from a task, over a WebSocket.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/copy", tag = "calls", operation_id = "copy",
    params(("job" = String, Path), CopyQuery), responses(
        (status = 101, description = "Binary messages carry the frames of a copy, as `muster cp` speaks them."), Always, OnJob,
        Reads, Conflicts))]
pub(super) async fn copy(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    caller: Caller,
    Params(query): Params<CopyQuery>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Failure> {
    let upgrade = upgradable(upgrade)?;
    let place = find(&shared, job, None, query.task).await?;
    let stream = call(&shared, &place, Call::Copy).await?;
    Ok(connect(shared, caller, upgrade, stream, COPY_PIECE))
}

pub(super) fn upgradable(
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<WebSocketUpgrade, Problem> {
    upgrade.map_err(|rejection| Problem::new(Code::InvalidRequest, rejection.body_text()))
}

/// Calls on a task; what comes back is open.
pub(super) async fn call(shared: &Shared, place: &Place, call: Call) -> Result<BufReader<Stream>, Problem> {
    let Place { task, node, end, .. } = place;
    if let Some(end) = end {
        // Its node may be one that does not answer any more.
        let how = end.failure.as_ref().map_or_else(String::new, |reason| format!(": {}", reason.message()));
        return Err(Problem::new(Code::InvalidState, format!("{task} is over{how}")).hint(format!(
            "only a running task can be reached; `muster show {}` says how it is",
            task.attempt.job
        )));
    }
    let header = StreamHeader::Call { task: task.clone(), call };
    let called = async {
        let mut stream = BufReader::with_capacity(PIECE, shared.bulks.open_live(node).await?);
        control::send(&mut stream, &header).await?;
        stream.flush().await?;
        io::Result::Ok((control::receive::<Called>(&mut stream).await?, stream))
    };
    let job = &task.attempt.job;
    match called.await {
        Ok((Some(Received::Message(Called::Open)), stream)) => Ok(stream),
        Ok((Some(Received::Message(Called::Refused { code, message })), _)) => match code.as_str() {
            "not_running" => Err(Problem::new(Code::InvalidState, message)
                .hint(format!("only a running task can be reached; `muster show {job}` says how it is"))),
            "invalid" => Err(Problem::new(Code::InvalidRequest, message)),
            "not_found" => Err(Problem::new(Code::NotFound, message)
                .hint(format!("`muster session ls {job}` lists the sessions of its tasks"))),
            "session_over" => Err(Problem::new(Code::SessionOver, message).hint(
                "open it anew with `--fresh`; `muster session output` still shows what its commands wrote",
            )),
            "full" => Err(Problem::new(Code::InvalidState, message)),
            _ => Err(Problem::new(Code::Unavailable, message)),
        },
        Ok((Some(Received::Unknown { .. }) | None, _)) => {
            Err(Problem::new(Code::Unavailable, format!("{node} did not answer the call on {task}"))
                .hint("try again; if it goes on, its agent may be of an older version"))
        }
        Err(error) => Err(Problem::new(
            Code::Unavailable,
            format!("{node}, where {task} runs, cannot be reached: {error}"),
        )
        .hint("try again when it is connected; `muster nodes` says whether it is")),
    }
}

/// Moves bytes between a client and a task until either has had enough.
pub(super) fn connect(
    shared: Arc<Shared>,
    caller: Caller,
    upgrade: WebSocketUpgrade,
    mut stream: BufReader<Stream>,
    piece: usize,
) -> Response {
    // A caller is a visitor for as long as the call lasts.
    let visit = Visit::begin(shared.clone());
    upgrade.on_upgrade(async move |socket| {
        let _visit = visit;
        let mut client = link::bytes(socket);
        tokio::select! {
            // How it ended, both ends know better.
            _ = copy_bidirectional_with_sizes(&mut client, &mut stream, piece, piece) => {}
            () = shared.hang_up.cancelled() => {}
            () = caller.ended() => {}
        }
    })
}
