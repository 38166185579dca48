//! What the agent remembers of a task: a directory of its own, and in it one record, written before anything is done.
//!
//! The record holds what the server asked for, what the agent promised and how it ended, never what can be observed:
//! whether a task runs is the supervisor's to say. It is a file of lines that only ever grows, so that a task costs one
//! file and not one for each thing that happens to it; a line that a kill or a full disk cut short is as good as never
//! written. Old and new agents read each other's records: fields and lines are only ever added, and a record of a newer
//! format than this agent knows is left alone.

use std::collections::BTreeSet;
use std::fs::{self, OpenOptions};
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use jiff::Timestamp;
use muster_link::log::SegmentDir;
use muster_link::message::{DiskLimits, Prepare};
use muster_model::node::Account;
use muster_model::task::{Address, Outputs, TaskEnd};
use muster_model::{JobId, TaskId};
use serde::{Deserialize, Serialize};

use crate::account::Owner;
use crate::bundle::Key;
use crate::supervisor::{LAUNCH, damaged_file};
use crate::{disk, secret};

/// The format of a record; raised when an older agent must not touch it.
const FORMAT: u32 = 1;
/// The directory of tasks, in an agent's directory.
const TASKS: &str = "tasks";

/// What was asked for and promised.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Record {
    format: u32,
    #[serde(with = "prepare")]
    pub(crate) prepare: Prepare,
    /// What was promised to its peers; kept from others until the task has ended.
    pub(crate) address: Option<Address>,
    /// What it says was lost: it stands in for the record of a task that was launched.
    #[serde(skip)]
    pub(crate) is_damaged: bool,
}

/// How a task ended; the same for every repetition.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub(crate) struct Ended {
    pub(crate) end: TaskEnd,
    pub(crate) at: Timestamp,
    pub(crate) started_at: Option<Timestamp>,
    /// What became of the files it was to leave behind, once that is known: then the line is written again.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub(crate) outputs: Option<Outputs>,
}

/// A line of the record.
#[derive(Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Line {
    Task(Box<Record>),
    Ended(Ended),
    Files(Files),
}

/// What a task left that is over.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
pub(crate) struct Files {
    /// How much room they take.
    pub(crate) bytes: u64,
    /// Whether another attempt of its job may come and want them.
    pub(crate) continues: bool,
}

/// All that a record says.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct Contents {
    pub(crate) record: Option<Box<Record>>,
    pub(crate) ended: Option<Ended>,
    pub(crate) files: Option<Files>,
}

/// What is found where a record may be.
#[derive(Debug, PartialEq)]
pub(crate) enum Found {
    Task(Box<Record>, Option<Ended>),
    /// The server has all of it; only the task's files are kept, and how it ended.
    Forgotten(Ended),
    Nothing,
}

impl Record {
    pub(crate) fn new(prepare: Prepare, address: Option<Address>) -> Record {
        Record { format: FORMAT, prepare, address, is_damaged: false }
    }

    /// What stands in for a record that cannot be read.
    pub(crate) fn damaged(task: TaskId) -> Record {
        let prepare = Prepare {
            task,
            bundle: None,
            previous: None,
            outputs: Vec::new(),
            in_place: None,
            goes_on: false,
            ports: 0,
            shared_port: None,
            devices: Vec::new(),
            memory_bytes: None,
            account: None,
            volumes: Vec::new(),
            disk: DiskLimits::default(),
        };
        Record { is_damaged: true, ..Record::new(prepare, None) }
    }

    /// The account that the task runs under, where that is not the agent's own: known once it was looked up.
    pub(crate) fn account(&self) -> Option<&Account> {
        self.address.as_ref()?.account.as_ref()
    }

    /// The bundle to unpack, and for whom.
    pub(crate) fn bundle(&self) -> Option<Key> {
        let owner = self.account().map(|account| Owner { uid: account.uid, gid: account.gid });
        self.prepare.bundle.clone().map(|id| Key { id, owner })
    }
}

/// What a task leaves in it is kept, in the directory of the task.
pub(crate) fn output_in(dir: &Path) -> PathBuf {
    dir.join("output")
}

/// The directory of one task.
#[derive(Debug, Clone)]
pub(crate) struct TaskDir {
    path: PathBuf,
}

impl TaskDir {
    pub(crate) const RECORD: &str = "record";
    const FORGOTTEN: &str = "forgotten";
    const UPPER: &str = "upper";
    const KEPT: [&str; 4] = ["work", TaskDir::UPPER, "output", TaskDir::FORGOTTEN];

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

    /// What the task changes, where its working directory is an overlay. It is there if and only if it is one.
    pub(crate) fn upper(&self) -> PathBuf {
        self.path.join(TaskDir::UPPER)
    }

