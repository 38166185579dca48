//! `muster attach`: staying with a job again, as `muster run` does: the opposite of detaching.

use std::process::ExitCode;
use std::sync::Arc;

use clap::Args as ClapArgs;
use muster_api::model::Timestamp;
use muster_api::view::LogsQuery;

use super::OneJob;
use super::run::{Unattended, View, watch};
use crate::error::Error;
use crate::interrupt::Interrupts;
use crate::moment;
use crate::session::Session;
use crate::terminal;

/// Stay with a job that waits or runs, as `muster run` does
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster attach last
  muster attach bert --tail 20       the last 20 lines of each task, and what comes
  muster attach bert --tail 0        only what comes
  muster attach bert && muster get bert model.pt

Shows the job's output from the start of its current attempt, and ends when the job does. \
Ctrl-C asks whether to stop the job or to leave it running; when there is nobody to ask, it goes on.

Exit codes: those of `muster run`; 0 after detaching.")]
pub(crate) struct Args {
    #[command(flatten)]
    job: OneJob,
    /// Only the last N lines of each task, and what comes
    #[arg(short = 'n', long, value_name = "N")]
    tail: Option<u32>,
    /// Only what was written from then on: 10m ago, 10:00, 2026-11-15T10:00
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    since: Option<Timestamp>,
    /// Print the job as JSON at its end; its output goes to stderr
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Arc::new(Session::open().await?);
    let interrupts = Interrupts::listen()?;
    let job = session.call(async |client| client.job(&args.job.job).await).await?;
    let log = LogsQuery {
        follow: true,
        tail: args.tail,
        since: args.since.map(|since| since.to_string()),
        ..LogsQuery::default()
    };
    let is_of_another = terminal::is_watched() && session.is_of_another(&job.summary.owner).await?;
    let view = View { lines: &[], log, json: args.json, unattended: Unattended::Detach, is_of_another };
    watch(&session, &job, view, interrupts).await
}
