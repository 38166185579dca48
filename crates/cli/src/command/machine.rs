//! `muster machine`: hosts that are held by name, to be worked on rather than given a command.

mod create;
mod life;
mod list;

use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};

use crate::error::Error;

/// Hold machines by name, and work on them with ssh, exec, cp and sessions
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster machine create v100 -N 2 --on ssh/gpu
  muster ssh v100/1
  muster session run v100 -- python train.py
  muster machine stop v100
  muster machine start v100
  muster machine kill v100

A machine is a job that runs nothing of its own and lasts until it is killed. On a pool it is a whole host, used as if you \
had logged in; on this machine it is a directory of its own, and what it is given. \
Several are one group: task0.v100, task1.v100; each reaches the others by ssh under that name and by address.

Stopped machines hold nothing but their name. What they ran has ended. Files stay where they were: on a pool in the \
home directory of the host, which a started machine gets again if it is free; on this machine in the directory of the \
machine, for as long as `keep.files_age` says.")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Create(Box<create::Args>),
    Ls(list::Args),
    Stop(life::StopArgs),
    Start(life::StartArgs),
    Kill(life::KillArgs),
    Rename(life::RenameArgs),
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    match &args.action {
        Action::Create(args) => create::run(args).await,
        Action::Ls(args) => list::run(args).await,
        Action::Stop(args) => life::stop(args).await,
        Action::Start(args) => life::start(args).await,
        Action::Kill(args) => life::kill(args).await,
        Action::Rename(args) => life::rename(args).await,
    }
}
