//! Lists of jobs, newest first, and counts of them.
//!
//! A page begins where the last one ended (`seq < ?`), never at an offset: its cost does not grow with the jobs
//! before it. Of a spec's JSON only the labels are looked at, of those jobs that are shown or asked for by label.

use std::collections::BTreeMap;

use muster_model::array::ElementCounts;
use muster_model::spec::Kind;
use muster_model::{JobId, Reason, State, Timestamp};
use rusqlite::types::Value;
use rusqlite::{Connection, Result, Row, params_from_iter};

use super::Readers;
use super::job::words;
use super::sight::Sight;
use crate::error::{self, doing};
use crate::row::{Columns, count};

/// Which jobs to list; an empty one is all of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct JobFilter {
    /// Only jobs in one of these states; any when empty.
    pub states: Vec<State>,
    /// Only jobs of this name.
    pub name: Option<String>,
    /// Only groups that have a machine of this name of its own.
    pub machine: Option<String>,
    /// Only jobs of this kind.
    pub kind: Option<Kind>,
    /// Only jobs that have all of these labels.
    pub labels: Vec<(String, String)>,
    /// Only jobs of this person.
    pub owner: Option<String>,
    /// Only jobs that count for this workspace.
    pub workspace: Option<String>,
    /// Only jobs that whoever asks may see.
    pub sight: Sight,
    /// Only jobs before this one: the last of the page before.
    pub before_seq: Option<u64>,
}

/// A job in a list.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct JobSummaryRow {
    /// Its place in the order of submission; the cursor for the next page.
    pub seq: u64,
    /// Its id.
    pub id: JobId,
    /// What people call it.
    pub name: String,
    /// What people call it, in any script.
    pub display_name: Option<String>,
    /// What kind of job it is.
    pub kind: Kind,
    /// What its user wants to find it by.
    pub labels: BTreeMap<String, String>,
    /// Who submitted it.
    pub owner: String,
    /// Whom it counts for.
    pub workspace: String,
    /// Where it is.
    pub state: State,
    /// Why it is there.
    pub reason: Option<Reason>,
    /// The rank whose failure came first.
    pub failed_rank: Option<u32>,
    /// Kept in the queue until released.
    pub hold: bool,
    /// The current or last attempt, from 1; 0 before the first.
    pub attempt: u32,
    /// Not before this moment, while it waits between attempts.
    pub eligible_at: Option<Timestamp>,
    /// What `muster run` exits with, once it is over.
    pub exit_code: Option<i32>,
    /// Where it runs, as written.
    pub on: String,
    /// The size of its gang.
    pub nodes: u32,
    /// Devices on each node, as asked for.
    pub gpus: Option<String>,
    /// What it runs, as typed.
    pub command: String,
    /// When it was accepted.
    pub submitted_at: Timestamp,
    /// When its gang was running whole.
    pub started_at: Option<Timestamp>,
    /// When it was over.
    pub ended_at: Option<Timestamp>,
    /// Higher goes first.
    pub priority: u32,
    /// It may be ended for more important work.
    pub preemptible: bool,
    /// Each task has a node of its own.
    pub exclusive: bool,
    /// CPUs of each task, in thousandths; 0 if it does not say.
    pub cpu_millis: u64,
    /// Memory of each task; 0 if it does not say.
    pub memory_bytes: u64,
    /// The longest it may run, as written.
    pub timeout: Option<String>,
    /// How its elements are, where it is an array.
    pub elements: Option<ElementCounts>,
}

/// The order [`read_summary`] reads in. CROSS JOIN: the planner must not begin with the specs.
const SUMMARY: &str = "
    SELECT
        job.seq, job.id, job.name, job.display_name, job.kind, spec.body ->> '$.labels', job.owner, job.workspace, job.state, job.reason, job.failed_rank,
        job.hold, job.attempt, job.eligible_at, job.exit_code, job.target, spec.nodes, spec.gpus, spec.command,
        job.submitted_at, job.started_at, job.ended_at,
        job.priority, spec.body ->> '$.preemptible', spec.body ->> '$.exclusive',
        CAST(round(1000 * (spec.body ->> '$.resources.cpus')) AS INTEGER), spec.body ->> '$.resources.memory', spec.body ->> '$.timeout',
        array.total, array.running, array.succeeded, array.failed
    FROM job CROSS JOIN spec ON spec.id = job.spec LEFT JOIN array ON array.job = job.id";
/// As many parts as a list is made of, well within what SQLite takes.
const MOST_PARTS: usize = 100;
const COUNTS: &str = "SELECT state, count(*) FROM job GROUP BY state";

impl Readers {
    /// Jobs, newest first, at most `limit` of them.
    pub fn jobs(&self, filter: &JobFilter, limit: u32) -> error::Result<Vec<JobSummaryRow>> {
        let reader = self.reader()?;
        jobs(&reader, filter, limit).map_err(doing("list jobs"))
    }

    /// How many jobs are in each state; a state without jobs is left out.
    pub fn counts_by_state(&self) -> error::Result<Vec<(State, u64)>> {
        let reader = self.reader()?;
        counts_by_state(&reader).map_err(doing("count jobs"))
    }
}

fn jobs(connection: &Connection, filter: &JobFilter, limit: u32) -> Result<Vec<JobSummaryRow>> {
    let (sql, parameters) = query(filter, limit);
    let mut statement = connection.prepare_cached(&sql)?;
    statement.query_map(params_from_iter(parameters), read_summary)?.collect()
}

