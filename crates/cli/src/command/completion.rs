//! `muster completion`: from the same definitions as the commands themselves, so that it cannot be out of date.
//!
//! Names of jobs are not completed: clap's engine for that is still called unstable, and would ask the server at every
//! press of a key.

use std::process::ExitCode;

use clap::{Args as ClapArgs, Command};
use clap_complete::{Shell, generate};

use crate::error::Error;
use crate::terminal;

/// Print what makes a shell complete muster's commands and flags
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  source <(muster completion bash)        for this shell only
  muster completion bash > ~/.local/share/bash-completion/completions/muster
  muster completion zsh > ~/.zfunc/_muster
  muster completion fish > ~/.config/fish/completions/muster.fish
  muster completion elvish > ~/.config/elvish/lib/muster.elv
  muster completion powershell >> $PROFILE

A new shell has it. \
zsh wants `fpath+=~/.zfunc; autoload -U compinit; compinit` in ~/.zshrc, elvish `use muster` in its rc.elv.")]
pub(crate) struct Args {
    /// Which shell
    #[arg(value_enum)]
    shell: Shell,
}

pub(crate) fn run(args: &Args, mut command: Command) -> Result<ExitCode, Error> {
    let mut script = Vec::new();
    generate(args.shell, &mut command, "muster", &mut script);
    terminal::to_stdout(&script)?;
    Ok(ExitCode::SUCCESS)
}
