//! A command that runs while the test goes on, and what it has printed so far.

use std::io::Read;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::home::Finished;
use crate::wait::{DEADLINE, wait_for};

/// A command that runs. Dropping it kills it.
pub struct Running {
    child: Child,
    stdout: Collected,
    stderr: Collected,
}

/// What came out of a pipe so far, read by a thread of its own.
struct Collected {
    bytes: Arc<Mutex<Vec<u8>>>,
    reader: Option<JoinHandle<()>>,
}

impl Collected {
    fn new(pipe: Option<impl Read + Send + 'static>) -> Self {
        let bytes = Arc::new(Mutex::new(Vec::new()));
        let shared = bytes.clone();
        let reader = std::thread::spawn(move || {
            let Some(mut pipe) = pipe else { return };
            let mut buffer = vec![0; 64 << 10];
            while let Ok(count) = pipe.read(&mut buffer) {
                if count == 0 {
                    return;
                }
                shared.lock().unwrap_or_else(PoisonError::into_inner).extend_from_slice(&buffer[..count]);
            }
        });
        Self { bytes, reader: Some(reader) }
    }

    fn text(&self) -> String {
        String::from_utf8_lossy(&self.bytes.lock().unwrap_or_else(PoisonError::into_inner)).into_owned()
    }

    fn all(&mut self) -> Vec<u8> {
        if let Some(reader) = self.reader.take() {
            reader.join().expect("the reader of a pipe does not panic");
        }
        std::mem::take(&mut *self.bytes.lock().unwrap_or_else(PoisonError::into_inner))
    }
}

impl Running {
    /// Starts a command and reads what it prints.
    pub fn start(mut command: Command) -> Self {
        let child = command.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn();
        let mut child = child.unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
        let stdout = Collected::new(child.stdout.take());
        let stderr = Collected::new(child.stderr.take());
        Self { child, stdout, stderr }
    }

    /// Its process.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// What it has printed so far.
    pub fn out(&self) -> String {
        self.stdout.text()
    }

    /// What it has said besides so far.
    pub fn err(&self) -> String {
        self.stderr.text()
    }

    /// Waits until it has printed this.
    pub fn wait_for_out(&self, text: &str) {
        wait_for(&format!("{text:?} on stdout"), || self.out().contains(text));
    }

    /// Sends it a signal.
    pub fn signal(&self, signal: Signal) {
        let pid =
            i32::try_from(self.child.id()).ok().and_then(Pid::from_raw).expect("a process has a number");
        kill_process(pid, signal).expect("a child that nobody has waited for can be signalled");
    }

    /// Whether it has ended.
    pub fn is_over(&mut self) -> bool {
        self.child.try_wait().expect("a child can be waited for").is_some()
    }

    /// Waits for its end.
    pub fn finish(self) -> Finished {
        self.finish_within(DEADLINE)
    }

    /// Waits for its end, for as long as this.
    pub fn finish_within(mut self, deadline: Duration) -> Finished {
        let begun = Instant::now();
        let status = loop {
            if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                break status;
            }
            assert!(
                begun.elapsed() < deadline,
                "it did not end\n--- stdout\n{}\n--- stderr\n{}",
                self.out(),
                self.err()
            );
            std::thread::sleep(Duration::from_millis(2));
        };
        Finished { status, stdout: self.stdout.all(), stderr: self.stderr.all() }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        // It may have ended long ago.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}
