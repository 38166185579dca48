//! Jobs in full: the job as the state machine knows it, rebuilt from its rows.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use muster_model::bundle::Source;
use muster_model::job::Policy;
use muster_model::spec::Kind;
use muster_model::task::Placement;
use muster_model::{BundleId, Job, JobId, JobSpec, Reason, State, Task, Timestamp};
use rusqlite::{Connection, OptionalExtension, Result, Row};

use super::Readers;
use crate::error::{self, doing};
use crate::row::Columns;

/// A job and everything stored about it, save its environment.
#[derive(Debug, Clone, PartialEq)]
pub struct JobRow {
    /// Its place in the order of submission.
    pub seq: u64,
    /// The job, with the gang of its current or last attempt.
    pub job: Job,
    /// What people call it.
    pub name: String,
    /// Who submitted it.
    pub owner: String,
    /// Whom it counts for.
    pub workspace: String,
    /// What was asked for; jobs that were loaded together share it.
    pub spec: Arc<JobSpec>,
    /// The job it is a part of.
    pub parent: Option<JobId>,
    /// Its place among the parent's children.
    pub index: Option<u32>,
    /// Higher goes first.
    pub priority: u32,
    /// Its code.
    pub bundle: Option<BundleId>,
    /// Where its code came from.
    pub source: Option<Source>,
    /// When its logs were removed to make room.
    pub logs_removed_at: Option<Timestamp>,
    /// When it was accepted.
    pub submitted_at: Timestamp,
    /// The names that machines of it have of their own, by rank.
    pub machine_names: BTreeMap<u32, String>,
}

/// One try at a job, without its gang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct AttemptRow {
    /// Which, from 1.
    pub number: u32,
    /// When it was given its place.
    pub started_at: Timestamp,
    /// When its last task was gone.
    pub ended_at: Option<Timestamp>,
    /// Why it ended.
    pub reason: Option<Reason>,
    /// The rank whose failure came first.
    pub failed_rank: Option<u32>,
}

/// The order [`read_job`] reads in; the spec's body comes last, and is parsed once for all jobs that share it.
const JOB: &str = "
    SELECT
        job.seq, job.id, job.state, job.ending, job.attempt, job.retried, job.reason, job.failed_rank, job.hold,
        job.eligible_at, job.generation, job.started_at, job.ended_at, job.name, job.owner, job.workspace,
        job.parent, job.array_index, job.priority, job.bundle, job.source, job.logs_removed_at, job.submitted_at,
        spec.id, spec.body
    FROM job CROSS JOIN spec ON spec.id = job.spec";
/// In the order [`read_task`] reads in.
const TASKS: &str = "
    SELECT attempt, node, devices, phase, address, started_at, ended_at, \"end\", parting FROM task
    WHERE job = ?1 AND attempt = ?2 ORDER BY rank";
/// The newest of each rank up to an attempt: SQLite takes the other columns from the row that has the greatest.
const GANG: &str = "
    SELECT max(attempt), node, devices, phase, address, started_at, ended_at, \"end\", parting FROM task
    WHERE job = ?1 AND attempt <= ?2 AND ?2 <= (SELECT attempt FROM job WHERE id = ?1) GROUP BY rank ORDER BY rank";
const MACHINE_NAMES: &str = "SELECT rank, name FROM machine_name WHERE job = ?1";
const PROGRESS: &str = "SELECT progress FROM array WHERE job = ?1";
const ATTEMPTS: &str =
    "SELECT number, started_at, ended_at, reason, failed_rank FROM attempt WHERE job = ?1 ORDER BY number";

/// Specs already parsed, by the number of their row.
type Specs = HashMap<i64, Arc<JobSpec>>;

/// Whose a job is.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Belongs {
    /// Who submitted it.
    pub owner: String,
    /// Whom it counts for.
    pub workspace: String,
    /// It works where somebody else's files may be: in a directory of the machine, or in an account's home.
    pub is_at_home: bool,
}

const BELONGS: &str = "
    SELECT job.owner, job.workspace, job.kind = 'machine' OR coalesce(spec.body ->> '$.in_place', 0)
    FROM job JOIN spec ON spec.id = job.spec WHERE job.id = ?1";

