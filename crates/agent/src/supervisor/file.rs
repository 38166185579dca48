//! The files of a task's directory, through which supervisor and agent know of each other without talking.
//!
//! | file | written by | says |
//! | --- | --- | --- |
//! | `launch.json` | agent, before the start | what to run and how, which supervisor does so, and through which pipes |
//! | `processes.json` | supervisor, before the command | what a task with several processes runs |
//! | `door` | a socket of the supervisor | by which people come into the task |
//! | `inside.log` | who answers there | its troubles |
//! | `sessions/` | who answers there | shells that keep their state, and their commands |
//! | `secrets/` | agent, before the start | what it is given that is written nowhere else; gone before `exit.json` is there |
//! | `streams/` | named pipes of the supervisor | what each process that a launcher starts writes to |
//! | `elements` | agent | what a lane of an array has to do besides, one JSON object a line |
//! | `control` | a pipe made by the agent | orders, one JSON object a line |
//! | `stop-notice.json` | supervisor, before it signals | for the task: that it is to end, why, and until when |
//! | `notes/` | the task | that it has saved, see `notice` |
//! | `stop.json` | agent | that a stop was asked for, also to a supervisor that does not listen yet |
//! | `supervisor.log` | supervisor | its own troubles. It is locked as long as a supervisor lives |
//! | `log/` | supervisor | the task's output, see `muster_link::log` |
//! | `started.json` | supervisor | that a process runs, and which |
//! | `exit.json` | supervisor, or the agent that buries it | how it ended. Nothing changes after it |
//!
//! Each JSON file appears whole, by a rename, and is for its owner's eyes alone: `launch.json` has the task's
//! environment. None is synced: they are to survive the death of any process. After a power cut nothing of the task is
//! left anyway, and what the server was told is in its database.

use std::collections::BTreeMap;
use std::fs::{self, OpenOptions};
use std::io::{self, Write};
use std::net::SocketAddr;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use muster_link::message::{DiskLimits, Elements};
use muster_model::launch::Work;
use muster_model::signal::Signal;
use muster_model::task::StopNotice;
use serde::de::{DeserializeOwned, IgnoredAny};
use serde::{Deserialize, Serialize};

use crate::account::Person;
use crate::login::Limit;
use crate::overlay::Overlay;
use crate::stage::{OwnHome, Stage};
use crate::tree::{Process, Tree};

pub const CONTROL: &str = "control";
pub const DOOR: &str = "door";
pub const ELEMENTS: &str = "elements";
pub const EXIT: &str = "exit.json";
pub const INSIDE_LOG: &str = "inside.log";
pub const LAUNCH: &str = "launch.json";
pub const LOG: &str = "log";
pub const PROCESSES: &str = "processes.json";
pub const STARTED: &str = "started.json";
pub const STOP: &str = "stop.json";
pub const SUPERVISOR_LOG: &str = "supervisor.log";

/// The version of these files. A reader refuses a newer one, since an agent may also be downgraded.
pub const FORMAT: u32 = 1;

/// What to run, and how.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Launch {
    pub format: u32,
    /// The task's id: the value of `MUSTER_TASK_ID` in `env`, and the name of its tree.
    pub task: String,
    /// Run one after the other. What a setup step leaves running lives on until the task ends.
    pub steps: Vec<Step>,
    pub cwd: PathBuf,
    /// What is to be seen there; none if it is a directory like others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub overlay: Option<Overlay>,
    /// A home directory of its own; none if it has that of its account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub home: Option<OwnHome>,
    /// What it finds around it; none if that is what everyone finds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub stage: Option<Stage>,
    /// What the command is to start, where that is not one process: it finds it in `processes.json`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub work: Option<Work>,
    /// How many processes the command starts that have output streams of their own.
    #[serde(default)]
    pub launched_processes: u32,
    /// Where members of its gang come in; none if they do not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub gang: Option<SocketAddr>,
    /// The complete environment: nothing is inherited.
    pub env: BTreeMap<String, String>,
    /// Whether more variables are among its secrets; see `crate::secret`.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub has_secrets: bool,
    /// What the command is run for, once each, where the task is a lane of an array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elements: Option<Elements>,
    /// How long the whole task may take, or each of its elements.
    pub timeout_ms: Option<u64>,
    /// How long the task has to end by itself when its time is over.
    pub grace_ms: u64,
    /// What it is told to end with.
    #[serde(default)]
    pub stop_signal: Signal,
    pub umask: Option<u32>,
    /// Whom it runs as; as the supervisor, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub person: Option<Person>,
    /// What its processes may have at most; what the supervisor may, if there are none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub limits: Vec<Limit>,
    /// Where it runs as somebody else: what it is to see, besides its own directory, where only root can look.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub seen: Vec<PathBuf>,
    /// How much of the node's disk its log may fill.
    #[serde(default)]
    pub disk: DiskLimits,
    pub tree: Tree,
}

