//! The sockets by which people and peers come into a task, and the process that answers there.
//!
//! They are open from before the task's first step. Most tasks are never called on, so the process (`muster inside`) is
//! started when someone comes; until it runs, they wait in the kernel. If it dies, the next one to come gets another.

use std::fs::{self, OpenOptions};
use std::io;
use std::net::TcpListener;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::Path;
use std::time::{Duration, Instant};

use muster_link::unix::socket_path;
use rustix::process::Pid;

use super::complain;
use super::file::{DOOR, INSIDE_LOG, Launch, Step, StepKind};
use super::spawn::{Program, ProgramDescriptors, spawn};

/// One that died at once would do so again.
const PAUSE: Duration = Duration::from_secs(1);
/// The descriptors by which the process knows its sockets: the first after the standard streams.
const FIRST: usize = 3;

pub(super) struct Door {
    /// The door itself, and where peers come in.
    sockets: Vec<OwnedFd>,
    inside: Option<Pid>,
    not_before: Option<Instant>,
    /// It died while the task had sessions, whose commands wait for another one.
    is_missed: bool,
}

impl Door {
    /// Opens the door of the task in `dir`, and its gang's socket if it has one.
    pub(super) fn open(dir: &Path, launch: &Launch) -> io::Result<Door> {
        let path = dir.join(DOOR);
        // Left by one that could not begin.
        match fs::remove_file(&path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let door = UnixListener::bind(socket_path(&path)?.as_path())?;
        door.set_nonblocking(true)?;
        // Peers are led to it by a process of the task.
        if let Some(person) = &launch.person {
            person.owner().give_alone(&path)?;
        }
        let mut sockets = vec![OwnedFd::from(door)];
        if let Some(address) = launch.gang {
            let listener = TcpListener::bind(address).map_err(|error| {
                io::Error::new(error.kind(), format!("{address}, where its peers come in: {error}"))
            })?;
            listener.set_nonblocking(true)?;
            sockets.push(listener.into());
        }
        Ok(Door { sockets, inside: None, not_before: None, is_missed: false })
    }

    /// What to watch: nothing as long as someone answers.
    pub(super) fn sockets(&self, now: Instant) -> impl Iterator<Item = BorrowedFd<'_>> {
        let is_watched = self.inside.is_none() && self.not_before.is_none_or(|at| at <= now);
        self.sockets.iter().filter(move |_| is_watched).map(AsFd::as_fd)
    }

    /// When to watch again.
    pub(super) fn retry_at(&self, now: Instant) -> Option<Instant> {
        self.not_before.filter(|at| self.inside.is_none() && *at > now)
    }

    /// Whether it is time to have the door answered though nobody has come.
    pub(super) fn is_missed(&self, now: Instant) -> bool {
        self.is_missed && self.not_before.is_none_or(|at| at <= now)
    }

    /// Someone has come, or is missed: have the door answered.
    pub(super) fn on_caller(&mut self, dir: &Path, launch: &Launch) {
        self.is_missed = false;
        self.not_before = Some(Instant::now() + PAUSE);
        match self.start(dir, launch) {
            Ok(pid) => self.inside = Some(pid),
            Err(error) => complain("nobody can be let into the task", &error),
        }
    }

    fn start(&self, dir: &Path, launch: &Launch) -> io::Result<Pid> {
        let descriptors = (FIRST..).take(self.sockets.len()).map(|number| number.to_string());
        let words = ["/proc/self/exe".to_owned(), "inside".to_owned(), dir.display().to_string()];
        let step = Step { kind: StepKind::Command, argv: words.into_iter().chain(descriptors).collect() };
        let program = Program::new(launch, &step)?;
        let log = OwnedFd::from(OpenOptions::new().create(true).append(true).open(dir.join(INSIDE_LOG))?);
        let descriptors = ProgramDescriptors { streams: [&log, &log], more: &self.sockets, held: &[] };
        Ok(spawn(&program, &descriptors, &launch.tree)?.pid)
    }

    /// A child has ended: perhaps that one.
    pub(super) fn on_child_ended(&mut self, pid: Pid, dir: &Path) {
        if self.inside == Some(pid) {
            self.inside = None;
            // The directory itself may have been made for it.
            self.is_missed = fs::read_dir(dir.join("sessions")).is_ok_and(|mut all| all.next().is_some());
        }
    }
}
