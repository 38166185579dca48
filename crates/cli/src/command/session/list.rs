//! `muster session ls`: the sessions of a task, or the commands of one.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::model::Timestamp;
use muster_api::model::printable;
use muster_api::model::session::{Session as View, SessionCommand, SessionName};
use muster_api::view::SessionsQuery;

use crate::duration::{age, between, shown};
use crate::error::Error;
use crate::session::Session;
use crate::table::{Cell, Table};
use crate::target::Target;
use crate::terminal;

/// List a task's sessions, or with --name the last commands of one
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster session ls last
  muster session ls last/1 --json
  muster session ls last --name main")]
pub(crate) struct Args {
    /// The job, or one of its tasks: JOB or JOB/RANK
    #[arg(value_name = "JOB[/TASK]")]
    target: Target,
    /// The commands of this session, instead of the sessions
    #[arg(short, long)]
    name: Option<SessionName>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let way = Session::open().await?;
    let (job, query) = (&args.target.job, SessionsQuery { task: args.target.task });
    let table = match &args.name {
        Some(name) => {
            let list = way.call(async |client| client.commands(job, name.as_str(), &query).await).await?;
            if args.json {
                terminal::say_json(&list)?;
                return Ok(ExitCode::SUCCESS);
            }
            commands(&list.items, Timestamp::now())
        }
        None => {
            let list = way.call(async |client| client.sessions(job, &query).await).await?;
            if args.json {
                terminal::say_json(&list)?;
                return Ok(ExitCode::SUCCESS);
            }
            sessions(&list.items, Timestamp::now())
        }
    };
    terminal::to_stdout(&table.render(terminal::width(), terminal::stdout_has_colours()))?;
    Ok(ExitCode::SUCCESS)
}

fn sessions(sessions: &[View], now: Timestamp) -> Table {
    let mut table = Table::new(&["NAME", "STATE", "QUEUED", "COMMANDS", "AGE", "IN", "SHELL"]);
    for session in sessions {
        let state = match (&session.over, session.running) {
            (Some(reason), _) => format!("over: {reason}"),
            (None, Some(number)) => format!("runs {number}"),
            (None, None) => "idle".into(),
        };
        let terminal = format!("{:?}", session.terminal).to_lowercase();
        let numbers = (session.queued.to_string(), session.last.to_string());
        let age = age(session.opened_at, now);
        let row = [session.name.clone(), state, numbers.0, numbers.1, age, terminal, session.shell.clone()];
        table.row(row.map(Cell::from).into());
    }
    table
}

fn commands(commands: &[SessionCommand], now: Timestamp) -> Table {
    let mut table = Table::new(&["NUMBER", "STATE", "STATUS", "TOOK", "AGE", "COMMAND"]);
    for command in commands {
        let status = command.exit_status.map_or_else(|| "-".into(), |status| status.to_string());
        let took = command.started_at.map(|at| shown(between(at, command.ended_at.unwrap_or(now))));
        let (took, age) = (took.unwrap_or_else(|| "-".into()), age(command.queued_at, now));
        let state = command.state.as_str().to_owned();
        let row = [command.number.to_string(), state, status, took, age, first_line(&command.text)];
        table.row(row.map(Cell::from).into());
    }
    table
}

/// A command's text in one line that draws nothing on the terminal.
pub(super) fn first_line(text: &str) -> String {
    let mut lines = text.lines();
    let first = printable::one_line(lines.next().unwrap_or_default());
    if lines.next().is_some() { format!("{first} …") } else { first }
}
