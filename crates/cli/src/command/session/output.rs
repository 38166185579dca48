//! `muster session output` and `wait`: a command of a session, seen from wherever one is.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;
use muster_api::client::{self, Download};
use muster_api::model::session::{CommandState, SessionCommand};
use muster_api::view::{CommandQuery, OutputQuery};

use super::Which;
use crate::command::run::exit_code;
use crate::duration;
use crate::error::{Code, Error, Format, Kind};
use crate::session::{Patience, Session};
use crate::terminal;

/// How long the server is asked to wait at once.
const WAIT: u32 = 30;

/// Show what a session's command has written
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster session output last
  muster session output last 3
  muster session output last --name tb -f
  muster session output last 3 --json | jq .exit_status")]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// The command's number; the last one if there is none
    number: Option<u32>,
    /// Also what comes until it is over
    #[arg(short, long)]
    follow: bool,
    /// Print how it is as JSON, instead of its output
    #[arg(long)]
    json: bool,
}

/// Wait until a session's command is over
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster session wait last
  muster session wait last 3 --timeout 10m

Exit code: that of the command; 124 after the timeout; 125 if its end is not known.")]
pub(crate) struct WaitArgs {
    #[command(flatten)]
    which: Which,
    /// The command's number; the last one if there is none
    number: Option<u32>,
    /// Give up after this time: 90s, 15m, 2h; the command goes on
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// Print how it ended as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let way = Session::open().await?;
    let number = number(&way, &args.which, args.number).await?;
    if args.json {
        let mut command = look(&way, &args.which, number, None).await?;
        while args.follow && !command.state.is_over() {
            command = look(&way, &args.which, number, Some(WAIT)).await?;
        }
        terminal::say_json(&command)?;
        return Ok(ExitCode::SUCCESS);
    }
    let mut follow = Follow::new(&way, &args.which, number, true);
    if args.follow {
        let ended = follow.read_to_end().await?;
        report(&args.which, &ended, false);
    } else {
        follow.is_followed = false;
        follow.show_rest().await?;
    }
    Ok(ExitCode::SUCCESS)
}

pub(crate) async fn wait(args: &WaitArgs) -> Result<ExitCode, Error> {
    let way = Session::open().await?;
    let number = number(&way, &args.which, args.number).await?;
    let over = async {
        loop {
            let command = look(&way, &args.which, number, Some(WAIT)).await?;
            if command.state.is_over() {
                return Ok::<_, Error>(command);
            }
        }
    };
    let ended = match args.timeout {
        None => over.await?,
        Some(limit) => tokio::time::timeout(limit, over).await.map_err(|_| {
            let message = format!("command {number} is not over after {}", duration::shown(limit));
            Error::new(Code::WaitTimeout, message).hint("it goes on; `muster session ls` shows it")
        })??,
    };
    if args.json {
        terminal::say_json(&ended)?;
    }
    report(&args.which, &ended, args.json);
    Ok(exit_code(Some(ended.exit_status.unwrap_or(i32::from(Kind::Failed.exit_code())))))
}

async fn number(way: &Session, which: &Which, number: Option<u32>) -> Result<u32, Error> {
    if let Some(number) = number {
        return Ok(number);
    }
    let session =
        way.call(async |client| client.session(which.job(), &which.name, &which.query()).await).await?;
    if session.last == 0 {
        let message = format!("session {} of {} was given no command yet", which.name, which.target);
        return Err(Error::new(Code::SessionUnused, message));
    }
    Ok(session.last)
}

async fn look(way: &Session, which: &Which, number: u32, wait: Option<u32>) -> Result<SessionCommand, Error> {
    let query = CommandQuery { task: which.target.task, wait };
    way.call(async |client| client.command(which.job(), &which.name, number, &query).await).await
}

/// Says why a command's end is not an ordinary one.
pub(super) fn report(which: &Which, ended: &SessionCommand, json: bool) {
    if ended.state == CommandState::Lost {
        let reason = ended.reason.as_deref().unwrap_or("its session is over");
        let message = format!("command {} of session {} is lost: {reason}", ended.number, which.name);
        let format = if json { Format::Json } else { Format::Text };
        Error::new(Code::CommandLost, message).report(format);
    }
}

/// Reads a command's output to its end, across any number of lost connections and dead servers, each byte once.
pub(super) struct Follow<'a> {
    way: &'a Session,
    which: &'a Which,
    number: u32,
    is_shown: bool,
    is_followed: bool,
    offset: u64,
    stream: Option<Download>,
    patience: Patience,
}

impl<'a> Follow<'a> {
    pub(super) fn new(way: &'a Session, which: &'a Which, number: u32, is_shown: bool) -> Self {
        let (offset, stream, patience) = (0, None, Patience::default());
        Self { way, which, number, is_shown, is_followed: true, offset, stream, patience }
    }

    /// Shows what there is until the command is over. A call that is cancelled loses nothing.
    pub(super) async fn read_to_end(&mut self) -> Result<SessionCommand, Error> {
        loop {
            if self.is_shown {
                self.show_rest().await?;
            }
            let command = look(self.way, self.which, self.number, Some(WAIT)).await?;
            if command.state.is_over() {
                return Ok(command);
            }
        }
    }

    pub(super) async fn show_rest(&mut self) -> Result<(), Error> {
        loop {
            match self.read().await {
                Ok(true) => self.patience.restore(),
                Ok(false) => return Ok(()),
                // Nothing was written for a while; that is no trouble of the server's.
                Err(Trouble::Server(client::Error::Silent { .. })) => self.stream = None,
                Err(Trouble::Server(error)) if error.is_transient() => {
                    self.stream = None;
                    self.way.recover(&mut self.patience, error).await?;
                }
                Err(Trouble::Server(error)) => return Err(error.into()),
                Err(Trouble::Own(error)) => return Err(error),
            }
        }
    }

    /// Shows the next piece; false at the end.
    async fn read(&mut self) -> Result<bool, Trouble> {
        let stream = match &mut self.stream {
            Some(stream) => stream,
            None => {
                let query = OutputQuery {
                    task: self.which.target.task,
                    offset: self.offset,
                    follow: self.is_followed,
                };
                let (job, name) = (self.which.job(), &self.which.name);
                let stream = self.way.client().command_output(job, name, self.number, &query).await;
                self.stream.insert(stream.map_err(Trouble::Server)?)
            }
        };
        match stream.next().await.map_err(Trouble::Server)? {
            Some(piece) => {
                self.offset += piece.len() as u64;
                terminal::exact_to_stdout(&piece).map_err(Trouble::Own)?;
                Ok(true)
            }
            None => {
                self.stream = None;
                Ok(false)
            }
        }
    }
}

enum Trouble {
    Server(client::Error),
    Own(Error),
}
