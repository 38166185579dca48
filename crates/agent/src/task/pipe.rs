//! The agent's hold on a task's pipes.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use crate::supervisor::Started;
use crate::tree::Process;

/// What a task can write before it must wait for its supervisor. Also the longest record of a log.
const BYTES: usize = 1 << 20;
/// A shell may move its output between the listing of what it has open and the look at it.
const TRIES: usize = 10;

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
        let open_both = |process: &Process| {
            let [stdout, stderr] = started.pipes.map(|inode| open_pipe(process, inode));
            Some(Pipes { stdout: stdout?, stderr: stderr? })
        };
        open_both(&started.supervisor).or_else(|| (0..TRIES).find_map(|_| open_both(&started.task)))
    }

    pub(super) fn each(&self) -> [BorrowedFd<'_>; 2] {
        [self.stdout.as_fd(), self.stderr.as_fd()]
    }
}

fn make() -> io::Result<OwnedFd> {
    // A task may read its own pipe: a byte that was counted a moment ago may be gone, and a reader must not wait for another.
    let (read, _write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
    // Refused to users who have many large pipes already. A smaller one works as well, only with more turns.
    let _ = fcntl_setpipe_size(&read, BYTES);
    Ok(read)
}

/// The read end of a pipe that a process has open under any number: a shell moves its output away while a command of its own
/// writes to a file.
fn open_pipe(process: &Process, inode: u64) -> Option<OwnedFd> {
    if !process.is_alive() {
        return None;
    }
    let name = format!("pipe:[{inode}]");
    let numbers = fs::read_dir(format!("/proc/{}/fd", process.pid)).ok()?;
    numbers.flatten().map(|entry| entry.path()).filter(|path| is_link_to(path, &name)).find_map(|path| {
        // Without waiting: the process may have put a named pipe in its place by now.
        let flags = OFlags::RDONLY | OFlags::CLOEXEC | OFlags::NONBLOCK;
        let descriptor = open(path, flags, Mode::empty()).ok()?;
        (fstat(&descriptor).ok()?.st_ino == inode).then_some(descriptor)
    })
}

fn is_link_to(path: &Path, name: &str) -> bool {
    fs::read_link(path).is_ok_and(|target| target.as_os_str() == name)
}

#[cfg(test)]
mod tests {
    use rustix::io::{Errno, read};

    use super::*;

    #[test]
    fn an_empty_pipe_keeps_no_reader_waiting() {
        let pipes = Pipes::new().unwrap();
        for pipe in pipes.each() {
            let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&pipe));
            let _write = open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
            assert_eq!(read(pipe, &mut [0; 1]), Err(Errno::AGAIN));
        }
    }
}