/// The supervisor of a launch and the pipes of its task. The agent writes it before anything runs, so that whatever is killed
/// afterwards, the next agent finds the task's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Supervision {
    pub boot_id: String,
    pub supervisor: Process,
    /// The inode numbers of the pipes behind stdout and stderr, by which they are known again.
    pub pipes: [u64; 2],
}

/// One program to run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Step {
    pub kind: StepKind,
    pub argv: Vec<String>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum StepKind {
    /// If it fails, the task ends there. It may go on with the command itself, see `super::setup`.
    Setup,
    /// The command, unless the setup has gone on with it.
    Command,
}

/// What a task with several processes runs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Processes {
    pub format: u32,
    pub work: Work,
    /// How long the others have to end when one has failed.
    pub grace_ms: u64,
    /// What they are told to end with.
    #[serde(default)]
    pub stop_signal: Signal,
}

/// What runs now. Written anew for each step.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Started {
    pub format: u32,
    pub boot_id: String,
    pub supervisor: Process,
    /// The step's own process, which leads its session and process group.
    pub task: Process,
    /// Which of the launch's steps it runs.
    pub step: usize,
    /// When the first step started.
    pub started_at: Timestamp,
    /// The inode numbers of the pipes behind stdout and stderr, by which they are known again.
    pub pipes: [u64; 2],
}

/// How a task ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Exit {
    pub format: u32,
    pub outcome: Outcome,
    /// How the last step's own process ended, whatever the outcome says about the reason.
    pub status: Option<Status>,
    /// Whether someone asked for a stop before it ended.
    pub stopped: bool,
    pub ended_at: Timestamp,
    /// The length of the log; nothing will follow.
    pub log_bytes: u64,
    /// Processes that could not be killed, because they hang in the kernel. What they hold is not free.
    #[serde(default)]
    pub survivors: Vec<i32>,
    /// That it was told to end while it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<StopNotice>,
    /// When it last said that it had saved its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub saved_at: Option<Timestamp>,
    /// What all its processes have used; none if the supervisor did not live to tell.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub spent: Option<Spent>,
}

/// What processes have used that are gone, as the kernel counted it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Spent {
    pub cpu_milliseconds: u64,
    /// The most memory that any single one of them ever had.
    pub largest_process_bytes: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Outcome {
    Exited {
        code: i32,
    },
    Signaled {
        signal: i32,
    },
    /// There is no such program, on the task's own `PATH`.
    NotFound {
        command: String,
    },
    NotExecutable {
        command: String,
        why: NotExecutable,
    },
    SetupFailed {
        status: Status,
    },
    Timeout,
    /// From a cgroup's counter, never guessed.
    OutOfMemory,
    /// The stop came first; nothing was run.
    NotStarted,
    /// The task could not be started for a reason that is not its program's: its directory, the machine.
    LaunchFailed {
        message: String,
    },
    /// The supervisor was killed, and the task was ended because nobody watched over it.
    SupervisorLost,
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Status {
    Exited(i32),
    Signaled(i32),
}

impl Status {
    pub fn is_success(self) -> bool {
        self == Status::Exited(0)
    }
}

/// Why a file that exists cannot be run.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NotExecutable {
    Directory,
    /// The kernel knows no such program, and it names no interpreter in a first line that begins with `#!`.
    Format,
    /// Its first line names an interpreter that does not exist.
    MissingInterpreter(String),
    /// It is a program whose loader or libraries' loader this machine does not have.
    MissingLoader,
    Permission,
}

