//! `muster machine stop`, `start`, `kill` and `rename`.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::model::State;
use muster_api::view::JobSummary;

use crate::command::state;
use crate::error::Error;
use crate::machine::{self, Named, Waited};
use crate::session::Session;
use crate::terminal;

/// The groups a command is about, and how it goes on.
#[derive(Debug, ClapArgs)]
pub(crate) struct Which {
    /// Their names: NAME or {NAME}; task0.NAME where there is only one
    #[arg(value_name = "NAME", required = true)]
    names: Vec<Named>,
    /// Do not wait until it is done
    #[arg(long)]
    no_wait: bool,
    /// Print their jobs as JSON
    #[arg(long)]
    json: bool,
}

/// Give machines back for now; their names and files stay
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster machine stop v100
  muster machine stop v100 a100 --no-wait

What runs on them ends: processes get SIGTERM, and SIGKILL after 10 s.")]
pub(crate) struct StopArgs {
    #[command(flatten)]
    which: Which,
}

/// Take stopped machines again, the same hosts if they are free
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  muster machine start v100\n  muster machine start v100 --no-wait")]
pub(crate) struct StartArgs {
    #[command(flatten)]
    which: Which,
}

/// Give machines back for good
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  muster machine kill v100\n  muster machine kill v100 a100")]
pub(crate) struct KillArgs {
    #[command(flatten)]
    which: Which,
}

/// Call machines something else
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster machine rename v100 bert

What runs there knows the old name until the machines are started again.")]
pub(crate) struct RenameArgs {
    /// As they are called now
    old: Named,
    /// As they are to be called; no other job that is not over may have the name
    new: Named,
    /// Print the job as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn stop(args: &StopArgs) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let mut jobs = Vec::new();
    // All are asked before any is waited for.
    for named in &args.which.names {
        let job = machine::find_whole(&session, named, "stopped").await?;
        jobs.push(machine::suspend(&session, job.id.as_str()).await?);
    }
    if !args.which.no_wait {
        for job in &mut jobs {
            *job = machine::until(&session, job.id.as_str(), |state| state == State::Suspended).await?;
        }
    }
    tell(&jobs, args.which.json)
}

pub(crate) async fn start(args: &StartArgs) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let mut jobs = Vec::new();
    for named in &args.which.names {
        let job = machine::find_whole(&session, named, "started").await?;
        jobs.push(machine::resume(&session, job.id.as_str()).await?);
    }
    if !args.which.no_wait {
        for job in &mut jobs {
            match machine::until_ready(&session, job.id.as_str()).await? {
                Waited::Ready(ready) => *job = ready.summary,
                Waited::Interrupted(signal) => {
                    terminal::note(&format!("`{}` starts when there is room", job.name));
                    return Ok(ExitCode::from(u8::try_from(signal.exit_code()).unwrap_or(130)));
                }
            }
        }
    }
    tell(&jobs, args.which.json)
}

pub(crate) async fn kill(args: &KillArgs) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let mut jobs = Vec::new();
    for named in &args.which.names {
        let job = machine::find_whole(&session, named, "killed").await?;
        jobs.push(machine::kill(&session, job.id.as_str()).await?);
    }
    if !args.which.no_wait {
        for job in &mut jobs {
            *job = machine::until(&session, job.id.as_str(), State::is_terminal).await?;
        }
    }
    tell(&jobs, args.which.json)
}

pub(crate) async fn rename(args: &RenameArgs) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let job = machine::find_whole(&session, &args.old, "renamed").await?;
    let (id, new) = (job.id.as_str(), &args.new.group);
    let renamed = session.call(async |client| client.rename_job(id, new).await).await?;
    tell(&[renamed], args.json)
}

fn tell(jobs: &[JobSummary], json: bool) -> Result<ExitCode, Error> {
    if json {
        terminal::say_json(&jobs)?;
        return Ok(ExitCode::SUCCESS);
    }
    for job in jobs {
        terminal::say(&format!("{} {}", job.name, state::words(job)))?;
    }
    Ok(ExitCode::SUCCESS)
}
