//! What the agent remembers of a task: a directory of its own, and in it one record, written before anything is done.
//!
//! The record holds what the server asked for and what the agent promised, never what can be observed: whether a task
//! runs is the supervisor's to say. Old and new agents read each other's records: fields are only ever added, and a
//! record of a newer format than this agent knows is left alone.

use std::collections::BTreeSet;
use std::fs;
use std::io::{self, ErrorKind};
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use muster_link::log::SegmentDir;
use muster_link::message::Prepare;
use muster_model::task::{Address, TaskEnd};
use muster_model::{JobId, TaskId};
use serde::{Deserialize, Serialize};

use crate::disk;

/// The format of a record; raised when an older agent must not touch it.
const FORMAT: u32 = 1;

/// What is remembered of a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    format: u32,
    pub(crate) prepare: Prepare,
    /// What was promised to its peers; kept from others until the task has ended.
    pub(crate) address: Option<Address>,
    /// Its start was begun, and may have happened.
    pub(crate) launched: bool,
    /// How long it may run; known when it is launched.
    #[serde(default)]
    pub(crate) timeout_ms: Option<u64>,
    pub(crate) ended: Option<Ended>,
}

/// How a task ended; the same for every repetition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) end: TaskEnd,
    pub(crate) at: Timestamp,
    pub(crate) started_at: Option<Timestamp>,
}

/// What is found where a record may be.
#[derive(Debug)]
pub(crate) enum Found {
    Record(Box<Record>),
    /// The server has all of it; only the task's files are kept, and how it ended.
    Forgotten(Box<Ended>),
    Nothing,
}

impl Record {
    pub(crate) fn new(prepare: Prepare, address: Option<Address>) -> Record {
        Record { format: FORMAT, prepare, address, launched: false, timeout_ms: None, ended: None }
    }
}

/// The directory of one task.
#[derive(Debug, Clone)]
pub(crate) struct TaskDir {
    path: PathBuf,
}

impl TaskDir {
    const RECORD: &str = "record.json";
    const FORGOTTEN: &str = "forgotten.json";
    const KEPT: [&str; 3] = ["work", "output", TaskDir::FORGOTTEN];

    pub(crate) fn new(tasks: &Path, task: &TaskId) -> TaskDir {
        TaskDir { path: tasks.join(task.to_string()) }
    }

    pub(crate) fn path(&self) -> &Path {
        &self.path
    }

    /// Where the task runs, unless it runs in place.
    pub(crate) fn work(&self) -> PathBuf {
        self.path.join("work")
    }

    /// Where the working directory is made; it gets its name when it is whole.
    pub(crate) fn unfinished_work(&self) -> PathBuf {
        self.path.join("work.new")
    }

    pub(crate) fn output(&self) -> PathBuf {
        self.path.join("output")
    }

    pub(crate) fn log(&self) -> SegmentDir {
        SegmentDir::new(self.path.join("log"))
    }

    pub(crate) fn write(&self, record: &Record) -> io::Result<()> {
        disk::write_json(&self.path.join(TaskDir::RECORD), record)
    }

    pub(crate) fn read(&self) -> io::Result<Found> {
        let Some(record) = disk::read_json::<Record>(&self.path.join(TaskDir::RECORD))? else {
            let forgotten = disk::read_json::<Record>(&self.path.join(TaskDir::FORGOTTEN))?;
            let ended = forgotten.and_then(|record| record.ended);
            return Ok(ended.map_or(Found::Nothing, |ended| Found::Forgotten(Box::new(ended))));
        };
        if record.format > FORMAT {
            return Err(io::Error::new(ErrorKind::Unsupported, "the record is of a newer agent"));
        }
        Ok(Found::Record(Box::new(record)))
    }

    /// Drop the record, the log and whatever holds the task's environment; keep its files. The record goes last, so
    /// that a forget which was cut short is asked for again.
    pub(crate) fn forget(&self) -> io::Result<()> {
        for entry in fs::read_dir(&self.path)? {
            let entry = entry?;
            let name = entry.file_name();
            if name.to_str().is_some_and(|name| name == TaskDir::RECORD || TaskDir::KEPT.contains(&name)) {
                continue;
            }
            if entry.file_type()?.is_dir() {
                disk::remove_tree(&entry.path())?;
            } else {
                disk::remove_file(&entry.path())?;
            }
        }
        match fs::rename(self.path.join(TaskDir::RECORD), self.path.join(TaskDir::FORGOTTEN)) {
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(()),
            result => result,
        }
    }

