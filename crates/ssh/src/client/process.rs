//! A command in a task: what it is given, what it writes, how it ends.

use bytes::Bytes;
use russh::client::Msg;
use russh::{ChannelMsg, ChannelReadHalf, ChannelWriteHalf, Pty, Sig};
use tokio::io::AsyncWrite;

use super::{Client, Error};

/// Data of this kind is what a command wrote to its standard error.
const STDERR: u32 = 1;
/// What a code cannot say: the number of the signal is above it, as in shells.
const SIGNALED: u8 = 128;
/// A code that does not fit a byte is never taken for success.
const UNKNOWN: u8 = 255;

/// What is to be run.
#[derive(Debug, Clone, Default)]
pub struct Command {
    /// A line for the task's shell; without one, the shell itself.
    pub line: Option<Vec<u8>>,
    /// Variables, on top of the task's own.
    pub env: Vec<(String, String)>,
    /// A terminal of this kind and size, if it is to have one.
    pub terminal: Option<(String, Window)>,
}

/// How large a terminal is, in characters.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Window {
    /// How many in a line.
    pub columns: u16,
    /// How many lines.
    pub rows: u16,
}

/// What a command may be told.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Signal {
    /// The terminal is gone.
    Hangup,
    /// Ctrl-C.
    Interrupt,
    /// Nobody reads what you write.
    Pipe,
    /// Ctrl-\.
    Quit,
    /// End yourself.
    Terminate,
}

/// What comes from a command.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// From its standard output, or its terminal.
    Stdout(Bytes),
    /// From its standard error.
    Stderr(Bytes),
    /// It has ended, with this code; nothing comes after.
    Ended(u8),
}

impl Client {
    /// Starts a command. Whether it could be started, its output says.
    pub async fn run(&self, command: &Command) -> Result<(Output, Input), Error> {
        let (reading, writing) = self.session().await?.split();
        // Nothing of this is waited for: refused, the last one alone matters, and then the channel says so.
        if let Some((kind, window)) = &command.terminal {
            let (columns, rows) = (u32::from(window.columns), u32::from(window.rows));
            writing.request_pty(false, kind, columns, rows, 0, 0, MODES).await.map_err(Error::lost)?;
        }
        for (name, value) in &command.env {
            writing.set_env(false, name, value).await.map_err(Error::lost)?;
        }
        match &command.line {
            Some(line) => writing.exec(true, line.clone()).await.map_err(Error::lost)?,
            None => writing.request_shell(true).await.map_err(Error::lost)?,
        }
        Ok((Output { reading, ended: None }, Input { writing }))
    }
}

/// Letters of several bytes are erased as one.
const MODES: &[(Pty, u32)] = &[(Pty::IUTF8, 1)];

/// What a command writes, and its end.
pub struct Output {
    reading: ChannelReadHalf,
    ended: Option<u8>,
}

impl Output {
    /// The next that comes. A call that is cancelled loses nothing.
    pub async fn next(&mut self) -> Result<Event, Error> {
        loop {
            match self.reading.wait().await {
                Some(ChannelMsg::Data { data }) => return Ok(Event::Stdout(data)),
                Some(ChannelMsg::ExtendedData { data, ext: STDERR }) => return Ok(Event::Stderr(data)),
                Some(ChannelMsg::ExitStatus { exit_status }) => {
                    self.ended = Some(u8::try_from(exit_status).unwrap_or(UNKNOWN));
                }
                Some(ChannelMsg::ExitSignal { signal_name, .. }) => {
                    self.ended = Some(SIGNALED + number(&signal_name));
                }
                Some(ChannelMsg::Failure) => return Err(Error::Refused { what: "the command" }),
                // All that it wrote comes before its end; whoever has that has everything.
                Some(ChannelMsg::Close) | None => {
                    return self.ended.map(Event::Ended).ok_or(Error::Lost(None));
                }
                Some(_) => {}
            }
        }
    }
}

/// What a command is given while it runs.
pub struct Input {
    writing: ChannelWriteHalf<Msg>,
}

impl Input {
    /// Its standard input, or the keys of its terminal. Shut down, it is at its end.
    pub fn writer(&self) -> impl AsyncWrite + Send + 'static {
        self.writing.make_writer()
    }

    /// Nothing more comes in.
    pub async fn end(&self) -> Result<(), Error> {
        self.writing.eof().await.map_err(Error::lost)
    }

    /// Tells it something.
    pub async fn signal(&self, signal: Signal) -> Result<(), Error> {
        let signal = match signal {
            Signal::Hangup => Sig::HUP,
            Signal::Interrupt => Sig::INT,
            Signal::Pipe => Sig::PIPE,
            Signal::Quit => Sig::QUIT,
            Signal::Terminate => Sig::TERM,
        };
        self.writing.signal(signal).await.map_err(Error::lost)
    }

    /// Its terminal has another size.
    pub async fn resize(&self, window: Window) -> Result<(), Error> {
        let (columns, rows) = (u32::from(window.columns), u32::from(window.rows));
        self.writing.window_change(columns, rows, 0, 0).await.map_err(Error::lost)
    }
}

/// A signal by its number. Names are those of the protocol, and others that servers send all the same.
fn number(signal: &Sig) -> u8 {
    match signal {
        Sig::HUP => 1,
        Sig::INT => 2,
        Sig::QUIT => 3,
        Sig::ILL => 4,
        Sig::ABRT => 6,
        Sig::FPE => 8,
        Sig::KILL => 9,
        Sig::USR1 => 10,
        Sig::SEGV => 11,
        Sig::PIPE => 13,
        Sig::ALRM => 14,
        Sig::TERM => 15,
        Sig::Custom(name) => match name.as_str() {
            "TRAP" => 5,
            "BUS" => 7,
            "USR2" => 12,
            "XCPU" => 24,
            "XFSZ" => 25,
            "SYS" => 31,
            _ => UNKNOWN - SIGNALED,
        },
    }
}
