//! A command in a task with our own standard input, outputs, signals and terminal.

mod escape;
mod raw;
mod stdio;

use std::future::pending;
use std::io::{self, IsTerminal};
use std::pin::pin;
use std::time::Duration;

use muster_ssh::client::{Command, Event, Input, Output, Signal, Window};
use tokio::io::AsyncWriteExt;
use tokio::signal::unix::{self, SignalKind};
use tokio::time::timeout;

use self::escape::Escape;
pub(crate) use self::raw::Raw;
use self::stdio::Sink;
pub(crate) use self::stdio::Stdin;
use crate::call::Caller;
use crate::error::{Code, Error};
use crate::target::Target;
use crate::terminal;

/// What a command gets to end by itself when nobody reads its output any more.
const CLOSING: Duration = Duration::from_secs(1);

/// What of ours the command gets.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Ours {
    /// What comes in on our standard input.
    pub stdin: bool,
    /// Our terminal, which is then its own.
    pub terminal: bool,
    /// `~.` at the beginning of a line ends the connection, as in `ssh`.
    pub escapes: bool,
}

impl Ours {
    /// Gives the terminal away only if there is one; says so, if that was asked for.
    pub fn with_terminal(mut self, is_wanted: bool) -> Self {
        if is_wanted && !io::stdin().is_terminal() {
            terminal::note("standard input is not a terminal, so the command gets none");
            return self;
        }
        self.terminal = is_wanted;
        self.stdin |= is_wanted;
        self
    }
}

/// How a command ended.
pub(crate) enum End {
    Code(u8),
    /// Whoever uses us has had enough of it.
    Left(u8),
}

/// Runs a command to its end, and gives its exit code.
pub(crate) async fn run(
    caller: &Caller,
    target: &Target,
    mut command: Command,
    ours: Ours,
    wait: bool,
) -> Result<u8, Error> {
    let client = caller.call(target, wait).await?;
    let mut signals = Signals::listen(ours.terminal)?;
    if ours.terminal {
        let kind = std::env::var("TERM").ok().filter(|kind| !kind.is_empty());
        command.terminal = Some((kind.unwrap_or_else(|| "dumb".into()), window()));
    }
    let (output, input) = match client.run(&command).await {
        Ok(started) => started,
        Err(error) => return Err(caller.broken(target, error).await),
    };
    // Until it is dropped, whichever way we leave.
    let _raw = if ours.terminal { Some(Raw::enter()?) } else { None };
    let mut showing = Showing { output, stdout: Sink::stdout(), stderr: Sink::stderr() };
    let ended = {
        let mut feeding = pin!(feed(&input, ours));
        let mut showing = pin!(showing.run());
        loop {
            tokio::select! {
                shown = &mut showing => break shown,
                left = &mut feeding => break Ok(left),
                received = signals.next() => if let Some(end) = signals.on(received, &input, ours).await {
                    break Ok(end);
                },
            }
        }
    };
    match ended {
        Ok(End::Code(code) | End::Left(code)) => Ok(code),
        Err(Failed::Output(error)) => {
            let error = Error::output(&error);
            if error.is_output_closed() {
                close(&input, &mut showing.output).await;
            }
            Err(error)
        }
        Err(Failed::Ssh(error)) => Err(caller.broken(target, error).await),
    }
}

enum Failed {
    Ssh(muster_ssh::client::Error),
    Output(io::Error),
}

/// What the command writes, on its way to our outputs.
struct Showing {
    output: Output,
    stdout: Sink,
    stderr: Sink,
}

impl Showing {
    async fn run(&mut self) -> Result<End, Failed> {
        loop {
            match self.output.next().await.map_err(Failed::Ssh)? {
                Event::Stdout(data) => self.stdout.write(data).await.map_err(Failed::Output)?,
                Event::Stderr(data) => {
                    // Nobody can be told that stderr is gone.
                    let _ = self.stderr.write(data).await;
                }
                Event::Ended(code) => {
                    let _ = self.stderr.finish().await;
                    self.stdout.finish().await.map_err(Failed::Output)?;
                    return Ok(End::Code(code));
                }
            }
        }
    }
}

