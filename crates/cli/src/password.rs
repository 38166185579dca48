//! Passwords as people type them: on the terminal, unseen, or on standard input, for scripts. Never on a command line.

use std::fs::{File, OpenOptions};
use std::io::{self, BufRead, BufReader, Read, Write};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};

use crate::error::{Code, Error};

/// Longer is no password.
const MAX: u64 = 4096;

/// Where a password comes from.
#[derive(Debug, Clone, Copy, clap::Args)]
pub(crate) struct From {
    /// Read passwords from standard input, a line for each that is asked for
    #[arg(long)]
    password_stdin: bool,
}

impl From {
    /// One that is there already.
    pub fn known(self, prompt: &str) -> Result<String, Error> {
        if self.password_stdin { stdin() } else { Terminal::open()?.ask(prompt) }
    }

    /// One that is to be: asked for twice where it cannot be seen.
    pub fn chosen(self, prompt: &str) -> Result<String, Error> {
        if self.password_stdin {
            return stdin();
        }
        let mut terminal = Terminal::open()?;
        let password = terminal.ask(prompt)?;
        if terminal.ask("The same again: ")? == password {
            return Ok(password);
        }
        Err(Error::new(Code::Usage, "the two passwords differ").hint("run the command again"))
    }
}

fn stdin() -> Result<String, Error> {
    line("--password-stdin", "password")
}

/// A line of standard input, for the flag that says so.
pub(crate) fn line(flag: &str, what: &str) -> Result<String, Error> {
    let mut line = String::new();
    let failed = |error: io::Error| Error::io(Code::SystemFailed, format!("read the {what}"), &error);
    // Its own buffer keeps the lines after this one for whoever asks next.
    io::stdin().lock().take(MAX).read_line(&mut line).map_err(failed)?;
    let line = line.trim_end_matches(['\r', '\n']);
    if line.is_empty() {
        return Err(Error::new(Code::Usage, format!("{flag}: standard input has no {what}"))
            .hint(format!("printf '%s\\n' \"${}\" | muster … {flag}", what.to_uppercase())));
    }
    Ok(line.to_owned())
}

/// Something else that is not to be seen, typed twice.
pub(crate) fn unseen(what: &str) -> Result<String, Error> {
    let mut terminal = Terminal::open()?;
    let typed = terminal.ask(&format!("{what}: "))?;
    if terminal.ask("The same again: ")? == typed {
        return Ok(typed);
    }
    Err(Error::new(Code::Usage, "the two differ").hint("run the command again"))
}

/// The terminal itself, whatever standard input is; what is typed is not shown until this is dropped.
struct Terminal {
    file: File,
    before: Termios,
}

impl Terminal {
    fn open() -> Result<Self, Error> {
        let file = OpenOptions::new().read(true).write(true).open("/dev/tty").map_err(|_| {
            Error::new(Code::Usage, "there is no terminal to ask for a password")
                .hint("--password-stdin reads it from standard input")
        })?;
        let before = tcgetattr(&file).map_err(failed)?;
        let mut quiet = before.clone();
        quiet.local_modes.remove(LocalModes::ECHO);
        quiet.local_modes.insert(LocalModes::ECHONL);
        tcsetattr(&file, OptionalActions::Flush, &quiet).map_err(failed)?;
        Ok(Self { file, before })
    }

    fn ask(&mut self, prompt: &str) -> Result<String, Error> {
        let asked = |error: io::Error| Error::io(Code::SystemFailed, "ask for the password", &error);
        self.file.write_all(prompt.as_bytes()).map_err(asked)?;
        let mut line = String::new();
        let mut reader = BufReader::new(&self.file);
        if reader.read_line(&mut line).map_err(asked)? == 0 {
            return Err(Error::new(Code::Usage, "no password was given"));
        }
        Ok(line.trim_end_matches(['\r', '\n']).to_owned())
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // A terminal that is gone needs nothing.
        let _ = tcsetattr(&self.file, OptionalActions::Flush, &self.before);
    }
}

fn failed(error: rustix::io::Errno) -> Error {
    Error::io(Code::SystemFailed, "use the terminal", &io::Error::from(error))
}
