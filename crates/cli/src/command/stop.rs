//! `muster stop`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;
use muster_api::Code;
use muster_api::client;
use muster_api::view::{JobSummary, StopJob};

use super::{Jobs, state};
use crate::duration;
use crate::error::Error;
use crate::follow::wait_for_end;
use crate::session::Session;

/// Stop jobs
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster stop last
  muster stop digits --grace 2m     time to save a checkpoint
  muster stop job_4k --force        SIGKILL at once
  muster stop $(muster ps -q --state running)

Each task gets SIGTERM, and SIGKILL when it is not gone after the grace period of its job \
(10 s unless it says otherwise). A job that is over already is left as it is.")]
pub(crate) struct Args {
    #[command(flatten)]
    jobs: Jobs,
    /// How long tasks may take to end: 30s, 2m
    #[arg(long, value_name = "TIME", value_parser = duration::parse, conflicts_with = "force")]
    grace: Option<Duration>,
    /// Kill at once
    #[arg(long)]
    force: bool,
    /// Do not wait until they are gone
    #[arg(long)]
    no_wait: bool,
    /// Print the jobs as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let grace = if args.force { Some(Duration::ZERO) } else { args.grace };
    let mut stopped = Vec::new();
    // All are asked before any is waited for.
    for selector in state::find(&session, &args.jobs).await? {
        stopped.push(stop(&session, &selector, grace).await?);
    }
    if !args.no_wait {
        for job in &mut stopped {
            if !job.state.is_terminal() {
                *job = wait_for_end(&session, job.id.as_str()).await?.job;
            }
        }
    }
    state::say(&stopped, args.json)
}

/// Asks a job to stop; one that is over already is returned as it is.
pub(super) async fn stop(
    session: &Session,
    selector: &str,
    grace: Option<Duration>,
) -> Result<JobSummary, Error> {
    let grace_ms = grace.map(|grace| u64::try_from(grace.as_millis()).unwrap_or(u64::MAX));
    let how = StopJob { grace_ms };
    let ask = async |client: &client::Client| match client.stop_job(selector, &how).await {
        Err(error) if error.code() == Some(Code::InvalidState) => Ok(client.job(selector).await?.summary),
        other => other,
    };
    session.call(ask).await
}