/// The query of a page. Which index serves it is chosen here: the planner knows nothing of how many jobs are over.
pub(super) fn query(filter: &JobFilter, limit: u32) -> (String, Vec<Value>) {
    let mut parameters = vec![Value::from(limit), Value::from(filter.before_seq.map_or(i64::MAX, count))];
    let mut conditions = vec!["job.seq < ?2".to_owned()];
    for (column, wanted) in
        [("name", &filter.name), ("owner", &filter.owner), ("workspace", &filter.workspace)]
    {
        if let Some(wanted) = wanted {
            parameters.push(Value::from(wanted.clone()));
            conditions.push(format!("job.{column} = ?{}", parameters.len()));
        }
    }
    if let Some(machine) = &filter.machine {
        parameters.push(Value::from(machine.clone()));
        let named = format!("SELECT job FROM machine_name WHERE name = ?{}", parameters.len());
        conditions.push(format!("job.id IN ({named})"));
    }
    if let Some(kind) = filter.kind {
        parameters.push(Value::from(kind.to_string()));
        conditions.push(format!("job.kind = ?{}", parameters.len()));
    }
    // Looked at job by job, but where they are listed workspace by workspace.
    let first_workspace = parameters.len() + 1;
    conditions.extend(filter.sight.condition("+job.workspace", &mut parameters));
    let workspaces = first_workspace..parameters.len() + 1;
    for (label, wanted) in &filter.labels {
        // As a path of JSON: the name of a label has neither quotes nor backslashes.
        parameters.push(Value::from(format!("$.labels.\"{label}\"")));
        parameters.push(Value::from(wanted.clone()));
        let [path, value] = [parameters.len() - 1, parameters.len()];
        let labelled = format!("SELECT body ->> ?{path} FROM spec WHERE spec.id = job.spec");
        conditions.push(format!("({labelled}) = ?{value}"));
    }
    // A name has few jobs, so its index serves best; their states are looked at one by one.
    if filter.states.is_empty() || filter.name.is_some() || filter.machine.is_some() {
        if !filter.states.is_empty() {
            conditions.push(format!("+job.state IN ({})", words(filter.states.iter())));
        }
        let conditions = conditions.join(" AND ");
        if (1..=MOST_PARTS).contains(&workspaces.len()) && filter.name.is_none() && filter.machine.is_none() {
            let each = workspaces.map(|number| format!("job.workspace = ?{number}"));
            return (of_parts(each, &conditions), parameters);
        }
        return (format!("{SUMMARY} WHERE {conditions} ORDER BY job.seq DESC LIMIT ?1"), parameters);
    }
    let each = filter.states.iter().map(|state| format!("job.state = '{state}'"));
    (of_parts(each, &conditions.join(" AND ")), parameters)
}

/// The newest of each part, then the newest of those: no more than a page of each is ever read, however many jobs are over or
/// are somebody else's.
fn of_parts(parts: impl Iterator<Item = String>, conditions: &str) -> String {
    let newest = |part: String| {
        format!(
            "SELECT seq FROM (SELECT seq FROM job WHERE {part} AND {conditions} \
             ORDER BY job.seq DESC LIMIT ?1)"
        )
    };
    let union = parts.map(newest).collect::<Vec<_>>().join(" UNION ALL ");
    format!("{SUMMARY} WHERE job.seq IN ({union}) ORDER BY job.seq DESC LIMIT ?1")
}

fn counts_by_state(connection: &Connection) -> Result<Vec<(State, u64)>> {
    let mut statement = connection.prepare_cached(COUNTS)?;
    let rows = statement.query_map([], |row| {
        let columns = &mut Columns::new(row);
        Ok((columns.parsed()?, columns.count()?))
    })?;
    rows.collect()
}

fn read_summary(row: &Row) -> Result<JobSummaryRow> {
    let columns = &mut Columns::new(row);
    Ok(JobSummaryRow {
        seq: columns.count()?,
        id: columns.parsed()?,
        name: columns.plain()?,
        display_name: columns.plain()?,
        kind: columns.word()?,
        labels: columns.optional_json()?.unwrap_or_default(),
        owner: columns.plain()?,
        workspace: columns.plain()?,
        state: columns.parsed()?,
        reason: columns.optional_json()?,
        failed_rank: columns.plain()?,
        hold: columns.plain()?,
        attempt: columns.plain()?,
        eligible_at: columns.optional_time()?,
        exit_code: columns.plain()?,
        on: columns.plain()?,
        nodes: columns.plain()?,
        gpus: columns.plain()?,
        command: columns.plain()?,
        submitted_at: columns.time()?,
        started_at: columns.optional_time()?,
        ended_at: columns.optional_time()?,
        priority: columns.plain()?,
        preemptible: columns.plain::<Option<bool>>()?.unwrap_or(false),
        exclusive: columns.plain::<Option<bool>>()?.unwrap_or(false),
        cpu_millis: columns.plain::<Option<i64>>()?.map_or(0, i64::unsigned_abs),
        memory_bytes: columns.plain::<Option<i64>>()?.map_or(0, i64::unsigned_abs),
        timeout: columns.plain()?,
        elements: read_counts(columns)?,
    })
}

fn read_counts(columns: &mut Columns) -> Result<Option<ElementCounts>> {
    let Some(total) = columns.plain::<Option<u32>>()? else { return Ok(None) };
    let (running, succeeded, failed) = (columns.plain()?, columns.plain()?, columns.plain()?);
    let waiting = total.saturating_sub(running + succeeded + failed);
    Ok(Some(ElementCounts { total, waiting, running, succeeded, failed }))
}