    /// The overlay's own.
    pub(crate) fn scratch(&self) -> PathBuf {
        self.path.join("scratch")
    }

    /// The files that its launch contract has.
    pub(crate) fn contract(&self) -> PathBuf {
        self.path.join("contract")
    }

    /// The directory of another task of this node.
    pub(crate) fn of_other(&self, task: &TaskId) -> TaskDir {
        TaskDir::new(self.path.parent().unwrap_or(&self.path), task)
    }

    pub(crate) fn output(&self) -> PathBuf {
        output_in(&self.path)
    }

    pub(crate) fn log(&self) -> SegmentDir {
        SegmentDir::new(self.path.join("log"))
    }

    /// Write down what was asked for and promised. The directory is there.
    pub(crate) fn write(&self, record: &Record) -> io::Result<()> {
        self.append(&Line::Task(Box::new(record.clone())))
    }

    /// Write down how it ended.
    pub(crate) fn write_ended(&self, ended: &Ended) -> io::Result<()> {
        self.append(&Line::Ended(ended.clone()))
    }

    /// Write down what a task left that is over.
    pub(crate) fn write_files(&self, files: Files) -> io::Result<()> {
        self.append(&Line::Files(files))
    }

    /// The same of one that was forgotten.
    pub(crate) fn write_files_of_forgotten(&self, files: Files) -> io::Result<()> {
        self.append_to(TaskDir::FORGOTTEN, &Line::Files(files))
    }

    /// How much room the task's files take.
    pub(crate) fn usage(&self) -> u64 {
        [self.work(), self.upper(), self.output()].iter().map(|path| disk::usage(path)).sum()
    }

    /// The record of a task that is over, as it would be if all of it were written at once.
    pub(crate) fn text(record: &Record, ended: &Ended) -> io::Result<Vec<u8>> {
        let mut bytes = serde_json::to_vec(&Line::Task(Box::new(record.clone())))?;
        bytes.push(b'\n');
        serde_json::to_writer(&mut bytes, &Line::Ended(ended.clone()))?;
        bytes.push(b'\n');
        Ok(bytes)
    }

    fn append(&self, line: &Line) -> io::Result<()> {
        self.append_to(TaskDir::RECORD, line)
    }

    fn append_to(&self, name: &str, line: &Line) -> io::Result<()> {
        // A line end first, since the line before may have been cut short.
        let mut bytes = vec![b'\n'];
        serde_json::to_writer(&mut bytes, line)?;
        bytes.push(b'\n');
        let mut options = OpenOptions::new();
        let mut file = options.append(true).create(true).mode(0o600).open(self.path.join(name))?;
        file.write_all(&bytes)
    }

    pub(crate) fn read(&self) -> io::Result<Found> {
        if let Some(text) = read(&self.path.join(TaskDir::RECORD))? {
            let Contents { record, ended, .. } = parse(&text)?;
            return Ok(record.map_or(Found::Nothing, |record| Found::Task(record, ended)));
        }
        Ok(self.contents()?.ended.map_or(Found::Nothing, Found::Forgotten))
    }

    /// What is known of the task, whether it was forgotten or not.
    pub(crate) fn contents(&self) -> io::Result<Contents> {
        let text = match read(&self.path.join(TaskDir::RECORD))? {
            Some(text) => Some(text),
            None => read(&self.path.join(TaskDir::FORGOTTEN))?,
        };
        parse(&text.unwrap_or_default())
    }

    /// The bundle that its working directory may show.
    pub(crate) fn bundle(&self) -> Option<Key> {
        self.contents().ok()?.record?.bundle()
    }

    /// Whether there is a record, so that reading is worth while: a node may have ten thousand forgotten tasks.
    pub(crate) fn is_remembered(&self) -> bool {
        self.path.join(TaskDir::RECORD).exists()
    }

    /// Whether only its files are kept.
    pub(crate) fn is_forgotten(&self) -> bool {
        !self.is_remembered() && self.path.join(TaskDir::FORGOTTEN).exists()
    }

    /// Whether it was given to a supervisor, or was about to be.
    pub(crate) fn was_launched(&self) -> bool {
        self.path.join(LAUNCH).exists()
    }

    /// Whether it was launched, and its record says nothing: the record is written before anything is done, and forgetting a task removes it last.
    pub(crate) fn is_damaged(&self) -> bool {
        let is_known = || match self.read() {
            Ok(found) => found != Found::Nothing,
            // A newer agent's.
            Err(error) => error.kind() == ErrorKind::Unsupported,
        };
        self.was_launched() && !self.is_forgotten() && !is_known()
    }

