//! What is decided before there are addresses: which contract, how many processes, who runs the command.

use muster_model::launch::Process;
use muster_model::node::Vendor;
use muster_model::spec::{Command, FieldCode, FieldError, Kind};
use muster_model::{AttemptId, CommandOn, Face, Framework, JobSpec};

use crate::contract::flags;
use crate::detect::{self, Nothing, Starts};

/// Ports of a member that are not a process's: master and ssh.
const FIXED_PORTS: u32 = 2;
/// Shared ports are looked for from here on: below the range from which the kernel serves outgoing connections.
const FIRST_SHARED: u64 = 20_000;
const SHARED: u64 = 10_000;

/// Fills in what a job does not say and its command does, so that whoever reads the spec later knows what was meant. What
/// only the code can tell is the client's to find, with [`detect::detect`].
pub fn settle(spec: &mut JobSpec) {
    if spec.kind == Kind::Machine {
        // Whoever works on several machines goes from one to the other.
        spec.peers = spec.peers.or(Some(spec.nodes > 1));
        return;
    }
    if spec.batch.is_some() {
        // It starts what it has to start by itself, with the programs that it knows.
        spec.framework.get_or_insert(Framework::Plain);
        spec.faces.get_or_insert_with(|| vec![Face::Slurm]);
        spec.command_on.get_or_insert(CommandOn::First);
        return;
    }
    let found = detect::detect(&spec.command, &Nothing);
    if spec.framework.is_none() {
        spec.framework = Some(found.framework().unwrap_or(Framework::Plain));
    }
    if spec.faces.is_none() {
        spec.faces = Some(found.faces.into_iter().map(|found| found.what).collect());
    }
    if spec.peers.is_none() && found.peers.is_some() {
        spec.peers = Some(true);
    }
    if spec.command_on.is_none() {
        let leads = crate::contract::leads(&Plan::of(spec));
        spec.command_on = Some(if leads { CommandOn::First } else { CommandOn::All });
    }
}

/// What of a settled spec cannot be, as far as the command's words tell: flags of a launcher for another number of tasks. A
/// launcher that a condition may keep from being called is let through.
pub fn check(spec: &JobSpec) -> Vec<FieldError> {
    let is_its_own = spec.batch.is_some() || spec.kind == Kind::Machine;
    if is_its_own || spec.command_on == Some(CommandOn::Processes) {
        return Vec::new();
    }
    let call = detect::launcher_call(&spec.command).filter(|call| !call.may_be_skipped);
    let problems = call.map_or_else(Vec::new, |call| flags::check(spec, &call)).into_iter();
    let fatal = problems.filter(|problem| problem.is_fatal);
    fatal.map(|problem| FieldError::new("command", FieldCode::InvalidValue, problem.message)).collect()
}

/// How a job's gang is started.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// The contract.
    pub framework: Framework,
    /// Processes of each task.
    pub processes: u32,
    /// The framework's launcher that the command starts, if it does.
    pub launcher: Option<detect::Launcher>,
    /// How many processes of each task that launcher starts.
    pub launched: u32,
    /// Whether the command is one program, of which several may be started side by side.
    pub single: bool,
    /// Whether the user named a number of processes.
    pub counted: bool,
    /// Whether the command is started once for each process, as it stands.
    pub each: bool,
    /// Whether rank 0 alone runs the command.
    pub leader: bool,
    /// Whether there is no command, and every task only waits.
    pub idle: bool,
    /// How many tasks there are.
    pub nodes: u32,
    /// Whether its devices are, or may be, NVIDIA's.
    pub nvidia: bool,
}

impl Plan {
    /// What a spec means.
    pub fn of(spec: &JobSpec) -> Plan {
        let each = spec.command_on == Some(CommandOn::Processes);
        let call = detect::launcher_call(&spec.command).filter(|_| !each);
        let starts = detect::starts(&spec.command, &Nothing);
        Plan {
            framework: spec.framework.unwrap_or(Framework::Plain),
            processes: spec.processes_per_task(),
            launched: call.as_ref().map_or(1, |call| flags::started(spec, call)),
            launcher: call.map(|call| call.launcher),
            single: each || starts == Starts::Program,
            counted: spec.processes.is_some(),
            each,
            leader: spec.command_on == Some(CommandOn::First),
            idle: spec.kind == Kind::Machine,
            nodes: spec.nodes,
            nvidia: spec
                .resources
                .gpus
                .as_ref()
                .is_some_and(|request| request.count > 0 && request.vendor != Some(Vendor::Ascend)),
        }
    }

    /// How many processes the gang has.
    pub fn world(&self) -> u32 {
        self.nodes * self.processes
    }

    /// How many processes each task has: those that muster starts, or a launcher in the command. What else a command starts
    /// is its own, and not known.
    pub fn started(&self) -> u32 {
        if self.launcher.is_some() { self.launched } else { self.copies() }
    }

    /// How many of the command run in each task, be it that muster starts them or a launcher that it puts in front.
    pub(crate) fn copies(&self) -> u32 {
        let is_copied = match self.framework {
            _ if self.idle || self.launcher.is_some() => false,
            _ if self.each => true,
            Framework::Plain => false,
            // They have no launcher that a script could start: one of which the user wants several is started as often.
            Framework::Jax | Framework::Tensorflow => self.single || self.counted,
            Framework::Pytorch
            | Framework::Deepspeed
            | Framework::Horovod
            | Framework::Mpi
            | Framework::Paddle
            | Framework::Mindspore => self.single,
        };
        if is_copied { self.processes } else { 1 }
    }

    /// Whether a rank only waits: for what rank 0 starts on it, or for people.
    pub fn waits(&self, rank: u32) -> bool {
        self.idle || self.leader && rank > 0
    }

    /// The words that every task runs (or task 0, where the others wait), as they will be.
    pub fn argv(&self, command: &Command) -> Vec<String> {
        crate::contract::argv(self, command)
    }

    /// The process that runs them.
    pub fn process(&self, command: &Command) -> Process {
        Process::new(self.argv(command))
    }
}

/// How many ports each member is to reserve.
pub fn ports(spec: &JobSpec) -> u32 {
    FIXED_PORTS + spec.processes_per_task()
}

/// The port that all members of an attempt are asked to have: one for the whole gang, and another one for another gang.
pub fn shared_port(attempt: &AttemptId) -> u16 {
    (FIRST_SHARED + hash(&attempt.to_string()) % SHARED) as u16
}

/// FNV-1a: the same in every version, which a retried message relies on.
pub(crate) fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325u64, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}
