//! `muster release`.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::client::Client;

use super::{Jobs, state};
use crate::error::Error;
use crate::session::Session;

/// Release held jobs
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster release last
  muster release digits bert")]
pub(crate) struct Args {
    #[command(flatten)]
    jobs: Jobs,
    /// Print the jobs as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let release = async |client: &Client, job: &str| client.release_job(job).await;
    let jobs = state::change(&session, &args.jobs, release).await?;
    state::say(&jobs, args.json)
}
