//! A database of its own for each test, and jobs to put into it.

use muster_model::job::Policy;
use muster_model::task::Placement;
use muster_model::{Event, Job, JobId, JobSpec, State, Timestamp};
use rusqlite::types::Value;
use serde_json::json;
use tempfile::TempDir;

use crate::change::{Change, NewEvent, NewJob};
use crate::read::Readers;
use crate::store::Store;
use crate::write::Writer;

/// A store in a directory that goes with it.
pub(crate) struct Fixture {
    pub writer: Writer,
    pub readers: Readers,
    pub dir: TempDir,
}

impl Fixture {
    pub fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let Store { writer, readers } = Store::open(dir.path()).unwrap();
        Self { writer, readers, dir }
    }

    /// Closes the database and opens it again, as a new process would.
    pub fn reopen(self) -> Self {
        let Self { writer, readers, dir } = self;
        drop((writer, readers));
        let Store { writer, readers } = Store::open(dir.path()).unwrap();
        Self { writer, readers, dir }
    }

    /// Stores a job; what was stored comes back.
    pub fn add(&mut self, new: NewJob) -> NewJob {
        self.writer.commit(&[Change::NewJob(Box::new(new.clone()))]).unwrap();
        new
    }

    /// Applies an event and stores what came of it.
    pub fn apply(&mut self, job: &mut Job, event: Event, now: Timestamp) {
        let change = change(job, event, now);
        self.writer.commit(&[change]).unwrap();
    }

    /// Every row of every table whose row, as text, contains the given one.
    pub fn rows_with(&self, text: &str) -> Vec<String> {
        let reader = self.readers.reader().unwrap();
        let mut tables = reader.prepare("SELECT name FROM sqlite_schema WHERE type = 'table'").unwrap();
        let tables: Vec<String> =
            tables.query_map([], |row| row.get(0)).unwrap().collect::<Result<_, _>>().unwrap();
        let mut found = Vec::new();
        for table in tables {
            let mut statement = reader.prepare(&format!("SELECT * FROM {table}")).unwrap();
            let columns = statement.column_count();
            let mut rows = statement.query([]).unwrap();
            while let Some(row) = rows.next().unwrap() {
                let row: Vec<String> =
                    (0..columns).map(|i| format!("{:?}", row.get::<_, Value>(i).unwrap())).collect();
                let row = format!("{table}: {}", row.join(" "));
                found.extend(row.contains(text).then_some(row));
            }
        }
        found
    }

    /// How many rows a table has.
    pub fn count(&self, table: &str) -> u64 {
        let sql = format!("SELECT count(*) FROM {table}");
        self.readers.reader().unwrap().query_row(&sql, [], |row| row.get::<_, i64>(0)).unwrap() as u64
    }
}

/// A moment, in microseconds.
pub(crate) fn at(micros: i64) -> Timestamp {
    Timestamp::from_microsecond(micros).unwrap()
}

pub(crate) fn spec(nodes: u32) -> JobSpec {
    let value =
        json!({"command": ["python", "train.py"], "nodes": nodes, "retries": {"max": 1, "backoff": "250ms"}});
    JobSpec::from_value(value).unwrap()
}

/// A job of two tasks with an id of its own.
pub(crate) fn new_job(number: u64) -> NewJob {
    let spec = spec(2);
    let policy = Policy::from(&spec);
    NewJob {
        job: Job::new(JobId::from_random(number), policy),
        name: "train".into(),
        owner: "ada".into(),
        workspace: "default".into(),
        spec,
        parent: None,
        index: None,
        bundle: None,
        source: None,
        environment: None,
        idempotency: None,
        submitted_at: at(1_000_000),
    }
}

/// A job that is already over; the store does not ask how it came there.
pub(crate) fn finished(number: u64) -> NewJob {
    let mut new = new_job(number);
    new.job.state = State::Succeeded;
    new.job.ended_at = Some(at(2_000_000));
    new
}

/// What an event makes of a job, as a change.
pub(crate) fn change(job: &mut Job, event: Event, now: Timestamp) -> Change {
    let before_generation = job.generation;
    let applied = job.apply(event, now).unwrap();
    Change::Job { before_generation, job: Box::new(job.clone()), touched: applied.touched, at: now }
}

pub(crate) fn admit(nodes: u32) -> Event {
    let place = |i| Placement { node: format!("node_n{i}").parse().unwrap(), devices: vec![i, i + 1] };
    Event::Admit { placements: (0..nodes).map(place).collect() }
}

pub(crate) fn event(job: Option<&JobId>, kind: &str) -> Change {
    let body = json!({"kind": kind});
    Change::Event(NewEvent { job: job.cloned(), attempt: None, at: at(5), kind: kind.into(), body })
}
