//! One supervised task, as the agent sees it: start it, stop it, observe it, find it again, and bury it if its
//! supervisor died.
//!
//! Everything here is told by the task's directory (see `supervisor`), so an agent that was restarted, or replaced by a
//! newer one, knows as much as the one before. Whether a supervisor lives is told by a lock on `supervisor.log`: the
//! agent takes it before the start and the supervisor inherits it, so there is no instant at which a supervisor may
//! run and the lock is free. That is what makes it certain that nothing is started twice.
//!
//! A supervisor takes longer to start than all else between the word to launch a task and its first instruction. So it
//! can be made to wait for its task beforehand, which needs nothing but the task's directory.
//!
//! All calls are synchronous. Only `bury` may take longer than a few file operations.

mod bury;
mod pipe;

pub use bury::bury;
pub use pipe::Pipes;

use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use muster_link::log::SegmentDir;
use muster_model::array::Grant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::{CWD, FlockOperation, Mode, flock, mkfifoat};
use rustix::io::{Errno, retry_on_intr};
use rustix::process::Pid;

use crate::disk;
use crate::supervisor::{
    CONTROL, ELEMENTS, EXIT, Exit, LAUNCH, LOG, Launch, Order, STOP, SUPERVISOR_LOG, Started, StopAsked,
    Supervision, give, read, read_started, read_supervision, write, write_launch,
};
use crate::tree::{Process, boot_id, is_same_boot};

/// How long a supervisor is awaited that has nothing left to do. Whoever waits tries again later.
const GONE: Timespec = Timespec { tv_sec: 1, tv_nsec: 0 };

/// What went wrong with a task's directory.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("cannot {what} of the task in {dir}")]
    Io {
        what: &'static str,
        dir: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("the task in {dir} was started before")]
    AlreadyStarted { dir: PathBuf },
    #[error("the task in {dir} was never started")]
    NotStarted { dir: PathBuf },
    #[error("the task in {dir} still has a supervisor")]
    Supervised { dir: PathBuf },
}

impl Error {
    fn io<E: Into<io::Error>>(what: &'static str, dir: &Path) -> impl FnOnce(E) -> Error {
        let dir = dir.to_owned();
        move |source| Error::Io { what, dir, source: source.into() }
    }
}

/// A task's condition.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observation {
    /// No supervisor has run: `start` may be called, also once more.
    NotStarted,
    /// A supervisor lives, and the program does not run yet.
    Starting,
    Running(Started),
    Ended(Exit),
    /// The supervisor died without a word. The task may be running: `bury` it.
    SupervisorLost(Option<Started>),
    /// The machine was restarted meanwhile, so nothing of the task runs. `bury` ends its log.
    Rebooted,
}

/// A supervisor that was just started.
#[derive(Debug)]
pub struct Spawned {
    /// The supervisor. Whoever gets this must wait for it at some time, or it stays a zombie; when it ends is told by
    /// `watch`. Dropping it does no harm to the task.
    pub child: Child,
    /// To be kept as long as the task runs: they save its output if the supervisor dies.
    pub pipes: Pipes,
}

/// A task that an earlier agent started.
#[derive(Debug)]
pub struct Adopted {
    pub observation: Observation,
    /// None if nothing runs that has them open.
    pub pipes: Option<Pipes>,
}

/// A supervisor that waits for its task. Dropped, it goes away by itself.
#[derive(Debug)]
pub struct Waiting {
    child: Child,
    supervisor: Process,
    boot_id: String,
    line: UnixStream,
}

/// Start a supervisor, `exe supervise DIR` being this same binary, and let it wait. After an error there is none.
pub fn await_launch(exe: &Path, dir: &Path) -> Result<Waiting, Error> {
    let dir = &std::path::absolute(dir).map_err(Error::io("name the directory", dir))?;
    let mut builder = fs::DirBuilder::new();
    builder
        .recursive(true)
        .mode(0o700)
        .create(dir.join(LOG))
        .map_err(Error::io("make the directory", dir))?;
    let lock = lock_alone(dir)?;
    if has_log(dir)? || dir.join(EXIT).exists() {
        return Err(Error::AlreadyStarted { dir: dir.clone() });
    }
    let (line, theirs) = UnixStream::pair().map_err(Error::io("make the supervisor's stdin", dir))?;
    let mut command = Command::new(exe);
    // No `pre_exec` and no other directory: so the standard library need not fork this possibly large process.
    command.arg("supervise").arg(dir).env_clear();
    command.stdin(OwnedFd::from(theirs)).stdout(Stdio::null()).stderr(lock);
    let boot_id = boot_id().map_err(Error::io("read the boot id", dir))?;
    let child = command.spawn().map_err(Error::io("start the supervisor", dir))?;
    let supervisor =
        Process::of(Pid::from_child(&child)).map_err(Error::io("look at the supervisor", dir))?;
    Ok(Waiting { child, supervisor, boot_id, line })
}

