//! `fastgpu stop`, `start`, `kill` and `rename`.

use std::io::{self, BufRead};
use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::model::State;
use muster_api::view::JobSummary;

use crate::error::{Code, Error};
use crate::interrupt::can_ask;
use crate::machine::{self, Named, Waited};
use crate::session::Session;
use crate::terminal;

#[derive(Debug, ClapArgs)]
pub(super) struct Args {
    /// {NAME} or NAME; task0.NAME where there is only one
    #[arg(value_name = "NAME", required = true)]
    names: Vec<Named>,
}

#[derive(Debug, ClapArgs)]
pub(super) struct KillArgs {
    /// {NAME} or NAME; task0.NAME where there is only one
    #[arg(value_name = "NAME", required = true)]
    names: Vec<Named>,
    /// Do not ask
    #[arg(short, long)]
    yes: bool,
}

#[derive(Debug, ClapArgs)]
pub(super) struct RenameArgs {
    /// As they are called now
    #[arg(value_name = "OLD")]
    old: Named,
    /// As they are to be called
    #[arg(value_name = "NEW")]
    new: Named,
}

pub(super) async fn stop(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    for job in find(&session, &args.names, "stopped").await? {
        machine::suspend(&session, job.id.as_str()).await?;
        machine::until(&session, job.id.as_str(), |state| state == State::Suspended).await?;
        tell(&job, "stopped")?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn start(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    for job in find(&session, &args.names, "started").await? {
        machine::resume(&session, job.id.as_str()).await?;
        match machine::until_ready(&session, job.id.as_str()).await? {
            Waited::Ready(_) => tell(&job, "started")?,
            Waited::Interrupted(signal) => {
                terminal::note(&format!("`{}` starts when there is room", job.name));
                return Ok(ExitCode::from(u8::try_from(signal.exit_code()).unwrap_or(130)));
            }
        }
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn kill(args: &KillArgs) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let jobs = find(&session, &args.names, "killed").await?;
    if !args.yes && !agreed(&jobs)? {
        terminal::remark("nothing was killed");
        return Ok(ExitCode::FAILURE);
    }
    for job in &jobs {
        machine::kill(&session, job.id.as_str()).await?;
        machine::until(&session, job.id.as_str(), State::is_terminal).await?;
        tell(job, "killed")?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(super) async fn rename(args: &RenameArgs) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let job = machine::find_whole(&session, &args.old, "renamed").await?;
    let (id, new) = (job.id.as_str(), &args.new.group);
    let renamed = session.call(async |client| client.rename_job(id, new).await).await?;
    for (old, new) in names(&job).zip(names(&renamed)) {
        terminal::say(&format!("{old} is now {new}"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// All are found before anything is done to one.
async fn find(session: &Session, names: &[Named], what: &str) -> Result<Vec<JobSummary>, Error> {
    let mut jobs: Vec<JobSummary> = Vec::new();
    for named in names {
        let job = machine::find_whole(session, named, what).await?;
        if !jobs.iter().any(|other| other.id == job.id) {
            jobs.push(job);
        }
    }
    Ok(jobs)
}

/// Asks; what cannot be asked is not done.
fn agreed(jobs: &[JobSummary]) -> Result<bool, Error> {
    let machines: Vec<String> = jobs.iter().flat_map(names).collect();
    if !can_ask() {
        let message = format!("nobody can be asked whether to kill {}", machines.join(", "));
        return Err(Error::new(Code::Usage, message).hint("--yes kills without a question"));
    }
    terminal::to_stderr(&format!("kill {}? (y/N) ", machines.join(", ")));
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer);
    read.map_err(|error| Error::io(Code::SystemFailed, "read the answer", &error))?;
    Ok(matches!(answer.trim().to_lowercase().as_str(), "y" | "yes"))
}

fn names(job: &JobSummary) -> impl Iterator<Item = String> + use<> {
    let group = job.name.clone();
    (0..job.nodes).map(move |rank| Named { group: group.clone(), rank: Some(rank) }.to_string())
}

fn tell(job: &JobSummary, what: &str) -> Result<(), Error> {
    names(job).try_for_each(|name| terminal::say(&format!("{name} {what}")))
}
