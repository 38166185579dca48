//! The life of a task: its steps, one after the other, what stops it, and what is left of it at the end.

mod element;

use std::io;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use muster_model::task::StopNotice;
use rustix::io::fcntl_dupfd_cloexec;
use rustix::process::{Pid, WaitOptions, WaitStatus, wait};

use super::capture::Capture;
use super::control::Control;
use super::door::Door;
use super::file::{
    Exit, FORMAT, Launch, Order, Outcome, STARTED, STOP, Started, Status, StepKind, StopAsked, read, write,
};
use super::session;
use super::setup::SetupReport;
use super::spawn::{Failure, Program, ProgramDescriptors, spawn};
use super::watch::{TaskPipeEnds, Watch, pipe_inodes};
use super::{RETRY, complain, notice, process_stream};
use crate::tree::{self, Kill, Process, Root, boot_id};
use element::Element;

/// How long a tree is killed that grows again faster than it is found.
const PATIENCE: Duration = Duration::from_secs(10);
/// How long output is awaited after the whole tree is dead. Only a process that left the tree can still hold a pipe.
const DRAIN: Duration = Duration::from_secs(2);

pub(super) struct Life {
    dir: PathBuf,
    launch: Launch,
    watch: Watch,
    /// The lock on our directory. A child has it until it becomes its program, so that no agent takes the directory for one
    /// without a supervisor while there is a process in which nothing yet shows that it is the task's.
    _lock: OwnedFd,
    door: Door,
    /// What `started.json` says, but for the step.
    started: Started,
    /// Kept until the last step has its own, so that the pipes do not end between two steps.
    pipe_ends: Option<TaskPipeEnds>,
    timeout_at: Option<Instant>,
    stop: Option<Stop>,
    /// Whether anyone asked for a stop; a timeout is nobody's wish.
    stopped: bool,
    survivors: Vec<i32>,
    running: Option<Running>,
    /// Of the setup that runs.
    setup: Option<SetupReport>,
    /// When to write again that it has started, which a full disk did not take.
    started_again_at: Option<Instant>,
    /// Whether this process may have children, the task's orphans included.
    has_children: bool,
    /// The element that runs, where the task is a lane of an array.
    element: Option<Element>,
    /// There is more in `elements`.
    has_grants: bool,
}

/// A stop in progress.
struct Stop {
    kill_at: Instant,
    is_timeout: bool,
    is_killed: bool,
    /// What the task was told of it.
    notice: Option<StopNotice>,
}

/// The step that runs.
struct Running {
    pid: Pid,
    step: usize,
    /// What explains why it could not be run.
    program: Option<Program>,
    /// Until its program runs, or could not be run.
    report: Option<OwnedFd>,
    failure: Option<Outcome>,
    status: Option<Status>,
}

impl Life {
    pub(super) fn new(dir: &Path, mut launch: Launch, capture: Capture) -> io::Result<Life> {
        let supervisor = Process::current()?;
        let streams = process_stream::make(dir, &mut launch);
        let started = Started {
            format: FORMAT,
            boot_id: boot_id()?,
            supervisor,
            task: supervisor,
            step: 0,
            started_at: Timestamp::now(),
            pipes: pipe_inodes()?,
        };
        Ok(Life {
            dir: dir.to_owned(),
            door: Door::open(dir, &launch)?,
            watch: Watch::new(capture, Control::open(dir)?, streams)?,
            // Our stderr, which a child loses earlier, when it gets its own.
            _lock: fcntl_dupfd_cloexec(rustix::stdio::stderr(), 3)?,
            pipe_ends: Some(TaskPipeEnds::open()?),
            timeout_at: launch.timeout_ms.filter(|_| launch.elements.is_none()).map(from_now),
            launch,
            started,
            stop: None,
            stopped: false,
            survivors: Vec::new(),
            running: None,
            setup: None,
            started_again_at: None,
            has_children: false,
            element: None,
            has_grants: false,
        })
    }

