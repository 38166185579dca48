//! From a command line and a YAML file to the spec of a job.
//!
//! Flags are fields set on top of the file. What a value means is decided by the model, which reports every problem
//! at once; only what belongs to this machine (files, directories, the environment) is looked at here.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::path::{Path, PathBuf};

use muster_api::model::JobSpec;
use muster_api::model::spec::FieldError;
use serde_json::{Map, Value};

use crate::error::{Code, Error};

mod file;
mod flags;
#[cfg(test)]
mod tests;
mod workdir;

pub(crate) use flags::Flags;
pub(crate) use workdir::Workdir;

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

/// A job that can be submitted, as far as can be known here.
#[derive(Debug)]
pub(crate) struct Request {
    /// What is sent: the fields as given, for the server to judge.
    pub value: Value,
    /// The same as the model reads it.
    pub spec: JobSpec,
    pub workdir: Workdir,
}

/// Puts a job together, or says everything that is wrong with it.
pub(crate) fn assemble(flags: &Flags, here: &Here) -> Result<Request, Error> {
    let (mut fields, file_folder) = match &flags.file {
        Some(path) => file::read(path, here)?,
        None => (Map::new(), here.directory.clone()),
    };
    let given = flags.fields(here)?;
    for (path, value) in &given.fields {
        set(&mut fields, path, value.clone());
    }
    let workdir = workdir::find(flags.workdir.as_deref(), &fields, &file_folder, here);
    if let Ok(workdir) = &workdir {
        fields.insert("workdir".into(), Value::String(workdir.text.clone()));
    }
    let mut errors = given.errors;
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
            if !spec.in_place {
                workdir.check_copy(here)?;
            }
            Ok(Request { value, spec, workdir })
        }
        _ => Err(with_file(Error::fields(&errors), flags, &errors)),
    }
}

/// A problem that does not name a flag is in the file.
fn with_file(error: Error, flags: &Flags, errors: &[FieldError]) -> Error {
    let in_file = errors.iter().any(|error| !error.field.starts_with('-'));
    match &flags.file {
        Some(path) if in_file => {
            error.hint(format!("fields without -- before them are those of {}", path.display()))
        }
        Some(_) => error,
        None if errors.iter().any(|error| error.field == "command") => {
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