impl Waiting {
    /// Give it its task. After an error nothing runs.
    pub fn launch(self, dir: &Path, launch: &Launch) -> Result<Spawned, Error> {
        make_control(dir).map_err(Error::io("make the control pipe", dir))?;
        let (ends, pipes) = pipe::make_both().map_err(Error::io("make the pipes", dir))?;
        let supervision = Supervision { boot_id: self.boot_id, supervisor: self.supervisor, pipes };
        write_launch(dir, launch, &supervision).map_err(Error::io("write the launch", dir))?;
        give(&self.line, ends.each_ref().map(AsFd::as_fd)).map_err(Error::io("reach the supervisor", dir))?;
        Ok(Spawned { child: self.child, pipes: ends.into() })
    }
}

/// Start a task for which no supervisor waits. After an error nothing runs, and it may be tried again.
pub fn start(exe: &Path, dir: &Path, launch: &Launch) -> Result<Spawned, Error> {
    await_launch(exe, dir)?.launch(dir, launch)
}

/// How a task is.
pub fn observe(dir: &Path) -> Result<Observation, Error> {
    if let Some(exit) = read_exit(dir)? {
        return Ok(Observation::Ended(exit));
    }
    if !dir.join(LAUNCH).exists() {
        return Ok(Observation::NotStarted);
    }
    let is_free = lock(dir, FlockOperation::NonBlockingLockShared)?.is_some();
    observe_after_lock(dir, is_free)
}

/// The same, to be read after the lock was tried: a supervisor that has let go of it has written all it ever will.
fn observe_after_lock(dir: &Path, is_free: bool) -> Result<Observation, Error> {
    if let Some(exit) = read_exit(dir)? {
        return Ok(Observation::Ended(exit));
    }
    let started = read_started(dir).map_err(Error::io("read the start", dir))?;
    let is_known_dead = started.as_ref().is_some_and(|started| !started.supervisor.is_alive());
    if !is_free && !is_known_dead {
        return Ok(started.map_or(Observation::Starting, Observation::Running));
    }
    if started.is_none() && !has_log(dir)? {
        return Ok(Observation::NotStarted);
    }
    let boot = match &started {
        Some(started) => Some(started.boot_id.clone()),
        None => supervision(dir)?.map(|supervision| supervision.boot_id),
    };
    match boot {
        Some(boot) if !is_this_boot(&boot, dir)? => Ok(Observation::Rebooted),
        _ => Ok(Observation::SupervisorLost(started)),
    }
}

/// Find a task again after the agent was restarted, and take hold of its pipes.
pub fn adopt(dir: &Path) -> Result<Adopted, Error> {
    let observation = observe(dir)?;
    let pipes = match &observation {
        Observation::Running(started) => Pipes::reopen(dir, Some(started))?,
        Observation::SupervisorLost(started) => Pipes::reopen(dir, started.as_ref())?,
        Observation::Starting => Pipes::reopen(dir, None)?,
        Observation::NotStarted | Observation::Ended(_) | Observation::Rebooted => None,
    };
    Ok(Adopted { observation, pipes })
}

/// Ask a task to end, and kill it after `grace`. Once asked it cannot be taken back; asking again can only shorten the
/// grace. Returns at once. A task whose supervisor has not begun will not be run.
pub fn stop(dir: &Path, grace: Duration, reason: &str) -> Result<(), Error> {
    let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
    let before = read::<StopAsked>(dir, STOP).map_err(Error::io("read the stop", dir))?;
    let asked = match before {
        Some(before) => StopAsked { grace_ms: before.grace_ms.min(grace_ms), ..before },
        None => StopAsked { grace_ms, reason: reason.to_owned() },
    };
    // First on disk, for a supervisor that does not listen yet and for whoever buries it.
    match write(dir, STOP, &asked) {
        Ok(()) => {}
        // A task must not be unstoppable because it has filled the disk: a supervisor that listens hears it.
        Err(error) if disk::is_full(&error) && listens(dir) => {}
        Err(error) => return Err(Error::io("write the stop", dir)(error)),
    }
    match open_control(dir) {
        Ok(mut control) => order(&mut control, Order::Stop(asked)).map_err(Error::io("order the stop", dir)),
        // It is not there or nobody has it open: the supervisor is yet to begin, and will see the file, or it is gone.
        Err(error) if matches!(Errno::from_io_error(&error), Some(Errno::NXIO | Errno::NOENT)) => Ok(()),
        Err(error) => Err(Error::io("open the control pipe", dir)(error)),
    }
}

/// Give a lane more elements. One that was given before is given once: whoever runs them looks at the numbers.
pub fn grant(dir: &Path, grant: &Grant) -> Result<(), Error> {
    // What an agent that was killed while it wrote has left ends with this line's beginning, and is passed over.
    let mut line = vec![b'\n'];
    serde_json::to_writer(&mut line, grant).map_err(Error::io("write the elements", dir))?;
    line.push(b'\n');
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    // In one piece, so that two agents cannot mix theirs.
    let written = options.open(dir.join(ELEMENTS)).and_then(|mut file| file.write_all(&line));
    written.map_err(Error::io("write the elements", dir))?;
    match open_control(dir) {
        Ok(mut control) => order(&mut control, Order::Elements).map_err(Error::io("tell of elements", dir)),
        // The supervisor is yet to begin, and will look, or it is gone.
        Err(_) => Ok(()),
    }
}

