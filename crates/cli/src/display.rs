//! Where a job's output goes: as it is for one task, in labelled lines for several tasks or processes, or as JSON.

use std::io;

use jiff::tz::TimeZone;
use muster_api::client::log_bytes;
use muster_api::model::Timestamp;
use muster_api::view::{LogChunk, LogStream};

use crate::error::Error;
use crate::label::{Labeller, LineWriter};
use crate::terminal::{self, Colour, OutputFilter};

/// Told apart on light and dark backgrounds; red is left for errors.
const LABEL_COLOURS: [Colour; 5] =
    [Colour::Cyan, Colour::Yellow, Colour::Green, Colour::Magenta, Colour::Blue];

/// How output is shown.
pub(crate) enum Mode {
    /// Byte for byte.
    Raw,
    /// Whole lines, each behind the name of its task, for a gang of so many; behind the rank of its process where that is known.
    Labelled(u32),
    /// Whole lines, each behind its time, and behind the name of its task if the gang is of more than one.
    Timed(u32),
    /// One JSON document a line.
    Json,
}

/// Shows the output of a job.
pub(crate) struct Display {
    mode: Mode,
    labeller: Labeller,
    stdout: Sink,
    stderr: Sink,
    /// The job's stdout goes to stderr too: ours is for something else.
    only_stderr: bool,
    /// The attempt that is being shown; 0 before the first output.
    attempt: u32,
    /// What a task wrote last, as it is, was the end of a line.
    at_line_start: bool,
    /// How many processes there are, if lines carry their ranks; 0 if not.
    ranks: u32,
}

/// What is to be written to one of our two outputs.
struct Sink {
    pending: Vec<u8>,
    is_stderr: bool,
    colours: bool,
    is_closed: bool,
    /// For output of another person's task that goes to a terminal.
    filter: Option<OutputFilter>,
}

impl Display {
    pub fn new(mode: Mode) -> Self {
        Self {
            mode,
            labeller: Labeller::default(),
            stdout: Sink::new(false, terminal::stdout_has_colours()),
            stderr: Sink::new(true, terminal::stderr_has_colours()),
            only_stderr: false,
            attempt: 0,
            at_line_start: true,
            ranks: 0,
        }
    }

    /// The same, with the rank of its process before each line of which it is known; of so many processes.
    #[must_use]
    pub fn with_ranks(mut self, ranks: u32) -> Self {
        self.ranks = ranks;
        self
    }

    /// Whether what comes next begins a line of its own.
    pub fn is_at_line_start(&self) -> bool {
        self.at_line_start
    }

    /// The same, with all output on stderr.
    #[must_use]
    pub fn on_stderr(mut self) -> Self {
        self.only_stderr = true;
        self
    }

    /// The same for output of another person's task: on a terminal, text and colours pass, and everything else is
    /// shown without being executed. A pipe gets every byte as it is.
    #[must_use]
    pub fn of_another(mut self) -> Self {
        self.stdout.filter = terminal::stdout_is_terminal().then(OutputFilter::default);
        self.stderr.filter = terminal::stderr_is_terminal().then(OutputFilter::default);
        self
    }

    /// Whether a piece of output is of another attempt than the output before it.
    pub fn begins_attempt(&self, chunk: &LogChunk) -> bool {
        self.attempt != 0 && self.attempt != chunk.attempt && !matches!(self.mode, Mode::Json)
    }

    /// Notes that an attempt begins, and why the one before it ended, where that is known.
    pub fn on_attempt(&mut self, attempt: u32, reason: Option<&str>) -> Result<(), Error> {
        self.finish()?;
        let ended = reason.map(|reason| format!("attempt {} ended: {reason}; ", attempt.saturating_sub(1)));
        terminal::note(&format!("{}attempt {attempt} begins", ended.unwrap_or_default()));
        self.attempt = attempt;
        Ok(())
    }

