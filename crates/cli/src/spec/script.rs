//! A job in a batch script of Slurm's.

use std::path::Path;

use muster_api::model::spec::FieldError;
use muster_launch::sbatch::{self, Around, Problem, Script};
use serde_json::{Map, Value, json};

use super::{Flags, Here};
use crate::error::Error;

/// What scripts are called. Others are known by their `#SBATCH` lines.
const ENDINGS: [&str; 4] = ["sbatch", "slurm", "sh", "bash"];

/// Whether a file is a script, rather than a job in YAML.
pub(super) fn is_script(path: &Path, text: &str) -> bool {
    let ending = path.extension().and_then(|ending| ending.to_str());
    ending.is_some_and(|ending| ENDINGS.contains(&ending)) || sbatch::is_script(text)
}

/// The fields of its job, and what of it has no effect.
pub(super) fn fields(
    path: &Path,
    text: &str,
    flags: &Flags,
    here: &Here,
) -> Result<(Map<String, Value>, Vec<String>), Error> {
    let variable = |name: &str| here.environment.get(std::ffi::OsStr::new(name))?.to_str().map(str::to_owned);
    let around = Around {
        nodes: flags.nodes.as_deref().and_then(|nodes| nodes.parse().ok()),
        on_slurm: flags.on.as_deref().is_some_and(|on| on == "slurm" || on.starts_with("slurm/")),
        variable: &variable,
    };
    let Script { mut fields, notes } =
        sbatch::read(text, &around).map_err(|problems| Error::fields(&named(path, &problems)))?;
    let name = match path.file_name().and_then(|name| name.to_str()) {
        Some("-") | None => "sbatch",
        Some(name) => name,
    };
    fields.insert("command".into(), json!([name]));
    if let Some(batch) = fields.get_mut("batch").and_then(Value::as_object_mut) {
        let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
        batch.insert("submit_host".into(), json!(host));
    }
    Ok((fields, notes))
}

fn named(path: &Path, problems: &[Problem]) -> Vec<FieldError> {
    let one = |problem: &Problem| {
        let option = if problem.option.is_empty() { String::new() } else { format!(": {}", problem.option) };
        let field = format!("{}:{}{option}", path.display(), problem.line);
        FieldError::new(field, problem.code, problem.message.clone())
    };
    problems.iter().map(one).collect()
}

/// What a script is called stays; its arguments are these.
pub(super) fn set_arguments(fields: &mut Map<String, Value>, words: &[&str]) {
    let name =
        fields.get("command").and_then(|command| command.get(0)).cloned().unwrap_or_else(|| json!("sbatch"));
    let command = std::iter::once(name).chain(words.iter().map(|word| json!(word))).collect();
    fields.insert("command".into(), Value::Array(command));
}

/// `--on slurm` with a script that names its partition is that partition.
pub(super) fn choose_partition(fields: &mut Map<String, Value>) {
    let partition = fields.get("batch").and_then(|batch| batch.get("partition")).and_then(Value::as_str);
    if let (Some("slurm"), Some(partition)) = (fields.get("on").and_then(Value::as_str), partition) {
        // Of several, Slurm takes the first that has room; here it is the first.
        let first = partition.split(',').next().unwrap_or(partition);
        let place = json!(format!("slurm/{first}"));
        fields.insert("on".into(), place);
    }
}
