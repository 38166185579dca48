//! A step from its beginning to its end: what its nodes say, who wants to stop it, and how it ends.

use std::collections::BTreeSet;
use std::fs::File;
use std::io::{self, Read};
use std::thread;
use std::time::{Duration, Instant};

use tokio::signal::unix::{SignalKind, signal};
use tokio::sync::mpsc;
use tokio::time::sleep_until;

use super::super::job::Job;
use super::super::wire::{Frame, Input};
use super::layout::Layout;
use super::link::{Links, News};
use super::options::{Options, Source};
use super::output::Outputs;
use super::say;

/// How long tasks have to end after another one's end was the end of all.
const KILL_WAIT: Duration = Duration::from_secs(10);
/// How long nodes have to say good-bye when all tasks are over.
const FAREWELL: Duration = Duration::from_secs(5);
/// Two within this mean: at once.
const IMPATIENT: Duration = Duration::from_secs(1);
/// What a code cannot say: the number of the signal is above it, as in shells.
const SIGNALED: i32 = 128;
const PASSED_ON: [i32; 8] = [
    libc::SIGHUP,
    libc::SIGINT,
    libc::SIGQUIT,
    libc::SIGUSR1,
    libc::SIGUSR2,
    libc::SIGALRM,
    libc::SIGTERM,
    libc::SIGCONT,
];
/// What ends a step; others only say something to its tasks.
const ENDING: [i32; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];
const PIECE: usize = 32 << 10;

pub(super) struct Life<'a> {
    job: &'a Job,
    options: &'a Options,
    layout: &'a Layout,
    number: u32,
    links: Links,
    outputs: Outputs,
    grace: Duration,
    /// Tasks that have not ended.
    running: BTreeSet<u32>,
    /// Nodes that have not said their last.
    open: BTreeSet<usize>,
    /// The largest code that a task has ended with, and the largest number of a signal that has ended one.
    code: i32,
    signal: Option<i32>,
    is_ending: bool,
    kill_at: Option<Instant>,
    end_at: Option<Instant>,
    interrupted_at: Option<Instant>,
    /// Nodes that have not yet taken the last piece of input.
    owing: BTreeSet<usize>,
}

impl<'a> Life<'a> {
    pub fn new(
        job: &'a Job,
        options: &'a Options,
        layout: &'a Layout,
        number: u32,
        links: Links,
        outputs: Outputs,
        grace: Duration,
    ) -> Life<'a> {
        Life {
            job,
            options,
            layout,
            number,
            links,
            outputs,
            grace,
            running: (0..layout.tasks).collect(),
            open: (0..layout.nodes.len()).collect(),
            code: 0,
            signal: None,
            is_ending: false,
            kill_at: None,
            end_at: options.time.map(|time| Instant::now() + time),
            interrupted_at: None,
            owing: BTreeSet::new(),
        }
    }

    pub async fn run(mut self) -> Result<u8, String> {
        let mut signals = signals().map_err(|error| error.to_string())?;
        let mut input = read(&self.options.input)?;
        let mut farewell_at = None;
        while !self.open.is_empty() {
            let is_over = self.running.is_empty();
            if is_over && farewell_at.is_none() {
                farewell_at = Some(Instant::now() + FAREWELL);
            }
            let deadlines =
                [farewell_at, self.kill_at, self.end_at.filter(|_| !is_over), self.outputs.flush_at()];
            let until = deadlines.into_iter().flatten().min();
            let wants_input = self.owing.is_empty() && !is_over;
            tokio::select! {
                Some((at, news)) = self.links.next() => self.on_news(at, news),
                Some(signal) = signals.recv() => self.on_signal(signal),
                piece = input.recv(), if wants_input => match piece {
                    Some(piece) => self.on_input(piece),
                    None => self.on_input(Vec::new()),
                },
                () = sleep_until(until.unwrap_or_else(Instant::now).into()), if until.is_some() => self.on_time(),
            }
            if farewell_at.is_some_and(|at| at <= Instant::now()) {
                break;
            }
        }
        (0..self.layout.tasks).for_each(|rank| self.outputs.end(rank));
        // That a task was killed says more than any code of another.
        let code = self.signal.map_or(self.code, |signal| SIGNALED + signal);
        Ok(u8::try_from(code).unwrap_or(255))
    }

    fn on_news(&mut self, at: usize, news: News) {
        match news {
            News::Said(Frame::Output { rank, is_error, bytes }) => self.outputs.take(rank, is_error, &bytes),
            News::Said(Frame::Exited { rank, code }) => self.on_exit(at, rank, code),
            News::Said(Frame::Signaled { rank, signal }) => self.on_killed(at, rank, signal),
            News::Said(Frame::Failed { rank, message }) => {
                say(&format!("error: {}: task {rank}: {message}", self.name(at)));
            }
            News::Said(Frame::Taken) => _ = self.owing.remove(&at),
            News::Said(_) => {}
            News::Over(why) => self.on_over(at, why),
        }
    }

    fn name(&self, at: usize) -> &str {
        &self.job.nodes[self.layout.nodes[at].0]
    }

    fn on_exit(&mut self, at: usize, rank: u32, code: i32) {
        self.end(rank, code);
        if code == 0 {
            return;
        }
        if !self.options.quiet {
            say(&format!("error: {}: task {rank}: Exited with exit code {code}", self.name(at)));
        }
        if self.options.kill_on_bad_exit {
            self.terminate();
        }
    }

    fn on_killed(&mut self, at: usize, rank: u32, signal: i32) {
        self.signal = self.signal.max(Some(signal));
        self.end(rank, 0);
        if !self.options.quiet {
            say(&format!("error: {}: task {rank}: {}", self.name(at), described(signal)));
        }
        if self.options.kill_on_bad_exit {
            self.terminate();
        }
    }

    fn end(&mut self, rank: u32, code: i32) {
        if self.running.remove(&rank) {
            self.outputs.end(rank);
            self.code = self.code.max(code);
            if let Some(wait) = self.options.wait.filter(|_| !self.is_ending) {
                self.end_at =
                    Some(self.end_at.map_or(Instant::now() + wait, |at| at.min(Instant::now() + wait)));
            }
        }
    }

    fn on_over(&mut self, at: usize, why: Option<String>) {
        self.open.remove(&at);
        self.owing.remove(&at);
        let lost: Vec<u32> =
            self.layout.nodes[at].1.iter().copied().filter(|rank| self.running.contains(rank)).collect();
        if lost.is_empty() {
            return;
        }
        let why = why.unwrap_or_else(|| "it said nothing of its tasks' end".to_owned());
        say(&format!("error: Node failure on {}: {why}", self.name(at)));
        lost.into_iter().for_each(|rank| self.end(rank, 1));
        if !self.options.no_kill {
            self.terminate();
        }
    }

    /// Those that are left are to end.
    fn terminate(&mut self) {
        if self.is_ending || self.running.is_empty() {
            return;
        }
        self.is_ending = true;
        if !self.options.quiet {
            say(&format!("Terminating StepId={}.{}", self.job.id, self.number));
        }
        self.links.say_all(&Frame::Signal(libc::SIGTERM));
        self.kill_at = Some(Instant::now() + KILL_WAIT);
    }

    fn on_signal(&mut self, signal: i32) {
        let again = self.interrupted_at.is_some_and(|at| at.elapsed() < IMPATIENT);
        if signal == libc::SIGINT && again {
            return self.links.say_all(&Frame::Kill);
        }
        if signal == libc::SIGINT {
            self.interrupted_at = Some(Instant::now());
        }
        self.links.say_all(&Frame::Signal(signal));
        if ENDING.contains(&signal) && self.kill_at.is_none() {
            self.is_ending = true;
            // As long as the job's tasks have when it is stopped, which is when this happens.
            self.kill_at = Some(Instant::now() + self.grace.max(KILL_WAIT));
        }
    }

    fn on_input(&mut self, piece: Vec<u8>) {
        let is_end = piece.is_empty();
        let frame = if is_end { Frame::EndOfInput } else { Frame::Input(piece) };
        self.links.say_all(&frame);
        // After the end nothing is read any more.
        self.owing = if is_end { (0..=self.layout.nodes.len()).collect() } else { self.open.clone() };
    }

    fn on_time(&mut self) {
        self.outputs.flush();
        let now = Instant::now();
        if self.kill_at.is_some_and(|at| at <= now) {
            self.kill_at = None;
            self.links.say_all(&Frame::Kill);
        }
        if self.end_at.is_some_and(|at| at <= now) {
            self.end_at = None;
            if self.options.time.is_some() && self.options.wait.is_none() && !self.running.is_empty() {
                say(&format!("error: StepId={}.{}: its time is over", self.job.id, self.number));
            }
            self.terminate();
        }
    }
}

