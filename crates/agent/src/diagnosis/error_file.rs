//! The files in which workers of torchrun write their errors, where their main function is decorated with `record`.
//!
//! torchrun copies the file of the process that failed first to the path that it was given itself. Processes that muster starts
//! have a file each: in one that they shared the last would stand, which is a peer that the first took with it. The files are
//! the task's, in a directory of the task's: they are opened without following links, and only so much of them is read.

use std::cmp::Reverse;
use std::collections::BTreeMap;
use std::fs::{self, File};
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use muster_model::launch::Work;
use muster_model::spec::MAX_PROCESSES;
use rustix::fs::{Mode, OFlags, open};
use serde_json::Value;

use super::traceback::{Origin, origin};
use crate::supervisor::NOTES;

const VARIABLE: &str = "TORCHELASTIC_ERROR_FILE";
/// The file holds one traceback.
const MOST_BYTES: u64 = 256 << 10;

/// An error in a file.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct RecordedError {
    pub text: String,
    pub origin: Origin,
    /// When it was written.
    pub time_micros: u64,
}

/// Tells a task where to write its error, and each of its processes where there are several, unless its user has.
pub(crate) fn set_variables(task_dir: &Path, env: &mut BTreeMap<String, String>, work: Option<&mut Work>) {
    if env.get(VARIABLE).is_some_and(|path| !is_of_another_task(Path::new(path), task_dir)) {
        return;
    }
    let variable = |process| (VARIABLE.to_owned(), path(task_dir, process).display().to_string());
    env.extend([variable(None)]);
    if let Some(Work::Run(processes)) = work
        && processes.len() > 1
    {
        for (number, process) in (0..).zip(processes) {
            process.env.extend([variable(Some(number))]);
        }
    }
}

/// Whether the submitter is a task, whose variable this is.
fn is_of_another_task(path: &Path, task_dir: &Path) -> bool {
    let notes = path.parent().filter(|notes| notes.ends_with(NOTES));
    let other = notes.and_then(Path::parent);
    other.is_some_and(|other| other != task_dir && other.parent() == task_dir.parent())
}

/// Where the task, or one of its processes, writes it.
fn path(task_dir: &Path, process: Option<u32>) -> PathBuf {
    let name = match process {
        Some(process) => format!("torch-error-{process}.json"),
        None => "torch-error.json".into(),
    };
    task_dir.join(NOTES).join(name)
}

/// One writing of the file, as opposed to the others of a lane whose elements all write to the same.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct ErrorFileVersion {
    inode: u64,
    bytes: u64,
    changed_at: (i64, i64),
}

impl ErrorFileVersion {
    /// That of the file now; none without a file.
    pub(crate) fn of(task_dir: &Path) -> Option<Self> {
        let found = fs::symlink_metadata(path(task_dir, None)).ok()?;
        let changed_at = (found.ctime(), found.ctime_nsec());
        Some(Self { inode: found.ino(), bytes: found.len(), changed_at })
    }
}

/// The error that was written first of those that tell most, if the task has left any.
pub(super) fn first(task_dir: &Path) -> Option<RecordedError> {
    let processes = (0..MAX_PROCESSES).map(Some).chain([None]);
    let recorded = processes.filter_map(|process| read(&path(task_dir, process)));
    recorded.min_by_key(|recorded| (Reverse(recorded.origin), recorded.time_micros))
}

/// The error in one file.
fn read(path: &Path) -> Option<RecordedError> {
    // A FIFO would keep a reader waiting.
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = File::from(open(path, flags, Mode::empty()).ok()?);
    let metadata = file.metadata().ok().filter(|metadata| metadata.is_file())?;
    let time = metadata.modified().ok()?.duration_since(SystemTime::UNIX_EPOCH).ok()?;
    let mut text = String::new();
    file.take(MOST_BYTES).read_to_string(&mut text).ok()?;
    let text = message(&serde_json::from_str(&text).ok()?)?;
    let time_micros = u64::try_from(time.as_micros()).ok()?;
    Some(RecordedError { origin: origin(&text), text, time_micros })
}

