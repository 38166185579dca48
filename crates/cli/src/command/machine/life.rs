//! `muster machine stop`, `start`, `kill` and `rename`.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::model::State;
use muster_api::view::JobSummary;

use crate::command::state;
use crate::error::Error;
use crate::machine::{self, Meant, Member, Named, Waited};
use crate::session::Session;
use crate::terminal;

/// The groups a command is about, and how it goes on.
#[derive(Debug, ClapArgs)]
pub(crate) struct Which {
    /// Their names: NAME or {NAME} for all of a group, task0.NAME for one of it
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
  muster machine stop task1.v100
  muster machine stop v100 a100 --no-wait

The others of a group go on when one is stopped. What runs on them ends: processes get SIGTERM, and SIGKILL after 10 s.")]
pub(crate) struct StopArgs {
    #[command(flatten)]
    which: Which,
}

/// Take stopped machines again, the same hosts if they are free
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster machine start v100
  muster machine start task1.v100
  muster machine start v100 --no-wait

A group of which none runs waits for room. Where some run, those that do not are started beside them at once, or refused \
if there is no room; so is one that is named alone.")]
pub(crate) struct StartArgs {
    #[command(flatten)]
    which: Which,
}

/// Give machines back for good
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster machine kill v100
  muster machine kill task1.v100
  muster machine kill v100 a100

One that is killed alone does not come back with its group; the others keep their names.")]
pub(crate) struct KillArgs {
    #[command(flatten)]
    which: Which,
}

/// Call machines something else
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster machine rename v100 bert
  muster machine rename task1.bert eval
  muster machine rename eval task1.bert

One machine of a group gets a name of its own, which stays when the group is renamed; its name by its group takes that away again. \
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
    let mut done = Vec::new();
    // All are asked before any is waited for.
    for named in &args.which.names {
        let meant = machine::find_meant(&session, named).await?;
        let id = meant.job.id.as_str();
        let job = match meant.rank {
            Some(rank) => machine::suspend_one(&session, id, rank).await?,
            None => machine::suspend(&session, id).await?,
        };
        done.push(Meant { job, ..meant });
    }
    let is_there = |state| matches!(state, State::Starting | State::Running | State::Stopping);
    wait(&session, &args.which, &mut done, |state| !is_there(state)).await?;
    tell(&session, &done, args.which.json).await
}

pub(crate) async fn start(args: &StartArgs) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let mut done = Vec::new();
    for named in &args.which.names {
        let meant = machine::find_meant(&session, named).await?;
        let id = meant.job.id.as_str();
        let job = match meant.rank {
            Some(rank) => machine::resume_one(&session, id, rank).await?,
            None => machine::resume(&session, id).await?,
        };
        done.push(Meant { job, ..meant });
    }
    for Meant { job, rank } in &mut done {
        let id = job.id.to_string();
        if let Some(rank) = rank.filter(|_| !args.which.no_wait) {
            machine::until_one(&session, &id, rank, |state| state != State::Starting).await?.must_run()?;
            continue;
        }
        if rank.is_some() {
            continue;
        }
        machine::start_rest(&session, &id, !args.which.no_wait).await?;
        if args.which.no_wait {
            continue;
        }
        match machine::until_ready(&session, &id).await? {
            Waited::Ready(ready) => *job = ready.summary,
            Waited::Interrupted(signal) => {
                terminal::note(&format!("`{}` starts when there is room", job.name));
                return Ok(ExitCode::from(u8::try_from(signal.exit_code()).unwrap_or(130)));
            }
        }
    }
    tell(&session, &done, args.which.json).await
}

pub(crate) async fn kill(args: &KillArgs) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let mut done = Vec::new();
    for named in &args.which.names {
        let meant = machine::find_meant(&session, named).await?;
        let id = meant.job.id.as_str();
        let job = match meant.rank {
            Some(rank) => machine::kill_one(&session, id, rank).await?,
            None => machine::kill(&session, id).await?,
        };
        done.push(Meant { job, ..meant });
    }
    wait(&session, &args.which, &mut done, State::is_terminal).await?;
    tell(&session, &done, args.which.json).await
}

async fn wait(
    session: &Session,
    which: &Which,
    done: &mut [Meant],
    will_do: impl Fn(State) -> bool,
) -> Result<(), Error> {
    for Meant { job, rank } in done.iter_mut().filter(|_| !which.no_wait) {
        let id = job.id.to_string();
        match rank {
            Some(rank) => drop(machine::until_one(session, &id, *rank, &will_do).await?),
            None => *job = machine::until(session, &id, &will_do).await?,
        }
    }
    Ok(())
}

pub(crate) async fn rename(args: &RenameArgs) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let renamed = machine::rename(&session, &args.old, &args.new).await?;
    tell(&session, &[renamed], args.json).await
}

async fn tell(session: &Session, done: &[Meant], json: bool) -> Result<ExitCode, Error> {
    let mut jobs = Vec::new();
    for Meant { job, rank } in done {
        let Some(rank) = rank else {
            jobs.push((job.clone(), format!("{} {}", job.name, state::words(job))));
            continue;
        };
        let id = job.id.as_str();
        let now = session.call(async |client| client.job(id).await).await?;
        let member = Member::of(&now, *rank);
        jobs.push((now.summary, format!("{} {}", member.name, member.words())));
    }
    if json {
        let jobs: Vec<JobSummary> = jobs.into_iter().map(|(job, _)| job).collect();
        terminal::say_json(&jobs)?;
        return Ok(ExitCode::SUCCESS);
    }
    jobs.iter().try_for_each(|(_, line)| terminal::say(line))?;
    Ok(ExitCode::SUCCESS)
}
