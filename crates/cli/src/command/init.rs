//! `muster init`: a job file from what is in a directory, for its owner to read and change.

use std::fs::OpenOptions;
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::model::quantity::format_bytes;
use serde_json::json;

use crate::entry::Hooks;
use crate::error::{Code, Error};
use crate::spec::JOB_FILE;
use crate::terminal;

mod draft;
mod look;

/// Write a commented job file from what is in a directory
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster init                       writes muster.yaml here
  muster init project --force       over the one that is there
  muster init && muster run muster.yaml --dry-run

It looks for the script to run, for what it imports, for requirements.txt, pyproject.toml and environment.yml, \
for large files that need not be copied, and for the accelerators of this machine. \
What it is not sure of is in the file, switched off: take the # away.

Exit codes:
  0    written
  2    there is one already, or no such directory; nothing was changed
  125  it could not be written")]
pub(crate) struct Args {
    /// The directory (the current one if absent)
    #[arg(value_name = "DIR", default_value = ".", hide_default_value = true)]
    folder: PathBuf,
    /// Replace the file if there is one
    #[arg(long)]
    force: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) fn run(args: &Args, hooks: &Hooks) -> Result<ExitCode, Error> {
    let path = args.folder.join(JOB_FILE);
    if !args.folder.is_dir() {
        let message = format!("there is no directory {}", args.folder.display());
        return Err(Error::new(Code::JobFileUnreadable, message).hint("make it first, or name another"));
    }
    // Said before anything is looked at, which may take a while.
    if !args.force && path.symlink_metadata().is_ok() {
        return Err(exists(&path));
    }
    let seen = look::around(&args.folder);
    let text = draft::text(&seen, &(hooks.devices)());
    write(&path, &text, args.force)?;
    if args.json {
        let large: Vec<_> =
            seen.large.iter().map(|(name, bytes)| json!({"path": name, "bytes": bytes})).collect();
        terminal::say_json(&json!({
            "path": path.to_string_lossy(), "command": draft::command(&seen), "framework": seen.frameworks.first().map(|(framework, _)| framework), "large": large,
        }))?;
        return Ok(ExitCode::SUCCESS);
    }
    terminal::say(&path.display().to_string())?;
    for (name, bytes) in &seen.large {
        terminal::note(&format!(
            "{name} ({}) would be copied: write it into .musterignore?",
            format_bytes(*bytes)
        ));
    }
    if terminal::stderr_is_terminal() {
        let shown = path.strip_prefix("./").unwrap_or(&path).display().to_string();
        terminal::remark(&format!("  read it, then: muster run {shown} --dry-run"));
    }
    Ok(ExitCode::SUCCESS)
}

fn exists(path: &Path) -> Error {
    Error::new(Code::JobFileExists, format!("{} is there already", path.display()))
}

fn write(path: &Path, text: &str, force: bool) -> Result<(), Error> {
    let mut options = OpenOptions::new();
    options.write(true);
    if force {
        options.create(true).truncate(true);
    } else {
        // Whoever was faster keeps theirs.
        options.create_new(true);
    }
    let written = options.open(path).and_then(|mut file| file.write_all(text.as_bytes()));
    written.map_err(|error| match error.kind() {
        io::ErrorKind::AlreadyExists => exists(path),
        _ => Error::io(Code::JobFileUnwritable, format!("write {}", path.display()), &error),
    })
}
