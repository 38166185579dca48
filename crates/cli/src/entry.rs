//! From the words of a command line to the command, and from its outcome to an exit code.

use std::ffi::{OsStr, OsString};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand};

use crate::command::{gc, logs, nodes, ps, rm, run, server, show, stop, version, wait, why};
use crate::error::Error;

/// What this crate leaves to the binary it is a part of.
pub struct Hooks {
    /// The OpenAPI document of the server.
    pub openapi: fn() -> String,
    /// `server run`.
    pub server_run: fn(ServerOptions) -> ExitCode,
    /// `agent`, with the words after it.
    pub agent_run: fn(Vec<OsString>) -> ExitCode,
}

/// How a server is to run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ServerOptions {
    /// Its data directory.
    pub home: PathBuf,
    /// Started by a client: leave the terminal's session, write `ready` and a newline to stdout once it serves.
    pub daemon: bool,
    /// An address to listen on, besides the socket in its data directory.
    pub listen: Option<String>,
}

/// Run training code as distributed jobs, on whatever accelerators there are
#[derive(Debug, Parser)]
#[command(
    name = "muster",
    version,
    arg_required_else_help = true,
    after_help = "\
Examples:
  muster run -- python train.py
  muster run --nodes 2 --gpus 8 -- torchrun train.py
  muster ps
  muster logs -f last

A job is named by its id, the beginning of it, its name, or `last`. Every command takes --json.

Exit codes:
  0    done; of `run` and `wait`, the job's own: see `muster run --help`
  2    what was asked for is wrong
  124  a timeout
  125  muster itself failed

Environment:
  MUSTER_HOME    where the private server keeps its data
  MUSTER_SERVER  another server instead: http://HOST:PORT or unix:/PATH
  MUSTER_TOKEN   the token it knows you by
  NO_COLOR       no colours"
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Ps(ps::Args),
    Show(show::Args),
    Logs(logs::Args),
    Wait(wait::Args),
    Stop(stop::Args),
    Rm(rm::Args),
    Why(why::Args),
    Nodes(nodes::Args),
    Gc(gc::Args),
    Server(server::Args),
    Version(version::Args),
    /// The node side
    #[command(hide = true)]
    Agent(Words),
    /// The parent of one task
    #[command(hide = true)]
    Supervise(Words),
}

