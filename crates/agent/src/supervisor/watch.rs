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

use super::capture::Capture;
use super::control::Control;
use super::file::Order;
use super::{RETRY, complain, is_full, session};

pub(super) struct Watch {
    capture: Capture,
    control: Control,
    children: OwnedFd,
    sources: [Source; 2],
}

/// One of the task's streams.
#[derive(Default)]
struct Source {
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
    pub(super) fn new(capture: Capture, control: Control) -> io::Result<Watch> {
        Ok(Watch { capture, control, children: session::child_signals()?, sources: Default::default() })
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
        for stream in Stream::ALL {
            let events = ready.streams[stream.index()];
            // A program's start is written down before its first output, which can wait for the next turn.
            if !events.is_empty() && !ready.report {
                self.keep(stream, events.contains(PollFlags::HUP));
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
        for stream in Stream::ALL {
            loop {
                match with_pipe(stream, |pipe| self.capture.take(pipe, stream)) {
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
        let [out, err] =
            Stream::ALL.map(|stream| self.sources[stream.index()].is_open(now).then_some(stream));
        let (stdin, stdout) = (stdin(), stdout());
        fds.extend(out.map(|_| PollFd::new(&stdin, PollFlags::IN)));
        fds.extend(err.map(|_| PollFd::new(&stdout, PollFlags::IN)));
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
            streams: [next(out.is_some()), next(err.is_some())],
            report: !next(report.is_some()).is_empty(),
            door: events.any(|events| !events.is_empty()),
        })
    }

    /// Take what a stream has. When its last writer is gone and it has nothing, it has ended.
    fn keep(&mut self, stream: Stream, hung_up: bool) {
        let taken = with_pipe(stream, |pipe| self.capture.take(pipe, stream));
        let source = &mut self.sources[stream.index()];
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
    streams: [PollFlags; 2],
    report: bool,
    door: bool,
}

impl Source {
    fn is_open(&self, now: Instant) -> bool {
        !self.ended && self.trouble.as_ref().is_none_or(|trouble| trouble.retry_at <= now)
    }

    fn retry_at(&self) -> Option<Instant> {
        self.trouble.as_ref().filter(|_| !self.ended).map(|trouble| trouble.retry_at)
    }

    fn is_waiting_for_room(&self) -> bool {
        self.trouble.as_ref().is_some_and(|trouble| trouble.is_full)
    }
}

/// Our stdin is the task's stdout, and our stdout its stderr: see the module of the supervisor.
fn with_pipe<T>(stream: Stream, use_it: impl FnOnce(BorrowedFd<'_>) -> T) -> T {
    match stream {
        Stream::Stdout => use_it(stdin().as_fd()),
        Stream::Stderr => use_it(stdout().as_fd()),
    }
}

/// The write ends of the task's pipes. The agent hands over read ends alone, as stdin and stdout, so that starting us
/// needs nothing between its fork and our exec. The kernel opens a pipe anew for writing by this path.
///
/// They can be read, too, so that the task itself holds its pipes when agent and supervisor are killed together: it is not
/// ended by a signal at its next write, and the next agent finds what it wrote.
pub(super) fn write_ends() -> io::Result<[OwnedFd; 2]> {
    let flags = OFlags::RDWR | OFlags::CLOEXEC;
    Ok([open("/proc/self/fd/0", flags, Mode::empty())?, open("/proc/self/fd/1", flags, Mode::empty())?])
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
