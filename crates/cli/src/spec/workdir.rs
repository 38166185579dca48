//! Which directory is the code.

use std::io;
use std::path::{Path, PathBuf};

use muster_api::model::spec::{FieldCode, FieldError};
use serde_json::{Map, Value};

use super::Here;
use crate::error::{Code, Error, system_message};

/// The code directory.
#[derive(Debug)]
pub(crate) struct Workdir {
    /// Absolute, without links.
    pub path: PathBuf,
    pub text: String,
    /// Somebody wrote it down; otherwise it is just where the shell is.
    is_chosen: bool,
}

/// Finds the code directory: the flag's, else the file's, else the current one.
pub(super) fn find(
    flag: Option<&Path>,
    fields: &Map<String, Value>,
    file_folder: &Path,
    here: &Here,
) -> Result<Workdir, FieldError> {
    let (field, path, is_chosen) = match (flag, fields.get("workdir")) {
        (Some(path), _) => ("--workdir", here.directory.join(path), true),
        (None, Some(Value::String(path))) => ("workdir", file_folder.join(expanded(path, here)), true),
        (None, _) => ("workdir", here.directory.clone(), false),
    };
    let wrong = |message: String| FieldError::new(field, FieldCode::WorkdirUnusable, message);
    let found = path.canonicalize().map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => FieldError::new(
            field,
            FieldCode::WorkdirMissing,
            format!("there is no directory `{}`", path.display()),
        ),
        _ => wrong(format!("cannot open `{}`: {}", path.display(), system_message(&error))),
    })?;
    if !found.is_dir() {
        return Err(wrong(format!("`{}` is not a directory", path.display())));
    }
    let text =
        found.to_str().ok_or_else(|| wrong(format!("`{}` is not valid UTF-8; rename it", path.display())))?;
    Ok(Workdir { text: text.to_owned(), path: found, is_chosen })
}

/// No shell has read the file, so `~` is still there.
fn expanded(path: &str, here: &Here) -> PathBuf {
    match (path.strip_prefix("~/").or((path == "~").then_some("")), here.home()) {
        (Some(rest), Some(home)) => home.join(rest),
        _ => PathBuf::from(path),
    }
}

impl Workdir {
    /// Refuses what nobody means to copy, unless they say that they mean it.
    pub fn check_copy(&self, here: &Here) -> Result<(), Error> {
        let is_home =
            here.home().and_then(|home| home.canonicalize().ok()).is_some_and(|home| home == self.path);
        if self.is_chosen || !(is_home || self.path == Path::new("/")) {
            return Ok(());
        }
        let what = if is_home { "your home directory" } else { "the root directory" };
        Err(Error::new(
            Code::WorkdirTooWide,
            format!(
                "the current directory is {what} ({}), and a job's code directory is copied whole",
                self.path.display()
            ),
        ))
    }
}
