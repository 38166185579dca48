//! Ctrl-C and SIGTERM while a job is attached.
//!
//! On a terminal Ctrl-C asks, because the job can just as well go on alone; a second Ctrl-C means it. Without one there
//! is nobody to ask: whoever ends the client (a CI system, a shell script) wants the job ended.

use std::io::{self, BufRead, IsTerminal};

use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::oneshot;

use crate::error::{Code, Error};
use crate::terminal;
use crate::threads;

/// What the user wants.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wish {
    Stop,
    Detach,
    Continue,
}

/// What came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Received {
    Interrupt,
    Terminate,
}

impl Received {
    /// What a command exits with that it ended.
    pub const fn exit_code(self) -> i32 {
        match self {
            Self::Interrupt => 130,
            Self::Terminate => 143,
        }
    }
}

/// Listens from the moment it is made: a signal that comes before anyone asks is kept.
pub(crate) struct Interrupts {
    interrupt: Signal,
    terminate: Signal,
}

impl Interrupts {
    pub fn listen() -> Result<Self, Error> {
        let listen =
            |kind| signal(kind).map_err(|error| Error::io(Code::SystemFailed, "listen for signals", &error));
        Ok(Self { interrupt: listen(SignalKind::interrupt())?, terminate: listen(SignalKind::terminate())? })
    }

    /// Waits for a signal. A call that is cancelled loses none.
    pub async fn next(&mut self) -> Received {
        tokio::select! {
            _ = self.interrupt.recv() => Received::Interrupt,
            _ = self.terminate.recv() => Received::Terminate,
        }
    }

    /// What is wanted by a signal; asks, if there is someone to ask.
    pub async fn wish(&mut self, received: Received, job: &str) -> Wish {
        match received {
            _ if !can_ask() => Wish::Stop,
            // Someone closes the terminal or ends the session: the job was never a part of it.
            Received::Terminate => Wish::Detach,
            Received::Interrupt => self.ask(job).await,
        }
    }

    async fn ask(&mut self, job: &str) -> Wish {
        terminal::to_stderr(&format!("\n[s]top {job}, [d]etach from it, or [c]ontinue? "));
        loop {
            let answer = tokio::select! {
                answer = line() => answer,
                received = self.next() => {
                    terminal::remark("");
                    return if received == Received::Interrupt { Wish::Stop } else { Wish::Detach };
                }
            };
            match answer.as_deref().map(wish) {
                Some(Some(wish)) => return wish,
                Some(None) => terminal::to_stderr("please answer s, d or c: "),
                // The terminal is gone.
                None => return Wish::Detach,
            }
        }
    }
}

/// A person is there when they can see the question and type the answer, and we are what they look at: reading from
/// the terminal in the background would stop us.
pub(crate) fn can_ask() -> bool {
    let in_foreground =
        || rustix::termios::tcgetpgrp(io::stdin()).is_ok_and(|group| group == rustix::process::getpgrp());
    io::stdin().is_terminal() && terminal::stderr_is_terminal() && in_foreground()
}

/// A line that is typed; none when there will be none. Read by a thread, which may outlive the question: nothing but
/// an answer, or the end of the process, ends such a read.
async fn line() -> Option<String> {
    let (sender, receiver) = oneshot::channel();
    let reading = threads::start(move || {
        let mut line = String::new();
        let read = io::stdin().lock().read_line(&mut line);
        // Nobody waits any more when a signal came first.
        let _ = sender.send(read.ok().filter(|bytes| *bytes > 0).map(|_| line));
    });
    reading.ok()?;
    receiver.await.ok().flatten()
}

fn wish(line: &str) -> Option<Wish> {
    match line.trim().to_lowercase().as_str() {
        "s" | "stop" => Some(Wish::Stop),
        "d" | "detach" => Some(Wish::Detach),
        "c" | "continue" => Some(Wish::Continue),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_are_letters_or_words() {
        for (line, expected) in [
            ("s\n", Some(Wish::Stop)),
            (" Detach \n", Some(Wish::Detach)),
            ("c", Some(Wish::Continue)),
            ("\n", None),
            ("yes\n", None),
        ] {
            assert_eq!(wish(line), expected, "{line:?}");
        }
    }
}
