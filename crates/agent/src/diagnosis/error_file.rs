//! The file in which a worker of torchrun writes its error, where its main function is decorated with `record`.
//!
//! torchrun copies the file of the process that failed first to the path that it was given itself. The file is the task's, in a
//! directory of the task's: it is opened without following links, and only so much of it is read.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::Read;
use std::path::{Path, PathBuf};

use rustix::fs::{FileType, Mode, OFlags, fstat, open};
use serde_json::Value;

use crate::supervisor::NOTES;

const VARIABLE: &str = "TORCHELASTIC_ERROR_FILE";
const NAME: &str = "torch-error.json";
/// The file holds one traceback.
const MOST_BYTES: u64 = 256 << 10;

/// Tells a task where to write it, unless its user has.
pub(crate) fn set_variable(task_dir: &Path, env: &mut BTreeMap<String, String>) {
    env.entry(VARIABLE.into()).or_insert_with(|| path(task_dir).display().to_string());
}

fn path(task_dir: &Path) -> PathBuf {
    task_dir.join(NOTES).join(NAME)
}

/// The error in the file, if the task has left one.
pub(super) fn read(task_dir: &Path) -> Option<String> {
    // A FIFO would keep a reader waiting.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let descriptor = open(path(task_dir), flags, Mode::empty()).ok()?;
    if FileType::from_raw_mode(fstat(&descriptor).ok()?.st_mode) != FileType::RegularFile {
        return None;
    }
    let mut text = String::new();
    File::from(descriptor).take(MOST_BYTES).read_to_string(&mut text).ok()?;
    message(&serde_json::from_str(&text).ok()?)
}

/// `{"message": {"message": "ValueError: bad sample 42", "extraInfo": …}}`, or the message alone.
fn message(document: &Value) -> Option<String> {
    let message = &document["message"];
    message["message"].as_str().or_else(|| message.as_str()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::fs;
    use std::os::unix::fs::symlink;

    use tempfile::TempDir;

    use super::*;

    fn task_dir() -> TempDir {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join(NOTES)).unwrap();
        dir
    }

    #[test]
    fn both_forms_of_the_file_are_read() {
        let dir = task_dir();
        assert_eq!(read(dir.path()), None);
        for (written, expected) in [
            (
                r#"{"message": {"message": "ValueError: bad sample 42", "extraInfo": {"timestamp": "1"}}}"#,
                "ValueError: bad sample 42",
            ),
            (r#"{"message": "out of data"}"#, "out of data"),
        ] {
            fs::write(path(dir.path()), written).unwrap();
            assert_eq!(read(dir.path()).unwrap(), expected);
        }
        fs::write(path(dir.path()), "[1, 2").unwrap();
        assert_eq!(read(dir.path()), None);
    }

    #[test]
    fn a_link_or_a_pipe_in_its_place_is_not_read() {
        let dir = task_dir();
        let secret = dir.path().join("secret");
        fs::write(&secret, r#"{"message": "secret"}"#).unwrap();
        symlink(&secret, path(dir.path())).unwrap();
        assert_eq!(read(dir.path()), None);
        fs::remove_file(path(dir.path())).unwrap();
        rustix::fs::mknodat(rustix::fs::CWD, path(dir.path()), FileType::Fifo, Mode::RUSR | Mode::WUSR, 0)
            .unwrap();
        assert_eq!(read(dir.path()), None);
    }
}
