//! `muster session run`: a command in a session, its output here, its exit status ours.

use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;
use muster_api::model::session::SessionCommand;
use muster_api::view::{OpenSession, RunCommand, SendSignal};

use super::output::{Follow, report};
use super::{Which, until_started};
use crate::command::run::{exit_code, idempotency_key};
use crate::duration;
use crate::error::{Code, Error};
use crate::interrupt::{Interrupts, Received};
use crate::session::Session;
use crate::terminal;

/// Run a command in a session of a task, which is opened if there is none
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster session run last -- cd data
  muster session run last -c 'export SEED=1; ulimit -n 4096'
  muster session run last/1 --name tb --detach -- tensorboard --logdir runs
  muster session run last --timeout 10m -- make data
  muster session run last --fresh -- pwd

Words after -- are quoted for the shell as they are; -c takes a text that the shell reads itself, of any number of lines. \
Ctrl-C goes to the command; a second one leaves it running and comes back here. \
A command that ends the session's shell (`exit`, `exec`) ends the session: the next one needs --fresh.

Exit code: that of the command; 124 after the timeout; 125 if its end is not known.")]
pub(crate) struct Args {
    #[command(flatten)]
    which: Which,
    /// A text for the shell to read
    #[arg(
        short = 'c',
        long = "command",
        value_name = "TEXT",
        conflicts_with = "words",
        required_unless_present = "words"
    )]
    text: Option<String>,
    /// The command and its arguments
    #[arg(value_name = "COMMAND", last = true)]
    words: Vec<String>,
    /// Return at once with the command's number
    #[arg(short, long)]
    detach: bool,
    /// In a new shell; the one that is there ends, and what runs in it
    #[arg(long)]
    fresh: bool,
    /// Give up after this time: 90s, 15m, 2h; the command goes on
    #[arg(long, value_name = "TIME", value_parser = duration::parse)]
    timeout: Option<Duration>,
    /// Print how it ended as JSON, instead of its output
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let way = Session::open().await?;
    let given = give(&way, args).await?;
    if args.detach {
        if args.json {
            terminal::say_json(&given)?;
        } else {
            terminal::say(&given.number.to_string())?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let ended = match attend(&way, args, &given).await? {
        Some(ended) => ended,
        None => return Ok(ExitCode::from(130)),
    };
    if args.json {
        terminal::say_json(&ended)?;
    }
    report(&args.which, &ended, args.json);
    Ok(exit_code(Some(ended.exit_status.unwrap_or(i32::from(crate::error::Kind::Failed.exit_code())))))
}

async fn give(way: &Session, args: &Args) -> Result<SessionCommand, Error> {
    let which = &args.which;
    let query = which.query();
    let how = OpenSession { fresh: args.fresh };
    until_started(way, &which.target).await?;
    way.call(async |client| client.open_session(which.job(), &which.name, &query, &how).await).await?;
    let text = args.text.clone().unwrap_or_else(|| quoted(&args.words));
    let (command, key) = (RunCommand { command: text }, idempotency_key()?);
    way.call(async |client| client.run_command(which.job(), &which.name, &query, &command, &key).await).await
}

/// Shows what the command writes until it is over; none if the user has had enough of it.
async fn attend(way: &Session, args: &Args, given: &SessionCommand) -> Result<Option<SessionCommand>, Error> {
    let which = &args.which;
    let mut interrupts = Interrupts::listen()?;
    let mut follow = Follow::new(way, which, given.number, !args.json);
    let limit = args.timeout.unwrap_or(Duration::from_secs(u64::from(u32::MAX)));
    let too_late = tokio::time::sleep(limit);
    tokio::pin!(too_late);
    let mut was_interrupted = false;
    loop {
        let received = tokio::select! {
            ended = follow.read_to_end() => return ended.map(Some),
            received = interrupts.next() => received,
            () = &mut too_late => return Err(timed_out(args, given, limit)),
        };
        if was_interrupted || received == Received::Terminate {
            terminal::note(&format!(
                "command {} goes on; `muster session output {} -f --name {} {}` shows more",
                given.number, which.target, which.name, given.number
            ));
            return Ok(None);
        }
        was_interrupted = true;
        let signal = SendSignal::default();
        way.call(async |client| {
            client.signal_session(which.job(), &which.name, &which.query(), &signal).await
        })
        .await?;
    }
}

fn timed_out(args: &Args, given: &SessionCommand, limit: Duration) -> Error {
    let message = format!("command {} is not over after {}", given.number, duration::shown(limit));
    let which = &args.which;
    let hint =
        format!("it goes on: `muster session wait {} --name {} {}`", which.target, which.name, given.number);
    Error::new(Code::WaitTimeout, message).hint(hint)
}

/// Words as the shell is to have them.
fn quoted(words: &[String]) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_-+=./:@%,".contains(c);
    let quote = |word: &String| {
        if !word.is_empty() && word.chars().all(plain) {
            word.clone()
        } else {
            format!("'{}'", word.replace('\'', r"'\''"))
        }
    };
    words.iter().map(quote).collect::<Vec<_>>().join(" ")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_reach_the_command_as_they_were_typed() {
        let words = ["echo", "a b", "it's", "", "$HOME", "x=1"].map(String::from);
        assert_eq!(quoted(&words), r"echo 'a b' 'it'\''s' '' '$HOME' x=1");
    }
}
