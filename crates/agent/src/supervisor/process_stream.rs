//! Output streams of single processes, where a launcher starts several in the task.
//!
//! Processes that share a pipe tear each other's lines: an unbuffered Python writes the end of a line by itself. Therefore each
//! process gets named pipes of its own in the task's directory, moves to them when it starts (`sitecustomize`), and only whole
//! lines are moved from there into the log. An unfinished line, such as a prompt, is moved after a short wait.
//!
//! The kernel copies a pipe's content for the search for line ends (`tee`), so that at every instant a byte is in the pipe or
//! in the log, as everywhere in `capture`. A process holds its pipes for reading as well: what they hold outlives a killed
//! supervisor until the agent saves it.

use std::fs::{self, DirBuilder};
use std::io::{self, ErrorKind};
use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, FileTypeExt};
use std::path::Path;
use std::time::{Duration, Instant};

use muster_link::log::{Header, Stream};
use rustix::fs::{CWD, Mode, OFlags, mkfifoat, open};
use rustix::io::Errno;
use rustix::pipe::{PipeFlags, SpliceFlags, pipe_with, tee};

use super::capture::Origin;
use super::complain;
use super::file::Launch;
use super::watch::pipe_inodes;
use crate::account::Person;

/// The directory of the named pipes: `out.0` and `err.0` are those of the task's first process.
pub(crate) const STREAMS: &str = "streams";
/// Tells a process where the pipes are, and the inodes of the task's own stdout and stderr: `DIRECTORY:INODE:INODE`.
const VARIABLE: &str = "MUSTER_STREAMS";
/// Says to processes of mpirun that its output is the task's.
const MPI_OUTPUT: &str = "MUSTER_MPI_OUTPUT";
/// How many processes have streams of their own: as many as a log tells apart. Each costs the supervisor two open files.
const MOST_PROCESSES: u8 = Header::MOST_PROCESSES;

/// How long the rest of a line is awaited.
const LINE_WAIT: Duration = Duration::from_millis(100);
/// How soon an unfinished line is examined again.
const LINE_RETRY: Duration = Duration::from_millis(5);
/// The size of a pipe, unless it was changed.
const PIPE_BYTES: usize = 64 << 10;
/// A line of this length is not awaited to its end, because the pipe could be full before.
const LONG_LINE: usize = PIPE_BYTES / 2;

/// One stream of one process.
pub(super) struct ProcessStream {
    pub(super) origin: Origin,
    /// Open for reading and writing, so that it does not end when a launcher restarts a process.
    pub(super) pipe: OwnedFd,
}

/// Make the streams that the launch asks for, and tell the task of them. It runs without them as well.
pub(super) fn make(dir: &Path, launch: &mut Launch) -> Vec<ProcessStream> {
    // Never those of the submitter, who may be a task as well.
    launch.env.remove(VARIABLE);
    if launch.launched_processes == 0 {
        launch.env.remove(MPI_OUTPUT);
        return Vec::new();
    }
    let dir = dir.join(STREAMS);
    let count = u8::try_from(launch.launched_processes).unwrap_or(u8::MAX).min(MOST_PROCESSES);
    let made = make_all(&dir, count, launch.person.as_ref());
    match made.and_then(|streams| Ok((streams, pipe_inodes()?))) {
        Ok((streams, [out, err])) => {
            launch.env.insert(VARIABLE.into(), format!("{}:{out}:{err}", dir.display()));
            streams
        }
        Err(error) => {
            complain("cannot make streams for each process, so they share the task's", &error);
            Vec::new()
        }
    }
}

fn make_all(dir: &Path, count: u8, person: Option<&Person>) -> io::Result<Vec<ProcessStream>> {
    // Another account may pass through the directory and change nothing in it.
    let mode = if person.is_some() { 0o711 } else { 0o700 };
    DirBuilder::new().mode(mode).create(dir)?;
    let mut streams = Vec::with_capacity(2 * usize::from(count));
    for process in 0..count {
        for stream in Stream::ALL {
            let path = dir.join(format!("{}.{process}", name(stream)));
            mkfifoat(CWD, &path, Mode::from_raw_mode(0o600))?;
            if let Some(person) = person {
                person.owner().give_alone(&path)?;
            }
            let flags = OFlags::RDWR | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            let origin = Origin { stream, process: Some(process) };
            streams.push(ProcessStream { origin, pipe: open(&path, flags, Mode::empty())? });
        }
    }
    Ok(streams)
}

fn name(stream: Stream) -> &'static str {
    match stream {
        Stream::Stdout => "out",
        Stream::Stderr => "err",
    }
}

fn origin_of(file: &str) -> Option<Origin> {
    let (start, process) = file.split_once('.')?;
    let stream = Stream::ALL.into_iter().find(|stream| name(*stream) == start)?;
    Some(Origin { stream, process: Some(process.parse().ok()?) })
}

