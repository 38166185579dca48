//! From the words of a command line to the command, and from its outcome to an exit code.

use std::ffi::{OsStr, OsString};
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::{ArgMatches, Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use muster_api::doctor::Check;
use muster_api::model::Timestamp;
use muster_api::model::node::Device;
use muster_launch::sbatch;
use serde::Serialize;

use crate::command::{
    attach, audit, clone, completion, config, context, cp, doctor, elements, events, exec, exit_codes,
    explain, files, gc, get, hold, init, login, logs, machine, nodes, pool, port_forward, priority, ps,
    queue, quota, release, resume, rm, run, secret, server, session, show, sim, ssh, ssh_config, ssh_proxy,
    stop, submit, suspend, token, top, user, version, wait, why, workspace,
};
use crate::error::{Code, Error, Format, usage};
use crate::face;
use crate::place::{self, Choice};
use crate::terminal::{self, When};

/// Looks through a data directory, and tells how many more bytes are to be read, and how many more were.
pub type DataCheck = fn(&Path, &mut dyn FnMut(u64, u64)) -> Vec<Check>;

/// What this crate leaves to the binary it is a part of.
pub struct Hooks {
    /// The OpenAPI document of the server.
    pub openapi: fn() -> String,
    /// `server run`.
    pub server_run: fn(ServerOptions) -> ExitCode,
    /// `server restore`: makes a directory the data directory of the server that a backup is of.
    pub server_restore: fn(&mut dyn Read, &Path) -> Result<Restored, NotRestored>,
    /// `server check`: looks through a data directory.
    pub server_check: DataCheck,
    /// `agent`, with the words after it.
    pub agent_run: fn(Vec<OsString>) -> ExitCode,
    /// Everything that `config.toml` may set.
    pub settings: &'static [Setting],
    /// What is wrong with the text of a `config.toml`, in the words of whoever reads it in earnest.
    pub check_config: fn(&str) -> Result<(), String>,
    /// The accelerators of this machine, as its agent finds them. May take seconds.
    pub devices: fn() -> Vec<Device>,
    /// How an agent started here would end the processes of a task.
    pub trees: fn() -> Trees,
    /// Whether a task's files can be shown at the paths that platforms have for them.
    pub can_mount: fn() -> bool,
}

/// How a task's processes are found and ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Trees {
    /// In words: `a cgroup v2`.
    pub way: &'static str,
    /// Nothing that a task starts can escape.
    pub is_certain: bool,
    /// The memory that a job asks for is also the most that it gets.
    pub limits_memory: bool,
    /// A task cannot open the accelerators of other tasks.
    pub limits_devices: bool,
}

/// One thing that `config.toml` may set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Setting {
    /// Its table and name: `local.slots`.
    pub key: &'static str,
    /// What holds when it is not set, for people.
    pub default: &'static str,
    /// What it is for.
    pub meaning: &'static str,
    /// A value, as one would type it.
    pub example: &'static str,
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
    /// A file with the token that people show; the server makes one of its own where there is none.
    pub token_file: Option<PathBuf>,
    /// A file with the key that secrets are sealed with; the server makes one of its own where there is none.
    pub secrets_key_file: Option<PathBuf>,
    /// Several people share it: each has an account.
    pub auth: bool,
    /// Speak TLS on that address.
    pub tls: bool,
    /// Speak plain HTTP there, although other machines reach it.
    pub listen_plain_http: bool,
    /// The files with the certificate and its key; the server makes one of its own where there are none.
    pub certificate: Option<(PathBuf, PathBuf)>,
}

/// What was restored.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Restored {
    /// When the backup was taken.
    pub taken_at: Timestamp,
    /// The muster that took it.
    pub version: String,
    /// How many files there are.
    pub files: u64,
    /// All of them together.
    pub bytes: u64,
    /// Jobs that were not over, and are held.
    pub held_jobs: u64,
    /// Tasks that were over and had not sent everything.
    pub unsettled_tasks: u64,
}

