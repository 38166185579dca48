//! Giving a task to a supervisor, and waiting for that supervisor's end.

use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use muster_link::message::Launch;
use muster_model::launch::{Process, Work};
use muster_model::node::Device;
use rustix::process::{Pid, WaitOptions, wait};
use tokio::io::Interest;

use crate::account::{self, Person};
use crate::bundle::Cache;
use crate::login::{self, Given, Login};
use crate::peers::Way;
use crate::prepare::directory;
use crate::record::{Record, TaskDir};
use crate::stage::{OwnHome, Stage};
use crate::supervisor::{self, FORMAT, NOTES, Overlay, PROCESSES, Started, Step, StepKind, setup};
use crate::task::{self, Observation, Pipes, Spawned, Waiting};
use crate::tree::{self, Preference, Tree, Unavailable};
use crate::{device, diagnosis, disk, environment, peers, programs, secret};
use muster_link::descriptor::register;

/// Where it keeps its sessions, and where its steps say what they have.
const SESSIONS: &str = "sessions";
const STEPS: &str = "steps";

/// Why a task cannot be started.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error(transparent)]
    Tree(#[from] Unavailable),
    #[error(transparent)]
    Account(#[from] account::Error),
    #[error(transparent)]
    Login(#[from] login::Error),
    #[error("the files around it cannot be made")]
    Stage(#[source] io::Error),
    #[error("it cannot be started")]
    Start(#[from] task::Error),
    #[error("its secrets cannot be given to it: {0}")]
    Withheld(String),
    #[error("its secrets cannot be laid out")]
    Secrets(#[source] io::Error),
    #[error("its peers cannot be let in")]
    Peers(#[from] muster_ssh::gang::Error),
}

impl Error {
    /// Whether there was no room for its files.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            Error::Start(task::Error::Io { source, .. }) | Error::Stage(source) | Error::Secrets(source) => {
                disk::is_full(source)
            }
            Error::Peers(muster_ssh::gang::Error::Io(source)) => disk::is_full(source),
            Error::Start(_) | Error::Tree(_) | Error::Peers(_) => false,
            Error::Account(_) | Error::Login(_) | Error::Withheld(_) => false,
        }
    }
}

/// What starting needs besides the task itself.
#[derive(Debug, Clone)]
pub(crate) struct Means {
    pub(crate) exe: PathBuf,
    pub(crate) tree: Preference,
    pub(crate) devices: Vec<Device>,
    pub(crate) cache: Arc<Cache>,
    /// What logins are given.
    pub(crate) login: Arc<Login>,
    /// Directories that tasks see as they are wherever they lie: the agent's, and that of its server's socket.
    pub(crate) kept: Vec<PathBuf>,
    /// The variables of a place that is lent.
    pub(crate) lent: Option<Arc<BTreeMap<String, String>>>,
}

/// A supervisor that can be waited for.
#[derive(Debug)]
pub(crate) struct Watch {
    descriptor: OwnedFd,
}

/// Start a task. One that a supervisor already has is left to it.
pub(crate) fn start(
    dir: &TaskDir,
    record: &Record,
    launch: &Launch,
    waiting: Option<Waiting>,
    means: &Means,
) -> Result<(Option<Pipes>, Option<Watch>), Error> {
    let id = record.prepare.task.to_string();
    if let Some(why) = &launch.withheld {
        return Err(Error::Withheld(why.clone()));
    }
    // A task that runs has its own files already, and nothing is to be written where it may have put a link.
    if !matches!(task::observe(dir.path())?, Observation::NotStarted) {
        return Ok((None, None));
    }
    let person = account::of(record.prepare.account.as_deref())?;
    // It was asked ahead. Before anything is made for the task: who is refused here leaves nothing.
    let given = means.login.given(person.as_ref())?;
    let stage = Stage::make(&dir.contract(), launch, &record.prepare.volumes, person.as_ref());
    let stage = stage.map_err(Error::Stage)?;
    let home = own_home(dir, launch, person.as_ref(), means).map_err(Error::Stage)?;
    let way = match &launch.peers {
        Some(gang) => {
            peers::open(dir, gang, record.prepare.task.rank, person.as_ref().map(|it| &it.account))?
        }
        None => None,
    };
    programs::make(dir, &launch.surroundings.programs, &means.exe).map_err(Error::Stage)?;
    disk::make_dir(&dir.path().join(NOTES)).map_err(Error::Stage)?;
    if let Some(person) = &person {
        make_over(dir, person).map_err(Error::Stage)?;
    }
    // Another scheduler that lends the place limits its memory and its devices.
    let tree = match &means.lent {
        Some(_) => Tree::prepare_within(&id, means.tree)?,
        None => Tree::prepare(&id, means.tree, record.prepare.memory_bytes)?
            .without_devices(&device::denied(&means.devices, &record.prepare.devices)),
    };
    secret::make(dir.path(), &launch.secrets, person.as_ref()).map_err(Error::Secrets)?;
    let who = Who { person, given };
    let launch =
        supervisor::Launch { stage, home, ..launch_of(dir, record, launch, means, way, tree.clone(), who) };
    match give(dir.path(), &launch, waiting, &means.exe) {
        Ok(spawned) => {
            let supervisor = tree::Process::of(Pid::from_child(&spawned.child)).ok();
            let watch = task::watch(dir.path(), supervisor).ok();
            Ok((Some(spawned.pipes), watch.map(|descriptor| Watch { descriptor })))
        }
        Err(task::Error::AlreadyStarted { .. } | task::Error::Supervised { .. }) => Ok((None, None)),
        Err(error) => {
            tree.remove();
            secret::remove(dir.path()).map_err(Error::Secrets)?;
            Err(error.into())
        }
    }
}

/// The home directory that the task is to have of its own. Never for a task of another account: what root's programs read below
/// root's home would be theirs.
fn own_home(
    dir: &TaskDir,
    launch: &Launch,
    person: Option<&Person>,
    means: &Means,
) -> io::Result<Option<OwnHome>> {
    let Some(path) = launch.surroundings.home.as_deref().filter(|_| person.is_none()) else {
        return Ok(None);
    };
    OwnHome::make(dir, path, &environment::account(), &means.kept).map(Some)
}

/// Give the task to the supervisor that waits for it, or to another if that one is gone.
fn give(
    dir: &Path,
    launch: &supervisor::Launch,
    waiting: Option<Waiting>,
    exe: &Path,
) -> Result<Spawned, task::Error> {
    match waiting.map(|waiting| waiting.launch(dir, launch)) {
        Some(Ok(spawned)) => Ok(spawned),
        Some(Err(_)) | None => task::start(exe, dir, launch),
    }
}

/// Whom a task runs as, and what a login of theirs is given. Nobody is the agent's own account.
struct Who {
    person: Option<Person>,
    given: Given,
}

fn launch_of(
    dir: &TaskDir,
    record: &Record,
    launch: &Launch,
    means: &Means,
    way: Option<Way>,
    tree: Tree,
    Who { person, given }: Who,
) -> supervisor::Launch {
    let prepare = &record.prepare;
    let id = prepare.task.to_string();
    let visible = device::visible(&means.devices, &prepare.devices);
    let overlay = record.bundle().filter(|_| dir.upper().is_dir());
    let overlay = overlay.map(|bundle| Overlay {
        lower: means.cache.path(&bundle),
        upper: dir.upper(),
        scratch: dir.scratch(),
    });
    let previous = prepare.previous.as_ref().map(|task| dir.of_other(task).output());
    let previous = previous.filter(|output| output.is_dir());
    let (argv, own_env, mut work) = command_of(dir, launch);
    let command = Step { kind: StepKind::Command, argv };
    let mut env = launch.env.clone();
    env.extend(own_env);
    for (name, value) in given.variables {
        env.entry(name).or_insert(value);
    }
    if let Some(lent) = &means.lent {
        environment::lend(&mut env, lent);
    }
    let account = person.as_ref().map(|person| person.account.clone());
    let mut env = environment::complete(env, &id, &dir.output(), previous.as_deref(), visible, account);
    let gang = way.map(|way| {
        way.tell(&mut env);
        way.address
    });
    supervisor::notice::tell(dir.path(), &mut env);
    diagnosis::set_variables(dir.path(), &mut env, work.as_mut());
    let in_place = prepare.in_place.as_deref().map(|path| directory(path, person.as_ref()));
    let cwd = in_place.map_or_else(|| dir.work(), PathBuf::from);
    for name in &launch.surroundings.workdir_in {
        env.insert(name.clone(), cwd.display().to_string());
    }
    // Never that of the submitter, who may be a task as well.
    env.remove(secret::VARIABLE);
    if !launch.secrets.is_empty() {
        env.insert(secret::VARIABLE.into(), secret::files(dir.path()).display().to_string());
    }
    if !launch.surroundings.programs.is_empty() {
        programs::tell(dir, &mut env, person.as_ref().map(Person::owner));
    }
    supervisor::Launch {
        format: FORMAT,
        steps: setup::steps(
            launch.setup.as_deref(),
            launch.setup_once.as_deref(),
            command,
            launch.elements.is_some(),
        ),
        cwd,
        env,
        gang,
        overlay,
        has_secrets: !launch.secrets.is_empty(),
        stage: None,
        home: None,
        launched_processes: match &work {
            Some(Work::Run(processes)) if processes.len() > 1 => processes.len() as u32,
            _ => launch.surroundings.launched_processes,
        },
        work,
        elements: launch.elements.clone(),
        timeout_ms: launch.timeout_ms,
        grace_ms: launch.grace_ms,
        stop_signal: launch.stop_signal,
        umask: given.umask,
        limits: given.limits,
        seen: if person.is_some() { seen(dir, means, previous, record) } else { Vec::new() },
        person,
        disk: prepare.disk.clone(),
        task: id,
        tree,
    }
}

/// What a task of somebody else's uses of what may lie where only root can look.
fn seen(dir: &TaskDir, means: &Means, previous: Option<PathBuf>, record: &Record) -> Vec<PathBuf> {
    let exe = fs::canonicalize(&means.exe).ok();
    let volumes = record.prepare.volumes.iter().map(|volume| PathBuf::from(&volume.path));
    [dir.path().to_owned()].into_iter().chain(exe).chain(previous).chain(volumes).collect()
}

/// Give the task's own directories to whom it runs as. The directory that they are in stays ours: what is said of the task
/// is written there.
fn make_over(dir: &TaskDir, person: &Person) -> io::Result<()> {
    fs::set_permissions(dir.path(), fs::Permissions::from_mode(0o711))?;
    let bin = programs::bin(dir);
    if bin.is_dir() {
        fs::set_permissions(bin, fs::Permissions::from_mode(0o755))?;
    }
    for name in [SESSIONS, STEPS] {
        disk::make_dir(&dir.path().join(name))?;
    }
    let notes = [SESSIONS, STEPS, NOTES].map(|name| dir.path().join(name));
    let own = [dir.work(), dir.upper(), dir.output()].into_iter().chain(notes);
    own.filter(|path| path.is_dir()).try_for_each(|path| person.owner().give_alone(&path))
}

/// The words of a task's command, the variables that are its only process's own, and what the command is to start by
/// itself. One process in the task's own directory is the command; for all else there is a program that starts it.
fn command_of(dir: &TaskDir, launch: &Launch) -> (Vec<String>, BTreeMap<String, String>, Option<Work>) {
    match &launch.work {
        Work::Run(processes) if let [Process { argv, env, dir: None }] = &processes[..] => {
            (argv.clone(), env.clone(), None)
        }
        work => {
            let file = dir.path().join(PROCESSES);
            // Whoever starts it is this same binary, wherever its file is.
            let words = [Path::new("/proc/self/exe"), Path::new("processes"), &file];
            let argv = words.iter().map(|word| word.display().to_string()).collect();
            (argv, BTreeMap::new(), Some(work.clone()))
        }
    }
}

/// What tells of the end of a supervisor that another agent started.
pub(crate) fn watch(dir: &Path, started: Option<&Started>) -> Option<Watch> {
    let descriptor = task::watch(dir, started.map(|started| started.supervisor)).ok()?;
    Some(Watch { descriptor })
}

/// Wait for the end of a supervisor.
pub(crate) async fn gone(watch: Watch) -> io::Result<()> {
    // A process is readable when it has ended; the pipe that stands in for it errs.
    let interest = Interest::READABLE.add(Interest::ERROR);
    register(watch.descriptor, interest)?.ready(interest).await.map(|_| ())
}

/// Leave no zombies. All children of this process are supervisors, also those that it has from the binary it was before
/// an upgrade, and what it asks about logins; how they ended is written elsewhere, or nobody wants to know.
pub(crate) fn reap() {
    while let Ok(Some(_)) = wait(WaitOptions::NOHANG) {}
}