const HAS_JOBS_OF: &str = "SELECT 1 FROM job WHERE owner = ?1 LIMIT 1";

impl Readers {
    /// Every job that is not over, in the order of submission: what a server starts from.
    pub fn load_unfinished(&self) -> error::Result<Vec<JobRow>> {
        let reader = self.reader()?;
        load_unfinished(&reader).map_err(doing("load the jobs that are not over"))
    }

    /// Whose a job is, and of which workspace.
    pub fn belongs(&self, id: &JobId) -> error::Result<Option<Belongs>> {
        let reader = self.reader()?;
        belongs(&reader, id).map_err(doing("read whose a job is"))
    }

    /// Whether anybody has run jobs under this name.
    pub fn has_jobs_of(&self, owner: &str) -> error::Result<bool> {
        let reader = self.reader()?;
        let found = reader.prepare_cached(HAS_JOBS_OF).and_then(|mut asked| asked.exists([owner]));
        found.map_err(doing("read who owns jobs"))
    }

    /// A job, if there is one of this id.
    pub fn job(&self, id: &JobId) -> error::Result<Option<JobRow>> {
        let reader = self.reader()?;
        job(&reader, id).map_err(doing("read a job"))
    }

    /// Every attempt at a job, the first one first.
    pub fn attempts(&self, job: &JobId) -> error::Result<Vec<AttemptRow>> {
        let reader = self.reader()?;
        attempts(&reader, job).map_err(doing("read a job's attempts"))
    }

    /// The gang as it was in an attempt, by rank: members that were started before and not in it belong to it, too.
    pub fn tasks(&self, job: &JobId, attempt: u32) -> error::Result<Vec<Task>> {
        let reader = self.reader()?;
        gang(&reader, GANG, job, attempt).map_err(doing("read a job's tasks"))
    }
}

fn belongs(connection: &Connection, id: &JobId) -> Result<Option<Belongs>> {
    let read = |row: &Row| {
        let columns = &mut Columns::new(row);
        Ok(Belongs { owner: columns.plain()?, workspace: columns.plain()?, is_at_home: columns.plain()? })
    };
    connection.prepare_cached(BELONGS)?.query_row([id.as_str()], read).optional()
}

fn load_unfinished(connection: &Connection) -> Result<Vec<JobRow>> {
    // One transaction, so that a job and its tasks are of one generation.
    let transaction = connection.unchecked_transaction()?;
    let sql = format!(
        "{JOB} WHERE job.state IN ({}) ORDER BY job.seq",
        words(State::ALL.iter().filter(|s| !s.is_terminal()))
    );
    let mut specs = Specs::new();
    let mut statement = transaction.prepare_cached(&sql)?;
    let mut rows = statement.query([])?;
    let mut jobs = Vec::new();
    while let Some(row) = rows.next()? {
        let mut job = read_job(row, &mut specs)?;
        add_tasks(&transaction, &mut job)?;
        jobs.push(job);
    }
    Ok(jobs)
}

fn job(connection: &Connection, id: &JobId) -> Result<Option<JobRow>> {
    let transaction = connection.unchecked_transaction()?;
    let mut statement = transaction.prepare_cached(&format!("{JOB} WHERE job.id = ?1"))?;
    let found = statement.query_row([id.as_str()], |row| read_job(row, &mut Specs::new())).optional()?;
    found.map(|mut job| add_tasks(&transaction, &mut job).map(|()| job)).transpose()
}

fn add_tasks(connection: &Connection, row: &mut JobRow) -> Result<()> {
    if row.spec.kind == Kind::Machine {
        let read = |row: &Row| Ok((row.get(0)?, row.get(1)?));
        let mut statement = connection.prepare_cached(MACHINE_NAMES)?;
        row.machine_names = statement.query_map([row.job.id.as_str()], read)?.collect::<Result<_>>()?;
    }
    if row.job.policy.array.is_some() {
        let read = |row: &Row| Columns::new(row).json();
        row.job.array =
            connection.prepare_cached(PROGRESS)?.query_row([row.job.id.as_str()], read).optional()?;
    }
    if row.job.attempt > 0 {
        // Only where members come one by one does the last attempt not have them all.
        let sql = if row.job.policy.independent { GANG } else { TASKS };
        row.job.tasks = gang(connection, sql, &row.job.id, row.job.attempt)?;
    }
    Ok(())
}