    /// From the first step to the last byte of output.
    pub(super) fn run(mut self) -> Exit {
        let outcome = self.run_steps().unwrap_or_else(|error| launch_failed(&error));
        let ended_at = Timestamp::now();
        self.end_tree();
        self.drain();
        self.watch.close_log();
        Exit {
            format: FORMAT,
            outcome,
            status: self
                .running
                .as_ref()
                .filter(|running| running.failure.is_none())
                .and_then(|step| step.status),
            stopped: self.stopped,
            ended_at,
            log_bytes: self.watch.log_end(),
            survivors: self.survivors,
            notice: self.stop.and_then(|stop| stop.notice),
            saved_at: notice::saved_at(&self.dir),
            // Everything was reaped by now, so that it counts.
            spent: self.running.is_some().then(session::spent),
        }
    }

    fn run_steps(&mut self) -> io::Result<Outcome> {
        for step in 0..self.launch.steps.len() {
            self.look_for_stop()?;
            if let Some(stop) = &self.stop {
                return Ok(if stop.is_timeout { Outcome::Timeout } else { Outcome::NotStarted });
            }
            if self.launch.steps[step].kind == StepKind::Command && self.launch.elements.is_some() {
                return self.run_elements(step);
            }
            self.start_step(step)?;
            while self.running.as_ref().is_some_and(|running| running.status.is_none()) {
                self.turn(self.next_deadline())?;
            }
            if let Some(outcome) = self.outcome(self.launch.steps[step].kind) {
                return Ok(outcome);
            }
            if let Some(report) = self.setup.take() {
                report.adopt(&mut self.launch)?;
            }
        }
        Ok(Outcome::Exited { code: 0 })
    }

    /// A stop may have been asked for before we listened, or while the step before this one ended.
    fn look_for_stop(&mut self) -> io::Result<()> {
        let mut orders = self.watch.orders();
        let early = read::<StopAsked>(&self.dir, STOP)?.map(Order::Stop);
        orders.extend(early);
        orders.into_iter().for_each(|order| self.on_order(order));
        self.on_time();
        Ok(())
    }

    fn start_step(&mut self, step: usize) -> io::Result<()> {
        let is_last = step + 1 == self.launch.steps.len();
        let program = Program::new(&self.launch, &self.launch.steps[step])?;
        let Some(ends) = &self.pipe_ends else { return Err(io::ErrorKind::BrokenPipe.into()) };
        self.setup = match self.launch.steps[step].kind {
            StepKind::Setup => Some(SetupReport::new()?),
            StepKind::Command => None,
        };
        let report = self.setup.as_ref().map(SetupReport::writer).transpose()?;
        let descriptors = ProgramDescriptors { more: report.as_slice(), ..ends.descriptors() };
        let spawned = spawn(&program, &descriptors, &self.launch.tree)?;
        self.has_children = true;
        self.running = Some(Running {
            pid: spawned.pid,
            step,
            program: Some(program),
            report: Some(spawned.report),
            failure: None,
            status: None,
        });
        if is_last {
            self.pipe_ends = None;
        }
        Ok(())
    }

    /// How the task ended with this step, unless it goes on to the next.
    fn outcome(&self, kind: StepKind) -> Option<Outcome> {
        let running = self.running.as_ref()?;
        if self.stop.as_ref().is_some_and(|stop| stop.is_timeout) {
            return Some(Outcome::Timeout);
        }
        if let Some(failure) = &running.failure {
            return Some(failure.clone());
        }
        let status = running.status?;
        // What we killed ourselves did not die of hunger, whatever happened to it before.
        if !status.is_success()
            && !self.stopped
            && self.launch.tree.oom_kills().is_some_and(|kills| kills > 0)
        {
            return Some(Outcome::OutOfMemory);
        }
        let is_setup =
            kind == StepKind::Setup && !self.setup.as_ref().is_some_and(SetupReport::is_of_command);
        match status {
            status if is_setup && status.is_success() => None,
            status if is_setup => Some(Outcome::SetupFailed { status }),
            Status::Exited(code) => Some(Outcome::Exited { code }),
            Status::Signaled(signal) => Some(Outcome::Signaled { signal }),
        }
    }

