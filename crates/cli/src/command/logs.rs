//! `muster logs`.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args as ClapArgs;
use muster_api::client::LogItem;
use muster_api::model::Timestamp;
use muster_api::view::LogsQuery;
use tokio::time::{MissedTickBehavior, interval};

use super::OneJob;
use crate::display::{Display, Mode};
use crate::error::{Code, Error};
use crate::follow::LogFollow;
use crate::session::Session;

/// How often a progress bar that stands still is looked at.
const TICK: Duration = Duration::from_secs(1);

/// Show what a job's tasks have written
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster logs last                  all of it, so far
  muster logs digits -f             and go on until the job is over
  muster logs digits --tail 20      the last 20 lines of each task
  muster logs digits --task 1       one task, byte for byte
  muster logs digits --attempt 1    what the first try wrote

What the tasks wrote to stdout goes to stdout, and stderr to stderr. \
Lines of a gang carry the name of their task.")]
pub(crate) struct Args {
    #[command(flatten)]
    job: OneJob,
    /// Go on until the job is over
    #[arg(short, long)]
    follow: bool,
    /// Only the last N lines of each task
    #[arg(short = 'n', long, value_name = "N")]
    tail: Option<u32>,
    /// Only the task of this rank
    #[arg(short, long, value_name = "RANK")]
    task: Option<u32>,
    /// This attempt instead of the last
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempt: Option<u32>,
    /// Print a JSON document for each piece of output
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Arc::new(Session::open().await?);
    let job = session.call(async |client| client.job(&args.job.job).await).await?.summary;
    if let Some(rank) = args.task.filter(|rank| *rank >= job.nodes) {
        return Err(Error::new(Code::TaskNotFound, format!("--task: {} has no task {rank}", job.id))
            .hint(format!("its tasks are 0 to {}", job.nodes.saturating_sub(1))));
    }
    let mode = match args.task {
        _ if args.json => Mode::Json,
        None if job.nodes > 1 => Mode::Labelled(job.nodes),
        _ => Mode::Raw,
    };
    let query = LogsQuery {
        task: args.task,
        attempt: args.attempt,
        follow: args.follow,
        tail: args.tail,
        cursor: None,
    };
    show(LogFollow::start(&session, job.id.as_str(), query), Display::new(mode)).await?;
    Ok(ExitCode::SUCCESS)
}

async fn show(mut log: LogFollow, mut display: Display) -> Result<(), Error> {
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            item = log.next() => match item? {
                LogItem::Chunk(chunk) => display.chunk(&chunk)?,
                LogItem::End(_) => return display.finish(),
            },
            _ = ticks.tick() => display.tick(Timestamp::now())?,
        }
    }
}