/// `{"message": {"message": "ValueError: bad sample 42", "extraInfo": …}}`, or the message alone.
fn message(document: &Value) -> Option<String> {
    let message = &document["message"];
    message["message"].as_str().or_else(|| message.as_str()).map(str::to_owned)
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::symlink;
    use std::time::Duration;

    use muster_model::launch::Process;
    use rustix::fs::FileType;
    use tempfile::TempDir;

    use super::*;

    fn task_dir() -> TempDir {
        let dir = TempDir::new().unwrap();
        fs::create_dir(dir.path().join(NOTES)).unwrap();
        dir
    }

    fn error(dir: &TempDir) -> Option<String> {
        first(dir.path()).map(|recorded| recorded.text)
    }

    #[test]
    fn both_forms_of_the_file_are_read() {
        let dir = task_dir();
        assert_eq!(error(&dir), None);
        for (written, expected) in [
            (
                r#"{"message": {"message": "ValueError: bad sample 42", "extraInfo": {"timestamp": "1"}}}"#,
                "ValueError: bad sample 42",
            ),
            (r#"{"message": "out of data"}"#, "out of data"),
        ] {
            fs::write(path(dir.path(), None), written).unwrap();
            assert_eq!(error(&dir).unwrap(), expected);
        }
        fs::write(path(dir.path(), None), "[1, 2").unwrap();
        assert_eq!(error(&dir), None);
    }

    #[test]
    fn the_file_of_the_process_that_failed_first_counts() {
        let dir = task_dir();
        let write = |process: u32, second: u64, error: &str| {
            let path = path(dir.path(), Some(process));
            fs::write(&path, serde_json::json!({"message": {"message": error}}).to_string()).unwrap();
            let time = SystemTime::UNIX_EPOCH + Duration::from_secs(second);
            File::options().write(true).open(&path).unwrap().set_modified(time).unwrap();
        };
        write(0, 9, "RuntimeError: Connection closed by peer [10.0.0.1]:1");
        assert!(error(&dir).unwrap().contains("closed by peer"));
        write(1, 12, "IndexError: 3");
        write(3, 11, "ValueError: bad sample 42");
        assert_eq!(error(&dir).unwrap(), "ValueError: bad sample 42");
    }

    #[test]
    fn every_process_that_muster_starts_has_a_file_of_its_own() {
        let told = |env: &BTreeMap<String, String>| env.get(VARIABLE).cloned();
        let file = |name: &str| Some(format!("/task/{NOTES}/{name}"));
        let process = || Process::new(vec!["python".into()]);
        let (mut env, mut work) = (BTreeMap::new(), Work::Run(vec![process(), process()]));
        set_variables(Path::new("/task"), &mut env, Some(&mut work));
        let Work::Run(processes) = &work else { panic!("it runs") };
        assert_eq!(told(&env), file("torch-error.json"));
        assert_eq!(
            [told(&processes[0].env), told(&processes[1].env)],
            [file("torch-error-0.json"), file("torch-error-1.json")]
        );
        let (mut own, mut work) = (BTreeMap::from([(VARIABLE.to_owned(), "/mine".to_owned())]), work);
        let Work::Run(processes) = &mut work else { panic!("it runs") };
        processes.iter_mut().for_each(|process| process.env.clear());
        set_variables(Path::new("/task"), &mut own, Some(&mut work));
        let Work::Run(processes) = &work else { panic!("it runs") };
        assert_eq!((told(&own), told(&processes[0].env)), (Some("/mine".into()), None));
    }

    #[test]
    fn a_link_or_a_pipe_in_its_place_is_not_read() {
        let dir = task_dir();
        let secret = dir.path().join("secret");
        fs::write(&secret, r#"{"message": "secret"}"#).unwrap();
        symlink(&secret, path(dir.path(), None)).unwrap();
        assert_eq!(error(&dir), None);
        fs::remove_file(path(dir.path(), None)).unwrap();
        rustix::fs::mknodat(
            rustix::fs::CWD,
            path(dir.path(), None),
            FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        assert_eq!(error(&dir), None);
    }
}
