//! How a job's state looks, the same in every command.

use std::process::ExitCode;
use std::time::Duration;

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

/// Changes each of these jobs, one after the other. Where the answer was lost the request is repeated: a server does once what it
/// is asked twice.
pub(crate) async fn change<F>(session: &Session, jobs: &Jobs, change: F) -> Result<Vec<JobSummary>, Error>
where
    F: AsyncFn(&Client, &str) -> Result<JobSummary, ClientError>,
{
    let mut changed = Vec::new();
    for job in find(session, jobs).await? {
        changed.push(session.call(async |client| change(client, &job).await).await?);
    }
    Ok(changed)
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