fn gang(connection: &Connection, sql: &str, job: &JobId, attempt: u32) -> Result<Vec<Task>> {
    connection.prepare_cached(sql)?.query_map((job.as_str(), attempt), read_task)?.collect()
}

fn attempts(connection: &Connection, job: &JobId) -> Result<Vec<AttemptRow>> {
    connection.prepare_cached(ATTEMPTS)?.query_map([job.as_str()], read_attempt)?.collect()
}

fn read_job(row: &Row, specs: &mut Specs) -> Result<JobRow> {
    let columns = &mut Columns::new(row);
    let seq = columns.count()?;
    let mut job = read_machine(columns)?;
    let (name, owner, workspace) = (columns.plain()?, columns.plain()?, columns.plain()?);
    let (parent, index, priority) = (columns.optional_parsed()?, columns.plain()?, columns.plain()?);
    let (bundle, source) = (columns.optional_parsed()?, columns.optional_json()?);
    let (logs_removed_at, submitted_at) = (columns.optional_time()?, columns.time()?);
    let spec_id = columns.plain()?;
    let spec = match specs.get(&spec_id) {
        Some(spec) => Arc::clone(spec),
        None => Arc::clone(specs.entry(spec_id).or_insert(Arc::new(columns.json()?))),
    };
    // What it has now is what counts; those that share the spec keep theirs.
    let spec = match spec.priority == priority {
        true => spec,
        false => Arc::new(JobSpec { priority, ..(*spec).clone() }),
    };
    job.policy = Policy::from(&*spec);
    Ok(JobRow {
        seq,
        job,
        name,
        owner,
        workspace,
        spec,
        parent,
        index,
        priority,
        bundle,
        source,
        logs_removed_at,
        submitted_at,
        machine_names: BTreeMap::new(),
    })
}

/// What the state machine keeps, without its tasks and with a policy that the caller replaces by the spec's.
fn read_machine(columns: &mut Columns) -> Result<Job> {
    Ok(Job {
        id: columns.parsed()?,
        state: columns.parsed()?,
        ending: columns.optional_json()?,
        attempt: columns.plain()?,
        retried: columns.plain()?,
        reason: columns.optional_json()?,
        failed_rank: columns.plain()?,
        hold: columns.plain()?,
        eligible_at: columns.optional_time()?,
        generation: columns.count()?,
        started_at: columns.optional_time()?,
        ended_at: columns.optional_time()?,
        policy: Policy {
            nodes: 0,
            on_failure: Default::default(),
            retries: Default::default(),
            leader: false,
            independent: false,
            array: None,
        },
        array: None,
        tasks: Vec::new(),
    })
}

fn read_task(row: &Row) -> Result<Task> {
    let columns = &mut Columns::new(row);
    Ok(Task {
        attempt: columns.plain()?,
        placement: Placement { node: columns.parsed()?, devices: columns.json()? },
        phase: columns.word()?,
        address: columns.optional_json()?,
        started_at: columns.optional_time()?,
        ended_at: columns.optional_time()?,
        end: columns.optional_json()?,
        parting: columns.optional_word()?,
    })
}

fn read_attempt(row: &Row) -> Result<AttemptRow> {
    let columns = &mut Columns::new(row);
    Ok(AttemptRow {
        number: columns.plain()?,
        started_at: columns.time()?,
        ended_at: columns.optional_time()?,
        reason: columns.optional_json()?,
        failed_rank: columns.plain()?,
    })
}

/// States as a list of SQL texts.
pub(super) fn words<'a>(states: impl Iterator<Item = &'a State>) -> String {
    states.map(|state| format!("'{state}'")).collect::<Vec<_>>().join(", ")
}
