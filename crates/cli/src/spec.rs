//! From a command line and a YAML file to the spec of a job.
//!
//! Flags are fields set on top of the file. What a value means is decided by the model, which reports every problem
//! at once; only what belongs to this machine (files, directories, the environment, what scripts import) is looked at
//! here.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use muster_api::model::JobSpec;
use muster_api::model::spec::{FieldError, Kind};
use serde_json::{Map, Value};

use crate::error::{Code, Error};

mod file;
mod flags;
mod launch;
mod script;
#[cfg(test)]
mod tests;
mod workdir;

pub(crate) use flags::Flags;
pub(crate) use launch::{Folder, Reasons, command as launched};
pub(crate) use workdir::Workdir;

/// What a job file is called when nobody has named it.
pub(crate) const JOB_FILE: &str = "muster.yaml";

/// The machine a command is typed on.
pub(crate) struct Here {
    pub directory: PathBuf,
    pub environment: BTreeMap<OsString, OsString>,
}

impl Here {
    pub fn now() -> Result<Self, Error> {
        let directory = std::env::current_dir().map_err(|error| {
            Error::io(Code::CurrentDirectoryMissing, "find the current directory", &error)
        })?;
        Ok(Self { directory, environment: std::env::vars_os().collect() })
    }

    fn home(&self) -> Option<&Path> {
        self.environment.get(std::ffi::OsStr::new("HOME")).filter(|home| !home.is_empty()).map(Path::new)
    }
}

/// What flags go on top of.
pub(crate) struct Base {
    fields: Map<String, Value>,
    /// Paths in the fields are relative to it.
    folder: PathBuf,
    /// The file they are from.
    file: Option<PathBuf>,
    /// What of it has no effect.
    notes: Vec<String>,
}

impl Base {
    /// Nothing: only what the flags say.
    pub fn nothing(here: &Here) -> Self {
        Self { fields: Map::new(), folder: here.directory.clone(), file: None, notes: Vec::new() }
    }

    /// A file, `-` for stdin: a job in YAML, or a batch script of Slurm's. Some of what a script says depends on flags.
    pub fn read(file: Option<&Path>, flags: &Flags, here: &Here) -> Result<Self, Error> {
        let Some(path) = file else { return Ok(Self::nothing(here)) };
        let (text, folder) = file::read(path, here)?;
        let (fields, folder, notes) = if script::is_script(path, &text) {
            let (fields, notes) = script::fields(path, &text, flags, here)?;
            // To Slurm, all paths are those of where the shell is.
            (fields, here.directory.clone(), notes)
        } else {
            (file::fields(&text, path)?, folder, Vec::new())
        };
        Ok(Self { fields, folder, file: Some(path.to_owned()), notes })
    }

    /// The spec of another job.
    pub fn of_job(spec: &JobSpec, here: &Here) -> Result<Self, Error> {
        match serde_json::to_value(spec) {
            Ok(Value::Object(fields)) => Ok(Self { fields, ..Self::nothing(here) }),
            Ok(_) => Err(Error::new(Code::ServerForeign, "the job's spec is not a map of fields")),
            Err(error) => Err(Error::encoding("JSON", error)),
        }
    }

    /// Takes a field away, named as in errors: `timeout`, `env.A`. False when it is not there.
    pub fn unset(&mut self, path: &str) -> bool {
        fn remove(fields: &mut Map<String, Value>, path: &str) -> bool {
            // The name of a variable may itself have a dot in it.
            if fields.remove(path).is_some() {
                return true;
            }
            match path.split_once('.') {
                Some((first, rest)) => {
                    fields.get_mut(first).and_then(Value::as_object_mut).is_some_and(|it| remove(it, rest))
                }
                None => false,
            }
        }
        remove(&mut self.fields, path)
    }

    pub fn set(&mut self, field: &str, value: Value) {
        self.fields.insert(field.into(), value);
    }

    pub fn set_name(&mut self, name: String) {
        self.fields.insert("name".into(), Value::String(name));
    }
}

/// A job that can be submitted, as far as can be known here.
#[derive(Debug)]
pub(crate) struct Request {
    /// What is sent: the fields as given, for the server to judge.
    pub value: Value,
    /// The same as the model reads it.
    pub spec: JobSpec,
    /// None if the code is not to be taken from here.
    pub workdir: Option<Workdir>,
    /// Why it is started as it is.
    pub reasons: Reasons,
}

impl Request {
    /// The directory that is to be copied, if any is.
    pub fn code(&self) -> Option<&Workdir> {
        self.workdir.as_ref().filter(|_| !self.spec.in_place)
    }

    fn set(&mut self, field: &str, value: Value) {
        if let Value::Object(fields) = &mut self.value {
            fields.insert(field.to_owned(), value);
        }
    }

    fn unset(&mut self, field: &str) {
        if let Value::Object(fields) = &mut self.value {
            fields.remove(field);
        }
    }
}

