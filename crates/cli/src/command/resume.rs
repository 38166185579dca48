//! `muster resume`.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::client::Client;

use super::{Jobs, state};
use crate::error::Error;
use crate::session::Session;

/// Bring jobs back that were paused
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster resume digits
  muster resume $(muster ps -q --state suspended)

They wait in the queue as they did before, and prefer the nodes they had; `muster attach` stays with one.")]
pub(crate) struct Args {
    #[command(flatten)]
    jobs: Jobs,
    /// Print the jobs as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let resume = async |client: &Client, job: &str| client.resume_job(job).await;
    let jobs = state::change(&session, &args.jobs, resume).await?;
    state::say(&jobs, args.json)
}
