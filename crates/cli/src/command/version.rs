//! `muster version`: nothing is read and nothing is started, so that it costs nothing.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use serde_json::json;

use crate::error::Error;
use crate::terminal;

/// Show the version
#[derive(Debug, ClapArgs)]
#[command(after_help = "Examples:\n  muster version\n  muster version --json")]
pub(crate) struct Args {
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args) -> Result<ExitCode, Error> {
    let version = env!("CARGO_PKG_VERSION");
    if args.json {
        terminal::say_json(&json!({"version": version}))?;
    } else {
        terminal::say(&format!("muster {version}"))?;
    }
    Ok(ExitCode::SUCCESS)
}