/// A descriptor that has an event when the task's supervisor is gone: wait for it to be readable or in error. Where
/// the kernel offers no descriptor for a process, or `supervisor` is not known yet, it is the control pipe, which
/// errs when its only reader dies.
pub fn watch(dir: &Path, supervisor: Option<Process>) -> Result<OwnedFd, Error> {
    if let Some(Ok(descriptor)) = supervisor.map(|supervisor| supervisor.pidfd()) {
        return Ok(descriptor);
    }
    open_control(dir).map(OwnedFd::from).map_err(Error::io("watch the supervisor", dir))
}

/// Wait until the supervisor of a task that is over is gone, and with it all that it held. It has written the end a moment
/// before that, and on a busy machine such a moment can be long.
pub fn await_gone(dir: &Path) -> Result<(), Error> {
    let started = read_started(dir).map_err(Error::io("read the start", dir))?;
    let Some(supervisor) = started.map(|started| started.supervisor) else { return Ok(()) };
    let is_gone = match supervisor.pidfd() {
        Ok(descriptor) => {
            let mut awaited = [PollFd::new(&descriptor, PollFlags::IN)];
            let polled = retry_on_intr(|| poll(&mut awaited, Some(&GONE)));
            polled.map_err(Error::io("wait for the supervisor", dir))? > 0
        }
        Err(_) => !supervisor.is_alive(),
    };
    if is_gone { Ok(()) } else { Err(Error::Supervised { dir: dir.to_owned() }) }
}

/// Take the lock that a living supervisor has, to be the only one who starts or buries.
///
/// A process that this agent is just starting has copies of all our descriptors until it becomes its program, this one
/// included, and so keeps a lock a little longer than we do. Therefore a lock that is taken is tried for a while. For
/// the same reason observers share it: they must not seem to be supervisors to each other.
fn lock_alone(dir: &Path) -> Result<File, Error> {
    let deadline = Instant::now() + Duration::from_secs(1);
    loop {
        if let Some(file) = lock(dir, FlockOperation::NonBlockingLockExclusive)? {
            return Ok(file);
        }
        if Instant::now() >= deadline {
            return Err(Error::Supervised { dir: dir.to_owned() });
        }
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// None if it is taken.
fn lock(dir: &Path, operation: FlockOperation) -> Result<Option<File>, Error> {
    let mut options = OpenOptions::new();
    options.append(true).create(true).mode(0o600);
    let file = options.open(dir.join(SUPERVISOR_LOG)).map_err(Error::io("open the supervisor's log", dir))?;
    match flock(&file, operation) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(error) => Err(Error::io("lock the supervisor's log", dir)(error)),
    }
}

fn read_exit(dir: &Path) -> Result<Option<Exit>, Error> {
    read(dir, EXIT).map_err(Error::io("read the exit status", dir))
}

/// Whether a supervisor has begun. The log's first segment is made before the task's first process.
fn has_log(dir: &Path) -> Result<bool, Error> {
    let starts = SegmentDir::new(dir.join(LOG)).starts().map_err(io::Error::other);
    Ok(!starts.map_err(Error::io("list the log", dir))?.is_empty())
}

fn make_control(dir: &Path) -> io::Result<()> {
    match mkfifoat(CWD, dir.join(CONTROL), Mode::from_raw_mode(0o600)) {
        Ok(()) | Err(Errno::EXIST) => Ok(()),
        Err(error) => Err(error.into()),
    }
}

/// Whether a supervisor has come so far that it hears orders.
fn listens(dir: &Path) -> bool {
    open_control(dir).is_ok()
}

fn open_control(dir: &Path) -> io::Result<File> {
    OpenOptions::new().write(true).custom_flags(libc::O_NONBLOCK).open(dir.join(CONTROL))
}

fn order(control: &mut File, order: Order) -> io::Result<()> {
    let mut line = serde_json::to_vec(&order)?;
    line.push(b'\n');
    // In one piece, as the kernel promises for so short a line, so that two agents cannot mix theirs.
    match control.write_all(&line) {
        // The supervisor has gone since the pipe was opened, and with it the task.
        Err(error) if error.kind() == io::ErrorKind::BrokenPipe => Ok(()),
        written => written,
    }
}

fn supervision(dir: &Path) -> Result<Option<Supervision>, Error> {
    read_supervision(dir).map_err(Error::io("read the launch", dir))
}

fn is_this_boot(boot: &str, dir: &Path) -> Result<bool, Error> {
    let now = boot_id().map_err(Error::io("read the boot id", dir))?;
    Ok(is_same_boot(boot, &now))
}
