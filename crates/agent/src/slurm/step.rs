//! `muster-step`: the processes of a step on one node.
//!
//! It hears from `srun` on its input and answers on its output. When that input ends, `srun` is gone, and the processes end
//! too. Whatever they leave behind falls to this process and ends with the step, as under Slurm.
//!
//! One thread: a process is told of its parent's death by the death of the thread that started it.

use std::collections::{BTreeMap, VecDeque};
use std::env;
use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitCode};
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::process::{Pid, Signal, WaitOptions, getpid, kill_process_group, set_child_subreaper, wait};

use super::wire::{Begin, Frame, Frames, Rank};
use super::{TASK_DIR, say};
use crate::processes::signal::{self, Signals};
use crate::tree;

/// How long processes have to end when nobody is left who wants them.
const ALONE: Duration = Duration::from_secs(5);
/// A stop that reached this process reached its children too, by the same hand.
const SAME_STOP: Duration = Duration::from_secs(5);
/// What is moved at once.
const PIECE: usize = 64 << 10;
/// What Slurm has for a task that cannot be started.
const NOT_STARTED: i32 = 2;

pub(super) fn run() -> ExitCode {
    match Step::begin().and_then(Step::live) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            say("muster-step", &error.to_string());
            ExitCode::FAILURE
        }
    }
}

struct Step {
    signals: Signals,
    frames: Frames,
    /// Whether `srun` is still there.
    is_wanted: bool,
    running: Vec<Running>,
    sources: Vec<Source>,
    /// Whether the last input is yet to be taken.
    owes_answer: bool,
    is_input_over: bool,
    stopped_at: Option<Instant>,
    kill_at: Option<Instant>,
}

struct Running {
    rank: u32,
    pid: Pid,
    input: Option<OwnedFd>,
    queue: VecDeque<u8>,
}

struct Source {
    rank: u32,
    is_error: bool,
    pipe: OwnedFd,
}

impl Step {
    fn begin() -> io::Result<Step> {
        set_child_subreaper(Some(getpid()))?;
        let signals = Signals::of(&[
            libc::SIGCHLD,
            libc::SIGTERM,
            libc::SIGINT,
            libc::SIGHUP,
            libc::SIGPIPE,
            libc::SIGUSR1,
            libc::SIGUSR2,
        ])?;
        let mut frames = Frames::default();
        let begin = loop {
            match frames.next()? {
                Some(Frame::Begin(begin)) => break begin,
                Some(_) => return Err(io::ErrorKind::InvalidData.into()),
                None if frames.fill(io::stdin())? => {}
                None => return Err(io::Error::other("it is started by srun alone")),
            }
        };
        let mut step = Step {
            signals,
            frames,
            is_wanted: true,
            running: Vec::new(),
            sources: Vec::new(),
            owes_answer: false,
            is_input_over: false,
            stopped_at: None,
            kill_at: None,
        };
        step.start(&begin);
        // More may have come with it.
        step.follow()?;
        Ok(step)
    }

    fn start(&mut self, begin: &Begin) {
        let around = Around::of(begin);
        for rank in &begin.ranks {
            match around.start(begin, rank) {
                Ok((running, sources)) => {
                    self.running.push(running);
                    self.sources.extend(sources);
                }
                Err(error) => {
                    let command = begin.argv.first().map_or("", String::as_str);
                    self.tell(&Frame::Failed { rank: rank.rank, message: format!("{command}: {error}") });
                    self.tell(&Frame::Exited { rank: rank.rank, code: NOT_STARTED });
                }
            }
        }
    }

    fn live(mut self) -> io::Result<()> {
        while !self.running.is_empty() {
            self.wait()?;
            self.hear()?;
            self.pass_output()?;
            self.pass_input();
            self.obey()?;
            if self.kill_at.is_some_and(|at| at <= Instant::now()) {
                self.kill();
            }
        }
        tree::kill_descendants();
        // Nobody is left to write any more.
        while !self.sources.is_empty() && self.is_wanted {
            self.pass_output()?;
        }
        Ok(())
    }

