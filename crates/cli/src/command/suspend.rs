//! `muster suspend`.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::client::Client;
use muster_api::model::State;

use super::{Jobs, state};
use crate::error::Error;
use crate::machine::until;
use crate::session::Session;

/// Pause jobs: their tasks end, and nothing is held for them
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster suspend last
  muster suspend digits bert --no-wait

Tasks get SIGTERM, as with `muster stop`; `muster resume` starts the command anew, on the same nodes if they are free, \
with MUSTER_PREVIOUS_OUTPUT_DIR naming what it left.")]
pub(crate) struct Args {
    #[command(flatten)]
    jobs: Jobs,
    /// Do not wait until they are gone
    #[arg(long)]
    no_wait: bool,
    /// Print the jobs as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let suspend = async |client: &Client, job: &str| client.suspend_job(job).await;
    let mut jobs = state::change(&session, &args.jobs, suspend).await?;
    if !args.no_wait {
        for job in &mut jobs {
            *job = until(&session, job.id.as_str(), |state| state == State::Suspended).await?;
        }
    }
    state::say(&jobs, args.json)
}