    /// Wait for the next event and deal with it.
    fn turn(&mut self, until: Option<Instant>) -> io::Result<()> {
        let report = self.running.as_ref().and_then(|running| running.report.as_ref());
        let now = Instant::now();
        let until = [until, self.started_again_at, self.door.retry_at(now)].into_iter().flatten().min();
        // Nobody is let in any more once it is to end.
        let callers = self.door.sockets(now).filter(|_| self.stop.is_none());
        let turn = self.watch.turn(until, report, callers)?;
        if turn.reported {
            self.on_report();
        }
        turn.orders.into_iter().for_each(|order| self.on_order(order));
        if turn.child_ended {
            self.reap();
        }
        if turn.called || self.stop.is_none() && self.door.is_missed(Instant::now()) {
            self.has_children = true;
            self.door.on_caller(&self.dir, &self.launch);
        }
        self.on_time();
        Ok(())
    }

    fn next_deadline(&self) -> Option<Instant> {
        match &self.stop {
            Some(stop) if stop.is_killed => None,
            Some(stop) => Some(stop.kill_at),
            None => self.timeout_at,
        }
    }

    fn on_order(&mut self, order: Order) {
        match order {
            Order::Stop(StopAsked { grace_ms, reason }) => {
                self.stopped = true;
                self.begin_stop(Duration::from_millis(grace_ms), reason, false);
            }
            Order::Elements => self.has_grants = true,
        }
    }

    fn begin_stop(&mut self, grace: Duration, reason: String, is_timeout: bool) {
        let kill_at = Instant::now() + grace;
        if let Some(stop) = &mut self.stop {
            stop.kill_at = stop.kill_at.min(kill_at);
            return;
        }
        // Without any grace, nobody is to save anything first.
        let is_told = !grace.is_zero() && self.has_children;
        let notice = is_told.then(|| StopNotice { reason, at: notice::now(), killed: false });
        if let Some(notice) = &notice
            && let Err(error) = notice::post(&self.dir, notice, grace)
        {
            complain("cannot write the notice of its end, of which only the signal tells now", &error);
        }
        self.stop = Some(Stop { kill_at, is_timeout, is_killed: false, notice });
        if !grace.is_zero() {
            self.terminate();
        }
    }

    fn terminate(&self) {
        if self.is_element_late() {
            return self.terminate_element();
        }
        if self.has_children {
            // The number of a process that was reaped may be anyone's by now; what it left is told one by one.
            let step = self.running.as_ref().filter(|running| running.status.is_none());
            let signal = self.launch.stop_signal;
            self.launch.tree.terminate(signal, step.map(|running| running.pid), Root::Children);
        }
    }

    fn on_time(&mut self) {
        let now = Instant::now();
        if self.started_again_at.is_some_and(|at| at <= now) {
            self.keep_started();
        }
        if self.stop.is_none() && self.timeout_at.is_some_and(|at| at <= now) {
            self.begin_stop(Duration::from_millis(self.launch.grace_ms), "timeout".into(), true);
        }
        if let Some(stop) = &mut self.stop
            && !stop.is_killed
            && stop.kill_at <= now
        {
            stop.is_killed = true;
            if let Some(notice) = &mut stop.notice {
                notice.killed = true;
            }
            self.kill();
        }
    }

    /// The program runs, or the reason why not has come.
    fn on_report(&mut self) {
        let Some(running) = &mut self.running else { return };
        let Some(report) = running.report.take() else { return };
        let mut bytes = [0; Failure::BYTES];
        match rustix::io::read(&report, &mut bytes) {
            Ok(Failure::BYTES) => {
                running.failure = running.program.as_ref().map(|program| program.explain(&bytes));
            }
            // Nothing, when exec has closed the other end. A child that was killed before looks the same, and its
            // status will tell.
            Ok(_) | Err(_) => {
                self.write_started();
                // A child that has just been cloned still ignores what we ignore, so the first signal may be lost.
                if self.stop.is_some() {
                    self.terminate();
                }
            }
        }
    }