    fn wait(&self) -> io::Result<()> {
        let input = io::stdin();
        let mut fds = vec![PollFd::from_borrowed_fd(self.signals.descriptor(), PollFlags::IN)];
        if self.is_wanted {
            fds.push(PollFd::from_borrowed_fd(input.as_fd(), PollFlags::IN));
        }
        fds.extend(self.sources.iter().map(|source| PollFd::new(&source.pipe, PollFlags::IN)));
        let waiting = self.running.iter().filter(|one| !one.queue.is_empty());
        fds.extend(
            waiting.filter_map(|one| one.input.as_ref()).map(|pipe| PollFd::new(pipe, PollFlags::OUT)),
        );
        let left = self.kill_at.map(|at| at.saturating_duration_since(Instant::now()));
        match poll(&mut fds, left.and_then(|left| Timespec::try_from(left).ok()).as_ref()) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Take note of what has happened to this process and to its children.
    fn hear(&mut self) -> io::Result<()> {
        if self.signals.take()?.iter().any(|heard| heard.signal == libc::SIGTERM as u32) {
            self.stopped_at = Some(Instant::now());
        }
        while let Ok(Some((pid, status))) = wait(WaitOptions::NOHANG) {
            let Some(at) = self.running.iter().position(|one| one.pid == pid) else { continue };
            let rank = self.running.remove(at).rank;
            // What it wrote comes before its end.
            self.drain(rank)?;
            self.tell(&match (status.exit_status(), status.terminating_signal()) {
                (Some(code), _) => Frame::Exited { rank, code },
                (None, Some(signal)) => Frame::Signaled { rank, signal },
                (None, None) => Frame::Exited { rank, code: 1 },
            });
        }
        Ok(())
    }

    fn drain(&mut self, rank: u32) -> io::Result<()> {
        let (own, others): (Vec<_>, Vec<_>) = self.sources.drain(..).partition(|source| source.rank == rank);
        self.sources = others;
        for source in own {
            loop {
                match self.take(&source)? {
                    Took::Some => {}
                    Took::Nothing => break self.sources.push(source),
                    Took::End => break,
                }
            }
        }
        Ok(())
    }

    fn pass_output(&mut self) -> io::Result<()> {
        for source in std::mem::take(&mut self.sources) {
            if self.take(&source)? != Took::End {
                self.sources.push(source);
            }
        }
        Ok(())
    }

    fn take(&mut self, source: &Source) -> io::Result<Took> {
        let mut buffer = vec![0; PIECE];
        match rustix::io::read(&source.pipe, &mut buffer[..]) {
            Ok(0) => Ok(Took::End),
            Ok(count) => {
                buffer.truncate(count);
                self.tell(&Frame::Output { rank: source.rank, is_error: source.is_error, bytes: buffer });
                Ok(Took::Some)
            }
            Err(Errno::AGAIN | Errno::INTR) => Ok(Took::Nothing),
            Err(error) => Err(error.into()),
        }
    }

    fn pass_input(&mut self) {
        for one in &mut self.running {
            while let Some(input) = one.input.as_ref().filter(|_| !one.queue.is_empty()) {
                match rustix::io::write(input, one.queue.as_slices().0) {
                    Ok(count) => drop(one.queue.drain(..count)),
                    Err(Errno::AGAIN | Errno::INTR) => break,
                    // It does not want any more.
                    Err(_) => {
                        one.queue.clear();
                        one.input = None;
                    }
                }
            }
            if self.is_input_over && one.queue.is_empty() {
                one.input = None;
            }
        }
        if self.owes_answer && self.running.iter().all(|one| one.queue.is_empty()) {
            self.owes_answer = false;
            self.tell(&Frame::Taken);
        }
    }

    /// What `srun` has said meanwhile.
    fn obey(&mut self) -> io::Result<()> {
        if !self.is_wanted || !is_readable(io::stdin().as_fd()) {
            return Ok(());
        }
        if !self.frames.fill(io::stdin()).unwrap_or(false) {
            self.on_alone();
            return Ok(());
        }
        self.follow()
    }

    fn follow(&mut self) -> io::Result<()> {
        while let Some(frame) = self.frames.next()? {
            match frame {
                Frame::Input(bytes) => {
                    self.owes_answer = true;
                    let readers = self.running.iter_mut().filter(|one| one.input.is_some());
                    readers.for_each(|one| one.queue.extend(&bytes));
                    self.pass_input();
                }
                Frame::EndOfInput => {
                    self.is_input_over = true;
                    self.pass_input();
                }
                Frame::Signal(signal) => self.on_signal(signal),
                Frame::Kill => self.kill(),
                _ => return Err(io::ErrorKind::InvalidData.into()),
            }
        }
        Ok(())
    }

    fn on_signal(&mut self, signal: i32) {
        let is_told = self.stopped_at.is_some_and(|at| at.elapsed() < SAME_STOP);
        if signal == libc::SIGTERM && is_told {
            return;
        }
        if let Some(signal) = Signal::from_named_raw(signal) {
            self.signal(signal);
        }
    }

    fn on_alone(&mut self) {
        if self.is_wanted {
            self.is_wanted = false;
            self.kill_at = Some(Instant::now() + ALONE);
            self.on_signal(libc::SIGTERM);
        }
    }

    fn signal(&self, signal: Signal) {
        for one in &self.running {
            // Not waited for yet, so the number is still its own.
            let _ = kill_process_group(one.pid, signal);
        }
    }

    fn kill(&mut self) {
        self.kill_at = None;
        self.signal(Signal::KILL);
        tree::kill_descendants();
    }

    /// A `srun` that does not hear is gone.
    fn tell(&mut self, frame: &Frame) {
        if self.is_wanted
            && frame.write(io::stdout()).and_then(|()| io::Write::flush(&mut io::stdout())).is_err()
        {
            self.on_alone();
        }
    }
}

#[derive(PartialEq, Eq)]
enum Took {
    Some,
    Nothing,
    End,
}

fn is_readable(descriptor: BorrowedFd<'_>) -> bool {
    let mut fds = [PollFd::from_borrowed_fd(descriptor, PollFlags::IN)];
    let now = Timespec { tv_sec: 0, tv_nsec: 0 };
    poll(&mut fds, Some(&now)).is_ok_and(|count| count > 0)
}

/// What all processes of the node find around them.
struct Around {
    env: BTreeMap<String, String>,
    cwd: PathBuf,
    devices: Vec<(String, Vec<String>)>,
}

impl Around {
    fn of(begin: &Begin) -> Around {
        let own = env::var(TASK_DIR).unwrap_or_default();
        let here = |text: &str| {
            if begin.from.is_empty() || own.is_empty() {
                text.to_owned()
            } else {
                text.replace(&begin.from, &own)
            }
        };
        // What is not text cannot be sent either, and stays as it is on this node.
        let mut env: BTreeMap<String, String> = env::vars_os()
            .filter_map(|(name, value)| Some((name.into_string().ok()?, value.into_string().ok()?)))
            .collect();
        env.remove("SSH_CONNECTION");
        for name in &begin.unset {
            env.remove(name);
        }
        env.extend(begin.set.iter().map(|(name, value)| (name.clone(), here(value))));
        env.extend(begin.step.clone());
        let devices = ["CUDA_VISIBLE_DEVICES", "ASCEND_RT_VISIBLE_DEVICES"].into_iter().filter_map(|name| {
            let all = env.get(name)?.split(',').filter(|one| !one.is_empty()).map(str::to_owned).collect();
            Some((name.to_owned(), all))
        });
        let devices = devices.collect();
        Around { cwd: directory(&here(&begin.cwd), &own), env, devices }
    }

