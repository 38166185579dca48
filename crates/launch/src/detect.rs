//! Which framework a command uses and which platforms it was written for, from its words and from the code it runs.
//!
//! A launcher in the command speaks first, one in a script that it runs second, what the Python code imports last. What
//! speaks equally for two frameworks is reported as both; nothing is guessed. Only files that the command names are read,
//! those that they name, and the modules they import: few, and never a directory.

mod follow;
mod platform;
mod python;
mod starts;
mod step;
#[cfg(test)]
mod tests;
mod word;

use muster_model::spec::Command;
use muster_model::{Face, Framework};

use follow::Follow;
pub use starts::{Starts, program_at, starts};
use step::{Step, step};
use word::{ScriptGrowth, ShellCommand};

/// The code that a command runs.
pub trait Code {
    /// The text of a file, by its path in the code directory; none if there is no such text.
    fn read(&self, path: &str) -> Option<String>;
}

/// No code at all: only the command's words speak.
#[derive(Debug)]
pub struct Nothing;

impl Code for Nothing {
    fn read(&self, _path: &str) -> Option<String> {
        None
    }
}

/// Something that was found, and by what.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found<T> {
    /// What.
    pub what: T,
    /// By what, in words: "train.py imports torch.distributed".
    pub why: String,
}

/// A launcher as it is called.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LauncherCall {
    /// The launcher.
    pub launcher: Launcher,
    /// What it is called by: `torchrun`, `python -m torch.distributed.run`.
    pub name: String,
    /// The words behind that.
    pub arguments: Vec<String>,
    /// A condition in a script decides whether it is called.
    pub may_be_skipped: bool,
}

/// What a command and its code tell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Detection {
    /// The framework; several where the code speaks for more than one equally.
    pub frameworks: Vec<Found<Framework>>,
    /// The platforms.
    pub faces: Vec<Found<Face>>,
    /// The launcher that the command starts, or a script that it runs.
    pub launcher: Option<Launcher>,
    /// How that launcher is called, and where: "run.sh".
    pub call: Option<Found<LauncherCall>>,
    /// That it goes to other tasks by ssh, and by what: "run.sh starts pdsh".
    pub peers: Option<String>,
    /// That the program starts its processes itself, and by what: "train.py calls mp.spawn".
    pub spawns: Option<String>,
}

impl Detection {
    /// The framework, if it is clear which.
    pub fn framework(&self) -> Option<Framework> {
        match self.frameworks.as_slice() {
            [found] => Some(found.what),
            _ => None,
        }
    }
}

/// A program that starts the processes of a framework.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Launcher {
    /// `torchrun`, `python -m torch.distributed.run` or `.launch`; `llamafactory-cli train`, which calls it.
    Torchrun,
    /// `accelerate launch`; `axolotl train` and `trl sft`, which call it.
    Accelerate,
    /// `fabric run`, of Lightning.
    Fabric,
    /// `tune run`, of torchtune.
    Tune,
    /// `composer`.
    Composer,
    /// `deepspeed`.
    Deepspeed,
    /// `horovodrun`.
    Horovodrun,
    /// `mpirun`, `mpiexec`.
    Mpirun,
    /// `msrun`.
    Msrun,
    /// `python -m paddle.distributed.launch`, `fleetrun`.
    Paddle,
}

impl Launcher {
    /// Whether it starts processes on all nodes by itself, from one of them.
    pub fn leads(self) -> bool {
        matches!(self, Self::Deepspeed | Self::Horovodrun | Self::Mpirun)
    }

    /// Whose launcher it is.
    pub fn framework(self) -> Framework {
        match self {
            Self::Torchrun | Self::Accelerate | Self::Fabric | Self::Tune | Self::Composer => {
                Framework::Pytorch
            }
            Self::Deepspeed => Framework::Deepspeed,
            Self::Horovodrun => Framework::Horovod,
            Self::Mpirun => Framework::Mpi,
            Self::Msrun => Framework::Mindspore,
            Self::Paddle => Framework::Paddle,
        }
    }
}

/// Looks at a command and its code.
pub fn detect(command: &Command, code: &dyn Code) -> Detection {
    let mut follow = Follow::new(code);
    follow.command(command);
    follow.detection()
}

/// The launcher that a command starts, if it does.
pub fn launcher(command: &Command) -> Option<Launcher> {
    launcher_call(command).map(|call| call.launcher)
}

/// How a command calls the launcher that it starts, if it does.
pub fn launcher_call(command: &Command) -> Option<LauncherCall> {
    let steps = steps(command, &mut ScriptGrowth::default());
    steps.into_iter().find_map(|CommandStep { step, may_be_skipped }| match step {
        Step::Launch(launcher, name, arguments) => {
            Some(LauncherCall { launcher, name, arguments, may_be_skipped })
        }
        _ => None,
    })
}

/// Something that a command does.
struct CommandStep {
    step: Step,
    /// A condition in a script decides whether it does.
    may_be_skipped: bool,
}

/// What a command starts, in the order in which it does; scripts in its words are looked into.
fn steps(command: &Command, growth: &mut ScriptGrowth) -> Vec<CommandStep> {
    let mut steps = Vec::new();
    match command {
        Command::Argv(words) => {
            let command = ShellCommand { words: words.clone(), may_be_skipped: false };
            add_steps(&command, 0, growth, &mut steps);
        }
        Command::Shell(script) => {
            for command in word::commands(script, Some(&[]), growth) {
                add_steps(&command, 0, growth, &mut steps);
            }
        }
    }
    steps
}

/// Shells that start shells: nobody nests them deeper.
const MAX_SHELLS: usize = 4;
/// A script of more commands than this is not looked at to its end.
const MAX_STEPS: usize = 10_000;

fn add_steps(command: &ShellCommand, depth: usize, growth: &mut ScriptGrowth, steps: &mut Vec<CommandStep>) {
    if steps.len() >= MAX_STEPS {
        return;
    }
    let may_be_skipped = command.may_be_skipped;
    match step(&command.words) {
        Step::Script(script, arguments) if depth < MAX_SHELLS => {
            for mut inner in word::commands(&script, arguments.as_deref(), growth) {
                inner.may_be_skipped |= may_be_skipped;
                add_steps(&inner, depth + 1, growth, steps);
            }
        }
        step => steps.push(CommandStep { step, may_be_skipped }),
    }
}
