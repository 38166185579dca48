//! `muster priority`.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::client::Client;
use muster_api::quota::ChangeJob;

use super::{Jobs, state};
use crate::error::Error;
use crate::session::Session;
use crate::terminal;

/// Give jobs that are not over another priority: the highest start first
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster priority last 700
  muster priority digits bert 100

A job that waits goes to its new place at once. One that runs goes on; if it said that it may be preempted, its new \
priority says for whom. Where people share a server, members name no higher one than their workspace has.")]
pub(crate) struct Args {
    #[command(flatten)]
    jobs: Jobs,
    /// From 1 to 1000; 500 is the usual one
    #[arg(value_name = "PRIORITY", value_parser = clap::value_parser!(u32).range(0..=1000))]
    priority: u32,
    /// Print the jobs as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let change = ChangeJob { priority: Some(args.priority) };
    let reprioritise = async |client: &Client, job: &str| client.change_job(job, &change).await;
    let jobs = state::change(&session, &args.jobs, reprioritise).await?;
    if args.json {
        return state::say(&jobs, true);
    }
    for job in &jobs {
        terminal::say(&format!("{} has priority {}", job.id, args.priority))?;
    }
    Ok(ExitCode::SUCCESS)
}
