//! Batch scripts of Slurm's: what the `#SBATCH` lines of one ask for, as the fields of a job.
//!
//! The lines are read as `sbatch` reads them. What muster has is set, what only a real Slurm has is kept for it, what has
//! no effect here is said, and what would change what the script means is refused: nothing is dropped in silence.

mod ask;
mod dependency;
mod header;
mod known;
#[cfg(test)]
mod tests;

use muster_model::spec::FieldCode;
use serde_json::{Map, Value};

use ask::Ask;

/// What is known where the script is read.
pub struct Around<'a> {
    /// The nodes that somebody wants, whatever the script says.
    pub nodes: Option<u32>,
    /// Whether it goes to a Slurm.
    pub on_slurm: bool,
    /// A variable of the shell that it is submitted from.
    pub variable: &'a dyn Fn(&str) -> Option<String>,
}

/// A script that was read.
#[derive(Debug, Clone, PartialEq)]
pub struct Script {
    /// The fields of its job, without a command.
    pub fields: Map<String, Value>,
    /// What of it has no effect here, in words.
    pub notes: Vec<String>,
}

/// What is wrong with a line of it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Problem {
    /// Which line, from 1.
    pub line: usize,
    /// The option, as it is written there.
    pub option: String,
    /// How it is wrong.
    pub code: FieldCode,
    /// What is wrong with it.
    pub message: String,
}

/// Whether a text is such a script: it begins as scripts do, and has one of their lines.
pub fn is_script(text: &str) -> bool {
    text.starts_with("#!") && header::has_options(text)
}

/// Reads a script, or says everything that is wrong with it.
pub fn read(text: &str, around: &Around) -> Result<Script, Vec<Problem>> {
    if !text.starts_with("#!") {
        let message =
            "a batch script begins with #! and the path of who reads it, such as #!/bin/bash".to_owned();
        return Err(vec![Problem { line: 1, option: String::new(), code: FieldCode::InvalidValue, message }]);
    }
    let mut ask = Ask::default();
    let mut problems = Vec::new();
    for line in header::lines(text) {
        match line.options() {
            Ok(options) => {
                for option in options {
                    ask.take(line.number, &option).unwrap_or_else(|problem| problems.push(problem));
                }
            }
            Err(problem) => problems.push(problem),
        }
    }
    if !problems.is_empty() {
        return Err(problems);
    }
    Ok(ask.script(text, around))
}
