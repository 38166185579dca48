//! What a batch script of Slurm's says beyond what every job may say.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::field::{FieldError, Fields, Wrong};
use super::parse::{boolean, text, texts, whole};
use crate::signal::Signal;

/// Slurm's own limit is 4 MB; what is larger than this is no script.
const MAX_SCRIPT: usize = 1 << 20;
const MAX_TASKS: u64 = 1 << 20;

/// A batch script as Slurm runs it: once, on the first node; what it starts with `srun` runs on all of them.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Batch {
    /// The script itself. Its first line names who reads it.
    pub script: String,
    /// What it calls the job. Other jobs may be called the same, as everywhere in Slurm.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub job_name: Option<String>,
    /// How many processes `srun` starts unless told otherwise; as many as there are nodes when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ntasks: Option<u32>,
    /// How many of them on each node.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ntasks_per_node: Option<u32>,
    /// The CPUs of each.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpus_per_task: Option<u32>,
    /// The GPUs of each, which the others then do not see.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus_per_task: Option<u32>,
    /// A file of its directory that its output also goes to, as a pattern: `logs/%x-%j.out`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub output: Option<String>,
    /// The same for what it writes to stderr; the file of its output when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// Add to these files rather than begin anew.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub append: bool,
    /// The signal it wants before its time is over: `B:USR1@60`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
    /// The partition that it names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub partition: Option<String>,
    /// The account that it names.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// What only a real Slurm can do, as words for its `sbatch`: `--qos=high`.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<String>,
    /// The machine it was submitted on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub submit_host: Option<String>,
}

impl Batch {
    /// How many processes `srun` starts on so many nodes.
    pub fn tasks(&self, nodes: u32) -> u32 {
        self.ntasks.unwrap_or_else(|| nodes.saturating_mul(self.ntasks_per_node.unwrap_or(1)))
    }
}

pub(super) fn batch(value: Value, errors: &mut Vec<FieldError>) -> Batch {
    let mut fields = Fields::new(value, "batch.", errors);
    let number = |value| whole(value, 1, MAX_TASKS).map(|number| number as u32);
    let batch = Batch {
        script: fields.take("script", script).unwrap_or_default(),
        job_name: fields.take("job_name", text),
        ntasks: fields.take("ntasks", number),
        ntasks_per_node: fields.take("ntasks_per_node", number),
        cpus_per_task: fields.take("cpus_per_task", number),
        gpus_per_task: fields.take("gpus_per_task", number),
        output: fields.take("output", text),
        error: fields.take("error", text),
        append: fields.take("append", boolean).unwrap_or(false),
        signal: fields.take("signal", signal),
        partition: fields.take("partition", text),
        account: fields.take("account", text),
        options: fields.take("options", options).unwrap_or_default(),
        submit_host: fields.take("submit_host", text),
    };
    if batch.script.is_empty() && !fields.said("script") {
        fields.error("script", Wrong::value("is missing: the text of the script"));
    }
    fields.finish();
    batch
}

/// Only options, each in one word: anything else would be taken for the name of a script.
fn options(value: Value) -> Result<Vec<String>, Wrong> {
    let options = texts(value)?;
    match options.iter().find(|option| !option.starts_with("--") || option.len() < 3) {
        Some(odd) => Err(Wrong::value(format!("must be options such as --qos=high, not `{odd}`"))),
        None => Ok(options),
    }
}

fn script(value: Value) -> Result<String, Wrong> {
    let script = text(value)?;
    if script.len() > MAX_SCRIPT {
        return Err(Wrong::value("must be a script of at most 1 MB"));
    }
    if script.starts_with("#!") {
        return Ok(script);
    }
    Err(Wrong::value("must begin with #! and the path of who reads it, such as #!/bin/bash"))
}

fn signal(value: Value) -> Result<String, Wrong> {
    let text = text(value)?;
    match Notice::read(&text) {
        Some(_) => Ok(text),
        None => Err(Wrong::value(format!(
            "must be a signal and the seconds before the end, such as B:USR1@60, not `{text}`"
        ))),
    }
}

/// A signal before the time is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Notice {
    /// Its number.
    pub signal: i32,
    /// How many seconds before.
    pub seconds: u64,
    /// Whether the script gets it; otherwise what `srun` has started.
    pub to_script: bool,
}

impl Notice {
    /// `[B:]SIGNAL[@SECONDS]`, as Slurm has it. `R:` says when a reservation may overlap, and nothing here.
    pub fn read(text: &str) -> Option<Notice> {
        let (flags, rest) = text.rsplit_once(':').unwrap_or(("", text));
        if !flags.chars().all(|flag| "BbRr".contains(flag)) {
            return None;
        }
        let (name, seconds) = rest.split_once('@').unwrap_or((rest, "60"));
        Some(Notice {
            signal: name.parse::<Signal>().ok()?.number(),
            seconds: seconds.parse().ok().filter(|seconds| *seconds <= 65_535)?,
            to_script: flags.contains(['B', 'b']),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notice_is_read_as_slurm_reads_it() {
        let notice = |signal, seconds, to_script| Some(Notice { signal, seconds, to_script });
        for (text, expected) in [
            ("USR1@90", notice(10, 90, false)),
            ("B:USR1@90", notice(10, 90, true)),
            ("B:SIGTERM", notice(15, 60, true)),
            ("12@5", notice(12, 5, false)),
            ("RB:10@5", notice(10, 5, true)),
            ("X:USR1", None),
            ("USR1@x", None),
            ("NONE@5", None),
            ("", None),
        ] {
            assert_eq!(Notice::read(text), expected, "{text}");
        }
    }
}
