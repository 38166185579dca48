//! Which file a step's command means, and what is true when it cannot be run.

use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::{self, Read};
use std::path::{Path, PathBuf};

use super::file::{NotExecutable, Outcome};

/// What `execvp` of the C library uses for a process without a `PATH`.
const DEFAULT_PATH: &str = "/usr/local/bin:/bin:/usr/bin";

/// The files that a command may mean, in the order in which they are tried. Relative ones count from the task's own
/// directory, as in any shell.
pub(super) fn candidates(command: &str, env: &BTreeMap<String, String>) -> Vec<PathBuf> {
    if command.contains('/') || command.is_empty() {
        return vec![PathBuf::from(command)];
    }
    let path = env.get("PATH").map_or(DEFAULT_PATH, String::as_str);
    path.split(':')
        .map(|directory| Path::new(if directory.is_empty() { "." } else { directory }).join(command))
        .collect()
}

/// Why none of the candidates could be run. `error` is the kernel's last word, on the candidate `tried`.
pub(super) fn explain(
    command: &str,
    tried: &Path,
    candidates: &[PathBuf],
    cwd: &Path,
    error: &io::Error,
) -> Outcome {
    let command = command.to_owned();
    let not_executable = |why| Outcome::NotExecutable { command: command.clone(), why };
    match error.raw_os_error() {
        // The kernel says the same of a missing program and of one whose interpreter is missing.
        Some(libc::ENOENT | libc::ENOTDIR | libc::ENAMETOOLONG) => {
            let existing =
                candidates.iter().map(|candidate| cwd.join(candidate)).find(|candidate| candidate.is_file());
            match existing {
                Some(file) => not_executable(missing_interpreter(&file)),
                None => Outcome::NotFound { command },
            }
        }
        Some(libc::EACCES | libc::EPERM) if cwd.join(tried).is_dir() => {
            not_executable(NotExecutable::Directory)
        }
        Some(libc::EACCES | libc::EPERM) => not_executable(NotExecutable::Permission),
        Some(libc::ENOEXEC) => not_executable(NotExecutable::Format),
        _ => Outcome::LaunchFailed { message: format!("`{command}` cannot be run: {error}") },
    }
}

fn missing_interpreter(file: &Path) -> NotExecutable {
    match interpreter(file) {
        Ok(Some(interpreter)) => NotExecutable::MissingInterpreter(interpreter),
        Ok(None) | Err(_) => NotExecutable::MissingLoader,
    }
}

/// The program that the first line of a script names.
fn interpreter(file: &Path) -> io::Result<Option<String>> {
    let mut start = Vec::new();
    // The kernel does not look further either.
    File::open(file)?.take(256).read_to_end(&mut start)?;
    let Some(line) = start.strip_prefix(b"#!") else { return Ok(None) };
    let line = line.split(|byte| *byte == b'\n').next().unwrap_or_default();
    // A script saved on Windows names an interpreter that ends in a carriage return: it shows in the message.
    let words = String::from_utf8_lossy(line).replace('\r', "\\r");
    Ok(words.split_ascii_whitespace().next().map(str::to_owned))
}

/// Whether a directory can be a task's working directory, said better than by the kernel's number alone.
pub(super) fn explain_directory(cwd: &Path, error: &io::Error) -> Outcome {
    let what = match fs::metadata(cwd) {
        Ok(metadata) if !metadata.is_dir() => "is not a directory".to_owned(),
        _ => error.to_string(),
    };
    Outcome::LaunchFailed { message: format!("working directory {}: {what}", cwd.display()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn env(path: &str) -> BTreeMap<String, String> {
        BTreeMap::from([("PATH".to_owned(), path.to_owned())])
    }

    #[test]
    fn a_plain_name_is_looked_up_on_the_tasks_path() {
        assert_eq!(candidates("true", &env("/a:/b")), [Path::new("/a/true"), Path::new("/b/true")]);
        assert_eq!(candidates("true", &env("/a::bin")), ["/a/true", "./true", "bin/true"].map(PathBuf::from));
        assert_eq!(candidates("true", &BTreeMap::new()).len(), 3);
    }

    #[test]
    fn a_name_with_a_slash_is_a_file() {
        assert_eq!(candidates("./train.sh", &env("/a:/b")), [Path::new("./train.sh")]);
        assert_eq!(candidates("", &env("/a:/b")), [Path::new("")]);
    }

    #[test]
    fn the_interpreter_is_the_first_word_of_the_first_line() {
        let home = tempfile::tempdir().unwrap();
        let script = home.path().join("script");
        for (text, expected) in [
            ("#!/no/such/python -u\nprint()", Some("/no/such/python")),
            ("#! /bin/bash\r\necho", Some("/bin/bash\\r")),
            ("#!", None),
            ("echo hello", None),
            ("", None),
        ] {
            fs::write(&script, text).unwrap();
            assert_eq!(interpreter(&script).unwrap().as_deref(), expected, "{text:?}");
        }
    }
}
