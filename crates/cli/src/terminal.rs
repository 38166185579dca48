//! What we write to: whether a person is looking, how wide it is, whether it has colours, and whether it is still
//! there. All output of all commands goes through here, so that a closed pipe is never a panic.

use std::env;
use std::io::{self, IsTerminal, Write};
use std::sync::OnceLock;

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde::Serialize;

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

/// The text in a colour, where colours are wanted.
pub(crate) fn paint(text: &str, colour: Colour, colours: bool) -> String {
    if colours { format!("\x1b[{}m{text}\x1b[0m", colour.code()) } else { text.to_owned() }
}

pub(crate) fn stdout_is_terminal() -> bool {
    io::stdout().is_terminal()
}

pub(crate) fn stderr_is_terminal() -> bool {
    io::stderr().is_terminal()
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

/// Writes to stdout, all of it now.
pub(crate) fn to_stdout(text: &[u8]) -> Result<(), Error> {
    let mut stdout = io::stdout().lock();
    stdout.write_all(text).and_then(|()| stdout.flush()).map_err(|error| Error::output(&error))
}

/// Writes to stderr. That it cannot be written is nothing that anyone could be told.
pub(crate) fn to_stderr(text: &str) {
    let _ = io::stderr().lock().write_all(text.as_bytes());
}

/// A line on stdout.
pub(crate) fn say(text: &str) -> Result<(), Error> {
    to_stdout(format!("{text}\n").as_bytes())
}

/// A line on stderr for the person who watches, which no script should read.
pub(crate) fn remark(text: &str) {
    to_stderr(&format!("{text}\n"));
}

/// Something the user may want to know.
pub(crate) fn note(text: &str) {
    to_stderr(&format!("{} {text}\n", paint("note:", Colour::Yellow, stderr_has_colours())));
}

/// What would help.
pub(crate) fn hint(text: &str) {
    to_stderr(&format!("{} {text}\n", paint("hint:", Colour::Cyan, stderr_has_colours())));
}

/// A value as JSON on stdout, for people's `jq` as much as for programs.
pub(crate) fn say_json(value: &impl Serialize) -> Result<(), Error> {
    let json = serde_json::to_string_pretty(value).map_err(|error| Error::encoding("JSON", error))?;
    say(&json)
}
