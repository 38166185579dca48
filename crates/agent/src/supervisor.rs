//! The supervisor: a tiny process that starts one task, keeps its output and writes down how it ended.
//!
//! It is the same binary as everything else, and branches off in the first lines of `main`: one thread, no runtime, no
//! network, at most a megabyte of its own. It outlives agent and server, which may die and be replaced meanwhile, and
//! speaks with them only through the files of the task's directory (see `file`).
//!
//! It is started before its task can run, and waits for it (see `handover`). From then on its stdin and stdout *are* the
//! read ends of the task's stdout and stderr pipes. The agent made these and keeps duplicates, and the task inherits some of its
//! own, so that neither the death of the supervisor nor that of both strikes the task with `SIGPIPE`, and an agent can take
//! what is left in them. It must never write to its own stdout, never wait on anything but its own events, and never run a task
//! twice: a directory that already has a log is refused.

mod capture;
mod control;
mod door;
mod file;
mod handover;
mod life;
pub(crate) mod notice;
pub(crate) mod process_stream;
mod program;
mod session;
pub(crate) mod setup;
mod spawn;
mod watch;

pub use crate::overlay::Overlay;
pub use file::{
    CONTROL, DOOR, ELEMENTS, EXIT, Exit, FORMAT, LAUNCH, LOG, Launch, NotExecutable, Order, Outcome,
    PROCESSES, Processes, STARTED, STOP, SUPERVISOR_LOG, Spent, Started, Status, Step, StepKind, StopAsked,
    Supervision,
};
pub use notice::NOTES;

pub(crate) use capture::{Capture, Origin};
pub(crate) use file::{damaged_file, read, read_launch, read_started, read_supervision, write, write_launch};
pub(crate) use handover::give;

use std::fs;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use jiff::Timestamp;
use muster_link::log::SegmentDir;

use crate::account::Person;
use crate::bundle::copy_tree;
use crate::overlay::isolate;
use crate::stage::cover;
use crate::{disk, secret};
use life::Life;

/// Supervise the task of this directory, to its end. `dir` must be absolute.
pub fn run(dir: &Path) -> ExitCode {
    match supervise(dir) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            complain("cannot supervise", &error);
            ExitCode::FAILURE
        }
    }
}

fn supervise(dir: &Path) -> io::Result<()> {
    session::enter()?;
    if !handover::wait()? {
        return Ok(());
    }
    // From here on the directory is ours. Before, an error leaves it as if we had never been.
    let mut capture = Capture::create(SegmentDir::new(dir.join(LOG)))?;
    let mut launch = match read::<Launch>(dir, LAUNCH) {
        Ok(Some(launch)) => launch,
        Ok(None) => return write_exit(dir, &failed(&io::Error::from(io::ErrorKind::NotFound))),
        Err(error) => return write_exit(dir, &failed(&error)),
    };
    capture.limit(launch.disk.clone());
    let tree = launch.tree.clone();
    let exit = match prepare(dir, &mut launch).and_then(|()| Life::new(dir, launch, capture)) {
        Ok(life) => life.run(),
        Err(error) => failed(&error),
    };
    // Before the end is known: after it nobody would come back for what we leave.
    tree.remove();
    write_exit(dir, &exit)
}

/// Make what the task's first process is to find.
fn prepare(dir: &Path, launch: &mut Launch) -> io::Result<()> {
    let mut isolated = show_files(launch)?;
    // Who is somebody else must not be left to what everybody sees.
    if launch.person.is_some() && !isolated {
        isolate()?;
        isolated = true;
    }
    // What else it finds is mounted on it.
    if let Some(home) = launch.home.take() {
        isolated = home.enter(launch, isolated);
    }
    if let Some(stage) = launch.stage.take() {
        stage.enter(launch, isolated)?;
    }
    if let Some(person) = &launch.person {
        cover(&launch.seen, person)?;
    }
    if launch.has_secrets {
        launch.env.extend(secret::take(dir)?);
    }
    let Some(work) = launch.work.clone() else { return Ok(()) };
    let processes =
        Processes { format: FORMAT, work, grace_ms: launch.grace_ms, stop_signal: launch.stop_signal };
    write(dir, PROCESSES, &processes)?;
    let owner = launch.person.as_ref().map(Person::owner);
    owner.map_or(Ok(()), |owner| owner.give_alone(&dir.join(PROCESSES)))
}

/// Make the working directory what it is to be. A copy is as good as an overlay, and only slower. Whether the mounts of
/// this process are now its own.
fn show_files(launch: &Launch) -> io::Result<bool> {
    let Some(overlay) = &launch.overlay else { return Ok(false) };
    let Err(error) = overlay.enter(&launch.cwd) else { return Ok(true) };
    complain("cannot mount the working directory, so it is copied", &error);
    fs::remove_dir(&launch.cwd)?;
    copy_tree(&overlay.lower, &launch.cwd, || false).map_err(io::Error::other)?;
    // Whoever looks for the task's files later finds them by this.
    disk::remove_tree(&overlay.upper).map(|()| false)
}

/// The end of a task that never began.
fn failed(error: &io::Error) -> Exit {
    Exit {
        format: FORMAT,
        outcome: Outcome::LaunchFailed { message: format!("the supervisor could not begin: {error}") },
        status: None,
        stopped: false,
        ended_at: Timestamp::now(),
        log_bytes: 0,
        survivors: Vec::new(),
        notice: None,
        saved_at: None,
        spent: None,
    }
}

/// Write down the end, if need be by waiting until a full disk has room: nobody else knows it.
fn write_exit(dir: &Path, exit: &Exit) -> io::Result<()> {
    if let Err(error) = secret::remove(dir) {
        complain("cannot remove the secrets, which are removed when the task is forgotten", &error);
    }
    let mut complained = false;
    loop {
        match write(dir, EXIT, exit) {
            Err(error) if is_full(&error) => {
                if !std::mem::replace(&mut complained, true) {
                    complain("cannot write the exit status yet", &error);
                }
                std::thread::sleep(RETRY);
            }
            written => return written,
        }
    }
}

/// How often something is tried again that failed for lack of space.
const RETRY: Duration = Duration::from_secs(1);

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded)
}

/// Into `supervisor.log`, which is our stderr.
pub(crate) fn complain(what: &str, error: &io::Error) {
    // Not `eprintln!`, which panics when the disk is full, as it is when there is most to complain about.
    let _ = writeln!(io::stderr(), "{} {what}: {error}", Timestamp::now());
}
