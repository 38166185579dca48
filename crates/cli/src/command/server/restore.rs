//! `muster server restore`: a data directory from a backup.

use std::fs::File;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::model::quantity::format_bytes;

use super::own_home;
use crate::entry::{Hooks, NotRestored, Restored};
use crate::error::{Code, Error};
use crate::progress::Bar;
use crate::terminal;

/// Make an empty directory the data directory of the server that a backup is of
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
The backup is checked in full before anything can start on it; one that is damaged, cut off or made by a newer muster changes nothing.

See to it that the server it was taken of does not run any more: both would have the same secrets and the same nodes. Jobs that were \
over are as they were. Jobs that were not may have run since, so nothing of them is started by itself: those that wait are held \
until `muster resume JOB`, and those that ran go on if their nodes still have them, and are lost otherwise.

Examples:
  muster server restore muster.backup
  muster server restore muster.backup --home /var/lib/muster
  ssh vault cat muster.backup | muster server restore -")]
pub(crate) struct Args {
    /// The backup, or - for standard input
    #[arg(value_name = "FILE")]
    from: PathBuf,
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
        None => own_home("restore")?.folder().to_owned(),
    };
    let restored = if args.from == Path::new("-") {
        (hooks.server_restore)(&mut Shown::new(io::stdin().lock(), 0), &home)
    } else {
        let unreadable = |error: &io::Error| {
            Error::io(Code::BackupUnusable, format!("read {}", args.from.display()), error)
        };
        let file = File::open(&args.from).map_err(|error| unreadable(&error))?;
        let length = file.metadata().map_err(|error| unreadable(&error))?.len();
        (hooks.server_restore)(&mut Shown::new(file, length), &home)
    };
    let restored = restored.map_err(|failure| refused(failure, &home))?;
    say(&restored, &home, args.json)?;
    Ok(ExitCode::SUCCESS)
}

fn refused(failure: NotRestored, home: &Path) -> Error {
    match failure {
        NotRestored::NotEmpty(message) => Error::new(Code::HomeNotEmpty, message),
        NotRestored::Unusable(message) => Error::new(Code::BackupUnusable, message),
        NotRestored::Failed(error) => {
            Error::io(Code::HomeUnusable, format!("restore into {}", home.display()), &error)
        }
    }
}

fn say(restored: &Restored, home: &Path, json: bool) -> Result<(), Error> {
    if json {
        return terminal::say_json(restored);
    }
    terminal::say(&format!(
        "{}: the server as it was at {:.0} ({})",
        home.display(),
        restored.taken_at,
        format_bytes(restored.bytes)
    ))?;
    if restored.held_jobs > 0 {
        let (jobs, them) = if restored.held_jobs == 1 { ("job was", "it") } else { ("jobs were", "them") };
        terminal::note(&format!(
            "{} {jobs} not over: nothing of {them} is started by itself; `muster resume JOB` lets one run",
            restored.held_jobs
        ));
    }
    if restored.unsettled_tasks > 0 {
        let tasks = if restored.unsettled_tasks == 1 { "task" } else { "tasks" };
        terminal::note(&format!(
            "{} {tasks} had ended and not sent everything: the end of a log, or outputs, may be missing",
            restored.unsettled_tasks
        ));
    }
    Ok(())
}

/// What is read, with a bar.
struct Shown<R> {
    from: R,
    bar: Bar,
}

impl<R> Shown<R> {
    fn new(from: R, length: u64) -> Self {
        Self { from, bar: Bar::new("restoring", length) }
    }
}

impl<R: Read> Read for Shown<R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.from.read(buffer)?;
        self.bar.add(length as u64);
        Ok(length)
    }
}
