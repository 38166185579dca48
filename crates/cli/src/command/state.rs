//! How a job's state looks, the same in every command.

use std::cell::Cell;
use std::process::ExitCode;
use std::time::Duration;

use muster_api::Code;
use muster_api::client::{Client, Error as ClientError};
use muster_api::model::State;
use muster_api::view::JobSummary;
use tokio::time::timeout;

use super::Jobs;
use crate::duration::{between, shown};
use crate::error::Error;
use crate::session::Session;
use crate::terminal::{self, Colour};

/// Long enough for any server that answers; output waits meanwhile.
const ATTEMPT_DEADLINE: Duration = Duration::from_secs(2);

pub(crate) fn colour(state: State) -> Option<Colour> {
    match state {
        State::Queued | State::Suspended => Some(Colour::Dim),
        State::Starting | State::Stopping => Some(Colour::Yellow),
        State::Running => Some(Colour::Cyan),
        State::Succeeded => Some(Colour::Green),
        State::Failed => Some(Colour::Red),
        State::Stopped => None,
    }
}

/// The state, with the reason where it failed: `failed: exited with code 1`.
pub(crate) fn words(job: &JobSummary) -> String {
    match (job.state, &job.message) {
        (State::Failed, Some(message)) => format!("failed: {message}"),
        _ => job.state.to_string(),
    }
}

/// Why an attempt of a job ended. Output is shown without it where the server does not answer soon.
pub(crate) async fn end_of_attempt(session: &Session, job: &str, attempt: u32) -> Option<String> {
    let job = timeout(ATTEMPT_DEADLINE, session.client().job(job)).await.ok()?.ok()?;
    let ended = job.attempts.into_iter().find(|ended| ended.number == attempt)?;
    ended.reason.map(|reason| reason.message())
}

/// The jobs that a command names. Where it names several, one that is not there is told before any is touched.
pub(crate) async fn find(session: &Session, jobs: &Jobs) -> Result<Vec<String>, Error> {
    let mut found = Vec::new();
    for job in &jobs.jobs {
        found.push(match &jobs.jobs[..] {
            [one] => one.clone(),
            _ => session.call(async |client| client.job(job).await).await?.summary.id.to_string(),
        });
    }
    Ok(found)
}

/// Changes each of these jobs, one after the other. A request whose reply was lost is repeated; where a job then refuses the
/// change, `is_done` says whether the first request was carried out.
pub(crate) async fn change<F>(
    session: &Session,
    jobs: &Jobs,
    change: F,
    is_done: fn(State) -> bool,
) -> Result<Vec<JobSummary>, Error>
where
    F: AsyncFn(&Client, &str) -> Result<JobSummary, ClientError>,
{
    let mut changed = Vec::new();
    for job in find(session, jobs).await? {
        changed.push(change_one(session, &job, &change, is_done).await?);
    }
    Ok(changed)
}

async fn change_one<F>(
    session: &Session,
    job: &str,
    change: &F,
    is_done: fn(State) -> bool,
) -> Result<JobSummary, Error>
where
    F: AsyncFn(&Client, &str) -> Result<JobSummary, ClientError>,
{
    let is_repeated = Cell::new(false);
    let change = async |client: &Client| match change(client, job).await {
        Err(error) if is_repeated.get() && error.code() == Some(Code::InvalidState) => {
            let now = client.job(job).await?.summary;
            if is_done(now.state) { Ok(now) } else { Err(error) }
        }
        Err(error) => {
            is_repeated.set(true);
            Err(error)
        }
        changed => changed,
    };
    session.call(change).await
}

/// What a command that changed jobs says at its end: each of them on a line, or all of them as JSON.
pub(crate) fn say(jobs: &[JobSummary], json: bool) -> Result<ExitCode, Error> {
    if json {
        terminal::say_json(&jobs)?;
    } else {
        for job in jobs {
            terminal::say(&format!("{} {}", job.id, words(job)))?;
        }
    }
    Ok(ExitCode::SUCCESS)
}

/// How long it has run, or ran; empty before it does, and while it does not.
pub(crate) fn run_time(job: &JobSummary, now: muster_api::model::Timestamp) -> String {
    let Some(started_at) = job.started_at.filter(|_| job.state != State::Suspended) else {
        return String::new();
    };
    shown(between(started_at, job.ended_at.unwrap_or(now)))
}

/// `2 tasks`, `1 task`.
pub(crate) fn tasks(count: u32) -> String {
    if count == 1 { "1 task".into() } else { format!("{count} tasks") }
}

#[cfg(test)]
mod tests {
    use muster_api::client::Endpoint;
    use muster_api::model::JobSpec;
    use muster_api::problem::Problem;
    use serde_json::{Value, json};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::{UnixListener, UnixStream};
    use tokio::task::JoinSet;

    use super::*;
    use crate::place::{By, Named};

    async fn request(stream: &mut UnixStream) -> String {
        let mut head = Vec::new();
        while !head.ends_with(b"\r\n\r\n") {
            head.push(stream.read_u8().await.unwrap());
        }
        String::from_utf8(head).unwrap()
    }

    async fn reply(stream: &mut UnixStream, status: &str, body: &str) {
        let head = format!("HTTP/1.1 {status}\r\ncontent-length: {}\r\n\r\n", body.len());
        stream.write_all(format!("{head}{body}").as_bytes()).await.unwrap();
    }

    fn job(state: State) -> Value {
        let spec = JobSpec::from_value(json!({"command": ["true"]})).unwrap();
        json!({"id": "job_0123456789", "name": "x", "state": state, "reason": null, "message": null, "nodes": 1,
            "gpus": null, "command": "true", "on": "local", "owner": "me", "attempt": 1, "exit_code": null,
            "submitted_at": "2026-01-01T00:00:00Z", "started_at": null, "ended_at": null,
            "spec": spec, "bundle": null, "source": null, "failed_rank": null, "attempts": []})
    }

    /// Suspends a job of a server that refuses it and shows it in a state; before that, it may take a request and die.
    async fn suspend(loses_one: bool, shows: State) -> Result<JobSummary, Error> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("server.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        let mut server: JoinSet<()> = JoinSet::new();
        server.spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            if loses_one {
                request(&mut stream).await;
                drop(stream);
                stream = listener.accept().await.unwrap().0;
            }
            assert!(request(&mut stream).await.starts_with("POST /api/v1/jobs/x/suspend "));
            let problem = Problem::new(Code::InvalidState, "the job is suspended");
            reply(&mut stream, "409 Conflict", &serde_json::to_string(&problem).unwrap()).await;
            request(&mut stream).await;
            reply(&mut stream, "200 OK", &job(shows).to_string()).await;
            std::future::pending().await
        });
        let named = Named { endpoint: Endpoint::unix(&socket), by: By::Flag };
        let session = Session::named(&named).await?;
        let done = |state| matches!(state, State::Suspended | State::Stopping);
        change_one(&session, "x", &async |client: &Client, job: &str| client.suspend_job(job).await, done)
            .await
    }

    #[tokio::test]
    async fn a_change_whose_reply_was_lost_is_done_and_not_refused() {
        assert_eq!(suspend(true, State::Suspended).await.unwrap().state, State::Suspended);
        let refused = suspend(true, State::Succeeded).await.unwrap_err();
        assert_eq!(refused.code(), "invalid_state");
        let refused = suspend(false, State::Suspended).await.unwrap_err();
        assert_eq!(refused.code(), "invalid_state", "nothing was lost: it was suspended before");
    }
}