fn signals() -> io::Result<mpsc::Receiver<i32>> {
    let (tell, heard) = mpsc::channel(16);
    let mut listening = tokio::task::JoinSet::new();
    for number in PASSED_ON {
        let mut stream = signal(SignalKind::from_raw(number))?;
        let tell = tell.clone();
        listening
            .spawn(async move { while stream.recv().await.is_some() && tell.send(number).await.is_ok() {} });
    }
    // They listen for as long as this process lives.
    listening.detach_all();
    Ok(heard)
}

/// The input in pieces, read by a thread: a file or a terminal cannot be waited for in any other way.
fn read(source: &Source) -> Result<mpsc::Receiver<Vec<u8>>, String> {
    let (tell, pieces) = mpsc::channel(1);
    let mut from: Box<dyn Read + Send> = match source {
        Source::Stdin(Input::Nobody) => return Ok(pieces),
        Source::Stdin(_) => Box::new(io::stdin()),
        Source::File(path) => Box::new(File::open(path).map_err(|error| format!("{path}: {error}"))?),
    };
    thread::spawn(move || {
        loop {
            let mut piece = vec![0; PIECE];
            match from.read(&mut piece) {
                Err(error) if error.kind() == io::ErrorKind::Interrupted => continue,
                Ok(0) | Err(_) => return,
                Ok(count) => piece.truncate(count),
            }
            if tell.blocking_send(piece).is_err() {
                return;
            }
        }
    });
    Ok(pieces)
}

fn described(signal: i32) -> String {
    match signal {
        libc::SIGHUP => "Hangup".into(),
        libc::SIGINT => "Interrupt".into(),
        libc::SIGQUIT => "Quit".into(),
        libc::SIGILL => "Illegal instruction".into(),
        libc::SIGABRT => "Aborted".into(),
        libc::SIGBUS => "Bus error".into(),
        libc::SIGFPE => "Floating point exception".into(),
        libc::SIGKILL => "Killed".into(),
        libc::SIGUSR1 => "User defined signal 1".into(),
        libc::SIGUSR2 => "User defined signal 2".into(),
        libc::SIGSEGV => "Segmentation fault".into(),
        libc::SIGPIPE => "Broken pipe".into(),
        libc::SIGTERM => "Terminated".into(),
        other => format!("Signal {other}"),
    }
}
