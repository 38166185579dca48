//! `muster help exit-codes`: a page of help rather than a command.

use std::process::ExitCode;

use clap::Args as ClapArgs;

use crate::error::Error;
use crate::terminal;

const TEXT: &str = "\
`run`, `clone`, `attach` and `wait` end with the job's exit code:
  0      every task ended with 0
  1-123  the exit code of the task that failed first
  124    the job ran longer than its timeout; of `wait --timeout`: not over yet
  125    muster, or the machine under the job, failed; the program is not at fault
  126    the command exists but cannot be executed
  127    there is no such command
  128+N  signal N ended the task that failed first; 137 also when it ran out of memory
  130    the job was stopped, by `muster stop` or Ctrl-C

`exec` and `ssh` end with that of the command in the task, 128+N for signal N; \
125 when the connection broke before it had ended.

Every command:
  0      done
  1      of `server status`: no server runs; of `doctor`: something is broken;
         of `cp`: some files were not copied
  2      the command line, the job file or the configuration is wrong, or there is no such job
  125    muster failed: no server, no disk space, no permission
  130    ended by Ctrl-C
  141    whoever read its output has closed it

A program may itself end with 2, or with 124 and above: `muster why JOB` tells them apart.";

/// What muster's exit codes mean
#[derive(Debug, ClapArgs)]
#[command(after_help = TEXT, help_template = "{about}{after-help}")]
pub(crate) struct Args {}

pub(crate) fn run(_: &Args) -> Result<ExitCode, Error> {
    terminal::to_stdout(&format!("{TEXT}\n"))?;
    Ok(ExitCode::SUCCESS)
}
