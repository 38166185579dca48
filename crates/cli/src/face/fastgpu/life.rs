//! `fastgpu stop`, `start`, `kill` and `rename`.

use std::io::{self, BufRead, IsTerminal};
use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::model::State;

use crate::error::{Code, Error};
use crate::interrupt::can_ask;
use crate::machine::{self, Meant, Named, Waited};
use crate::session::Session;
use crate::terminal;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// {NAME} or NAME for all of a group, task0.NAME for one of it
    #[arg(value_name = "NAME", required = true)]
    names: Vec<Named>,
}

#[derive(Debug, ClapArgs)]
pub(super) struct KillArgs {
    /// {NAME} or NAME for all of a group, task0.NAME for one of it
    #[arg(value_name = "NAME", required = true)]
    names: Vec<Named>,
    /// Do not ask
    #[arg(short, long, visible_short_alias = 'f', visible_alias = "force")]
    yes: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct RenameArgs {
    /// As they are called now: {NAME} or NAME, task0.NAME for one of a group
    #[arg(value_name = "OLD")]
    old: Named,
    /// As they are to be called; one of a group gets a name of its own
    #[arg(value_name = "NEW")]
    new: Named,
}

pub(super) async fn stop(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let is_there = |state| matches!(state, State::Starting | State::Running | State::Stopping);
    for (meant, names) in find(&session, &args.names).await? {
        let id = meant.job.id.as_str();
        match meant.rank {
            Some(rank) => {
                machine::suspend_one(&session, id, rank).await?;
                machine::until_one(&session, id, rank, |state| !is_there(state)).await?;
            }
            None => {
                machine::suspend(&session, id).await?;
                machine::until(&session, id, |state| state == State::Suspended).await?;
            }
        }
        tell(&names, "stopped")?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn start(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    for (meant, names) in find(&session, &args.names).await? {
        let id = meant.job.id.as_str();
        if let Some(rank) = meant.rank {
            machine::resume_one(&session, id, rank).await?;
            machine::until_one(&session, id, rank, |state| state != State::Starting).await?.must_run()?;
            tell(&names, "started")?;
            continue;
        }
        machine::resume(&session, id).await?;
        machine::start_rest(&session, id, true).await?;
        match machine::until_ready(&session, id).await? {
            Waited::Ready(_) => tell(&names, "started")?,
            Waited::Interrupted(signal) => {
                terminal::note(&format!("`{}` starts when there is room", meant.job.name));
                return Ok(ExitCode::from(u8::try_from(signal.exit_code()).unwrap_or(130)));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn kill(args: &KillArgs) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let found = find(&session, &args.names).await?;
    let names: Vec<String> = found.iter().flat_map(|(_, names)| names.clone()).collect();
    if !args.yes && !agreed(&names)? {
        terminal::remark("nothing was killed");
        return Ok(ExitCode::FAILURE);
    }
    for (meant, names) in &found {
        let id = meant.job.id.as_str();
        match meant.rank {
            Some(rank) => {
                machine::kill_one(&session, id, rank).await?;
                machine::until_one(&session, id, rank, State::is_terminal).await?;
            }
            None => {
                machine::kill(&session, id).await?;
                machine::until(&session, id, State::is_terminal).await?;
            }
        }
        tell(names, "killed")?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn rename(args: &RenameArgs) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let before = machine::find_meant(&session, &args.old).await?;
    let id = before.job.id.as_str();
    let detail = async || session.call(async |client| client.job(id).await).await;
    let old = before.names(&detail().await?);
    let renamed = machine::rename(&session, &args.old, &args.new).await?;
    for (old, new) in old.iter().zip(renamed.names(&detail().await?)).filter(|(old, new)| *old != new) {
        terminal::say(&format!("{old} is now {new}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// All are found before anything is done to one, with the names of the machines that each word means.
async fn find(session: &Session, names: &[Named]) -> Result<Vec<(Meant, Vec<String>)>, Error> {
    let mut all: Vec<(Meant, Vec<String>)> = Vec::new();
    for named in names {
        let meant = machine::find_meant(session, named).await?;
        let id = meant.job.id.as_str();
        let job = session.call(async |client| client.job(id).await).await?;
        let mut machines = meant.names(&job);
        machines.retain(|name| !all.iter().any(|(_, others)| others.contains(name)));
        if !machines.is_empty() {
            all.push((meant, machines));
        }
    }
    Ok(all)
}

/// Asks; what cannot be asked is not done. A pipe may bring the answer, as of `yes` and of `echo y`.
fn agreed(machines: &[String]) -> Result<bool, Error> {
    let machines = machines.join(", ");
    let question = format!("kill {machines}? (y/N) ");
    let answer = if can_ask() {
        terminal::to_stderr(&question);
        answer()?
    } else {
        let piped = if io::stdin().is_terminal() { String::new() } else { answer()? };
        if piped.is_empty() {
            let message = format!("cannot ask for confirmation without a terminal: kill {machines}?");
            return Err(Error::new(Code::Usage, message).hint("--yes kills without a question"));
        }
        terminal::remark(&format!("{question}{piped}"));
        piped
    };
    Ok(matches!(answer.to_lowercase().as_str(), "y" | "yes"))
}

fn answer() -> Result<String, Error> {
    let mut line = String::new();
    let read = io::stdin().lock().read_line(&mut line);
    read.map_err(|error| Error::io(Code::SystemFailed, "read the answer", &error))?;
    Ok(line.trim().to_owned())
}

fn tell(names: &[String], what: &str) -> Result<(), Error> {
    names.iter().try_for_each(|name| terminal::say(&format!("{name} {what}")))
}
