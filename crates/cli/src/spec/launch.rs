//! How a job is to be started, found from its command and from the code on this machine.
//!
//! The server sees only the command's words; what a script imports can only be found where the script is. What the user
//! says is never changed, and only files that the command leads to are read: no directory is walked for it.

use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use muster_api::model::printable;
use muster_api::model::spec::{Batch, Command, FieldCode, FieldError, JobSpec, Target};
use muster_api::model::{CommandOn, Face, Framework};
use muster_api::view::LaunchView;
use muster_launch::contract::{Reader, flags, reader};
use muster_launch::detect::{self, Code, Detection, Found, Launcher, Nothing, Starts};
use serde_json::{Value, json};

use super::{Here, Request};

/// How much of a script is read: imports are at its beginning.
const MOST_TEXT: u64 = 256 << 10;
/// Programs have a zero in their first bytes, and texts have none.
const HEAD: u64 = 512;

/// A code directory on this machine. What cannot be read is not there.
pub(crate) struct Folder<'a>(pub &'a Path);

impl Code for Folder<'_> {
    fn read(&self, path: &str) -> Option<String> {
        let place = self.0.join(path);
        // Opening a pipe would wait for whoever writes to it.
        if !place.metadata().ok()?.is_file() {
            return None;
        }
        let mut file = File::open(place).ok()?.take(HEAD);
        let mut bytes = Vec::with_capacity(HEAD as usize);
        file.read_to_end(&mut bytes).ok()?;
        // Of a program, which may be large, nothing more is read.
        if bytes.contains(&0) {
            return None;
        }
        file.set_limit(MOST_TEXT - HEAD);
        file.read_to_end(&mut bytes).ok()?;
        Some(String::from_utf8_lossy(&bytes).into_owned())
    }
}

/// Why a job is started as it is, as far as it was found here.
#[derive(Debug, Default)]
pub(crate) struct Reasons {
    framework: Option<Found<Framework>>,
    faces: Vec<Found<Face>>,
    /// Why its tasks are to reach each other.
    peers: Option<String>,
    /// What was left undecided, because nothing depends on it.
    undecided: Option<String>,
    /// Why a task runs the command once, where it was to have several processes.
    once: Option<String>,
    /// How many processes of each task a launcher starts that is in a script, where the server does not see it.
    launched_by_script: Option<u32>,
    /// By what the program starts its processes itself, and how many muster would have started.
    spawns: Option<(String, u32)>,
    /// What of a script has no effect.
    notes: Vec<String>,
}

impl Reasons {
    pub(super) fn noted(notes: Vec<String>) -> Self {
        Self { notes, ..Self::default() }
    }

    /// What is said about how a job is started, line by line; nothing about one that is started as it stands.
    pub fn lines(&self, spec: &JobSpec, launch: Option<&LaunchView>) -> Vec<String> {
        let mut lines = self.notes.clone();
        if let Some(batch) = &spec.batch {
            lines.push(script_line(spec, batch));
            return lines;
        }
        if let Some(undecided) = &self.undecided {
            lines.push(format!("plain: {undecided}; with one process it makes no difference"));
        }
        if let Some(launch) = launch.filter(|launch| launch.framework != Framework::Plain) {
            let why = self.framework.as_ref().filter(|found| found.what == launch.framework);
            let why = why.map(|found| format!(" ({})", found.why)).unwrap_or_default();
            let processes = self.processes(spec, launch);
            lines.push(format!("{}{why}: {}", launch.framework, started(spec, launch, processes)));
        }
        lines.extend(launch.and_then(|launch| self.once_line(spec, launch)));
        if let Some((why, wanted)) = &self.spawns {
            lines.push(format!(
                "{why}, which starts the processes of a task: each task runs the command once; --processes {wanted} runs it \
                 {wanted} times"
            ));
        }
        for face in spec.faces.iter().flatten() {
            let why = self.faces.iter().find(|found| found.what == *face);
            let why = why.map(|found| format!(" ({})", found.why)).unwrap_or_default();
            lines.push(format!("{face}{why}: its variables and files are there"));
        }
        if let Some(why) = self.peers.as_ref().filter(|_| spec.nodes > 1) {
            lines.push(format!("peers ({why}): tasks reach each other by ssh"));
        }
        lines
    }

    /// How many processes each task has, as far as is known here.
    fn processes(&self, spec: &JobSpec, launch: &LaunchView) -> u32 {
        self.launched_by_script
            .filter(|_| spec.command_on != Some(CommandOn::Processes))
            .unwrap_or(launch.processes)
    }

