//! What we write to: whether a person is looking, how wide it is, whether it has colours, and whether it is still
//! there. All output of all commands goes through here, so that a closed pipe is never a panic, and so that no text of
//! another person reaches a terminal unescaped: whatever a command puts into a text, only its own colours are executed
//! (`paint`). Exceptions have their own functions, which say why. `crates/testkit/tests/architecture.rs` refuses any
//! other way to an output.

mod output_filter;
mod paint;

use std::env;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use muster_api::model::printable;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

pub(crate) use self::output_filter::OutputFilter;
pub(crate) use self::paint::{paint, render};
use crate::error::Error;

/// The few colours we use, as the terminal's own palette.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Colour {
    Red,
    Green,
    Yellow,
    Blue,
    Magenta,
    Cyan,
    Dim,
}

impl Colour {
    const fn code(self) -> &'static str {
        match self {
            Self::Red => "31",
            Self::Green => "32",
            Self::Yellow => "33",
            Self::Blue => "34",
            Self::Magenta => "35",
            Self::Cyan => "36",
            Self::Dim => "2",
        }
    }
}

pub(crate) fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

pub(crate) fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
}

/// Whether either output is a terminal.
pub(crate) fn is_watched() -> bool {
    stdout_is_terminal() || stderr_is_terminal()
}

/// When there are colours.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum When {
    /// On a terminal, unless NO_COLOR or TERM=dumb says otherwise
    #[default]
    Auto,
    /// Everywhere
    Always,
    /// Nowhere
    Never,
}

/// What the command line says of colours: said once, at the start, and asked by whatever is shown.
static WHEN: OnceLock<When> = OnceLock::new();

pub(crate) fn set_colours(when: When) {
    // The first word holds; there is only one command line.
    let _ = WHEN.set(when);
}

/// Whether a line on stderr can be written over: a terminal that says it is dumb would keep every turn of a spinner.
pub(crate) fn stderr_can_move() -> bool {
    stderr_is_terminal() && !is_dumb()
}

pub(crate) fn stdout_has_colours() -> bool {
    has_colours(stdout_is_terminal())
}

pub(crate) fn stderr_has_colours() -> bool {
    has_colours(stderr_is_terminal())
}

fn has_colours(is_terminal: bool) -> bool {
    match WHEN.get().copied().unwrap_or_default() {
        When::Auto => is_terminal && colours_are_wanted(),
        When::Always => true,
        When::Never => false,
    }
}

/// <https://no-color.org>, and terminals that say they are dumb.
fn colours_are_wanted() -> bool {
    env::var_os("NO_COLOR").is_none_or(|value| value.is_empty()) && !is_dumb()
}

fn is_dumb() -> bool {
    env::var_os("TERM").is_some_and(|term| term == "dumb")
}

/// How many columns stdout has; none when it is not a terminal, and then nothing is cut short.
pub(crate) fn width() -> Option<usize> {
    if !stdout_is_terminal() {
        return None;
    }
    let told = env::var("COLUMNS").ok().and_then(|columns| columns.parse().ok());
    let asked = || rustix::termios::tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col));
    told.or_else(asked).filter(|columns| *columns > 0)
}

/// Whether whoever read our stdout has gone, as far as can be known without writing to it. A command that waits for
/// something to say must ask, or it would wait for nobody.
pub(crate) fn stdout_is_closed() -> bool {
    let stdout = io::stdout();
    let mut asked = [PollFd::new(&stdout, PollFlags::empty())];
    let now = Timespec::default();
    poll(&mut asked, Some(&now)).is_ok() && asked[0].revents().intersects(PollFlags::ERR | PollFlags::HUP)
}

/// Writes a text for people to stdout, all of it now.
pub(crate) fn to_stdout(text: &str) -> Result<(), Error> {
    exact_to_stdout(render(text).as_bytes())
}

/// Writes a text for people to stderr. That it cannot be written is nothing that anyone could be told.
pub(crate) fn to_stderr(text: &str) {
    let _ = io::stderr().lock().write_all(render(text).as_bytes());
}

