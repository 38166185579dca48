//! `fastgpu ssh`, `tmux` and `scp`.

use std::ffi::OsString;
use std::io::{self, IsTerminal};
use std::os::unix::ffi::OsStrExt;
use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::model::session::MAIN;
use muster_api::view::SessionsQuery;
use muster_ssh::client::Command;

use crate::call::Caller;
use crate::command::{cp, session};
use crate::error::Error;
use crate::machine::{self, Meant, Named};
use crate::remote::{self, Ours};
use crate::session::Session;
use crate::target::Target;
use crate::terminal;

#[derive(Debug, ClapArgs)]
pub(super) struct SshArgs {
    /// task0.NAME; or NAME, {NAME} for the first
    #[arg(value_name = "NAME")]
    name: Named,
    /// A line for the shell there; without it, a shell to type into
    #[arg(value_name = "COMMAND", trailing_var_arg = true)]
    command: Vec<OsString>,
}

#[derive(Debug, ClapArgs)]
pub(super) struct TmuxArgs {
    /// task0.NAME; or NAME, {NAME} for the first
    #[arg(value_name = "NAME")]
    name: Named,
}

#[derive(Debug, ClapArgs)]
pub(super) struct ScpArgs {
    /// What to copy: paths here, or NAME:PATH
    #[arg(value_name = "SRC", required = true)]
    from: Vec<OsString>,
    /// Where to: NAME:PATH, {NAME}:PATH for every machine of a group; or a path here
    #[arg(value_name = "DST")]
    to: OsString,
    /// Nothing: directories are copied anyway
    #[arg(short, long, hide = true)]
    recursive: bool,
}

pub(super) async fn ssh(args: &SshArgs) -> Result<ExitCode, Error> {
    let caller = Caller::open().await?;
    let target = target(&caller.session, &args.name).await?;
    let words: Vec<&[u8]> = args.command.iter().map(|word| word.as_bytes()).collect();
    log_in(&caller, &target, (!words.is_empty()).then(|| words.join(&b' '))).await
}

async fn log_in(caller: &Caller, target: &Target, line: Option<Vec<u8>>) -> Result<ExitCode, Error> {
    let is_shell = line.is_none();
    let wants_terminal = is_shell && io::stdin().is_terminal();
    let ours = Ours { stdin: true, escapes: is_shell, ..Ours::default() }.with_terminal(wants_terminal);
    let command = Command { line, ..Command::default() };
    remote::run(caller, target, command, ours, false).await.map(ExitCode::from)
}

/// The shell in which a script's commands run is a session; the one it would have, if there are several.
pub(super) async fn tmux(args: &TmuxArgs) -> Result<ExitCode, Error> {
    let caller = Caller::open().await?;
    let target = target(&caller.session, &args.name).await?;
    let query = SessionsQuery { task: target.task };
    let sessions =
        caller.session.call(async |client| client.sessions(&target.job, &query).await).await?.items;
    let named = |name: &str| sessions.iter().find(|session| session.name == name);
    let found = named(MAIN).or(sessions.last()).map(|session| session.name.clone());
    match found.filter(|_| io::stdin().is_terminal() && terminal::stdout_is_terminal()) {
        Some(name) => session::attach::attach(&session::Which { target, name: name.to_string() }).await,
        None => {
            terminal::note("no command runs in a terminal there; this is a shell of your own");
            log_in(&caller, &target, None).await
        }
    }
}

pub(super) async fn scp(args: &ScpArgs) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let mut all = false;
    let mut from = Vec::new();
    for word in &args.from {
        from.push(side(&session, word, &mut all).await?);
    }
    let to = side(&session, &args.to, &mut all).await?;
    cp::run(&cp::Args::of(from, to, all)).await
}

/// A side of a copy as `muster cp` has it: `NAME:PATH` becomes `JOB/TASK:PATH`.
async fn side(session: &Session, word: &OsString, all: &mut bool) -> Result<OsString, Error> {
    let Some((name, path)) = word.to_str().and_then(remote_side) else { return Ok(word.clone()) };
    let Ok(named) = name.parse::<Named>() else { return Ok(word.clone()) };
    let Meant { job, rank } = machine::find(session, &named).await?;
    let task = match rank {
        Some(rank) => format!("/{rank}"),
        None => {
            *all |= job.nodes > 1;
            String::new()
        }
    };
    Ok(format!("{}{task}:{path}", job.id).into())
}

/// What is before a colon, if that can be a machine: `./a:b` and `dir/a:b` are files.
fn remote_side(word: &str) -> Option<(&str, &str)> {
    let (name, path) = word.split_once(':')?;
    (!name.is_empty() && !name.contains('/') && !name.starts_with('.')).then_some((name, path))
}

async fn target(session: &Session, named: &Named) -> Result<Target, Error> {
    let Meant { job, rank } = machine::find(session, named).await?;
    if rank.is_none() && job.nodes > 1 {
        terminal::note(&format!("this is {} of {} machines", machine::by_group(&job, 0), job.nodes));
    }
    Ok(Target { job: job.id.to_string(), task: Some(rank.unwrap_or(0)) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_machine_is_before_the_colon_and_a_file_is_not() {
        assert_eq!(remote_side("task0.v100:/root/a:b"), Some(("task0.v100", "/root/a:b")));
        assert_eq!(remote_side("{v100}:"), Some(("{v100}", "")));
        for path in ["a", "./a:b", "/a:b", "d/a:b", ":a"] {
            assert_eq!(remote_side(path), None, "{path}");
        }
    }
}