/// An order to the supervisor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The task's own signal, and after the grace `SIGKILL`. A further order can only shorten the grace.
    Stop(StopAsked),
    /// There is more in `elements`.
    Elements,
}

/// That a stop was asked for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct StopAsked {
    pub grace_ms: u64,
    /// The code of the reason why; the first one that was given stays.
    #[serde(default)]
    pub reason: String,
}

/// Put a file in its place whole, for its owner alone.
pub(crate) fn write(dir: &Path, name: &str, value: &impl Serialize) -> io::Result<()> {
    let bytes = serde_json::to_vec(value)?;
    let temporary = dir.join(format!(".{name}.new"));
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(true).mode(0o600);
    options.open(&temporary)?.write_all(&bytes)?;
    fs::rename(&temporary, dir.join(name))
}

/// Writes `launch.json`.
pub(crate) fn write_launch(dir: &Path, launch: &Launch, supervision: &Supervision) -> io::Result<()> {
    #[derive(Serialize)]
    struct Contents<'a> {
        #[serde(flatten)]
        launch: &'a Launch,
        supervision: &'a Supervision,
    }
    write(dir, LAUNCH, &Contents { launch, supervision })
}

/// Returns what `launch.json` says of its supervision; none where an older agent wrote it, or where it is damaged.
pub(crate) fn read_supervision(dir: &Path) -> io::Result<Option<Supervision>> {
    #[derive(Deserialize)]
    struct Contents {
        #[serde(default)]
        supervision: Option<Supervision>,
    }
    let contents = read_undamaged::<Contents>(dir, LAUNCH)?;
    Ok(contents.and_then(|contents| contents.supervision))
}

/// Read a file back; none if it is not there.
pub(crate) fn read<T: DeserializeOwned>(dir: &Path, name: &str) -> io::Result<Option<T>> {
    #[derive(Deserialize)]
    struct Versioned {
        #[serde(default)]
        format: u32,
    }
    let bytes = match fs::read(dir.join(name)) {
        Ok(bytes) => bytes,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let Versioned { format } = serde_json::from_slice(&bytes)?;
    if format > FORMAT {
        return Err(io::Error::new(
            io::ErrorKind::Unsupported,
            format!("{name} has the newer format {format}"),
        ));
    }
    Ok(Some(serde_json::from_slice(&bytes)?))
}

/// What the supervisor wrote when it began. What is damaged of it is as good as not there: the supervisor's lock says whether it lives, and the log
/// whether it has begun.
pub(crate) fn read_started(dir: &Path) -> io::Result<Option<Started>> {
    read_undamaged(dir, STARTED)
}

/// Read a file back; none if it is not there or damaged.
fn read_undamaged<T: DeserializeOwned>(dir: &Path, name: &str) -> io::Result<Option<T>> {
    match read(dir, name) {
        Err(error) if is_damage(&error) => {
            tracing::error!(dir = %dir.display(), %error, "{name} is damaged");
            Ok(None)
        }
        contents => contents,
    }
}

/// Returns what `launch.json` says; none if it is not there or damaged. The agent that started the task knew it; a running task does not read it again.
pub(crate) fn read_launch(dir: &Path) -> io::Result<Option<Launch>> {
    read_undamaged(dir, LAUNCH)
}

/// The file of a task that runs or did run which cannot be read any more, if there is one.
pub(crate) fn damaged_file(dir: &Path) -> Option<&'static str> {
    [LAUNCH, STARTED]
        .into_iter()
        .find(|name| read::<IgnoredAny>(dir, name).is_err_and(|error| is_damage(&error)))
}

/// What a text fails with that is not what was written.
fn is_damage(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::InvalidData | io::ErrorKind::UnexpectedEof)
}