/// Why nothing was restored.
#[derive(Debug)]
pub enum NotRestored {
    /// There is something where it was to go.
    NotEmpty(String),
    /// The backup cannot be used.
    Unusable(String),
    /// The disk, or the rights to it.
    Failed(io::Error),
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

A job is named by its id, the beginning of it, its name, or `last`. Every command takes --json, \
--color auto, always or never, and which server it is for: --context NAME, or --server URL with --fingerprint.

Exit codes:
  0    done; of `run`, `clone`, `attach`, `wait`: the job's own; of `exec`, `ssh`: the command's
  1    of `server status`: none runs; of `doctor`: something is broken; of `cp`: files are missing
  2    what was asked for is wrong
  124  a timeout
  125  muster itself failed
`muster help exit-codes` has them all.

Environment:
  MUSTER_HOME         where the private server keeps its data
  MUSTER_CONTEXT      the server to talk to, by its name in `muster context ls`
  MUSTER_SERVER       another server instead: https://HOST:PORT, http://HOST:PORT or unix:/PATH
  MUSTER_FINGERPRINT  the certificate that it must show
  MUSTER_TOKEN        the token it knows you by
  NO_COLOR            no colours"
)]
struct Cli {
    /// When there are colours: auto, always, never
    // Told once, in the root's help, rather than in that of every command.
    #[arg(long, global = true, hide = true, value_name = "WHEN", value_enum, default_value_t)]
    color: When,
    #[command(flatten)]
    choice: Choice,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    Run(Box<run::Args>),
    Submit(Box<submit::Args>),
    Clone(Box<clone::Args>),
    Init(init::Args),
    Ps(ps::Args),
    Show(show::Args),
    Logs(logs::Args),
    Elements(elements::Args),
    Attach(attach::Args),
    Exec(exec::Args),
    Ssh(ssh::Args),
    #[command(name = "port-forward")]
    PortForward(port_forward::Args),
    Files(files::Args),
    Get(get::Args),
    Cp(cp::Args),
    Session(session::Args),
    Machine(machine::Args),
    Events(events::Args),
    Wait(wait::Args),
    Stop(stop::Args),
    #[command(visible_alias = "pause")]
    Suspend(suspend::Args),
    Resume(resume::Args),
    Hold(hold::Args),
    Release(release::Args),
    Priority(priority::Args),
    Rm(rm::Args),
    Why(why::Args),
    Queue(queue::Args),
    Quota(quota::Args),
    Top(top::Args),
    Nodes(nodes::Args),
    Pool(pool::Args),
    Sim(sim::Args),
    Explain(explain::Args),
    Gc(gc::Args),
    Server(server::Args),
    Context(context::Args),
    Login(login::Args),
    Logout(login::LogoutArgs),
    Signup(login::SignUpArgs),
    Whoami(login::WhoamiArgs),
    User(user::Args),
    Token(token::Args),
    Workspace(workspace::Args),
    Secret(secret::Args),
    Audit(audit::Args),
    Config(config::Args),
    #[command(name = "ssh-config")]
    SshConfig(ssh_config::Args),
    Doctor(doctor::Args),
    Completion(completion::Args),
    Version(version::Args),
    #[command(name = "exit-codes", hide = true)]
    ExitCodes(exit_codes::Args),
    #[command(name = "ssh-proxy", hide = true)]
    SshProxy(ssh_proxy::Args),
    /// The node side
    #[command(hide = true)]
    Agent(Words),
    /// The parent of one task
    #[command(hide = true)]
    Supervise(Words),
}

/// What [`Cli`] is, with one command.
#[derive(Debug, Parser)]
#[command(name = "muster", disable_help_subcommand = true)]
struct Quick {
    #[arg(long, global = true, value_name = "WHEN", value_enum, default_value_t)]
    color: When,
    #[command(flatten)]
    choice: Choice,
    #[command(subcommand)]
    command: QuickCommand,
}

#[derive(Debug, Subcommand)]
enum QuickCommand {
    Run(Box<run::Args>),
}

#[derive(Debug, Args)]
struct Words {
    #[arg(trailing_var_arg = true, allow_hyphen_values = true)]
    words: Vec<OsString>,
}

