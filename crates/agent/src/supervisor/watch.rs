//! Everything the supervisor waits for, in one place: output, ended children, orders, a starting child's report.
//!
//! Output is moved into the log right here, whatever the task's life is about. Each stream gives at most one record a
//! turn, so that a flood of output never delays an order.

use std::io::{self, stdin, stdout};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use muster_link::log::Stream;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{Mode, OFlags, fstat, open};

use super::capture::{Capture, Origin};
use super::control::Control;
use super::file::Order;
use super::process_stream::{self, LineFinder, LineWait, ProcessStream};
use super::spawn::ProgramDescriptors;
use super::{RETRY, complain, is_full, session};

pub(super) struct Watch {
    capture: Capture,
    control: Control,
    children: OwnedFd,
    /// The streams of the task's processes, then its own stdout and stderr: what is said of a process comes after what it wrote.
    sources: Vec<Source>,
    /// Where processes have streams of their own, lines are kept whole.
    finder: Option<LineFinder>,
}

/// A stream from which output is taken.
struct Source {
    origin: Origin,
    /// The pipe of one process; none for the task's own, which are our stdin and stdout.
    pipe: Option<OwnedFd>,
    line: LineWait,
    ended: bool,
    trouble: Option<Trouble>,
}

/// Why nothing is taken from a stream for a while.
struct Trouble {
    retry_at: Instant,
    is_full: bool,
}

/// What happened.
#[derive(Default)]
pub(super) struct Turn {
    pub(super) orders: Vec<Order>,
    pub(super) child_ended: bool,
    pub(super) reported: bool,
    pub(super) called: bool,
}

impl Watch {
    pub(super) fn new(capture: Capture, control: Control, streams: Vec<ProcessStream>) -> io::Result<Watch> {
        let finder = if streams.is_empty() { None } else { Some(LineFinder::new()?) };
        let own = Stream::ALL.map(|stream| Source::new(stream.into(), None));
        let more = streams.into_iter().map(|ProcessStream { origin, pipe }| Source::new(origin, Some(pipe)));
        let sources = more.chain(own).collect();
        Ok(Watch { capture, control, children: session::child_signals()?, sources, finder })
    }

    /// Wait until something happens or `until` comes, and keep what the task wrote. `report` and the sockets of the door
    /// are watched as well.
    pub(super) fn turn<'a>(
        &mut self,
        until: Option<Instant>,
        report: Option<&OwnedFd>,
        door: impl IntoIterator<Item = BorrowedFd<'a>>,
    ) -> io::Result<Turn> {
        let now = Instant::now();
        let ready = self.wait(now, until, report, door)?;
        let mut turn = Turn { reported: ready.report, called: ready.door, ..Turn::default() };
        if ready.children {
            drain(&self.children);
            turn.child_ended = true;
        }
        if ready.control {
            turn.orders = self.control.orders();
        }
        for (at, events) in ready.sources {
            // A program's start is written down before its first output, which can wait for the next turn.
            if !events.is_empty() && !ready.report {
                self.keep(at, events.contains(PollFlags::HUP));
            }
        }
        Ok(turn)
    }

    /// What was ordered already.
    pub(super) fn orders(&mut self) -> Vec<Order> {
        self.control.orders()
    }

    /// Keep all that the task has written until now. A full disk is waited for.
    pub(super) fn empty(&mut self) {
        for source in &mut self.sources {
            source.line = LineWait::default();
            loop {
                match self.capture.take(pipe(source.pipe.as_ref(), source.origin.stream), source.origin) {
                    Ok(0) => break,
                    Ok(_) => {}
                    Err(error) if is_full(&error) => std::thread::sleep(RETRY),
                    Err(error) => {
                        complain("cannot keep an element's output, it stays in its pipe", &error);
                        break;
                    }
                }
            }
        }
    }

    /// Write marks into the log. A full disk is waited for: nobody else knows what they say.
    pub(super) fn mark(&mut self, records: &[u8]) -> io::Result<()> {
        loop {
            match self.capture.mark(records) {
                Err(error) if is_full(&error) => std::thread::sleep(RETRY),
                written => return written,
            }
        }
    }

    /// Whether more output may come, either from a process or once a full disk has room.
    pub(super) fn has_output(&self, patient: bool) -> bool {
        self.sources.iter().any(|source| !source.ended && (patient || source.is_waiting_for_room()))
    }

    /// From now on the stream of a process ends with its last writer.
    pub(super) fn release_process_streams(&mut self) {
        for pipe in self.sources.iter_mut().filter_map(|source| source.pipe.as_mut()) {
            match process_stream::reopen_to_read(pipe) {
                Ok(reading) => *pipe = reading,
                Err(error) => complain("cannot see the end of a process's stream, which is awaited", &error),
            }
        }
    }

    /// Nothing more is taken: a log that was cut says how much is missing.
    pub(super) fn close_log(&mut self) {
        if let Err(error) = self.capture.close_cut() {
            complain("cannot write how much output was dropped", &error);
        }
    }

    pub(super) fn log_end(&self) -> u64 {
        self.capture.end()
    }

    fn wait<'a>(
        &self,
        now: Instant,
        until: Option<Instant>,
        report: Option<&OwnedFd>,
        door: impl IntoIterator<Item = BorrowedFd<'a>>,
    ) -> io::Result<Ready> {
        let mut fds = Vec::with_capacity(7);
        fds.push(PollFd::new(&self.children, PollFlags::IN));
        fds.push(PollFd::new(&self.control, PollFlags::IN));
        let open: Vec<usize> = (0..self.sources.len()).filter(|at| self.sources[*at].is_open(now)).collect();
        fds.extend(open.iter().map(|at| {
            let source = &self.sources[*at];
            PollFd::from_borrowed_fd(pipe(source.pipe.as_ref(), source.origin.stream), PollFlags::IN)
        }));
        fds.extend(report.map(|report| PollFd::new(report, PollFlags::IN)));
        fds.extend(door.into_iter().map(|socket| PollFd::from_borrowed_fd(socket, PollFlags::IN)));
        let retries = self.sources.iter().filter_map(Source::retry_at);
        let timeout = retries.chain(until).min().map(|at| at.saturating_duration_since(now));
        match poll(&mut fds, timeout.and_then(round_up).as_ref()) {
            Ok(_) | Err(rustix::io::Errno::INTR) => {}
            Err(error) => return Err(error.into()),
        }
        let mut events = fds.iter().map(PollFd::revents);
        let mut next = |watched: bool| watched.then(|| events.next()).flatten().unwrap_or(PollFlags::empty());
        Ok(Ready {
            children: !next(true).is_empty(),
            control: !next(true).is_empty(),
            sources: open.into_iter().map(|at| (at, next(true))).collect(),
            report: !next(report.is_some()).is_empty(),
            door: events.any(|events| !events.is_empty()),
        })
    }

    /// Take what a stream has. When its last writer is gone and it has nothing, it has ended.
    fn keep(&mut self, at: usize, hung_up: bool) {
        let source = &mut self.sources[at];
        let pipe = pipe(source.pipe.as_ref(), source.origin.stream);
        let taken = match &mut self.finder {
            None => self.capture.take(pipe, source.origin),
            Some(finder) => source
                .line
                .due(finder, pipe, hung_up)
                .and_then(|due| self.capture.take_some(pipe, source.origin, due)),
        };
        match taken {
            Ok(count) => {
                source.trouble = None;
                source.ended = hung_up && count == 0;
            }
            Err(error) => {
                if source.trouble.is_none() {
                    complain("cannot keep the task's output, it waits in its pipe", &error);
                }
                let retry_at = Instant::now() + RETRY;
                source.trouble = Some(Trouble { retry_at, is_full: is_full(&error) });
            }
        }
    }
}