    /// Drop the record, the log and whatever holds the task's environment; keep its files. The record goes last, so
    /// that a forget which was cut short is asked for again.
    pub(crate) fn forget(&self) -> io::Result<()> {
        secret::remove(&self.path)?;
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
}

fn read(path: &Path) -> io::Result<Option<Vec<u8>>> {
    match fs::read(path) {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

fn parse(text: &[u8]) -> io::Result<Contents> {
    let mut contents = Contents::default();
    for line in text.split(|byte| *byte == b'\n') {
        match serde_json::from_slice(line) {
            Ok(Line::Task(record)) if record.format > FORMAT => {
                return Err(io::Error::new(ErrorKind::Unsupported, "the record is of a newer agent"));
            }
            Ok(Line::Task(record)) => contents.record = Some(record),
            Ok(Line::Ended(end)) => contents.ended = Some(end),
            Ok(Line::Files(files)) => contents.files = Some(files),
            // Cut short, or from a newer agent that knows how to do without us understanding it.
            Err(_) => {}
        }
    }
    Ok(contents)
}

/// What was asked for, as agents of every age write and read it: the first ones had a bundle's manifest beside its id.
mod prepare {
    use muster_link::message::Prepare;
    use serde::de::Error as _;
    use serde::ser::Error as _;
    use serde::{Deserialize, Deserializer, Serialize, Serializer};
    use serde_json::{Value, json};

    pub(super) fn serialize<S: Serializer>(prepare: &Prepare, serializer: S) -> Result<S::Ok, S::Error> {
        let mut value = serde_json::to_value(prepare).map_err(S::Error::custom)?;
        if let Some(id @ Value::String(_)) = value.get("bundle").cloned() {
            value["bundle"] = json!({"id": id, "manifest": {"chunks": []}});
        }
        value.serialize(serializer)
    }

    pub(super) fn deserialize<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Prepare, D::Error> {
        let mut value = Value::deserialize(deserializer)?;
        if let Some(id) = value.get("bundle").and_then(|bundle| bundle.get("id")).cloned() {
            value["bundle"] = id;
        }
        serde_json::from_value(value).map_err(D::Error::custom)
    }
}

/// How many records an agent's directory has, and which of them are damaged.
pub fn check_records(agent: &Path) -> io::Result<(u64, Vec<String>)> {
    let tasks = agent.join(TASKS);
    let found = match scan(&tasks) {
        Err(error) if error.kind() == ErrorKind::NotFound => Vec::new(),
        found => found?,
    };
    let (mut whole, mut damaged) = (0, Vec::new());
    for task in found {
        let dir = TaskDir::new(&tasks, &task);
        if dir.is_damaged() {
            damaged.push(format!("{task}/{}", TaskDir::RECORD));
        } else if let Some(name) = damaged_file(dir.path()) {
            damaged.push(format!("{task}/{name}"));
        } else {
            whole += u64::from(dir.is_remembered());
        }
    }
    Ok((whole, damaged))
}

/// The tasks that have a directory, with it. Other names are none of our business.
pub(crate) fn scan(tasks: &Path) -> io::Result<Vec<TaskId>> {
    let mut found = Vec::new();
    for entry in fs::read_dir(tasks)? {
        found.extend(entry?.file_name().to_str().and_then(|name| name.parse().ok()));
    }
    Ok(found)
}

/// The tasks of a job that have a directory, also those that were forgotten, but for these.
pub(crate) fn of_job(tasks: &Path, job: &JobId, except: &BTreeSet<TaskId>) -> io::Result<Vec<TaskId>> {
    let all = scan(tasks)?.into_iter();
    Ok(all.filter(|task| task.attempt.job == *job && !except.contains(task)).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(task: &TaskId) -> Record {
        let prepare = Prepare {
            task: task.clone(),
            bundle: None,
            previous: None,
            outputs: vec![],
            in_place: None,
            goes_on: false,
            ports: 1,
            shared_port: None,
            devices: vec![],
            memory_bytes: None,
            account: None,
            volumes: vec![],
            disk: Default::default(),
        };
        Record::new(prepare, Some(Address::new([127, 64, 0, 1], vec![20_000])))
    }

    fn task_dir(tasks: &Path, task: &str) -> (TaskId, TaskDir) {
        let task: TaskId = task.parse().unwrap();
        let dir = TaskDir::new(tasks, &task);
        disk::make_dir(dir.path()).unwrap();
        (task, dir)
    }

    fn ended() -> Ended {
        let end = TaskEnd::new(None, Some(7));
        Ended { end, at: Timestamp::UNIX_EPOCH, started_at: None, outputs: None }
    }

    #[test]
    fn a_record_is_read_back_and_a_newer_one_is_left_alone() {
        let home = tempfile::tempdir().unwrap();
        let (task, dir) = task_dir(home.path(), "task0.job_0123456789.1");
        assert_eq!(dir.read().unwrap(), Found::Nothing);
        let mut record = record(&task);
        dir.write(&record).unwrap();
        assert_eq!(dir.read().unwrap(), Found::Task(Box::new(record.clone()), None));
        dir.write_ended(&ended()).unwrap();
        assert_eq!(dir.read().unwrap(), Found::Task(Box::new(record.clone()), Some(ended())));
        record.format = FORMAT + 1;
        dir.write(&record).unwrap();
        assert!(dir.read().is_err());
    }

    #[test]
    fn agents_of_every_age_read_each_others_bundles() {
        let home = tempfile::tempdir().unwrap();
        let (task, dir) = task_dir(home.path(), "task0.job_0123456789.1");
        let bundle = format!("bundle_{}", "0".repeat(64));
        let old = format!(
            r#"{{"task":{{"format":1,"prepare":{{"task":"{task}","bundle":{{"id":"{bundle}","manifest":{{"chunks":
            []}}}},"in_place":null,"ports":1,"devices":[],"memory_bytes":null}},"address":null}}}}"#
        );
        fs::write(dir.path().join(TaskDir::RECORD), old.replace('\n', "")).unwrap();
        let contents = dir.contents().unwrap();
        let record = contents.record.unwrap();
        assert_eq!(record.prepare.bundle, Some(bundle.parse().unwrap()));
        // What we write is what the old ones read.
        let new: serde_json::Value = serde_json::to_value(&record).unwrap();
        assert_eq!(new["prepare"]["bundle"]["id"], bundle.as_str());
        assert!(new["prepare"]["bundle"]["manifest"]["chunks"].is_array());
        // And what a server says today is read as well.
        let plain = serde_json::json!({"format": 1, "prepare": {"task": task.to_string(), "bundle": bundle,
            "in_place": null, "ports": 1, "devices": [], "memory_bytes": null}, "address": null});
        assert_eq!(serde_json::from_value::<Record>(plain).unwrap(), *record);
    }

    #[test]
    fn a_line_that_was_cut_short_was_never_written() {
        let home = tempfile::tempdir().unwrap();
        let (task, dir) = task_dir(home.path(), "task0.job_0123456789.1");
        let (record, path) = (record(&task), dir.path().join(TaskDir::RECORD));
        dir.write(&record).unwrap();
        let first = fs::read(&path).unwrap().len();
        dir.write_ended(&ended()).unwrap();
        let whole = fs::read(&path).unwrap();
        for cut in 0..whole.len() - 1 {
            fs::write(&path, &whole[..cut]).unwrap();
            // Without its line end, a line that is all there counts.
            let is_there = cut + 1 >= first;
            let found = if is_there { Found::Task(Box::new(record.clone()), None) } else { Found::Nothing };
            assert_eq!(dir.read().unwrap(), found, "{cut} of {}", whole.len());
            dir.write(&record).unwrap();
            dir.write_ended(&ended()).unwrap();
            assert_eq!(dir.read().unwrap(), Found::Task(Box::new(record.clone()), Some(ended())), "{cut}");
        }
    }

    #[test]
    fn forgetting_keeps_the_files_of_the_task_and_nothing_else() {
        let home = tempfile::tempdir().unwrap();
        let (task, dir) = task_dir(home.path(), "task0.job_0123456789.1");
        dir.write(&record(&task)).unwrap();
        dir.write_ended(&ended()).unwrap();
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
        assert_eq!(left, ["forgotten", "output", "work"]);
        assert!(dir.work().join("file").exists());
        assert_eq!(dir.read().unwrap(), Found::Forgotten(ended()));
    }

    #[test]
    fn the_tasks_of_a_job_are_found_and_no_others() {
        let home = tempfile::tempdir().unwrap();
        let live = "task2.job_0123456789.2";
        for task in ["task0.job_0123456789.1", "task1.job_0123456789.2", live, "task0.job_000000000a.1"] {
            task_dir(home.path(), task);
        }
        fs::create_dir(home.path().join("not a task")).unwrap();
        let except = BTreeSet::from([live.parse().unwrap()]);
        let found = of_job(home.path(), &"job_0123456789".parse().unwrap(), &except).unwrap();
        let expected = ["task0.job_0123456789.1", "task1.job_0123456789.2"].map(|task| task.parse().unwrap());
        assert_eq!(BTreeSet::from_iter(found), BTreeSet::from(expected));
    }
}
