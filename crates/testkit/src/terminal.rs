//! A terminal of a test's own, and someone who types on it.

use std::fs::{File, OpenOptions};
use std::io::{Read, Write};
use std::process::{Child, Command, ExitStatus};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};

use crate::wait::DEADLINE;

/// How often something is looked at again.
const STEP: Duration = Duration::from_millis(2);

/// A command on a terminal. Dropping it kills the command.
pub struct Terminal {
    child: Child,
    keyboard: File,
    screen: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Terminal {
    /// Starts a command as a shell in a new window would: it leads a session whose terminal this is.
    pub fn start(command: &Command) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).expect("a pseudo-terminal");
        grantpt(&master).and_then(|()| unlockpt(&master)).expect("its other end");
        let name = ptsname(&master, Vec::new()).expect("its name");
        let path = name.to_str().expect("a path in /dev/pts is text");
        let open = || OpenOptions::new().read(true).write(true).open(path).expect("the other end opens");
        // It makes the terminal that is its stdin the session's own, which nothing in the standard library can.
        let mut wrapped = Command::new("setsid");
        wrapped.arg("--ctty").arg(command.get_program()).args(command.get_args());
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => wrapped.env(name, value),
                None => wrapped.env_remove(name),
            };
        }
        if let Some(directory) = command.get_current_dir() {
            wrapped.current_dir(directory);
        }
        wrapped.env("TERM", "xterm").stdin(open()).stdout(open()).stderr(open());
        let child = wrapped.spawn().expect("setsid, of util-linux, starts");
        let keyboard = File::from(master);
        let mut output = keyboard.try_clone().expect("a second handle on the terminal");
        let screen = Arc::new(Mutex::new(Vec::new()));
        let shared = screen.clone();
        let reader = std::thread::spawn(move || {
            let mut buffer = [0; 4096];
            // It ends with an error once nobody has the other end open.
            while let Ok(count) = output.read(&mut buffer) {
                if count == 0 {
                    return;
                }
                shared.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..count]);
            }
        });
        Self { child, keyboard, screen, reader: Some(reader) }
    }

    /// What was shown so far.
    pub fn screen(&self) -> String {
        String::from_utf8_lossy(&self.screen.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    /// Waits until this was shown so many times.
    pub fn wait_for(&self, text: &str, times: usize) {
        let begun = Instant::now();
        while self.screen().matches(text).count() < times {
            assert!(
                begun.elapsed() < DEADLINE,
                "no {text:?} on the terminal, which shows\n{}",
                self.screen()
            );
            std::thread::sleep(STEP);
        }
    }

    /// Presses keys; `\x03` is Ctrl-C.
    pub fn press(&mut self, keys: &str) {
        self.paste(keys.as_bytes());
    }

    /// The same, with what is no text.
    pub fn paste(&mut self, bytes: &[u8]) {
        self.keyboard.write_all(bytes).expect("the terminal takes keys");
    }

    /// Pulls at the window's corner: the kernel tells whoever has the terminal.
    pub fn resize(&self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.keyboard, size).expect("a terminal has a size");
    }

    /// Closes the window: the kernel tells whoever had the terminal.
    pub fn hang_up(self) -> (ExitStatus, String) {
        let pid =
            i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process has a number");
        kill_process(pid, Signal::HUP).expect("a child that nobody has waited for can be signalled");
        self.finish()
    }

    /// Waits for the command's end.
    pub fn finish(mut self) -> (ExitStatus, String) {
        let begun = Instant::now();
        loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                // What it wrote last may still be on its way; nobody else has the terminal.
                self.reader.take().map(JoinHandle::join);
                return (status, self.screen());
            }
            assert!(begun.elapsed() < DEADLINE, "it did not end; the terminal shows\n{}", self.screen());
            std::thread::sleep(STEP);
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // It may have ended long ago.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