/// Runs the command that the words name, the first of which is the program.
pub fn main(words: impl Iterator<Item = OsString>, hooks: &Hooks) -> ExitCode {
    let words: Vec<OsString> = words.collect();
    crate::session::announce_silence();
    if let Some((generation, words)) = face::called(&words) {
        return face::fastgpu::main(generation, words);
    }
    // Of a line that cannot be read it can only be guessed whether JSON was meant.
    let own = words.iter().take_while(|word| *word != "--");
    let guess = if own.clone().any(|word| word == "--json") { Format::Json } else { Format::Text };
    let (cli, format) = match parse(words) {
        Ok(parsed) => parsed,
        Err(error) => {
            usage::report(&error, guess);
            return ExitCode::from(u8::try_from(error.exit_code()).unwrap_or(2));
        }
    };
    terminal::set_colours(cli.color);
    place::choose(cli.choice);
    dispatch(cli.command, hooks).unwrap_or_else(|error| {
        error.report(format);
        error.exit_code()
    })
}

fn dispatch(command: Command, hooks: &Hooks) -> Result<ExitCode, Error> {
    match command {
        Command::Run(args) => block_on(run::run(&args)),
        Command::Submit(args) => block_on(submit::run(&args)),
        Command::Clone(args) => block_on(clone::run(&args)),
        Command::Init(args) => init::run(&args, hooks),
        Command::Ps(args) => block_on(ps::run(&args)),
        Command::Show(args) => block_on(show::run(&args)),
        Command::Logs(args) => block_on(logs::run(&args)),
        Command::Elements(args) => block_on(elements::run(&args)),
        Command::Attach(args) => block_on(attach::run(&args)),
        Command::PortForward(args) => block_on(port_forward::run(&args)),
        Command::SshConfig(args) => ssh_config::run(&args),
        Command::Exec(args) => block_on(exec::run(&args)),
        Command::Ssh(args) => block_on(ssh::run(&args)),
        Command::Files(args) => block_on(files::run(&args)),
        Command::Get(args) => block_on(get::run(&args)),
        Command::Cp(args) => block_on(cp::run(&args)),
        Command::Session(args) => block_on(session::run(&args)),
        Command::Events(args) => block_on(events::run(&args)),
        Command::Wait(args) => block_on(wait::run(&args)),
        Command::Stop(args) => block_on(stop::run(&args)),
        Command::Suspend(args) => block_on(suspend::run(&args)),
        Command::Hold(args) => block_on(hold::run(&args)),
        Command::Release(args) => block_on(release::run(&args)),
        Command::Priority(args) => block_on(priority::run(&args)),
        Command::Resume(args) => block_on(resume::run(&args)),
        Command::Machine(args) => block_on(machine::run(&args)),
        Command::Rm(args) => block_on(rm::run(&args)),
        Command::Why(args) => block_on(why::run(&args)),
        Command::Queue(args) => block_on(queue::run(&args)),
        Command::Quota(args) => block_on(quota::run(&args)),
        Command::Top(args) => block_on(top::run(&args)),
        Command::Nodes(args) => block_on(nodes::run(&args)),
        Command::Pool(args) => block_on(pool::run(&args)),
        Command::Sim(args) => block_on(sim::run(&args)),
        Command::Explain(args) => explain::run(&args),
        Command::Gc(args) => block_on(gc::run(&args)),
        Command::Server(args) => server::run(args, hooks),
        Command::Context(args) => context::run(&args),
        Command::Login(args) => block_on(login::run(&args)),
        Command::Logout(args) => block_on(login::logout(&args)),
        Command::Signup(args) => block_on(login::sign_up(&args)),
        Command::Whoami(args) => block_on(login::whoami(&args)),
        Command::User(args) => block_on(user::run(&args)),
        Command::Token(args) => block_on(token::run(&args)),
        Command::Workspace(args) => block_on(workspace::run(&args)),
        Command::Secret(args) => block_on(secret::run(&args)),
        Command::Audit(args) => block_on(audit::run(&args)),
        Command::Config(args) => config::run(&args, hooks),
        Command::Doctor(args) => block_on(doctor::run(&args, hooks)),
        Command::Completion(args) => completion::run(&args, &Cli::command()),
        Command::Version(args) => version::run(&args),
        Command::ExitCodes(args) => exit_codes::run(&args),
        Command::SshProxy(args) => block_on(ssh_proxy::run(&args)),
        Command::Agent(args) => Ok((hooks.agent_run)(args.words)),
        // The binary branches off before it gets here.
        Command::Supervise(_) => Err(Error::new(Code::Usage, "`supervise` is for the agent to start")),
    }
}