    fn start(&self, begin: &Begin, rank: &Rank) -> io::Result<(Running, [Source; 2])> {
        let mut words = begin.argv.iter();
        let mut command = Command::new(words.next().map_or("", String::as_str));
        command.args(words).env_clear().envs(&self.env).current_dir(&self.cwd);
        command.env("SLURM_PROCID", rank.rank.to_string()).env("SLURM_LOCALID", rank.local.to_string());
        if let Some(numbers) = &rank.devices {
            for (name, all) in &self.devices {
                let own: Vec<_> = numbers.iter().filter_map(|at| all.get(*at as usize).cloned()).collect();
                command.env(name, own.join(","));
            }
            let numbers: Vec<String> = numbers.iter().map(u32::to_string).collect();
            command.env("SLURM_STEP_GPUS", numbers.join(","));
        }
        let (stdin, input) = if begin.input.is_for(rank.rank) {
            let (theirs, ours) = pipe()?;
            rustix::io::ioctl_fionbio(&ours, true)?;
            (theirs.into(), Some(ours))
        } else {
            (std::process::Stdio::null(), None)
        };
        let ((out, stdout), (err, stderr)) = (pipe()?, pipe()?);
        for end in [&out, &err] {
            rustix::io::ioctl_fionbio(end, true)?;
        }
        signal::let_through(&mut command);
        die_with_parent(&mut command);
        let child = command.process_group(0).stdin(stdin).stdout(stdout).stderr(stderr).spawn()?;
        let running =
            Running { rank: rank.rank, pid: Pid::from_child(&child), input, queue: VecDeque::new() };
        let source = |pipe, is_error| Source { rank: rank.rank, is_error, pipe };
        Ok((running, [source(out, false), source(err, true)]))
    }
}

/// The end to read from, and the end to write to.
fn pipe() -> io::Result<(OwnedFd, OwnedFd)> {
    Ok(rustix::pipe::pipe_with(rustix::pipe::PipeFlags::CLOEXEC)?)
}

/// Should this process be killed, its children are too: their own orphans fall to the task's supervisor.
#[expect(unsafe_code, reason = "only a process itself can ask for it")]
fn die_with_parent(command: &mut Command) {
    // SAFETY: one system call without pointers, as a child may make before its program.
    unsafe {
        command.pre_exec(|| {
            libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL);
            Ok(())
        });
    }
}

/// The directory that is meant. One that the script has made below its own is made here as well, since on clusters all nodes
/// see the same; where another one is not there, it is the task's own, as Slurm goes elsewhere too.
fn directory(wanted: &str, task: &str) -> PathBuf {
    let is_own = !task.is_empty() && Path::new(wanted).starts_with(task);
    if Path::new(wanted).is_dir() || is_own && std::fs::create_dir_all(wanted).is_ok() {
        return wanted.into();
    }
    say("srun", &format!("there is no directory {wanted} on {}: going to the job's instead", node()));
    env::current_dir().unwrap_or_else(|_| "/".into())
}

fn node() -> String {
    env::var("SLURMD_NODENAME").unwrap_or_default()
}
