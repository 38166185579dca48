//! `muster processes FILE`: the command of a task that has several processes, or none of its own.
//!
//! It is the same binary as everything else, and branches off in the first lines of `main`: one thread and no runtime. It
//! runs inside the task, in the place of its command: its supervisor sees one process that ends as the task does. A
//! task with one process does without it.
//!
//! Everything here belongs to the task's process group, so that a stop reaches all of it at once. Each process writes to streams
//! of its own (`supervisor/process_stream.rs`); where there are none, `pump` keeps the lines whole.

mod place;
mod pump;
pub(crate) mod signal;

use std::io::{self, Write};
use std::os::fd::OwnedFd;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::Path;
use std::process::{Child, Command, ExitCode, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use muster_model::launch::{Process, Work};
use rustix::process::{Pid, Signal, kill_process};

use crate::supervisor::process_stream::{self, ProcessPipes};
use crate::supervisor::{Processes, read};
use pump::Pump;
use signal::Signals;

/// What shells end with when a command is not there, or cannot be run.
const NOT_FOUND: u8 = 127;
const NOT_EXECUTABLE: u8 = 126;

/// Do a task's work, to its end.
pub fn run(file: &Path) -> ExitCode {
    match work(file) {
        Ok(end) => end,
        Err(error) => {
            say(format_args!("the task's processes cannot be started: {error}"));
            ExitCode::from(NOT_EXECUTABLE)
        }
    }
}

fn work(file: &Path) -> io::Result<ExitCode> {
    let (Some(dir), Some(name)) = (file.parent(), file.file_name().and_then(|name| name.to_str())) else {
        return Err(io::ErrorKind::InvalidInput.into());
    };
    let processes = read::<Processes>(dir, name)?.ok_or(io::ErrorKind::NotFound)?;
    match &processes.work {
        Work::Wait => wait_for_stop(processes.stop_signal),
        Work::Run(list) => {
            place::make(Path::new("."), list)?;
            match &list[..] {
                [alone] => Err(command(alone).exec()).or_else(|error| Ok(cannot_start(alone, &error))),
                list => Gang::new(list.len(), &processes)?.run(list),
            }
        }
    }
}

fn wait_for_stop(stop: muster_model::signal::Signal) -> io::Result<ExitCode> {
    let signals = Signals::new(stop)?;
    loop {
        signal::wait([signals.descriptor()], None)?;
        if signals.take()?.iter().any(|heard| heard.is_stop()) {
            return Ok(ExitCode::SUCCESS);
        }
    }
}

fn command(process: &Process) -> Command {
    let mut words = process.argv.iter();
    let mut command = Command::new(words.next().map_or("", String::as_str));
    command.args(words).envs(&process.env);
    if let Some(dir) = &process.dir {
        command.current_dir(dir);
    }
    command
}

/// What a process's program is, for people, when it cannot be started.
fn cannot_start(process: &Process, error: &io::Error) -> ExitCode {
    let command = process.argv.first().map_or("", String::as_str);
    say(format_args!("`{command}` cannot be started: {error}"));
    ExitCode::from(if error.kind() == io::ErrorKind::NotFound { NOT_FOUND } else { NOT_EXECUTABLE })
}

/// Into the task's own stderr, where its user looks.
fn say(what: std::fmt::Arguments<'_>) {
    // One piece, so that nobody writes in between.
    let _ = io::stderr().write_all(format!("muster: {what}\n").as_bytes());
}

/// The processes of a task.
struct Gang {
    signals: Signals,
    /// For processes without streams of their own.
    pump: Pump,
    /// The streams of the others, which outlive a killed supervisor.
    held: Vec<[OwnedFd; 2]>,
    /// Those that run, with their numbers.
    running: Vec<(usize, Child)>,
    count: usize,
    grace: Duration,
    /// What they are told to end with.
    stop_signal: Signal,
    /// How the task ends, once one has failed.
    failure: Option<Failure>,
    is_stopping: bool,
}

struct Failure {
    end: End,
    /// When the others have had their time.
    give_up_at: Instant,
}

/// How this process ends.
#[derive(Clone, Copy)]
enum End {
    Code(ExitCode),
    Signal(i32),
}

impl Gang {
    fn new(count: usize, processes: &Processes) -> io::Result<Gang> {
        let grace = Duration::from_millis(processes.grace_ms);
        let stop_signal = Signal::from_named_raw(processes.stop_signal.number()).unwrap_or(Signal::TERM);
        let signals = Signals::new(processes.stop_signal)?;
        let (pump, held, running) = (Pump::default(), Vec::new(), Vec::with_capacity(count));
        Ok(Gang {
            signals,
            pump,
            held,
            running,
            count,
            grace,
            stop_signal,
            failure: None,
            is_stopping: false,
        })
    }

    fn run(mut self, processes: &[Process]) -> io::Result<ExitCode> {
        for (number, process) in processes.iter().enumerate() {
            self.start(number, process)?;
            // A stop that came meanwhile may have missed the newest, and nothing more is to be started.
            if self.hear()?
                && let Some((_, newest)) = self.running.last()
            {
                self.tell(newest);
            }
            if self.is_stopping || self.failure.is_some() {
                break;
            }
        }
        while !self.running.is_empty() {
            let give_up_at = self.failure.as_ref().map(|failure| failure.give_up_at);
            if give_up_at.is_some_and(|at| at <= Instant::now()) {
                // Our end is the end of them: the supervisor sees to it.
                break;
            }
            let until = give_up_at.into_iter().chain(self.pump.flush_at()).min();
            signal::wait(std::iter::once(self.signals.descriptor()).chain(self.pump.descriptors()), until)?;
            self.pump.turn()?;
            self.hear()?;
        }
        self.pump.finish()?;
        match self.failure.map(|failure| failure.end) {
            None => Ok(ExitCode::SUCCESS),
            Some(End::Code(code)) => Ok(code),
            Some(End::Signal(signal)) => Ok(signal::die_of(signal)),
        }
    }

    fn start(&mut self, number: usize, process: &Process) -> io::Result<()> {
        let mut command = command(process);
        command.stdin(Stdio::null());
        signal::let_through(&mut command);
        let (stdout, stderr) = match process_stream::of_process(number)? {
            Some(ProcessPipes { write: [stdout, stderr], held }) => {
                self.held.push(held);
                (stdout.into(), stderr.into())
            }
            None => self.pump.add()?,
        };
        match command.stdout(stdout).stderr(stderr).spawn() {
            Ok(child) => self.running.push((number, child)),
            Err(error) => {
                let code = cannot_start(process, &error);
                self.fail(End::Code(code));
            }
        }
        Ok(())
    }

    /// Take note of what has happened. Whether that was a stop.
    fn hear(&mut self) -> io::Result<bool> {
        let heard = self.signals.take()?;
        let Some(stop) = heard.iter().find(|heard| heard.is_stop()) else {
            return self.reap().map(|()| false);
        };
        // The supervisor tells the whole group by itself, and a second word may cut short what the first began.
        if !stop.is_from_supervisor() {
            self.running.iter().for_each(|(_, child)| self.tell(child));
        }
        self.is_stopping = true;
        self.reap().map(|()| true)
    }

    fn reap(&mut self) -> io::Result<()> {
        let mut ended = Vec::new();
        for at in (0..self.running.len()).rev() {
            if let Some(status) = self.running[at].1.try_wait()? {
                ended.push((self.running.remove(at).0, status));
            }
        }
        // What it wrote comes before what is said about it.
        if !ended.is_empty() {
            self.pump.turn()?;
        }
        for (number, status) in ended.into_iter().rev().filter(|(_, status)| !status.success()) {
            self.on_failed(number, status);
        }
        Ok(())
    }

    fn on_failed(&mut self, number: usize, status: ExitStatus) {
        // Those that end badly after the first, or because they were told to end, are not the cause.
        if self.failure.is_some() {
            return;
        }
        let (end, how) = match (status.code(), status.signal()) {
            (Some(code), _) => (End::Code(ExitCode::from(code as u8)), format!("with exit code {code}")),
            (None, Some(signal)) => (End::Signal(signal), format!("by signal {signal}")),
            (None, None) => (End::Code(ExitCode::FAILURE), status.to_string()),
        };
        if !self.is_stopping {
            let rest = if self.running.is_empty() { "" } else { "; the others are told to end" };
            say(format_args!("process {number} of {} ended {how}{rest}", self.count));
        }
        self.fail(end);
    }

    fn fail(&mut self, end: End) {
        self.failure = Some(Failure { end, give_up_at: Instant::now() + self.grace });
        if !self.is_stopping {
            self.running.iter().for_each(|(_, child)| self.tell(child));
        }
    }

    /// Ask a process to end. It was not waited for, so its number is still its own.
    fn tell(&self, child: &Child) {
        let _ = kill_process(Pid::from_child(child), self.stop_signal);
    }
}