/// Gives the command our standard input; returns only when the user wants to leave.
pub(crate) async fn feed(input: &Input, ours: Ours) -> End {
    if !ours.stdin {
        let _ = input.end().await;
        return pending().await;
    }
    let mut stdin = match Stdin::open() {
        Ok(stdin) => stdin,
        Err(error) => {
            terminal::note(&format!("the command has no standard input: {error}"));
            let _ = input.end().await;
            return pending().await;
        }
    };
    let mut escape = Escape::default();
    let mut writer = pin!(input.writer());
    while let Some(piece) = stdin.next().await {
        let (keys, leaves) = if ours.escapes { escape.filter(&piece) } else { (piece.to_vec(), false) };
        if writer.write_all(&keys).await.is_err() {
            // A command that does not read to the end has closed it, which is its right.
            return pending().await;
        }
        if leaves {
            return End::Left(Signals::code(Signal::Hangup));
        }
    }
    let _ = input.end().await;
    pending().await
}

/// As a pipe does when its reader leaves: the command is told, and has a moment to end.
async fn close(input: &Input, output: &mut Output) {
    let closing = async {
        // One that does not mind the first, and writes on, is told that we are gone altogether.
        input.signal(Signal::Pipe).await?;
        input.signal(Signal::Hangup).await?;
        while !matches!(output.next().await?, Event::Ended(_)) {}
        Ok::<(), muster_ssh::client::Error>(())
    };
    let _ = timeout(CLOSING, closing).await;
}

/// How large our terminal is.
fn window() -> Window {
    let size =
        rustix::termios::tcgetwinsize(io::stdout()).or_else(|_| rustix::termios::tcgetwinsize(io::stdin()));
    // As terminals that do not say have always been taken to be.
    size.map_or(Window { columns: 80, rows: 24 }, |size| Window { columns: size.ws_col, rows: size.ws_row })
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    Told(Signal),
    Resized,
}

/// What we are told, for the command: the first time it is passed on, the second time we leave.
pub(crate) struct Signals {
    interrupt: unix::Signal,
    terminate: unix::Signal,
    hangup: unix::Signal,
    quit: unix::Signal,
    resized: Option<unix::Signal>,
    told: bool,
}

impl Signals {
    pub fn listen(is_terminal: bool) -> Result<Self, Error> {
        let listen = |kind| {
            unix::signal(kind).map_err(|error| Error::io(Code::SystemFailed, "listen for signals", &error))
        };
        Ok(Self {
            interrupt: listen(SignalKind::interrupt())?,
            terminate: listen(SignalKind::terminate())?,
            hangup: listen(SignalKind::hangup())?,
            quit: listen(SignalKind::quit())?,
            resized: if is_terminal { Some(listen(SignalKind::window_change())?) } else { None },
            told: false,
        })
    }

    pub async fn next(&mut self) -> Received {
        let resized = async {
            match &mut self.resized {
                Some(resized) => resized.recv().await,
                None => pending().await,
            }
        };
        Received::Told(tokio::select! {
            _ = self.interrupt.recv() => Signal::Interrupt,
            _ = self.terminate.recv() => Signal::Terminate,
            _ = self.hangup.recv() => Signal::Hangup,
            _ = self.quit.recv() => Signal::Quit,
            _ = resized => return Received::Resized,
        })
    }

    /// Whether this is the second time.
    pub fn is_enough(&mut self) -> bool {
        std::mem::replace(&mut self.told, true)
    }

    /// What a command exits with that is ended like this.
    pub const fn code(signal: Signal) -> u8 {
        match signal {
            Signal::Hangup => 129,
            Signal::Interrupt => 130,
            Signal::Quit => 131,
            Signal::Pipe => 141,
            Signal::Terminate => 143,
        }
    }

    async fn on(&mut self, received: Received, input: &Input, ours: Ours) -> Option<End> {
        match received {
            Received::Resized => {
                let _ = input.resize(window()).await;
                None
            }
            // Keys reach the command through its terminal: whoever signals us means us, and the terminal goes with us.
            Received::Told(signal) if ours.terminal || self.is_enough() => {
                Some(End::Left(Self::code(signal)))
            }
            Received::Told(signal) => {
                // A connection that is gone ends the command's output, and with it us.
                let _ = input.signal(signal).await;
                None
            }
        }
    }
}
