//! `muster server check`: compares everything in a data directory with what it should be.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args as ClapArgs;

use super::own_home;
use crate::command::doctor::{Group, report};
use crate::entry::Hooks;
use crate::error::{Code, Error};
use crate::progress::Bar;

/// Read everything in a data directory and say what is damaged
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
It reads the database, every log, the code of jobs, and the records of this machine's node, and changes nothing. The server may run meanwhile, \
or not.

Examples:
  muster server check
  muster server check --home /var/lib/muster
  muster server check --json | jq '.checks[] | select(.status == \"broken\")'

Exit codes:
  0    nothing is damaged
  1    something is")]
pub(crate) struct Args {
    /// The data directory (default: that of the private server)
    #[arg(long, value_name = "DIR")]
    home: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, hooks: &Hooks) -> Result<ExitCode, Error> {
    let home = match &args.home {
        Some(home) => home.clone(),
        None => own_home("check")?.folder().to_owned(),
    };
    if !home.is_dir() {
        return Err(Error::new(Code::HomeUnusable, format!("{} is no directory", home.display())));
    }
    let mut bar = Bar::new("checking", 0);
    let checks = (hooks.server_check)(&home, &mut |found, read| {
        bar.grow(found);
        bar.add(read);
    });
    drop(bar);
    report(&[Group { name: "data directory", checks }], args.json)
}