    /// Says that a task has one process where it was to have several, and what to do about it.
    fn once_line(&self, spec: &JobSpec, launch: &LaunchView) -> Option<String> {
        let wanted = spec.processes_per_task();
        if self.launched_by_script.is_some() || launch.processes >= wanted {
            return None;
        }
        // A job without a framework has one process unless the user names a number; but not every command is one.
        if launch.framework == Framework::Plain && spec.processes.is_none() {
            let why = self.once.as_ref()?;
            return Some(format!(
                "{why}: each task runs the command once, and it is not known whether that uses all {wanted} devices; with \
                 --framework pytorch, `torchrun train.py` there starts {wanted} processes, and --command-on processes runs all \
                 of it once for each device"
            ));
        }
        let (why, remedy) = match (&self.once, launch.framework) {
            (None, Framework::Plain) => ("no framework was found", "name one with --framework"),
            (Some(why), Framework::Pytorch | Framework::Deepspeed) => {
                (why.as_str(), "put `python -m torch.distributed.run` in the place of `python` there")
            }
            (Some(why), Framework::Mpi) => (why.as_str(), "put `mpirun` in front of the program there"),
            (Some(why), Framework::Horovod) => {
                (why.as_str(), "put `horovodrun` in front of the program there")
            }
            (Some(why), _) => (why.as_str(), "start the processes there"),
            (None, _) => return None,
        };
        let once = match launch.command_on {
            CommandOn::First => {
                format!("task0 alone runs the command, once, not {} times", wanted.saturating_mul(spec.nodes))
            }
            CommandOn::All | CommandOn::Processes => {
                format!("each task runs the command once, not {wanted} times")
            }
        };
        // Processes of MPI that mpirun has not started do not know each other.
        let or_all = match launch.framework {
            Framework::Mpi | Framework::Horovod => "",
            _ => ", or run all of it once for each process with --command-on processes",
        };
        Some(format!("{why}: {once}; {remedy}{or_all}"))
    }

    /// The same for programs.
    pub fn json(&self) -> Value {
        let framework = self.framework.iter().map(|found| json!({"what": found.what, "why": found.why}));
        let faces = self.faces.iter().map(|found| json!({"what": found.what, "why": found.why}));
        framework.chain(faces).collect()
    }
}

/// `batch script on the first of 2 nodes; srun starts 8 processes on them`.
fn script_line(spec: &JobSpec, batch: &Batch) -> String {
    let tasks = batch.tasks(spec.nodes);
    let processes = if tasks == 1 { "1 process".to_owned() } else { format!("{tasks} processes") };
    match spec.nodes {
        1 => format!("batch script on 1 node; srun starts {processes} there"),
        nodes => format!("batch script on the first of {nodes} nodes; srun starts {processes} on them"),
    }
}

/// `torchrun train.py, 2 tasks × 8 processes`.
fn started(spec: &JobSpec, launch: &LaunchView, processes: u32) -> String {
    let count = |number: u32, what: &str, many: &str| {
        if number == 1 { format!("1 {what}") } else { format!("{number} {many}") }
    };
    let place = if launch.command_on == CommandOn::First && spec.nodes > 1 { " on task0" } else { "" };
    format!(
        "{}{place}, {} × {}",
        command(spec, launch),
        count(spec.nodes, "task", "tasks"),
        count(processes, "process", "processes")
    )
}

/// The words that run as a person would type them, on one line.
pub(crate) fn command(spec: &JobSpec, launch: &LaunchView) -> String {
    let shown = if launch.argv == spec.command.argv() {
        spec.command.to_string()
    } else {
        Command::Argv(launch.argv.clone()).to_string()
    };
    printable::one_line(&shown)
}

/// Fills in what the job does not say and its command and code do.
pub(super) fn fill(request: &mut Request, here: &Here) -> Result<(), FieldError> {
    if request.spec.batch.is_some() {
        // It starts what it has to start by itself.
        return Ok(());
    }
    let folder = request.workdir.as_ref().map(|workdir| workdir.path.clone());
    if let Some(command) = folder.as_deref().and_then(|folder| interpreted(&request.spec, folder, here)) {
        request.set("command", json!(command));
        request.spec.command = command;
    }
    let found = match &folder {
        Some(folder) => detect::detect(&request.spec.command, &Folder(folder)),
        None => detect::detect(&request.spec.command, &Nothing),
    };
    if request.spec.framework.is_none() {
        choose(request, &found)?;
    }
    if request.spec.faces.is_none() && !found.faces.is_empty() {
        let faces: Vec<Face> = found.faces.iter().map(|found| found.what).collect();
        request.set("faces", json!(faces));
        request.spec.faces = Some(faces);
    }
    // The server sees the launcher in the command; that in a script it does not.
    if request.spec.command_on.is_none() && found.launcher.is_some_and(Launcher::leads) {
        request.set("command_on", json!(CommandOn::First));
        request.spec.command_on = Some(CommandOn::First);
    }
    if let Some(folder) = &folder {
        count_processes(request, &found, &Folder(folder));
    }
    if request.spec.peers.is_none() && found.peers.is_some() {
        request.set("peers", json!(true));
        request.spec.peers = Some(true);
        request.reasons.peers = found.peers;
    }
    request.reasons.faces = found.faces;
    Ok(())
}

