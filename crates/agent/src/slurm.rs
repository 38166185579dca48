//! Programs that scripts of Slurm's call, in a task that has no such programs, or whose own would not know of it.
//!
//! | called as | by | does |
//! | --- | --- | --- |
//! | `srun` | the script | starts processes on the job's nodes, and stays with them |
//! | `scontrol` | the script | tells the names of nodes |
//! | `muster-step` | `srun`, on each node | starts that node's processes, and ends with them or with it |
//! | `muster-batch` | the task's supervisor | runs a script whose output also goes to files |
//!
//! They are links to this binary in the task's directory, which comes first on its `PATH`. To other nodes `srun` goes as any
//! member of the gang does, with its key; a node's processes are told what the script changed of its variables, and have the
//! rest of their own task's.

mod batch;
mod job;
mod pattern;
mod real;
mod scontrol;
mod srun;
mod step;
mod wire;

use std::ffi::OsStr;
use std::io::{self, Write};
use std::path::Path;
use std::process::ExitCode;

/// The variable that names the task's directory.
pub(crate) const TASK_DIR: &str = "MUSTER_TASK_DIR";

/// One of these programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Program {
    Srun,
    Scontrol,
    Step,
    Batch,
}

impl Program {
    /// Which one this binary was called as.
    pub fn called(as_what: &OsStr) -> Option<Program> {
        match Path::new(as_what).file_name()?.to_str()? {
            "srun" => Some(Program::Srun),
            "scontrol" => Some(Program::Scontrol),
            "muster-step" => Some(Program::Step),
            "muster-batch" => Some(Program::Batch),
            _ => None,
        }
    }

    /// Runs it, with the words that follow its name.
    pub fn run(self, words: Vec<String>) -> ExitCode {
        match self {
            Program::Srun => srun::run(&words),
            Program::Scontrol => scontrol::run(&words),
            Program::Step => step::run(),
            Program::Batch => batch::run(&words),
        }
    }
}

/// To whoever reads the script's stderr, in one piece.
fn say(program: &str, what: &str) {
    let _ = io::stderr().write_all(format!("{program}: {what}\n").as_bytes());
}