/// The streams of a task whose supervisor is gone. Processes that write to them hold what is in them.
pub(crate) fn reopen(dir: &Path) -> io::Result<Vec<(Origin, OwnedFd)>> {
    let entries = match fs::read_dir(dir.join(STREAMS)) {
        Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
        entries => entries?,
    };
    let mut streams = Vec::new();
    for entry in entries {
        let entry = entry?;
        if let Some(origin) = entry.file_name().to_str().and_then(origin_of)
            && entry.file_type()?.is_fifo()
        {
            let flags = OFlags::RDONLY | OFlags::NONBLOCK | OFlags::NOFOLLOW | OFlags::CLOEXEC;
            streams.push((origin, open(entry.path(), flags, Mode::empty())?));
        }
    }
    Ok(streams)
}

/// The stdout and stderr of a process that muster starts in this task, as the task was told; none if they were not made.
pub(crate) fn of_process(process: usize) -> io::Result<Option<ProcessPipes>> {
    let place = std::env::var(VARIABLE).unwrap_or_default();
    let Some(dir) = place.rsplitn(3, ':').nth(2).map(Path::new) else { return Ok(None) };
    let path = |stream: Stream| dir.join(format!("{}.{process}", name(stream)));
    if !path(Stream::Stdout).exists() {
        return Ok(None);
    }
    let open_as = |access: OFlags| -> io::Result<[OwnedFd; 2]> {
        let [out, err] =
            Stream::ALL.map(|stream| open(path(stream), access | OFlags::CLOEXEC, Mode::empty()));
        Ok([out?, err?])
    };
    // With a reader, opening for writing does not wait.
    let held = open_as(OFlags::RDONLY | OFlags::NONBLOCK)?;
    Ok(Some(ProcessPipes { write: open_as(OFlags::WRONLY)?, held }))
}

/// The pipes of a process.
pub(crate) struct ProcessPipes {
    pub(crate) write: [OwnedFd; 2],
    /// To be kept while the process runs: what is in the pipes then outlives a killed supervisor.
    pub(crate) held: [OwnedFd; 2],
}

/// Give up our own hold for writing, so that the stream ends with the last process that has it.
pub(super) fn reopen_to_read(pipe: &OwnedFd) -> io::Result<OwnedFd> {
    let path = format!("/proc/self/fd/{}", pipe.as_raw_fd());
    Ok(open(path, OFlags::RDONLY | OFlags::NONBLOCK | OFlags::CLOEXEC, Mode::empty())?)
}

/// Finds the ends of lines in a pipe without taking anything from it.
pub(super) struct LineFinder {
    read: OwnedFd,
    write: OwnedFd,
    buffer: Box<[u8]>,
}

/// What a pipe holds, in bytes.
struct Found {
    held: usize,
    /// Up to the end of the last whole line.
    whole: usize,
}

impl LineFinder {
    pub(super) fn new() -> io::Result<LineFinder> {
        let (read, write) = pipe_with(PipeFlags::CLOEXEC | PipeFlags::NONBLOCK)?;
        Ok(LineFinder { read, write, buffer: vec![0; PIPE_BYTES].into() })
    }

    fn find(&mut self, pipe: BorrowedFd<'_>) -> io::Result<Found> {
        let held = match tee(pipe, &self.write, PIPE_BYTES, SpliceFlags::NONBLOCK) {
            Err(Errno::AGAIN | Errno::INTR) => 0,
            copied => copied?,
        };
        let mut read = 0;
        while read < held {
            match rustix::io::read(&self.read, &mut self.buffer[read..held]) {
                Err(Errno::INTR) => {}
                count => read += count?,
            }
        }
        // A progress bar ends its lines with a carriage return.
        let end = self.buffer[..held].iter().rposition(|byte| matches!(byte, b'\n' | b'\r'));
        Ok(Found { held, whole: end.map_or(0, |end| end + 1) })
    }
}

/// When what a pipe holds is moved, which is line by line.
#[derive(Default)]
pub(super) struct LineWait {
    unfinished_since: Option<Instant>,
    /// The pipe holds an unfinished line alone, and is not examined before.
    pub(super) retry_at: Option<Instant>,
}

impl LineWait {
    /// How many bytes of the pipe are to be moved now. `all`: nothing more will come.
    pub(super) fn due(
        &mut self,
        finder: &mut LineFinder,
        pipe: BorrowedFd<'_>,
        all: bool,
    ) -> io::Result<u32> {
        let Found { held, whole } = finder.find(pipe)?;
        let now = Instant::now();
        let is_late = self.unfinished_since.is_some_and(|since| now >= since + LINE_WAIT);
        let due = match whole {
            _ if all => held,
            0 if is_late || held >= LONG_LINE => held,
            whole => whole,
        };
        self.unfinished_since = match held - due {
            0 => None,
            _ if due > 0 => Some(now),
            _ => self.unfinished_since.or(Some(now)),
        };
        self.retry_at = self.unfinished_since.filter(|_| due == 0).map(|_| now + LINE_RETRY);
        Ok(due as u32)
    }
}