/// Runs a command that talks to a server. One thread is enough, and starts in no time.
pub(crate) fn block_on(command: impl Future<Output = Result<ExitCode, Error>>) -> Result<ExitCode, Error> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    let runtime = runtime.map_err(|error| Error::io(Code::SystemFailed, "start", &error))?;
    runtime.block_on(command)
}

/// Reads a command line. `muster run job.yaml --nodes 4` means `muster run --file=job.yaml --nodes 4`: the first word
/// of a command takes all that follow it, so a file in its place is found only afterwards, and the line read again.
fn parse(mut words: Vec<OsString>) -> Result<(Cli, Format), clap::Error> {
    let (cli, format) = read(&words)?;
    let Command::Run(args) = &cli.command else { return Ok((cli, format)) };
    let taken = &args.flags.command;
    let place = words.len().saturating_sub(taken.len());
    let is_file = taken.first().is_some_and(|word| is_job_file(word))
        // After `--` it is a program, however odd its name.
        && place.checked_sub(1).is_some_and(|before| words[before] != "--")
        && words.get(place) == taken.first();
    if !is_file {
        return Ok((cli, format));
    }
    let mut flag = OsString::from("--file=");
    flag.push(&words[place]);
    words[place] = flag;
    read(&words)
}

/// One command line, and whether its errors are to be JSON too.
fn read(words: &[OsString]) -> Result<(Cli, Format), clap::Error> {
    if let Some(quick) = read_run(words) {
        return Ok(quick);
    }
    let matches = Cli::command().try_get_matches_from(words)?;
    let format = if wants_json(&matches) { Format::Json } else { Format::Text };
    // As `Cli::parse` has it: an error here names the command with its usage.
    let cli = Cli::from_arg_matches(&matches).map_err(|error| error.format(&mut Cli::command()))?;
    Ok((cli, format))
}

/// `muster run …` as [`read`] would read it, if nothing is wrong with it. Describing all commands and their flags takes
/// longer than anything else that the client does before a job is sent, and this describes one. Whatever it does not
/// understand, a question for help above all, is read by [`read`], which knows all that can be said about it.
fn read_run(words: &[OsString]) -> Option<(Cli, Format)> {
    if words.get(1)? != "run" {
        return None;
    }
    let matches = Quick::command().try_get_matches_from(words).ok()?;
    let format = if wants_json(&matches) { Format::Json } else { Format::Text };
    let Quick { color, choice, command: QuickCommand::Run(args) } = Quick::from_arg_matches(&matches).ok()?;
    Some((Cli { color, choice, command: Command::Run(args) }, format))
}

/// Whether the command that is named was given its `--json`.
fn wants_json(matches: &ArgMatches) -> bool {
    match matches.subcommand() {
        Some((_, inner)) => wants_json(inner),
        None => matches.try_get_one::<bool>("json").ok().flatten().is_some_and(|json| *json),
    }
}

/// A job, going by its name; a `.sh`, by its `#SBATCH` lines. A `.json` that may be executed is a program, however odd.
fn is_job_file(word: &OsStr) -> bool {
    let path = Path::new(word);
    let is_program = || path.metadata().is_ok_and(|it| it.is_file() && it.permissions().mode() & 0o111 != 0);
    match path.extension().and_then(OsStr::to_str) {
        Some("yaml" | "yml" | "sbatch" | "slurm") => true,
        Some("json") => !is_program(),
        Some("sh" | "bash") => is_batch_script(path),
        _ => false,
    }
}

/// The lines are at the beginning of a script; `#SBATCH` after the first command has no effect.
const MAX_BATCH_HEADER: u64 = 64 << 10;