/// Finds how many processes a task has where scripts and code tell, which the server does not see. A script that starts
/// one program, and does nothing else that matters, runs once for each process.
fn count_processes(request: &mut Request, found: &Detection, code: &dyn Code) {
    let spec = &request.spec;
    let framework = spec.framework.unwrap_or(Framework::Plain);
    if spec.command_on == Some(CommandOn::Processes) {
        return;
    }
    let is_hidden = matches!(detect::starts(&spec.command, &Nothing), Starts::Unclear(_));
    if let Some(call) = &found.call {
        // The server refuses what surely fails, but sees neither scripts nor whether a condition holds.
        let is_seen = !call.what.may_be_skipped
            && detect::launcher_call(&spec.command).is_some_and(|seen| seen == call.what);
        let problems = flags::check(spec, &call.what).into_iter();
        let notes = problems.filter(|problem| !(is_seen && problem.is_fatal));
        let notes = notes.map(|problem| format!("{}: {}", call.why, problem.message));
        request.reasons.notes.extend(notes);
        if is_hidden {
            request.reasons.launched_by_script = Some(flags::started(spec, &call.what));
            return;
        }
    }
    let wanted = spec.processes_per_task();
    if wanted == 1 {
        return;
    }
    if framework == Framework::Plain && spec.processes.is_none() {
        if spec.framework.is_none()
            && let Starts::Unclear(why) = detect::starts(&spec.command, code)
        {
            request.reasons.once = Some(why);
        }
        return;
    }
    if let Some(why) = found.spawns.as_ref().filter(|_| spec.processes.is_none() && found.launcher.is_none())
    {
        request.reasons.spawns = Some((why.clone(), wanted));
        request.set("processes", json!(1));
        request.spec.processes = Some(1);
        return;
    }
    match detect::starts(&spec.command, code) {
        Starts::Launcher(_) => {}
        Starts::Unclear(why) => request.reasons.once = Some(why),
        Starts::Program if !is_hidden || framework == Framework::Plain => {}
        Starts::Program if matches!(framework, Framework::Mpi | Framework::Horovod) => {
            request.reasons.once = Some("the script does not start the framework's launcher".into());
        }
        Starts::Program if spec.command_on.is_none() => {
            request.set("command_on", json!(CommandOn::Processes));
            request.spec.command_on = Some(CommandOn::Processes);
        }
        Starts::Program => {}
    }
}

/// The framework that was found; of two that were found equally neither, unless nothing depends on it.
fn choose(request: &mut Request, found: &Detection) -> Result<(), FieldError> {
    let framework = match found.frameworks.as_slice() {
        [] => return Ok(()),
        [found] => {
            request.reasons.framework = Some(found.clone());
            found.what
        }
        several => {
            let both = several
                .iter()
                .map(|found| format!("{} ({})", found.what, found.why))
                .collect::<Vec<_>>()
                .join(" or ");
            let spec = &request.spec;
            if spec.nodes * spec.processes_per_task() > 1 {
                let message = format!("it may be {both}; say which: --framework {}", several[0].what);
                return Err(FieldError::new("framework", FieldCode::SeveralFound, message));
            }
            request.reasons.undecided = Some(format!("it may be {both}"));
            Framework::Plain
        }
    };
    request.set("framework", json!(framework));
    request.spec.framework = Some(framework);
    Ok(())
}

/// A job made of another: what was found for the other's command holds no longer where the new one says otherwise.
pub(super) fn refill(request: &mut Request, old: &JobSpec) {
    let (before, now) = (detect::launcher(&old.command), detect::launcher(&request.spec.command));
    let is_for_old_script =
        old.command_on == Some(CommandOn::Processes) && old.command != request.spec.command;
    if request.spec.command_on == old.command_on && (before != now || is_for_old_script) {
        request.unset("command_on");
        request.spec.command_on = None;
    }
    let kept = request.spec.framework == old.framework;
    if let Some(framework) = now.filter(|_| kept && before != now).map(Launcher::framework) {
        request.set("framework", json!(framework));
        request.spec.framework = Some(framework);
    }
}

/// The command, if it is a script of the code directory that needs somebody to read it: `train.py`, `run.sh`. The server
/// does not know what Python is called here. `./train.py` is a program, or is to be answered as one.
fn interpreted(spec: &JobSpec, folder: &Path, here: &Here) -> Option<Command> {
    let Command::Argv(words) = &spec.command else { return None };
    let first = words.first().filter(|word| folder.join(word).is_file())?;
    let interpreter = match (reader(first)?, &spec.on) {
        (Reader::Bash, _) => "bash",
        (Reader::Python, Target::Local) if program(here, "python").is_none() => "python3",
        (Reader::Python, _) => "python",
    };
    Some(Command::Argv(std::iter::once(interpreter.to_owned()).chain(words.iter().cloned()).collect()))
}

/// Where the shell would find a program.
fn program(here: &Here, name: &str) -> Option<PathBuf> {
    let path = here.environment.get(std::ffi::OsStr::new("PATH"))?;
    std::env::split_paths(path).map(|folder| folder.join(name)).find(|place| place.is_file())
}