    /// Shows a piece of output.
    pub fn chunk(&mut self, chunk: &LogChunk) -> Result<(), Error> {
        if self.begins_attempt(chunk) {
            self.on_attempt(chunk.attempt, None)?;
        }
        self.attempt = chunk.attempt;
        match self.mode {
            Mode::Json => {
                let line = terminal::json_line(chunk)?;
                self.stdout.pending.extend_from_slice(line.as_bytes());
                self.stdout.pending.push(b'\n');
            }
            Mode::Raw | Mode::Labelled(_) | Mode::Timed(_) => {
                let process_rank = chunk.process_rank.filter(|_| self.ranks > 1);
                let writer = LineWriter { task: chunk.rank, process_rank };
                self.add(writer, chunk.stream, &log_bytes(chunk)?, chunk.at);
            }
        }
        self.flush()
    }

    /// Shows a piece of output that is in no log.
    pub fn piece(&mut self, rank: u32, stream: LogStream, bytes: &[u8], at: Timestamp) -> Result<(), Error> {
        self.add(rank.into(), stream, bytes, at);
        self.flush()
    }

    fn add(&mut self, writer: LineWriter, stream: LogStream, bytes: &[u8], at: Timestamp) {
        if !matches!(self.mode, Mode::Raw) || writer.process_rank.is_some() {
            return self.labelled(|labeller, emit| labeller.push(writer, stream, bytes, at, emit));
        }
        self.at_line_start = bytes.ends_with(b"\n");
        self.sink(stream).push(bytes);
    }

    /// Time passes.
    pub fn tick(&mut self, now: Timestamp) -> Result<(), Error> {
        self.labelled(|labeller, emit| labeller.tick(now, emit));
        self.flush()
    }

    /// Nothing more comes.
    pub fn finish(&mut self) -> Result<(), Error> {
        self.labelled(|labeller, emit| labeller.finish(emit));
        self.stdout.finish();
        self.stderr.finish();
        self.flush()
    }

    fn sink(&mut self, stream: LogStream) -> &mut Sink {
        if stream == LogStream::Stderr || self.only_stderr { &mut self.stderr } else { &mut self.stdout }
    }

    /// Shows what the labeller has. Of what is shown as it is, it has nothing.
    fn labelled(&mut self, act: impl FnOnce(&mut Labeller, &mut crate::label::Emit)) {
        let (tasks, is_timed) = match self.mode {
            Mode::Labelled(tasks) => (Some(tasks), false),
            Mode::Timed(tasks) => (Some(tasks).filter(|tasks| *tasks > 1), true),
            Mode::Raw => (None, false),
            Mode::Json => return,
        };
        let ranks = self.ranks;
        let (stdout, stderr, only_stderr) = (&mut self.stdout, &mut self.stderr, self.only_stderr);
        let zone = TimeZone::system();
        act(&mut self.labeller, &mut |writer, stream, at, line| {
            let to_stderr = stream == LogStream::Stderr || only_stderr;
            let sink = if to_stderr { &mut *stderr } else { &mut *stdout };
            if let Some(label) = label_of(writer, tasks, ranks, sink.colours) {
                sink.pending.extend_from_slice(label.as_bytes());
            }
            if is_timed {
                let time = terminal::paint(&time(at, &zone), Colour::Dim, sink.colours);
                sink.pending.extend_from_slice(terminal::render(&time).as_bytes());
                sink.pending.push(b' ');
            }
            sink.line(line);
        });
    }

    fn flush(&mut self) -> Result<(), Error> {
        let shown = self.stdout.flush(terminal::flush_display);
        // Nobody can be told that stderr is gone; what it would have said is dropped.
        let _ = self.stderr.flush(terminal::flush_display);
        shown.map_err(|error| Error::output(&error))
    }
}

impl Sink {
    fn new(is_stderr: bool, colours: bool) -> Self {
        Self { pending: Vec::new(), is_stderr, colours, is_closed: false, filter: None }
    }

    /// Takes a piece of a task's output.
    fn push(&mut self, bytes: &[u8]) {
        match &mut self.filter {
            Some(filter) => filter.push(bytes, &mut self.pending),
            None => self.pending.extend_from_slice(bytes),
        }
    }

    /// Takes a whole line of a task's output.
    fn line(&mut self, line: &[u8]) {
        match &mut self.filter {
            Some(filter) => filter.line(line, &mut self.pending),
            None => self.pending.extend_from_slice(line),
        }
        self.pending.push(b'\n');
    }

    fn finish(&mut self) {
        if let Some(filter) = &mut self.filter {
            filter.finish(&mut self.pending);
        }
    }