struct Ready {
    children: bool,
    control: bool,
    /// What there is of each open source, by its place.
    sources: Vec<(usize, PollFlags)>,
    report: bool,
    door: bool,
}

impl Source {
    fn new(origin: Origin, pipe: Option<OwnedFd>) -> Source {
        Source { origin, pipe, line: LineWait::default(), ended: false, trouble: None }
    }

    fn is_open(&self, now: Instant) -> bool {
        !self.ended && self.retry_at().is_none_or(|at| at <= now)
    }

    fn retry_at(&self) -> Option<Instant> {
        let trouble = self.trouble.as_ref().map(|trouble| trouble.retry_at);
        trouble.or(self.line.retry_at).filter(|_| !self.ended)
    }

    fn is_waiting_for_room(&self) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| trouble.is_full)
    }
}

/// Our stdin is the task's stdout, and our stdout its stderr: see the module of the supervisor.
fn pipe(own: Option<&OwnedFd>, stream: Stream) -> BorrowedFd<'_> {
    match (own, stream) {
        (Some(own), _) => own.as_fd(),
        (None, Stream::Stdout) => rustix::stdio::stdin(),
        (None, Stream::Stderr) => rustix::stdio::stdout(),
    }
}

/// The ends of its pipes that the task is given.
///
/// It writes to one and never reads from the other, which it only holds: when agent and supervisor are killed together, a task
/// that holds the read ends is not ended by a signal at its next write, and the next agent finds what it wrote. One descriptor
/// for both would be readable, which programs take for a reader that has gone.
pub(super) struct TaskPipeEnds {
    pub(super) write: [OwnedFd; 2],
    pub(super) read: [OwnedFd; 2],
}

impl TaskPipeEnds {
    /// The agent hands over read ends alone, as stdin and stdout, so that starting us needs nothing between its fork and our
    /// exec. Opening these paths makes new descriptors of the pipes.
    pub(super) fn open() -> io::Result<TaskPipeEnds> {
        let both = |access| -> io::Result<[OwnedFd; 2]> {
            let flags = access | OFlags::CLOEXEC;
            Ok([
                open("/proc/self/fd/0", flags, Mode::empty())?,
                open("/proc/self/fd/1", flags, Mode::empty())?,
            ])
        };
        Ok(TaskPipeEnds { write: both(OFlags::WRONLY)?, read: both(OFlags::RDONLY)? })
    }

    /// As a program of the task's has them.
    pub(super) fn descriptors(&self) -> ProgramDescriptors<'_> {
        let [stdout, stderr] = &self.write;
        ProgramDescriptors { streams: [stdout, stderr], more: &[], held: &self.read }
    }
}

/// The inode numbers of the task's pipes.
pub(super) fn pipe_inodes() -> io::Result<[u64; 2]> {
    Ok([fstat(stdin().as_fd())?.st_ino, fstat(stdout().as_fd())?.st_ino])
}

fn drain(descriptor: &OwnedFd) {
    let mut buffer = [0; 512];
    while rustix::io::read(descriptor, &mut buffer).is_ok_and(|count| count > 0) {}
}

/// The kernel counts in nanoseconds, so the wait ends after the deadline and not just before it.
fn round_up(duration: Duration) -> Option<Timespec> {
    Timespec::try_from(duration).ok()
}