#[derive(Debug, Args)]
struct Words {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Runs the command that the words name, the first of which is the program.
pub fn main(words: impl Iterator<Item = OsString>, hooks: &Hooks) -> ExitCode {
    let cli = match parse(words.collect()) {
        Ok(cli) => cli,
        Err(error) => {
            // Help goes to stdout, and whoever closes that has seen enough.
            let _ = error.print();
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    dispatch(cli.command, hooks).unwrap_or_else(|error| {
        error.report();
        error.exit_code()
    })
}

fn dispatch(command: Command, hooks: &Hooks) -> Result<ExitCode, Error> {
    match command {
        Command::Run(args) => block_on(run::run(&args)),
        Command::Ps(args) => block_on(ps::run(&args)),
        Command::Show(args) => block_on(show::run(&args)),
        Command::Logs(args) => block_on(logs::run(&args)),
        Command::Wait(args) => block_on(wait::run(&args)),
        Command::Stop(args) => block_on(stop::run(&args)),
        Command::Rm(args) => block_on(rm::run(&args)),
        Command::Why(args) => block_on(why::run(&args)),
        Command::Nodes(args) => block_on(nodes::run(&args)),
        Command::Gc(args) => block_on(gc::run(&args)),
        Command::Server(args) => server::run(args, hooks),
        Command::Version(args) => version::run(&args),
        Command::Agent(args) => Ok((hooks.agent_run)(args.words)),
        // The binary branches off before it gets here.
        Command::Supervise(_) => Err(Error::input("`supervise` is for the agent to start")),
    }
}

/// Runs a command that talks to a server. One thread is enough, and starts in no time.
pub(crate) fn block_on(command: impl Future<Output = Result<ExitCode, Error>>) -> Result<ExitCode, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::io("start", &error))?;
    runtime.block_on(command)
}

/// Reads a command line. `muster run job.yaml --nodes 4` means `muster run --file=job.yaml --nodes 4`: the first word
/// of a command takes all that follow it, so a file in its place is found only afterwards, and the line read again.
fn parse(mut words: Vec<OsString>) -> Result<Cli, clap::Error> {
    let cli = Cli::try_parse_from(&words)?;
    let Command::Run(args) = &cli.command else { return Ok(cli) };
    let taken = &args.flags.command;
    let place = words.len().saturating_sub(taken.len());
    let is_file = taken.first().is_some_and(|word| is_yaml(word))
        // After `--` it is a program, however odd its name.
        && place.checked_sub(1).is_some_and(|before| words[before] != "--")
        && words.get(place) == taken.first();
    if !is_file {
        return Ok(cli);
    }
    let mut flag = OsString::from("--file=");
    flag.push(&words[place]);
    words[place] = flag;
    Cli::try_parse_from(&words)
}

fn is_yaml(word: &OsStr) -> bool {
    Path::new(word).extension().is_some_and(|ending| ending == "yaml" || ending == "yml")
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    fn run_args(words: &[&str]) -> run::Args {
        match parse(words.iter().map(OsString::from).collect()).unwrap().command {
            Command::Run(args) => *args,
            other => panic!("not `run`: {other:?}"),
        }
    }

    fn commands() -> Vec<clap::Command> {
        let mut root = Cli::command().term_width(100);
        root.build();
        let mut found = Vec::new();
        for command in root.get_subcommands().filter(|command| command.get_name() != "help") {
            found.push(command.clone());
            found.extend(command.get_subcommands().filter(|inner| inner.get_name() != "help").cloned());
        }
        found
    }

    #[test]
    fn the_command_line_is_well_formed() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_examples_and_json() {
        for command in commands().iter().filter(|command| !command.is_hide_set()) {
            let name = command.get_name();
            let help = command.get_after_help().map(ToString::to_string).unwrap_or_default();
            assert!(help.contains("Examples:"), "`{name}` has no examples");
            let has_json = command.get_arguments().any(|argument| argument.get_id() == "json");
            assert!(has_json || command.has_subcommands(), "`{name}` has no --json");
        }
    }

    /// The reference of the command line: whoever changes it sees what users will.
    #[test]
    fn the_help_of_every_command_is_as_it_was() {
        let mut text = String::new();
        for mut command in commands().into_iter().filter(|command| !command.is_hide_set()) {
            let help = command.render_help();
            text.push_str(&format!("==== {}\n{help}\n", command.get_name()));
        }
        insta::assert_snapshot!("help", text);
    }

    #[test]
    fn the_list_of_commands_is_what_users_need() {
        let shown: Vec<String> = Cli::command()
            .get_subcommands()
            .filter(|command| !command.is_hide_set())
            .map(|command| format!("{}: {}", command.get_name(), command.get_about().unwrap_or_default()))
            .collect();
        insta::assert_snapshot!(shown.join("\n"), @r"
        run: Run a command as a job, on one task or many
        ps: List jobs
        show: Show everything about a job: its spec, tasks, attempts, and why it ended
        logs: Show what a job's tasks have written
        wait: Wait until jobs are over
        stop: Stop jobs
        rm: Remove jobs that are over, with their logs and files
        why: Say what a job waits for, or why it ended
        nodes: Show the machines, their devices, and what of them is in use
        server: Start, stop or look at the private server
        version: Show the version
        ");
    }

    #[test]
    fn a_yaml_file_in_the_place_of_a_command_is_read_and_flags_may_follow_it() {
        let args = run_args(&["muster", "run", "-d", "train.yaml", "--nodes", "4", "--", "python", "x.py"]);
        assert_eq!(args.flags.file.as_deref(), Some(Path::new("train.yaml")));
        assert_eq!(args.flags.nodes.as_deref(), Some("4"));
        assert_eq!(args.flags.command, ["python", "x.py"]);
    }

    #[test]
    fn the_words_of_a_command_are_its_own() {
        let args = run_args(&["muster", "run", "-N", "2", "--", "job.yaml", "--nodes", "3"]);
        assert_eq!((args.flags.file, args.flags.command.len()), (None, 3));
        let args = run_args(&["muster", "run", "python", "train.yaml", "-N", "3", "--", "x"]);
        assert_eq!(args.flags.command, ["python", "train.yaml", "-N", "3", "--", "x"]);
        assert_eq!(args.flags.nodes, None);
    }

    #[test]
    fn a_mistyped_command_or_flag_is_answered_with_the_right_one() {
        for (words, meant) in [
            (["muster", "shwo", "x"], "show"),
            (["muster", "ps", "--al"], "--all"),
            (["muster", "server", "strat"], "start"),
        ] {
            let error = parse(words.iter().map(OsString::from).collect()).unwrap_err();
            assert_eq!(error.exit_code(), 2);
            assert!(error.to_string().contains(meant), "{error}");
        }
    }

    #[test]
    fn an_empty_selector_is_refused() {
        assert!(parse(["muster", "rm", ""].iter().map(OsString::from).collect()).is_err());
    }
}
