//! `muster wait`: until jobs are over, with their exit code.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;
use muster_api::view::JobSummary;
use tokio::time::timeout;

use super::{Jobs, state};
use crate::duration;
use crate::error::{Code, Error};
use crate::follow::wait_for_end;
use crate::session::Session;
use crate::terminal;

/// Wait until jobs are over
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster wait last
  muster wait prepare train --timeout 2h && muster run -- python evaluate.py

Exit code: that of the first job named here that did not succeed, 0 if all did; \
124 after the timeout.")]
pub(crate) struct Args {
    #[command(flatten)]
    jobs: Jobs,
    /// Give up after this time: 90s, 15m, 2h; the jobs go on
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// Print the jobs as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let ended = match args.timeout {
        None => wait_for_all(&session, &args.jobs.jobs).await?,
        Some(limit) => timeout(limit, wait_for_all(&session, &args.jobs.jobs)).await.map_err(|_| {
            Error::new(Code::WaitTimeout, format!("not over after {}", duration::shown(limit)))
        })??,
    };
    if args.json {
        terminal::say_json(&ended)?;
    } else {
        for job in &ended {
            terminal::say(&format!("{} {}", job.id, state::words(job)))?;
        }
    }
    Ok(exit_code(&ended))
}

async fn wait_for_all(session: &Session, selectors: &[String]) -> Result<Vec<JobSummary>, Error> {
    // All names are resolved first: `last` may be another job tomorrow, and a wrong name is said at once.
    let mut ids = Vec::new();
    for selector in selectors {
        ids.push(session.call(async |client| client.job(selector).await).await?.summary.id);
    }
    let mut ended = Vec::new();
    for id in &ids {
        ended.push(wait_for_end(session, id.as_str()).await?.job);
    }
    Ok(ended)
}

/// The first one that is not 0.
fn exit_code(jobs: &[JobSummary]) -> ExitCode {
    let first = jobs.iter().map(|job| job.exit_code.unwrap_or(0)).find(|code| *code != 0);
    super::run::exit_code(first)
}
