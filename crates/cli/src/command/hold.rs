//! `muster hold`.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::client::Client;

use super::{Jobs, state};
use crate::error::Error;
use crate::session::Session;

/// Keep jobs that wait in the queue, until they are let go
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster hold last
  muster run -d --hold -- python train.py     held from the beginning

One that runs is not touched: `muster suspend` ends its tasks and keeps the job. One that waits in Slurm is held there.")]
pub(crate) struct Args {
    #[command(flatten)]
    jobs: Jobs,
    /// Print the jobs as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let hold = async |client: &Client, job: &str| client.hold_job(job).await;
    let jobs = state::change(&session, &args.jobs, hold).await?;
    state::say(&jobs, args.json)
}
