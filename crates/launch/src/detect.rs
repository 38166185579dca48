//! Which framework a command uses and which platforms it was written for, from its words and from the code it runs.

use muster_model::spec::Command;
use muster_model::{Face, Framework};

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

/// What a command and its code tell.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Detection {
    /// The framework; several where the code speaks for more than one equally.
    pub frameworks: Vec<Found<Framework>>,
    /// The platforms.
    pub faces: Vec<Found<Face>>,
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
    /// `torchrun`, `python -m torch.distributed.run` or `.launch`.
    Torchrun,
    /// `accelerate launch`.
    Accelerate,
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
}

/// Looks at a command and its code.
pub fn detect(_command: &Command, _code: &dyn Code) -> Detection {
    Detection::default()
}

/// The launcher that a command starts, if it does.
pub fn launcher(_command: &Command) -> Option<Launcher> {
    None
}
