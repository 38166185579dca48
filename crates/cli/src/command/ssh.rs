//! `muster ssh`: a shell in a task, with nothing to set up.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_ssh::client::Command;

use super::{exec, state};
use crate::call::{Caller, To};
use crate::error::Error;
use crate::remote::{self, Ours};
use crate::target::Target;
use crate::terminal;

/// Open a shell in a task that runs, or run a line in it
#[derive(Debug, ClapArgs)]
#[command(
    override_usage = "muster ssh [OPTIONS] JOB[/TASK] [--] [COMMAND...]",
    after_help = "\
Examples:
  muster ssh last
  muster ssh bert/3
  muster ssh bert --wait
  muster ssh bert -- 'ps aux | grep python'
  muster ssh bert < fix.sh

The shell has the task's variables, directory, files and devices, and ends with the task. \
As with ssh, the words of a command are one line for the shell there, and standard input is passed on; \
`muster exec` passes words on as they are. \
`~.` at the beginning of a line leaves a shell that does not answer any more. \
`muster ssh-config` makes plain ssh, scp, rsync and editors reach tasks.

Exit codes: those of `muster exec`; of a shell, that of its last command."
)]
pub(crate) struct Args {
    #[command(flatten)]
    to: To,
    /// Give the command our terminal, as a shell gets it anyway
    #[arg(short, long)]
    tty: bool,
    /// Print the command's exit code and what it wrote as JSON
    #[arg(long, conflicts_with = "tty", requires = "command")]
    json: bool,
    /// A line for the shell in the task; without it, a shell to type into
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    command: Vec<OsString>,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let target = args.to.target()?;
    let caller = Caller::open().await?;
    let words: Vec<&[u8]> = args.command.iter().map(|word| word.as_bytes()).collect();
    let line = (!words.is_empty()).then(|| words.join(&b' '));
    let is_shell = line.is_none();
    let command = Command { line, ..Command::default() };
    if args.json {
        let whom = exec::Whom { target, all: false, wait: args.to.wait, stdin: !io::stdin().is_terminal() };
        return exec::run_in(&caller, &whom, &command, true).await;
    }
    let wants_terminal = args.tty || (is_shell && io::stdin().is_terminal());
    let ours = Ours { stdin: true, escapes: is_shell, ..Ours::default() }.with_terminal(wants_terminal);
    if ours.terminal && terminal::stderr_is_terminal() {
        note_task(&caller, &target).await;
    }
    remote::run(&caller, &target, command, ours, args.to.wait).await.map(ExitCode::from)
}

/// Whoever did not say which of several tasks is told which it is.
async fn note_task(caller: &Caller, target: &Target) {
    if target.task.is_some() {
        return;
    }
    if let Ok(job) = caller.session.client().job(&target.job).await
        && job.summary.nodes > 1
    {
        let tasks = state::tasks(job.summary.nodes);
        terminal::note(&format!("this is task 0 of {tasks}; `muster ssh {}/1` is the next", target.job));
    }
}
