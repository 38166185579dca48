//! `muster logs`.

mod download;

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use clap::Args as ClapArgs;
use muster_api::client::LogItem;
use muster_api::model::Timestamp;
use muster_api::model::quantity::format_bytes;
use muster_api::view::{DamagedLog, JobDetail, LogChunk, LogsQuery, StreamEnd};
use tokio::time::{MissedTickBehavior, interval};

use super::{OneJob, state};
use crate::display::{Display, Mode};
use crate::error::{Code, Error};
use crate::follow::LogFollow;
use crate::session::Session;
use crate::{moment, terminal};

/// How often a progress bar that stands still is looked at.
const TICK: Duration = Duration::from_secs(1);

/// Show what a job's tasks have written
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster logs last                          all of it, so far
  muster logs digits -f                     and go on until the job is over
  muster logs digits --tail 20              the last 20 lines of each task
  muster logs digits --task 1               one task, byte for byte
  muster logs digits --rank 3               one process, where tasks start several
  muster logs digits --attempt 1            what the first try wrote
  muster logs digits --since 10m            what it wrote in the last ten minutes
  muster logs digits --grep 'loss=nan' -f   lines that match, as they come
  muster logs sweep --element 7             one element of an array
  muster logs digits --output digits.log    all of it into a file
  muster logs digits --output logs/         a file for each task

What the tasks wrote to stdout goes to stdout, and stderr to stderr. \
Lines of a gang carry the name of their task, and lines of several processes their rank. \
On a terminal, of another person's job only text and colours are passed; other escape sequences are shown as text.")]
pub(crate) struct Args {
    #[command(flatten)]
    job: OneJob,
    /// Go on until the job is over
    #[arg(short, long)]
    follow: bool,
    /// Only the last N lines of each task; with --grep, the last that match
    #[arg(short = 'n', long, value_name = "N")]
    tail: Option<u32>,
    /// Only the task of this rank
    #[arg(short, long, value_name = "RANK")]
    task: Option<u32>,
    /// Only the process of this rank
    #[arg(long, value_name = "RANK", conflicts_with = "task")]
    rank: Option<u32>,
    /// The last run of this element of an array
    #[arg(long, value_name = "INDEX", conflicts_with_all = ["task", "rank", "attempt", "tail", "output"])]
    element: Option<u32>,
    /// This attempt instead of the last
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..))]
    attempt: Option<u32>,
    /// Only what was written from then on: 10m ago, 10:00, 2026-11-15T10:00
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    since: Option<Timestamp>,
    /// Only what was written up to then
    #[arg(long, value_name = "TIME", value_parser = moment::parse)]
    until: Option<Timestamp>,
    /// Put its time before each line
    #[arg(long)]
    timestamps: bool,
    /// Only lines that this regular expression matches; the server searches
    #[arg(short, long, value_name = "PATTERN")]
    grep: Option<String>,
    /// Search without regard to upper and lower case
    #[arg(short, long, requires = "grep")]
    ignore_case: bool,
    /// Only lines that do not match
    #[arg(short = 'v', long, requires = "grep")]
    invert_match: bool,
    /// Write to this file; to a directory, a file for each task
    #[arg(short, long, value_name = "PATH", conflicts_with_all = ["follow", "tail", "timestamps", "json"])]
    output: Option<PathBuf>,
    /// Pass escape sequences of another person's job to the terminal
    #[arg(long, conflicts_with_all = ["output", "json"])]
    raw: bool,
    /// Print a JSON document for each piece of output
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Arc::new(Session::open().await?);
    let detail = session.call(async |client| client.job(&args.job.job).await).await?;
    let ranks = ranks(&detail);
    let job = detail.summary;
    let is_lane = job.elements.is_some();
    if let Some(rank) = args.task.filter(|rank| *rank >= job.nodes && !is_lane) {
        return Err(Error::new(Code::TaskNotFound, format!("--task: {} has no task {rank}", job.id))
            .hint(format!("its tasks are 0 to {}", job.nodes.saturating_sub(1))));
    }
    let query = query(args);
    if let Some(path) = &args.output {
        download::run(&session, &job, query, path).await?;
        return Ok(ExitCode::SUCCESS);
    }
    let is_one = args.task.is_some() || args.rank.is_some();
    let shown = if is_one { 1 } else { job.nodes };
    let mode = match shown {
        _ if args.json => Mode::Json,
        tasks if args.timestamps => Mode::Timed(tasks),
        0 | 1 => Mode::Raw,
        tasks => Mode::Labelled(tasks),
    };
    let mut display = Display::new(mode).with_ranks(if is_one { 0 } else { ranks });
    if terminal::is_watched() && !args.raw && !args.json && session.is_of_another(&job.owner).await? {
        display = display.of_another();
    }
    show(&session, job.id.as_str(), query, display).await?;
    Ok(ExitCode::SUCCESS)
}

