//! The agent's hold on a task's pipes.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use crate::supervisor::Started;
use crate::tree::Process;

/// What a task can write before it must wait for its supervisor. Also the longest record of a log.
const BYTES: usize = 1 << 20;

/// The read ends of a task's stdout and stderr. Nothing may be read from them while the supervisor lives.
#[derive(Debug)]
pub struct Pipes {
    stdout: OwnedFd,
    stderr: OwnedFd,
}

impl Pipes {
    /// New pipes. No write end is kept, or they would never end.
    pub(super) fn new() -> io::Result<Pipes> {
        Ok(Pipes { stdout: make()?, stderr: make()? })
    }

    /// Take hold of a running task's pipes once more: through its supervisor or, if that is dead, through the task.
    /// None if they are gone, or if the task has put something else in their place.
    pub(super) fn reopen(started: &Started) -> Option<Pipes> {
        let open_both = |process: &Process, numbers: [u32; 2]| {
            let [stdout, stderr] =
                [0, 1].map(|stream| open_of(process, numbers[stream], started.pipes[stream]));
            Some(Pipes { stdout: stdout?, stderr: stderr? })
        };
        open_both(&started.supervisor, [0, 1]).or_else(|| open_both(&started.task, [1, 2]))
    }

    pub(super) fn each(&self) -> [BorrowedFd<'_>; 2] {
        [self.stdout.as_fd(), self.stderr.as_fd()]
    }
}

fn make() -> io::Result<OwnedFd> {
    let (read, _write) = pipe_with(PipeFlags::CLOEXEC)?;
    // Refused to users who have many large pipes already. A smaller one works as well, only with more turns.
    let _ = fcntl_setpipe_size(&read, BYTES);
    Ok(read)
}

fn open_of(process: &Process, number: u32, inode: u64) -> Option<OwnedFd> {
    if !process.is_alive() {
        return None;
    }
    let path = format!("/proc/{}/fd/{number}", process.pid);
    // Without waiting, since what is there may be a named pipe that the task put there.
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
    let descriptor = open(path, flags, Mode::empty()).ok()?;
    (fstat(&descriptor).ok()?.st_ino == inode).then_some(descriptor)
}