    fn write_started(&mut self) {
        let Some(running) = &self.running else { return };
        let Ok(task) = Process::of(running.pid) else { return };
        self.started.task = task;
        if running.step == 0 && self.element.is_none() {
            self.started.started_at = Timestamp::now();
        }
        self.started.step = running.step;
        self.keep_started();
    }

    fn keep_started(&mut self) {
        match write(&self.dir, STARTED, &self.started) {
            Ok(()) => self.started_again_at = None,
            Err(error) => {
                if self.started_again_at.is_none() {
                    complain("cannot write that the task has started", &error);
                }
                self.started_again_at = Some(Instant::now() + RETRY);
            }
        }
    }

    /// Take note of every child that has ended: the step's own, and orphans that fell to us.
    fn reap(&mut self) {
        loop {
            match wait(WaitOptions::NOHANG) {
                Ok(Some((pid, status))) => self.on_child_ended(pid, status),
                Ok(None) => return,
                Err(_) => {
                    self.has_children = false;
                    return;
                }
            }
        }
    }

    fn on_child_ended(&mut self, pid: Pid, status: WaitStatus) {
        self.door.on_child_ended(pid, &self.dir);
        if self.running.as_ref().is_none_or(|running| running.pid != pid || running.status.is_some()) {
            return;
        }
        // A report that is still to be read comes first: it says what the status means.
        self.on_report();
        if let Some(running) = &mut self.running {
            let signal = status.terminating_signal().map(Status::Signaled);
            running.status = signal.or(status.exit_status().map(Status::Exited));
        }
    }

    /// End all of the tree, now.
    fn kill(&mut self) {
        if self.is_element_late() {
            return self.kill_element();
        }
        let deadline = Instant::now() + PATIENCE;
        self.survivors = self.launch.tree.kill(Root::Children).survivors;
        self.reap();
        // All that is left of the tree descends from a child of ours, so while there is one the tree is not dead.
        while self.has_children && self.survivors.is_empty() && Instant::now() < deadline {
            self.survivors = self.launch.tree.kill_strays(Root::Children).survivors;
            self.reap();
        }
        if let Some(running) = &mut self.running
            && self.survivors.contains(&running.pid.as_raw_nonzero().get())
        {
            // It hangs in the kernel, and will die of our signal if it ever wakes. Nobody should wait for that.
            running.status = running.status.or(Some(Status::Signaled(libc::SIGKILL)));
        }
    }

    /// End what the last step's own process has left behind. In a stop, the whole tree has the grace: the step may be
    /// a shell that dies at once, while the training it started is writing its last checkpoint.
    fn end_tree(&mut self) {
        self.pipe_ends = None;
        self.reap();
        while self.has_children && self.stop.as_ref().is_some_and(|stop| !stop.is_killed) {
            if let Err(error) = self.turn(self.next_deadline()) {
                complain("cannot wait for the task to stop", &error);
                break;
            }
        }
        let is_held = !matches!(self.launch.tree.way(), Kill::Walk);
        if self.survivors.is_empty() && (self.has_children || is_held) {
            self.kill();
        }
    }

    /// Keep all output until nobody is left who could write any.
    fn drain(&mut self) {
        self.watch.release_process_streams();
        let deadline = Instant::now() + DRAIN;
        while self.watch.has_output(Instant::now() < deadline) {
            let until = (Instant::now() < deadline).then_some(deadline);
            if let Err(error) = self.watch.turn(until, None, []) {
                complain("cannot wait for output", &error);
                return;
            }
        }
    }
}

fn from_now(milliseconds: u64) -> Instant {
    Instant::now() + Duration::from_millis(milliseconds)
}

fn launch_failed(error: &io::Error) -> Outcome {
    Outcome::LaunchFailed { message: error.to_string() }
}
