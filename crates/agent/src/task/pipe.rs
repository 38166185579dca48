//! The agent's hold on a task's pipes.

use std::fs;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;

use rustix::fs::{Mode, OFlags, fstat, open};
use rustix::pipe::{PipeFlags, fcntl_setpipe_size, pipe_with};

use super::{Error, supervision};
use crate::supervisor::{Started, read_launch};
use crate::tree::{Process, Root};

/// What a task can write before it must wait for its supervisor. Also the longest record of a log.
const BYTES: usize = 1 << 20;
/// A shell may move its output between the listing of what it has open and the look at it.
const TRIES: usize = 10;

/// The read ends of a task's stdout and stderr, or of the one that could be found. Nothing may be read from them while the
/// supervisor lives.
#[derive(Debug)]
pub struct Pipes {
    ends: [Option<OwnedFd>; 2],
}

impl From<[OwnedFd; 2]> for Pipes {
    fn from(ends: [OwnedFd; 2]) -> Pipes {
        Pipes { ends: ends.map(Some) }
    }
}

impl Pipes {
    /// Take hold of a task's pipes once more: through its supervisor or, if that is dead, through any process of the task. None if
    /// they are gone.
    pub(super) fn reopen(dir: &Path, started: Option<&Started>) -> Result<Option<Pipes>, Error> {
        let supervision = supervision(dir)?;
        // One of the two is there, unless an older agent was killed at the wrong moment.
        let inodes = started.map(|started| started.pipes).or(supervision.as_ref().map(|it| it.pipes));
        let Some(inodes) = inodes else { return Ok(None) };
        let supervisor = started.map(|started| started.supervisor).or(supervision.map(|it| it.supervisor));
        let mut pipes = Pipes { ends: [None, None] };
        pipes.find(inodes, supervisor);
        if !pipes.is_whole() {
            let main = started.map(|started| started.task);
            let launch = read_launch(dir).map_err(Error::io("read the launch", dir))?;
            for _ in 0..TRIES {
                pipes.find(inodes, main);
                if pipes.is_whole() {
                    break;
                }
                let all = launch.as_ref().map(|launch| launch.tree.processes(Root::Orphans(main)));
                let Some(all) = all.filter(|all| !all.is_empty()) else { break };
                pipes.find(inodes, all);
            }
        }
        Ok(pipes.ends.iter().any(Option::is_some).then_some(pipes))
    }

    /// Look for what is missing in these processes.
    fn find(&mut self, inodes: [u64; 2], processes: impl IntoIterator<Item = Process>) {
        for process in processes {
            for (end, inode) in self.ends.iter_mut().zip(inodes) {
                if end.is_none() {
                    *end = open_pipe(&process, inode);
                }
            }
            if self.is_whole() {
                return;
            }
        }
    }

    fn is_whole(&self) -> bool {
        self.ends.iter().all(Option::is_some)
    }

    pub(super) fn each(&self) -> [Option<BorrowedFd<'_>>; 2] {
        self.ends.each_ref().map(|end| end.as_ref().map(AsFd::as_fd))
    }
}

/// New pipes, and their inode numbers. No write end is kept, or they would never end.
pub(super) fn make_both() -> io::Result<([OwnedFd; 2], [u64; 2])> {
    let ends = [make()?, make()?];
    let inodes = [fstat(&ends[0])?.st_ino, fstat(&ends[1])?.st_ino];
    Ok((ends, inodes))
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
    use std::os::fd::AsRawFd;

    use rustix::io::{Errno, read};

    use super::*;

    #[test]
    fn an_empty_pipe_keeps_no_reader_waiting() {
        let pipe = make().unwrap();
        let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
        let _write = open(path, OFlags::WRONLY | OFlags::CLOEXEC, Mode::empty()).unwrap();
        assert_eq!(read(&pipe, &mut [0; 1]), Err(Errno::AGAIN));
    }
}
