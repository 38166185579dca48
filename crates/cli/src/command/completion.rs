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

pub(crate) fn run(args: &Args, command: &Command) -> Result<ExitCode, Error> {
    terminal::exact_to_stdout(&script(args.shell, command))?;
    Ok(ExitCode::SUCCESS)
}

fn script(shell: Shell, command: &Command) -> Vec<u8> {
    let mut script = Vec::new();
    generate(shell, &mut visible(command), "muster", &mut script);
    script
}

/// The same command without what is not for people: the generators would offer hidden commands, too.
fn visible(command: &Command) -> Command {
    let subcommands = command.get_subcommands().filter(|inner| !inner.is_hide_set()).map(visible);
    Command::new(command.get_name().to_owned())
        .about(command.get_about().cloned().unwrap_or_default())
        .args(command.get_arguments().cloned())
        .subcommands(subcommands)
}

#[cfg(test)]
mod tests {
    use clap::ValueEnum;

    use super::*;

    #[test]
    fn hidden_commands_are_not_offered() {
        let command = Command::new("muster")
            .subcommand(Command::new("shown").about("For people").arg(clap::arg!(--flag "A flag")))
            .subcommand(Command::new("inward").hide(true));
        for shell in Shell::value_variants() {
            let text = String::from_utf8(script(*shell, &command)).unwrap();
            assert!(text.contains("shown") && text.contains("flag"), "{shell}");
            assert!(!text.contains("inward"), "{shell}");
        }
    }
}
