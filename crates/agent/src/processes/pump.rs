//! What several processes write, line by line.
//!
//! Python is told not to buffer, since people wait for their lines, and then writes the end of a line by itself. Processes
//! that shared a pipe would tear each other's lines apart all the time. So each has pipes of its own, and only whole
//! lines are passed on. What a progress bar or a prompt leaves unfinished is passed on a moment later.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::process::Stdio;
use std::time::{Duration, Instant};

use rustix::io::Errno;
use rustix::pipe::{PipeFlags, pipe_with};

/// How long the rest of a line is waited for.
const PATIENCE: Duration = Duration::from_millis(100);
/// A line that is longer is passed on in pieces.
const LONGEST: usize = 256 << 10;
/// As much as a pipe holds.
const PIECE: usize = 64 << 10;

#[derive(Default)]
pub(super) struct Pump {
    sources: Vec<Source>,
}

struct Source {
    pipe: OwnedFd,
    is_error: bool,
    /// The beginning of a line.
    line: Vec<u8>,
    /// When it is passed on as it is.
    flush_at: Option<Instant>,
}

impl Pump {
    /// The stdout and stderr of a new process.
    pub(super) fn add(&mut self) -> io::Result<(Stdio, Stdio)> {
        Ok((self.pipe(false)?, self.pipe(true)?))
    }

    fn pipe(&mut self, is_error: bool) -> io::Result<Stdio> {
        let (pipe, end) = pipe_with(PipeFlags::CLOEXEC)?;
        // Ours alone: a program that does not expect it would lose output.
        rustix::io::ioctl_fionbio(&pipe, true)?;
        self.sources.push(Source { pipe, is_error, line: Vec::new(), flush_at: None });
        Ok(end.into())
    }

    pub(super) fn descriptors(&self) -> impl Iterator<Item = BorrowedFd<'_>> {
        self.sources.iter().map(|source| source.pipe.as_fd())
    }

    pub(super) fn flush_at(&self) -> Option<Instant> {
        self.sources.iter().filter_map(|source| source.flush_at).min()
    }

    /// Pass on what there is.
    pub(super) fn turn(&mut self) -> io::Result<()> {
        let mut open = Vec::with_capacity(self.sources.len());
        for mut source in self.sources.drain(..) {
            if source.take()? {
                open.push(source);
            }
        }
        self.sources = open;
        Ok(())
    }

    /// The same, with the lines that nobody will finish.
    pub(super) fn finish(mut self) -> io::Result<()> {
        self.turn()?;
        self.sources.iter_mut().try_for_each(|source| source.pass(source.line.len()))
    }
}

impl Source {
    /// Whether more may come.
    fn take(&mut self) -> io::Result<bool> {
        let mut buffer = vec![0; PIECE];
        loop {
            match rustix::io::read(&self.pipe, &mut buffer[..]) {
                Ok(0) => {
                    self.pass(self.line.len())?;
                    return Ok(false);
                }
                Ok(count) => self.line.extend_from_slice(&buffer[..count]),
                Err(Errno::INTR) => continue,
                Err(Errno::AGAIN) => break,
                Err(error) => return Err(error.into()),
            }
            self.pass(whole(&self.line))?;
            // A process that never stops writing must not keep the others waiting.
            break;
        }
        let now = Instant::now();
        if self.flush_at.is_some_and(|at| at <= now) {
            self.pass(self.line.len())?;
        }
        self.flush_at = (!self.line.is_empty()).then(|| self.flush_at.unwrap_or(now + PATIENCE));
        Ok(true)
    }

    fn pass(&mut self, count: usize) -> io::Result<()> {
        let (mut rest, target) = (&self.line[..count], if self.is_error { 2 } else { 1 });
        while !rest.is_empty() {
            let written = match target {
                2 => rustix::io::write(io::stderr(), rest),
                _ => rustix::io::write(io::stdout(), rest),
            };
            match written {
                Ok(count) => rest = &rest[count..],
                Err(Errno::INTR) => {}
                Err(error) => return Err(error.into()),
            }
        }
        if count > 0 {
            self.line.drain(..count);
            self.flush_at = None;
        }
        Ok(())
    }
}

/// How much of this is whole lines. A progress bar ends its lines with a carriage return.
fn whole(line: &[u8]) -> usize {
    match line.iter().rposition(|byte| matches!(byte, b'\n' | b'\r')) {
        Some(at) => at + 1,
        None if line.len() > LONGEST => line.len(),
        None => 0,
    }
}