    pub(crate) fn remove(&self) -> io::Result<()> {
        disk::remove_tree(&self.path)
    }
}

/// The tasks that have a directory, with it. Other names are none of our business.
pub(crate) fn scan(tasks: &Path) -> io::Result<Vec<TaskId>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(tasks)? {
        found.extend(entry?.file_name().to_str().and_then(|name| name.parse().ok()));
    }
    Ok(found)
}

/// Remove the directories of all tasks of a job, also those that were forgotten, but for these.
pub(crate) fn remove_job(tasks: &Path, job: &JobId, except: &BTreeSet<TaskId>) -> io::Result<()> {
    let of_job = scan(tasks)?.into_iter().filter(|task| task.attempt.job == *job && !except.contains(task));
    let mut removed = Ok(());
    for task in of_job {
        // One that cannot be removed keeps no other.
        removed = TaskDir::new(tasks, &task).remove().and(removed);
    }
    removed
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(task: &TaskId) -> Record {
        let prepare = Prepare {
            task: task.clone(),
            bundle: None,
            in_place: None,
            ports: 1,
            devices: vec![],
            memory_bytes: None,
        };
        Record::new(prepare, Some(Address { ip: [127, 64, 0, 1].into(), ports: vec![20_000] }))
    }

    fn task_dir(tasks: &Path, task: &str) -> (TaskId, TaskDir) {
        let task: TaskId = task.parse().unwrap();
        let dir = TaskDir::new(tasks, &task);
        disk::make_dir(dir.path()).unwrap();
        (task, dir)
    }

    #[test]
    fn a_record_is_read_back_and_a_newer_one_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let (task, dir) = task_dir(home.path(), "task0.job_0123456789.1");
        assert!(matches!(dir.read().unwrap(), Found::Nothing));
        let mut record = record(&task);
        dir.write(&record).unwrap();
        assert!(matches!(dir.read().unwrap(), Found::Record(read) if *read == record));
        record.format = FORMAT + 1;
        dir.write(&record).unwrap();
        assert!(dir.read().is_err());
    }

    #[test]
    fn forgetting_keeps_the_files_of_the_task_and_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        let (task, dir) = task_dir(home.path(), "task0.job_0123456789.1");
        let end = TaskEnd { failure: None, log_bytes: Some(7) };
        let ended = Ended { end, at: Timestamp::UNIX_EPOCH, started_at: None };
        dir.write(&Record { ended: Some(ended.clone()), ..record(&task) }).unwrap();
        for kept in [dir.work(), dir.output(), dir.log().path().to_owned()] {
            fs::create_dir(&kept).unwrap();
            fs::write(kept.join("file"), "x").unwrap();
        }
        fs::write(dir.path().join("launch.json"), "SECRET=1").unwrap();
        dir.forget().unwrap();
        dir.forget().unwrap();
        let mut left: Vec<_> = fs::read_dir(dir.path())
            .unwrap()
            .map(|entry| entry.unwrap().file_name().into_string().unwrap())
            .collect();
        left.sort();
        assert_eq!(left, ["forgotten.json", "output", "work"]);
        assert!(dir.work().join("file").exists());
        assert!(matches!(dir.read().unwrap(), Found::Forgotten(remembered) if *remembered == ended));
    }

    #[test]
    fn removing_a_job_leaves_other_jobs() {
        let home = tempfile::tempdir().unwrap();
        let live = "task2.job_0123456789.2";
        for task in ["task0.job_0123456789.1", "task1.job_0123456789.2", live, "task0.job_000000000a.1"] {
            task_dir(home.path(), task);
        }
        fs::create_dir(home.path().join("not a task")).unwrap();
        let except = BTreeSet::from([live.parse().unwrap()]);
        remove_job(home.path(), &"job_0123456789".parse().unwrap(), &except).unwrap();
        let left = BTreeSet::from_iter(scan(home.path()).unwrap());
        assert_eq!(left, BTreeSet::from([live, "task0.job_000000000a.1"].map(|task| task.parse().unwrap())));
        assert!(home.path().join("not a task").exists());
    }
}