fn is_batch_script(path: &Path) -> bool {
    // A pipe would be waited for.
    if !path.is_file() {
        return false;
    }
    let mut bytes = Vec::new();
    let read = File::open(path).and_then(|file| file.take(MAX_BATCH_HEADER).read_to_end(&mut bytes));
    read.is_ok() && sbatch::is_script(&String::from_utf8_lossy(&bytes))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run_args(words: &[&str]) -> run::Args {
        match parse(words.iter().map(OsString::from).collect()).unwrap().0.command {
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
            // What `completion` prints is for a shell to read.
            let needs_json = !command.has_subcommands() && name != "completion";
            assert!(has_json || !needs_json, "`{name}` has no --json");
        }
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
        submit: Submit the job of a file and return at once
        clone: Submit a job again, as it was or with changes
        init: Write a commented job file from what is in a directory
        ps: List jobs
        show: Show everything about a job: spec, tasks, attempts, what it uses, and why it ended
        logs: Show what a job's tasks have written
        elements: List the elements of an array, and what became of each
        attach: Stay with a job that waits or runs, as `muster run` does
        exec: Run a command in a task that runs
        ssh: Open a shell in a task that runs, or run a line in it
        port-forward: Reach ports of a task at ports of this machine
        files: List the files of a job's task
        get: Copy files or directories of a job's task here
        cp: Copy files and directories to a running task, or from it
        session: Run commands in shells of a task that keep directory and variables
        machine: Hold machines by name, and work on them with ssh, exec, cp and sessions
        events: Show what happened to a job, or lately to all
        wait: Wait until jobs are over
        stop: Stop jobs
        suspend: Pause jobs: their tasks end, and nothing is held for them
        resume: Bring jobs back that were paused
        hold: Keep jobs that wait in the queue, until they are let go
        release: Release held jobs
        priority: Give jobs that are not over another priority: the highest start first
        rm: Remove jobs that are over, with their logs and files
        why: Say what a job waits for, or why it ended
        queue: Show who waits, those that are to start next first
        quota: Show what workspaces may have and have, and what you can get now; or change it
        top: Watch nodes, the queue, your jobs and quotas
        nodes: Show the machines, their devices, and what of them is in use
        pool: Add, list and remove SSH hosts to run jobs on
        sim: Play work through the scheduler and see what comes of it
        explain: Explain an error code, or list all of them
        gc: Remove what need not be kept: old logs and outputs, code that no job has
        server: Start, stop, back up or look at the server
        context: Name servers, and choose the one that commands talk to
        login: Log in to a server that people share
        logout: Log out: revoke the token of this machine
        signup: Ask for an account on a server that people share
        whoami: Say who you are to the server, and what you may do
        user: List people, make accounts, disable them, set passwords
        token: Make, list, rotate and remove tokens
        workspace: List workspaces, make them, and say who is what in them
        secret: Put, list and remove secrets that tasks are given
        audit: Show who did what, and who was not allowed to
        config: Show or change the settings, and where each comes from
        ssh-config: Make plain ssh, scp, rsync and editors reach tasks
        doctor: Check this machine, the configuration, the server, its engines and nodes
        completion: Print what makes a shell complete muster's commands and flags
        version: Show the version
        ");
    }

    #[test]
    fn a_yaml_file_in_the_place_of_a_command_is_read_and_flags_may_follow_it() {
        let args = run_args(&["muster", "run", "-d", "train.yaml", "--nodes", "4", "--", "python", "x.py"]);
        assert_eq!(args.file.as_deref(), Some(Path::new("train.yaml")));
        assert_eq!(args.flags.nodes.as_deref(), Some("4"));
        assert_eq!(args.flags.command, ["python", "x.py"]);
    }

    #[test]
    fn a_shell_script_with_lines_for_sbatch_in_the_place_of_a_command_is_a_job() {
        let folder = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| {
            let path = folder.path().join(name);
            std::fs::write(&path, text).unwrap();
            path.into_os_string().into_string().unwrap()
        };
        let batch = write("batch.sh", "#!/bin/bash\n#SBATCH --nodes=2\ntrue\n");
        let plain = write("plain.sh", "#!/bin/bash\ntrue\n");
        let args = run_args(&["muster", "run", &batch, "--nodes", "4"]);
        assert_eq!((args.file, args.flags.nodes.as_deref()), (Some(batch.clone().into()), Some("4")));
        let args = run_args(&["muster", "run", &plain, "--nodes", "4"]);
        assert_eq!((args.file, args.flags.command.len()), (None, 3));
        let args = run_args(&["muster", "run", "--", &batch, "--nodes", "4"]);
        assert_eq!((args.file, args.flags.command.len()), (None, 3));
    }

    #[test]
    fn a_line_that_is_read_quickly_says_what_it_says_otherwise() {
        let lines = [
            "muster run -- true",
            "muster run --color never --json -N 2 train.py --json",
            "muster run -d --env A=1 --env B=2 -- sh -c x",
            "muster run --context lab --fingerprint sha256:1 -- true",
            "muster run --color=always --name a --gpus 2 'python x.py && y'",
        ];
        for line in lines {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            let whole = Cli::try_parse_from(&words).unwrap();
            let (quick, format) = read_run(&words).expect(line);
            assert_eq!(format!("{quick:?}"), format!("{whole:?}"));
            assert_eq!(format == Format::Json, line.contains("--json -N"), "{line}");
        }
        for line in
            ["muster ps", "muster --color never run -- true", "muster run --help", "muster run --nosuch"]
        {
            let words: Vec<OsString> = line.split(' ').map(OsString::from).collect();
            assert!(read_run(&words).is_none(), "{line}");
        }
    }

    #[test]
    fn the_words_of_a_command_are_its_own() {
        let args = run_args(&["muster", "run", "-N", "2", "--", "job.yaml", "--nodes", "3"]);
        assert_eq!((args.file, args.flags.command.len()), (None, 3));
        let args = run_args(&["muster", "run", "python", "train.yaml", "-N", "3", "--", "x"]);
        assert_eq!(args.flags.command, ["python", "train.yaml", "-N", "3", "--", "x"]);
        assert_eq!(args.flags.nodes, None);
    }

    /// `docs/reference/cli.md` as it should be, what every command's `--help` says: whoever changes it sees what users will.
    fn reference() -> String {
        let mut text = "# The command line\n\nWhat `--help` says, of every command. Generated: \
            `INSTA_UPDATE=always cargo test -p muster-cli reference` writes it anew.\n"
            .to_owned();
        let mut root = Cli::command().term_width(100);
        root.build();
        let mut add = |heading: String, mut command: clap::Command| {
            let help = command.render_help().to_string();
            let help: Vec<&str> = help.lines().map(str::trim_end).collect();
            text.push_str(&format!("\n{heading}\n\n```text\n{}\n```\n", help.join("\n").trim_end()));
        };
        add("## muster".into(), root.clone());
        for command in root.get_subcommands().filter(|it| !it.is_hide_set() && it.get_name() != "help") {
            add(format!("## muster {}", command.get_name()), command.clone());
            for inner in command.get_subcommands().filter(|it| !it.is_hide_set() && it.get_name() != "help") {
                add(format!("### muster {} {}", command.get_name(), inner.get_name()), inner.clone());
            }
        }
        text
    }

    #[test]
    fn the_committed_reference_is_what_help_says() {
        let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/reference/cli.md");
        // As with the other snapshots.
        if std::env::var_os("INSTA_UPDATE").is_some_and(|how| how == "always") {
            std::fs::write(&path, reference()).unwrap();
        }
        let committed = std::fs::read_to_string(&path).unwrap_or_default();
        assert!(
            committed == reference(),
            "docs/reference/cli.md is out of date: INSTA_UPDATE=always cargo test -p muster-cli reference"
        );
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
    fn a_command_that_was_asked_for_json_has_its_errors_in_json_too() {
        for (words, expected) in [
            (&["muster", "ps", "--json"][..], Format::Json),
            (&["muster", "server", "status", "--json"], Format::Json),
            (&["muster", "ps"], Format::Text),
            // The job's own flag, not ours.
            (&["muster", "run", "--", "x", "--json"], Format::Text),
        ] {
            let (_, format) = parse(words.iter().map(OsString::from).collect()).unwrap();
            assert_eq!(format, expected, "{words:?}");
        }
    }

    #[test]
    fn an_empty_selector_is_refused() {
        assert!(parse(["muster", "rm", ""].iter().map(OsString::from).collect()).is_err());
    }
}
