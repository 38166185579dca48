//! `muster pool`: SSH hosts under a name.

mod add;
mod list;
mod rm;

use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};

use crate::error::Error;

/// Add, list and remove SSH hosts to run jobs on
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster pool add gpu ada@gpu1 ada@gpu2
  muster run --on ssh/gpu -N 2 --gpus 8 train.py
  muster pool ls
  muster pool rm gpu gpu2
  muster pool rm gpu

A pool is a set of hosts that your ssh reaches without a password: its configuration, agent and known hosts are used. \
Nothing has to be installed there, no port opened, and nobody has to be root.")]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Action,
}

#[derive(Debug, Subcommand)]
enum Action {
    Add(add::Args),
    Ls(list::Args),
    Rm(rm::Args),
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    match &args.action {
        Action::Add(args) => add::run(args).await,
        Action::Ls(args) => list::run(args).await,
        Action::Rm(args) => rm::run(args).await,
    }
}