    /// Writes what is pending. An output that was closed says so once, and takes everything silently from then on.
    fn flush(&mut self, write: impl FnOnce(&[u8], bool) -> io::Result<()>) -> io::Result<()> {
        let pending = std::mem::take(&mut self.pending);
        if self.is_closed || pending.is_empty() {
            return Ok(());
        }
        let written = write(&pending, self.is_stderr);
        self.is_closed = written.is_err();
        self.pending = pending;
        self.pending.clear();
        written
    }
}

/// `2026-11-15T10:00:00.123+01:00`: sorts, can be given to `--since`, and is the time on the user's own clock.
fn time(at: Timestamp, zone: &TimeZone) -> String {
    at.to_zoned(zone.clone()).strftime("%Y-%m-%dT%H:%M:%S.%3f%:z").to_string()
}

/// What stands before a line, if anything does.
fn label_of(writer: LineWriter, tasks: Option<u32>, ranks: u32, colours: bool) -> Option<String> {
    let most = ranks.max(tasks.unwrap_or(0));
    match writer.process_rank {
        Some(rank) => Some(named("rank", rank, most, colours)),
        None => tasks.map(|_| named("task", writer.task, most, colours)),
    }
}

/// `task3 |`, all of them of one width.
fn named(kind: &str, rank: u32, count: u32, colours: bool) -> String {
    let width = kind.len() + count.saturating_sub(1).to_string().len();
    let text = format!("{:width$} |", format!("{kind}{rank}"));
    if !colours {
        return format!("{text} ");
    }
    // The reset ends whatever colour the last line of some task left open.
    let colour = LABEL_COLOURS[rank as usize % LABEL_COLOURS.len()];
    format!("\x1b[0m{} ", terminal::render(&terminal::paint(&text, colour, true)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(rank: u32, stream: LogStream, text: &str) -> LogChunk {
        LogChunk {
            attempt: 1,
            rank,
            process_rank: None,
            stream,
            at: Timestamp::UNIX_EPOCH,
            text: Some(text.into()),
            base64: None,
            next: 0,
            skip: None,
            cut: false,
        }
    }

    #[test]
    fn labels_have_one_width() {
        assert_eq!(named("task", 0, 2, false), "task0 | ");
        assert_eq!(named("task", 3, 16, false), "task3  | ");
        assert_eq!(named("task", 15, 16, false), "task15 | ");
        let process = LineWriter { task: 1, process_rank: Some(9) };
        assert_eq!(label_of(process, None, 16, false).unwrap(), "rank9  | ");
        assert_eq!(label_of(process, Some(2), 16, false).unwrap(), "rank9  | ");
        assert_eq!(label_of(1.into(), Some(2), 16, false).unwrap(), "task1  | ");
        assert_eq!(label_of(1.into(), None, 16, false), None);
    }

    #[test]
    fn times_are_those_of_the_users_clock() {
        let at: Timestamp = "2026-11-15T23:30:00.0079Z".parse().unwrap();
        let zone = TimeZone::fixed(jiff::tz::offset(8));
        assert_eq!(time(at, &zone), "2026-11-16T07:30:00.007+08:00");
        assert_eq!(time(at, &TimeZone::UTC), "2026-11-15T23:30:00.007+00:00");
    }

    #[test]
    fn a_closed_output_is_reported_once() {
        let closed = |_: &[u8], _| Err(io::ErrorKind::BrokenPipe.into());
        let mut sink = Sink::new(false, false);
        sink.push(b"x");
        assert!(sink.flush(closed).is_err());
        sink.push(b"y");
        assert!(sink.flush(closed).is_ok());
        assert!(sink.pending.is_empty());
    }

    #[test]
    fn the_jobs_two_outputs_stay_apart() {
        let mut display = Display::new(Mode::Labelled(2));
        display.stdout.is_closed = true;
        display.stderr.is_closed = true;
        for (stream, only_stderr, expected) in
            [(LogStream::Stdout, false, 0), (LogStream::Stderr, false, 1), (LogStream::Stdout, true, 1)]
        {
            display.only_stderr = only_stderr;
            let which = std::ptr::from_ref(display.sink(stream));
            assert_eq!(usize::from(std::ptr::eq(which, &display.stderr)), expected);
        }
        display.chunk(&chunk(1, LogStream::Stdout, "x\n")).unwrap();
    }
}
