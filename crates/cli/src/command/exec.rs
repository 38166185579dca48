//! `muster exec`: a command in a task that runs, as if it had been typed there.

mod all;

use std::ffi::OsString;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_ssh::client::Command;

pub(crate) use self::all::{Whom, run as run_in};
use crate::call::{Caller, To};
use crate::error::Error;
use crate::quote;
use crate::remote::{self, Ours};

/// Run a command in a task that runs
#[derive(Debug, ClapArgs)]
#[command(
    override_usage = "muster exec [OPTIONS] JOB[/TASK] [--] COMMAND...",
    after_help = "\
Examples:
  muster exec last -- nvidia-smi
  muster exec bert/3 -- py-spy dump --pid 1
  muster exec bert --all -- df -h /tmp
  muster exec -it bert -- bash
  muster exec -i bert -- tar x -C data < data.tar
  muster exec bert -- sh -c 'ls | wc -l'

The command has the task's variables, directory, files and devices, and ends with the task. \
Its words are passed on as they are; `sh -c` has pipes and such. \
Standard input is passed on with -i only, so that a loop that reads a file keeps its lines. \
Ctrl-C interrupts the command; a second one leaves it.

Exit codes:
  N      that of the command; with --all, the first by rank that is not 0
  127    there is no such command
  128+N  signal N ended it
  2      there is no such task, or it does not run
  125    muster failed, or the connection broke before the command had ended"
)]
pub(crate) struct Args {
    #[command(flatten)]
    to: To,
    /// Give it our standard input
    #[arg(short, long)]
    interactive: bool,
    /// Give it our terminal, and our standard input with it
    #[arg(short, long)]
    tty: bool,
    /// Run it in every task at once, with the task's name before each line
    #[arg(long, conflicts_with_all = ["interactive", "tty", "task"])]
    all: bool,
    /// In this directory, from the task's own
    #[arg(short, long, value_name = "DIR")]
    workdir: Option<PathBuf>,
    /// Set a variable for it; without =VALUE, pass on the one that is set here
    #[arg(short, long = "env", value_name = "NAME[=VALUE]", value_parser = variable)]
    env: Vec<Variable>,
    /// Print its exit code and what it wrote as JSON
    #[arg(long, conflicts_with = "tty")]
    json: bool,
    /// The command and its words
    #[arg(value_name = "COMMAND", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let target = args.to.target()?;
    let caller = Caller::open().await?;
    let command = Command {
        line: Some(line(&args.command, args.workdir.as_deref())),
        env: args.env.iter().flatten().cloned().collect(),
        terminal: None,
    };
    if args.all || args.json {
        let whom = Whom { target, all: args.all, wait: args.to.wait, stdin: args.interactive };
        return run_in(&caller, &whom, &command, args.json).await;
    }
    let ours = Ours { stdin: args.interactive, ..Ours::default() }.with_terminal(args.tty);
    remote::run(&caller, &target, command, ours, args.to.wait).await.map(ExitCode::from)
}

/// What the task's shell is to do.
fn line(words: &[OsString], workdir: Option<&Path>) -> Vec<u8> {
    let words = quote::line(words.iter().map(|word| word.as_bytes()));
    let Some(workdir) = workdir else { return words };
    let workdir = workdir.as_os_str().as_bytes();
    // A name that begins with `-` would be a flag.
    let place = if workdir.starts_with(b"-") { [b"./", workdir].concat() } else { workdir.to_owned() };
    [b"cd ", quote::line([place]).as_slice(), b" && ", &words].concat()
}

/// One that is to be passed on and is not set here is none.
type Variable = Option<(String, String)>;

fn variable(text: &str) -> Result<Variable, String> {
    let (name, value) = match text.split_once('=') {
        Some((name, value)) => (name, Some(value.to_owned())),
        None => (text, std::env::var(text).ok()),
    };
    let is_name = !name.is_empty() && !name.starts_with(|c: char| c.is_ascii_digit());
    if !(is_name && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'_')) {
        return Err(format!("`{name}` is not the name of a variable; write NAME=VALUE"));
    }
    Ok(value.map(|value| (name.to_owned(), value)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_comes_before_the_command() {
        let words = ["ls", "a b"].map(OsString::from);
        let text = |workdir: Option<&str>| String::from_utf8(line(&words, workdir.map(Path::new))).unwrap();
        assert_eq!(text(None), "ls 'a b'");
        assert_eq!(text(Some("my data")), "cd 'my data' && ls 'a b'");
        assert_eq!(text(Some("-x")), "cd ./-x && ls 'a b'");
    }

    #[test]
    fn a_variable_has_a_name() {
        assert_eq!(variable("A=b=c"), Ok(Some(("A".into(), "b=c".into()))));
        assert_eq!(variable("A="), Ok(Some(("A".into(), String::new()))));
        assert_eq!(variable("MUSTER_TEST_NOT_SET"), Ok(None));
        for wrong in ["", "=x", "1a=b", "a-b=c"] {
            assert!(variable(wrong).is_err(), "{wrong}");
        }
    }
}