/// How many processes its tasks start in all.
pub(super) fn ranks(job: &JobDetail) -> u32 {
    let processes = job.launch.as_ref().map_or(1, |launch| launch.processes);
    // A script may start more than is known.
    job.summary.nodes.saturating_mul(processes).max(2)
}

fn query(args: &Args) -> LogsQuery {
    LogsQuery {
        task: args.task,
        process_rank: args.rank,
        element: args.element,
        attempt: args.attempt,
        follow: args.follow,
        tail: args.tail,
        // A moment, not a span: a connection that is lost and made again asks for the same.
        since: args.since.map(|since| since.to_string()),
        until: args.until.map(|until| until.to_string()),
        grep: args.grep.clone(),
        ignore_case: args.ignore_case,
        invert_match: args.invert_match,
        cursor: None,
    }
}

async fn show(
    session: &Arc<Session>,
    job: &str,
    query: LogsQuery,
    mut display: Display,
) -> Result<(), Error> {
    let mut log = LogFollow::start(session, job, query);
    let mut ticks = interval(TICK);
    ticks.set_missed_tick_behavior(MissedTickBehavior::Delay);
    loop {
        tokio::select! {
            item = log.next() => match item? {
                LogItem::Chunk(chunk) => {
                    if display.begins_attempt(&chunk) {
                        let reason = state::end_of_attempt(session, job, chunk.attempt - 1).await;
                        display.on_attempt(chunk.attempt, reason.as_deref())?;
                    }
                    if chunk.cut {
                        note_cut(&chunk);
                    }
                    display.chunk(&chunk)?;
                }
                LogItem::End(end) => {
                    display.finish()?;
                    note_missing(&end);
                    return check_damage(&end);
                }
            },
            _ = ticks.tick() => display.tick(Timestamp::now())?,
        }
    }
}

/// Says that a line is not shown whole.
fn note_cut(chunk: &LogChunk) {
    let rank = chunk.rank;
    terminal::note(&format!(
        "the first line of task{rank} is too long: only its end is shown; without --tail it is whole"
    ));
}

/// Fails if a part of what was shown is damaged.
fn check_damage(end: &StreamEnd) -> Result<(), Error> {
    let Some(first) = end.damaged.first() else { return Ok(()) };
    let place = |damaged: &DamagedLog| {
        format!("task{}: {} from byte {}", damaged.rank, format_bytes(damaged.bytes), damaged.offset)
    };
    let message = format!(
        "the log of task{} is damaged on the server's disk: what is shown may be wrong, or not all",
        first.rank
    );
    Err(Error::new(Code::LogDamaged, message).details(end.damaged.iter().map(place).collect()))
}

/// Says what did not come.
fn note_missing(end: &StreamEnd) {
    for missing in &end.missing {
        let (size, rank, node) = (format_bytes(missing.bytes), missing.rank, &missing.node);
        terminal::note(&format!("the last {size} of task{rank}'s log are still on {node}, which is away"));
    }
}