/// Puts a job together, or says everything that is wrong with it.
pub(crate) fn assemble(flags: &Flags, mut base: Base, here: &Here) -> Result<Request, Error> {
    let given = flags.apply(&mut base.fields, here)?;
    script::choose_partition(&mut base.fields);
    if base.fields.get("kind").and_then(Value::as_str) == Some("machine") {
        // It has no code, so no directory of this machine is looked at.
        return judge(flags, base, given, Ok(None));
    }
    let workdir = workdir::find(flags.workdir.as_deref(), &base.fields, &base.folder, here);
    if let Ok(workdir) = &workdir {
        base.fields.insert("workdir".into(), Value::String(workdir.text.clone()));
    }
    let mut request = judge(flags, base, given, workdir.map(Some))?;
    if let Some(workdir) = request.code() {
        workdir.check_copy(here)?;
    }
    launch::fill(&mut request, here).map_err(|error| Error::fields(&[error]))?;
    Ok(request)
}

/// The same for a job whose code is on the server already, and which is another one again: no directory of this machine is
/// looked at.
pub(crate) fn assemble_without_code(
    flags: &Flags,
    mut base: Base,
    old: &JobSpec,
    here: &Here,
) -> Result<Request, Error> {
    let given = flags.apply(&mut base.fields, here)?;
    let mut request = judge(flags, base, given, Ok(None))?;
    launch::refill(&mut request, old);
    launch::fill(&mut request, here).map_err(|error| Error::fields(&[error]))?;
    Ok(request)
}

/// The same for a machine, which has no code and no command.
pub(crate) fn assemble_machine(
    flags: &Flags,
    labels: &[(String, String)],
    exclusive: Option<bool>,
    here: &Here,
) -> Result<Request, Error> {
    let mut base = Base::nothing(here);
    let given = flags.apply(&mut base.fields, here)?;
    base.fields.insert("kind".into(), Value::String(Kind::Machine.to_string()));
    if !labels.is_empty() {
        let labels = labels.iter().map(|(name, value)| (name.clone(), Value::String(value.clone())));
        base.fields.insert("labels".into(), Value::Object(labels.collect()));
    }
    if let Some(exclusive) = exclusive {
        base.fields.insert("exclusive".into(), Value::Bool(exclusive));
    }
    if flags.own_home {
        base.fields.insert("own_home".into(), Value::Bool(true));
    }
    judge(flags, base, given, Ok(None))
}

fn judge(
    flags: &Flags,
    base: Base,
    mut errors: Vec<FieldError>,
    workdir: Result<Option<Workdir>, FieldError>,
) -> Result<Request, Error> {
    let Base { fields, folder, file, mut notes } = base;
    let has_display_name = fields.get("display_name").is_some_and(|name| !name.is_null());
    let value = Value::Object(fields);
    let spec = match JobSpec::from_value(value.clone()) {
        Ok(spec) => Some(spec),
        Err(wrong) => {
            errors.extend(wrong.into_iter().map(|error| flags.named(error)));
            None
        }
    };
    let workdir = workdir.map_err(|error| errors.push(error));
    match (spec, workdir) {
        (Some(spec), Ok(workdir)) if errors.is_empty() => {
            if let Some(shown) = spec.display_name.as_ref().filter(|_| !has_display_name) {
                let name = spec.name.clone().unwrap_or_else(|| spec.default_name());
                notes.push(format!("`{shown}` is the display name of the job; its name is `{name}`"));
            }
            Ok(Request { value, spec, workdir, reasons: Reasons::noted(notes) })
        }
        _ => Err(with_file(Error::fields(&errors), file.as_deref(), &folder, &errors)),
    }
}

/// A problem that does not name a flag is in the file.
fn with_file(error: Error, file: Option<&Path>, folder: &Path, errors: &[FieldError]) -> Error {
    let in_file = errors.iter().any(|error| !error.field.starts_with('-'));
    match file {
        Some(path) if in_file => {
            error.hint(format!("fields without -- before them are those of {}", path.display()))
        }
        Some(_) => error,
        None if errors.iter().any(|error| error.field == "command") => {
            if folder.join(JOB_FILE).is_file() {
                return error.hint(format!("there is a job file here: muster run {JOB_FILE}"));
            }
            error.hint("write it after the flags: muster run -- python train.py")
        }
        None => error,
    }
}

/// Sets a field on top of what a file says. A map in the file keeps its other fields; something else that stands
/// where a map belongs is left for the model to complain about.
fn set(fields: &mut Map<String, Value>, path: &[&str], value: Value) {
    match path {
        [] => {}
        [last] => match (fields.get_mut(*last), value) {
            (Some(Value::Object(present)), Value::Object(added)) => present.extend(added),
            (Some(present), Value::Object(_)) if !present.is_null() => {}
            (_, value) => {
                fields.insert((*last).to_owned(), value);
            }
        },
        [first, rest @ ..] => {
            let inner = fields.entry(*first).or_insert(Value::Null);
            if inner.is_null() {
                *inner = Value::Object(Map::new());
            }
            match inner {
                Value::Object(inner) => set(inner, rest, value),
                // `retries: 3` is short for `retries: {max: 3}`.
                _ if *first == "retries" => *inner = value,
                _ => {}
            }
        }
    }
}