/// Writes a text to stderr that a library has coloured: colours pass, and nothing else.
pub(crate) fn coloured_to_stderr(text: &str) {
    let mut shown = Vec::with_capacity(text.len());
    OutputFilter::default().line(text.as_bytes(), &mut shown);
    let _ = io::stderr().lock().write_all(&shown);
}

/// Writes bytes to stdout that are not ours to change: a file, an archive, a script of our own, or output of the
/// user's own task.
pub(crate) fn exact_to_stdout(bytes: &[u8]) -> Result<(), Error> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(bytes).and_then(|()| stdout.flush()).map_err(|error| Error::output(&error))
}

/// Writes a text that programs read, too, such as YAML or a diff: exact in a pipe, escaped on a terminal.
pub(crate) fn document(text: &[u8]) -> Result<(), Error> {
    if !stdout_is_terminal() {
        return exact_to_stdout(text);
    }
    to_stdout(&String::from_utf8_lossy(text))
}

/// Bytes on their way to stdout in pieces.
pub(crate) struct ByteOutput {
    filter: Option<OutputFilter>,
    shown: Vec<u8>,
}

impl ByteOutput {
    /// Every byte as it is, unless they are another person's and stdout is a terminal, which gets text and colours.
    pub fn new(is_of_another: bool) -> Self {
        let is_filtered = is_of_another && stdout_is_terminal();
        Self { filter: is_filtered.then(OutputFilter::default), shown: Vec::new() }
    }

    pub fn write(&mut self, piece: &[u8]) -> Result<(), Error> {
        let Some(filter) = &mut self.filter else { return exact_to_stdout(piece) };
        filter.push(piece, &mut self.shown);
        self.flush()
    }

    pub fn finish(mut self) -> Result<(), Error> {
        if let Some(filter) = &mut self.filter {
            filter.finish(&mut self.shown);
        }
        self.flush()
    }

    fn flush(&mut self) -> Result<(), Error> {
        let shown = std::mem::take(&mut self.shown);
        if shown.is_empty() { Ok(()) } else { exact_to_stdout(&shown) }
    }
}

/// Writes what is pending to stdout or stderr; a display has decided what of it passes.
pub(crate) fn flush_display(pending: &[u8], is_stderr: bool) -> io::Result<()> {
    fn write(output: &mut impl Write, pending: &[u8]) -> io::Result<()> {
        output.write_all(pending).and_then(|()| output.flush())
    }
    if is_stderr {
        write(&mut io::stderr().lock(), pending)
    } else {
        write(&mut io::stdout().lock(), pending)
    }
}

/// One line on stdout.
pub(crate) fn say(text: &str) -> Result<(), Error> {
    to_stdout(&format!("{}\n", one_line(text)))
}

/// One line on stderr for the person who watches, which no script should read.
pub(crate) fn remark(text: &str) {
    to_stderr(&format!("{}\n", one_line(text)));
}

/// A line break of another person's text must not begin a line that looks like ours.
fn one_line(text: &str) -> String {
    text.replace('\n', "\\n")
}

/// Something the user may want to know.
pub(crate) fn note(text: &str) {
    titled("note:", Colour::Yellow, text);
}

/// What would help.
pub(crate) fn hint(text: &str) {
    titled("hint:", Colour::Cyan, text);
}

fn titled(title: &str, colour: Colour, text: &str) {
    to_stderr(&format!("{} {}\n", paint(title, colour, stderr_has_colours()), indented(text)));
}

/// The text with its further lines set in, so that none of them looks like a line of ours.
pub(crate) fn indented(text: &str) -> String {
    text.replace('\n', "\n  ")
}

/// A value as JSON on stdout, for people's `jq` as much as for programs.
pub(crate) fn say_json(value: &impl Serialize) -> Result<(), Error> {
    let json = serde_json::to_string_pretty(value).map_err(|error| Error::encoding("JSON", error))?;
    to_stdout(&format!("{}\n", printable::json(&json)))
}

/// A value as one line of JSON, whose strings are safe to print.
pub(crate) fn json_line(value: &impl Serialize) -> Result<String, Error> {
    let json = serde_json::to_string(value).map_err(|error| Error::encoding("JSON", error))?;
    Ok(printable::json(&json).into_owned())
}
