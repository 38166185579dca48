//! `muster rm`.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;
use muster_api::Code;
use muster_api::client;
use serde_json::json;

use super::{Jobs, state, stop};
use crate::error::Error;
use crate::follow::wait_for_end;
use crate::session::Session;
use crate::terminal;

/// Remove jobs that are over, with their logs and files
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster rm last
  muster rm digits --force          also if it still runs
  muster rm $(muster ps -aq --state succeeded)")]
pub(crate) struct Args {
    #[command(flatten)]
    jobs: Jobs,
    /// Kill those that still run
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let mut removed = Vec::new();
    for selector in state::find(&session, &args.jobs).await? {
        let id = session.call(async |client| client.job(&selector).await).await?.summary.id;
        if args.force && !stop::stop(&session, id.as_str(), Some(Duration::ZERO)).await?.state.is_terminal() {
            wait_for_end(&session, id.as_str()).await?;
        }
        remove(&session, id.as_str()).await?;
        if !args.json {
            terminal::say(id.as_str())?;
        }
        removed.push(id);
    }
    if args.json {
        terminal::say_json(&json!({"removed": removed}))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn remove(session: &Session, id: &str) -> Result<(), Error> {
    let remove = async |client: &client::Client| match client.delete_job(id).await {
        // We have just seen it: a request that was repeated after a lost reply finds its own work done.
        Err(error) if error.code() == Some(Code::JobNotFound) => Ok(Ok(())),
        Err(error) if error.code() == Some(Code::InvalidState) => {
            Ok(Err(Error::from(error).hint(format!("`muster rm --force {id}` stops it first"))))
        }
        other => other.map(Ok),
    };
    session.call(remove).await?
}
