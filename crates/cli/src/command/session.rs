//! `muster session`: named shells in a task that keep their state between commands.

pub(crate) mod attach;
mod list;
mod output;
mod run;

use std::process::ExitCode;
use std::time::Duration;

use clap::{Args as ClapArgs, Subcommand};
use muster_api::model::State;
use muster_api::model::session::{MAIN, SessionName};
use muster_api::view::{OpenSession, SendSignal, SessionsQuery};
use serde_json::json;

use crate::error::Error;
use crate::session::Session;
use crate::target::Target;
use crate::terminal;

/// How often to look whether a job has started.
const LOOK: Duration = Duration::from_millis(100);

/// Run commands in shells of a task that keep directory and variables
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster session run last -- cd data
  muster session run last -- pwd
  muster session run last/1 --name tb --detach -- tensorboard --logdir runs
  muster session attach last
  muster session ls last

A session is a shell in a running task. What one command changes (directory, variables, functions, conda \
environment) the next one finds. Commands given while one runs wait for their turn. \
Sessions end with their task, and are held by tmux where the task's machine has it.")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Run(run::Args),
    Ls(list::Args),
    /// Open a session, unless it is open
    #[command(after_help = "\
Examples:
  muster session open last
  muster session open last --name tb
  muster session open last --fresh        a new shell, whatever the old one is doing")]
    Open(OpenArgs),
    Wait(output::WaitArgs),
    Output(output::Args),
    Attach(attach::Args),
    /// Send a signal to what runs in a session
    #[command(after_help = "\
Examples:
  muster session signal last
  muster session signal last --name tb TERM")]
    Signal(SignalArgs),
    /// End a session's shell, and remove what is left of its commands
    #[command(after_help = "Examples:\n  muster session rm last\n  muster session rm last/1 --name tb")]
    Rm(RmArgs),
}

/// Which session.
#[derive(Debug, Clone, ClapArgs)]
pub(crate) struct Which {
    /// The job, or one of its tasks: JOB or JOB/RANK
    #[arg(value_name = "JOB[/TASK]")]
    pub target: Target,
    /// Its name
    #[arg(short, long, default_value = MAIN, value_parser = parse_name)]
    pub name: String,
}

impl Which {
    fn query(&self) -> SessionsQuery {
        SessionsQuery { task: self.target.task }
    }

    fn job(&self) -> &str {
        &self.target.job
    }
}

fn parse_name(text: &str) -> Result<String, String> {
    text.parse::<SessionName>().map(|name| name.to_string()).map_err(|error| error.to_string())
}

#[derive(Debug, ClapArgs)]
struct OpenArgs {
    #[command(flatten)]
    which: Which,
    /// With a new shell; the one that is there ends, and what runs in it
    #[arg(long)]
    fresh: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, ClapArgs)]
struct SignalArgs {
    #[command(flatten)]
    which: Which,
    /// HUP, INT, QUIT, KILL, USR1, USR2, TERM, CONT, STOP or TSTP
    #[arg(default_value = "INT")]
    signal: String,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, ClapArgs)]
struct RmArgs {
    #[command(flatten)]
    which: Which,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    match &args.action {
        Action::Run(args) => run::run(args).await,
        Action::Ls(args) => list::run(args).await,
        Action::Open(args) => open(args).await,
        Action::Wait(args) => output::wait(args).await,
        Action::Output(args) => output::run(args).await,
        Action::Attach(args) => attach::run(args).await,
        Action::Signal(args) => signal(args).await,
        Action::Rm(args) => remove(args).await,
    }
}

/// Waits for a job that has not started yet: whoever has just submitted it means to use it.
async fn until_started(way: &Session, target: &Target) -> Result<(), Error> {
    let mut is_told = false;
    loop {
        let job = way.call(async |client| client.job(&target.job).await).await?;
        if !matches!(job.summary.state, State::Queued | State::Starting) {
            return Ok(());
        }
        if !is_told {
            terminal::remark(&format!(
                "waiting for {} to start; `muster why {0}` says what for",
                job.summary.id
            ));
            is_told = true;
        }
        tokio::time::sleep(LOOK).await;
    }
}

async fn open(args: &OpenArgs) -> Result<ExitCode, Error> {
    let way = Session::open().await?;
    let (which, how) = (&args.which, OpenSession { fresh: args.fresh });
    until_started(&way, &which.target).await?;
    let opened = way
        .call(async |client| client.open_session(which.job(), &which.name, &which.query(), &how).await)
        .await?;
    if args.json {
        terminal::say_json(&opened)?;
    } else {
        terminal::say(&format!("session {} of {}: {}", opened.name, which.target, opened.shell))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn signal(args: &SignalArgs) -> Result<ExitCode, Error> {
    let way = Session::open().await?;
    let (which, signal) = (&args.which, SendSignal { signal: Some(args.signal.clone()) });
    way.call(async |client| client.signal_session(which.job(), &which.name, &which.query(), &signal).await)
        .await?;
    if args.json {
        terminal::say_json(&json!({ "session": which.name, "signal": args.signal }))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn remove(args: &RmArgs) -> Result<ExitCode, Error> {
    let way = Session::open().await?;
    let which = &args.which;
    way.call(async |client| client.remove_session(which.job(), &which.name, &which.query()).await).await?;
    if args.json {
        terminal::say_json(&json!({ "removed": which.name }))?;
    } else {
        terminal::say(&format!("removed session {} of {}", which.name, which.target))?;
    }
    Ok(ExitCode::SUCCESS)
}
