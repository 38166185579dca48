//! The end of a task whose supervisor died before it: nobody would record how it ended, so it is ended, and what it
//! wrote until then is saved.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::time::{Duration, Instant};

use jiff::Timestamp;
use muster_link::log::{SegmentDir, Stream};
use muster_link::message::DiskLimits;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use super::{Error, Observation, Pipes, lock_alone, observe_after_lock};
use crate::secret;
use crate::supervisor::process_stream;
use crate::supervisor::{Capture, EXIT, Exit, FORMAT, LOG, Origin, Outcome, STOP, read_launch, write};
use crate::tree::{Preference, Root, Tree};

/// How long output is awaited from processes that left the tree. The dead ones have closed their ends already.
const DRAIN: Duration = Duration::from_secs(2);
/// How long what stopped processes have left in their pipes may take: two pipes are full with 2 MiB.
const SAVE: Duration = Duration::from_secs(2);

/// Kill what is left of a task without a supervisor, save its output and write down its end. Returns the end that was
/// written before, if there is one. Killing may take seconds if processes hang. After an error, a full disk for one, it
/// may be tried again with the same pipes.
pub fn bury(dir: &Path, pipes: Option<&Pipes>) -> Result<Exit, Error> {
    // Held to the end, so that two burials cannot meet.
    let _lock = lock_alone(dir)?;
    let (root, started) = match observe_after_lock(dir, true)? {
        Observation::Ended(exit) => return Ok(exit),
        Observation::NotStarted => return Err(Error::NotStarted { dir: dir.to_owned() }),
        Observation::SupervisorLost(started) => {
            (Some(Root::Orphans(started.as_ref().map(|started| started.task))), started)
        }
        Observation::Rebooted | Observation::Starting | Observation::Running(_) => (None, None),
    };
    let launch = read_launch(dir).map_err(Error::io("read the launch", dir))?;
    let tree = launch.as_ref().map(|launch| launch.tree.clone()).or_else(|| usual_tree(dir));
    // While processes live that hold what is in them.
    let streams = process_stream::reopen(dir).map_err(Error::io("open the streams of processes", dir))?;
    let limits = launch.as_ref().map(|launch| launch.disk.clone()).unwrap_or_default();
    if let (Some(tree), Some(root)) = (&tree, root) {
        tree.stop(root);
    }
    // Looked for once no process moves its output about or ends.
    let found = match (pipes, root) {
        (None, Some(_)) => Pipes::reopen(dir, started.as_ref())?,
        _ => None,
    };
    let pipes = pipes.or(found.as_ref());
    let save = |awaited: Option<Duration>| {
        save_output(dir, pipes, &streams, limits.clone(), awaited).map_err(Error::io("save the output", dir))
    };
    let survivors = match (&tree, root) {
        (Some(tree), Some(root)) => {
            // What is in the pipes goes with the last process that has them open, and an agent may be killed as well: only
            // what is saved may end.
            save(None)?;
            end_tree(tree, root)
        }
        _ => Vec::new(),
    };
    let log_bytes = save(Some(DRAIN))?;
    let exit = Exit {
        format: FORMAT,
        outcome: Outcome::SupervisorLost,
        status: None,
        stopped: dir.join(STOP).exists(),
        ended_at: Timestamp::now(),
        log_bytes,
        survivors,
        // Only the supervisor knew.
        notice: None,
        saved_at: crate::supervisor::notice::saved_at(dir),
        spent: None,
    };
    // Before the end is known: after it nobody would come back for them.
    if let Some(tree) = &tree {
        tree.remove();
    }
    secret::remove(dir).map_err(Error::io("remove the secrets", dir))?;
    write(dir, EXIT, &exit).map_err(Error::io("write the exit status", dir))?;
    Ok(exit)
}

/// End what is in the cgroup and then, since nobody adopted the orphans, what is not.
fn end_tree(tree: &Tree, root: Root) -> Vec<i32> {
    let mut survivors = tree.kill(root).survivors;
    if survivors.is_empty() {
        survivors = tree.kill_strays(root).survivors;
    }
    survivors
}

/// Where the launch is damaged: the tree that an agent makes for the task of this name if nothing else is asked for.
fn usual_tree(dir: &Path) -> Option<Tree> {
    let task = dir.file_name()?.to_str()?;
    Tree::prepare(task, Preference::Auto, None).ok()
}

/// Save what is in the pipes, and what comes within the time for which more is awaited.
fn save_output(
    dir: &Path,
    pipes: Option<&Pipes>,
    streams: &[(Origin, OwnedFd)],
    limits: DiskLimits,
    awaited: Option<Duration>,
) -> io::Result<u64> {
    let log = SegmentDir::new(dir.join(LOG));
    let held = pipes.map_or([None, None], Pipes::each);
    let mut capture = Capture::resume(log, held)?;
    capture.limit(limits);
    let deadline = Instant::now() + awaited.unwrap_or(SAVE);
    for (origin, pipe) in streams {
        while Instant::now() < deadline && capture.take(pipe.as_fd(), *origin)? > 0 {}
    }
    let mut open: Vec<(Stream, BorrowedFd<'_>)> =
        Stream::ALL.into_iter().filter_map(|stream| Some((stream, held[stream.index()]?))).collect();
    while !open.is_empty() {
        let left = deadline.saturating_duration_since(Instant::now());
        if left.is_zero() {
            break;
        }
        let timeout = Timespec::try_from(awaited.map_or(Duration::ZERO, |_| left)).ok();
        let mut fds: Vec<PollFd<'_>> =
            open.iter().map(|(_, pipe)| PollFd::from_borrowed_fd(*pipe, PollFlags::IN)).collect();
        poll(&mut fds, timeout.as_ref())?;
        let events: Vec<PollFlags> = fds.iter().map(PollFd::revents).collect();
        if awaited.is_none() && events.iter().all(|events| events.is_empty()) {
            break;
        }
        let mut still_open = Vec::new();
        for ((stream, pipe), events) in open.into_iter().zip(events) {
            let taken = capture.take(pipe, stream)?;
            if taken > 0 || !events.contains(PollFlags::HUP) {
                still_open.push((stream, pipe));
            }
        }
        open = still_open;
    }
    Ok(capture.end())
}
