//! What happened, in order.

use muster_model::{JobId, Timestamp};
use rusqlite::types::Value as SqlValue;
use rusqlite::{Connection, OptionalExtension, Result, Row, params_from_iter};
use serde_json::Value;

use super::Readers;
use super::sight::Sight;
use crate::error::{self, doing};
use crate::row::{Columns, count};

/// Something that happened.
#[derive(Debug, Clone, PartialEq)]
pub struct EventRow {
    /// Grows with time and is never given twice.
    pub seq: u64,
    /// The job it happened to.
    pub job: Option<JobId>,
    /// The attempt it belongs to.
    pub attempt: Option<u32>,
    /// When.
    pub at: Timestamp,
    /// What.
    pub kind: String,
    /// The details of this kind.
    pub body: Value,
}

const EVENTS: &str =
    "SELECT seq, job, attempt, at, kind, body FROM event WHERE seq > ?1 ORDER BY seq LIMIT ?2";
const EVENTS_OF_JOB: &str =
    "SELECT seq, job, attempt, at, kind, body FROM event WHERE seq > ?1 AND job = ?3 ORDER BY seq LIMIT ?2";
/// SQLite's own memory of the numbers given, so that removing the newest row does not take the number back.
const LARGEST: &str = "SELECT seq FROM sqlite_sequence WHERE name = ?1";

impl Readers {
    /// Events after a number, of one job or of all, in order, at most `limit` of them.
    pub fn events(&self, job: Option<&JobId>, after_seq: u64, limit: u32) -> error::Result<Vec<EventRow>> {
        let reader = self.reader()?;
        events(&reader, job, after_seq, limit).map_err(doing("read events"))
    }

    /// Events after a number of all jobs that are in sight, in order, at most `limit` of them; and the number up to which there
    /// are no others.
    pub fn events_in(
        &self,
        sight: &Sight,
        after_seq: u64,
        limit: u32,
    ) -> error::Result<(Vec<EventRow>, u64)> {
        let reader = self.reader()?;
        events_in(&reader, sight, after_seq, limit).map_err(doing("read events"))
    }

    /// The largest number an event was ever given; 0 before the first.
    pub fn largest_event_seq(&self) -> error::Result<u64> {
        let reader = self.reader()?;
        largest(&reader, "event").map_err(doing("read the newest event's number"))
    }

    /// The largest number a job was ever given; 0 before the first.
    pub fn largest_job_seq(&self) -> error::Result<u64> {
        let reader = self.reader()?;
        largest(&reader, "job").map_err(doing("read the newest job's number"))
    }
}

fn events(connection: &Connection, job: Option<&JobId>, after_seq: u64, limit: u32) -> Result<Vec<EventRow>> {
    match job {
        Some(job) => connection
            .prepare_cached(EVENTS_OF_JOB)?
            .query_map((count(after_seq), limit, job.as_str()), read_event)?
            .collect(),
        None => {
            connection.prepare_cached(EVENTS)?.query_map((count(after_seq), limit), read_event)?.collect()
        }
    }
}

fn events_in(
    connection: &Connection,
    sight: &Sight,
    after_seq: u64,
    limit: u32,
) -> Result<(Vec<EventRow>, u64)> {
    let transaction = connection.unchecked_transaction()?;
    let mut parameters = vec![SqlValue::from(count(after_seq)), SqlValue::from(limit)];
    let seen = sight.condition("+workspace", &mut parameters).map_or_else(String::new, |seen| {
        format!("AND EXISTS (SELECT 1 FROM job WHERE job.id = event.job AND {seen})")
    });
    let sql = format!(
        "SELECT seq, job, attempt, at, kind, body FROM event WHERE seq > ?1 {seen} ORDER BY seq LIMIT ?2"
    );
    let mut statement = transaction.prepare_cached(&sql)?;
    let rows: Vec<EventRow> =
        statement.query_map(params_from_iter(parameters), read_event)?.collect::<Result<_>>()?;
    let read_up_to = match rows.last() {
        Some(last) if rows.len() >= limit as usize => last.seq,
        _ => largest(&transaction, "event")?.max(after_seq),
    };
    Ok((rows, read_up_to))
}

fn largest(connection: &Connection, table: &str) -> Result<u64> {
    let read = |row: &Row| Columns::new(row).count();
    Ok(connection.prepare_cached(LARGEST)?.query_row([table], read).optional()?.unwrap_or(0))
}

fn read_event(row: &Row) -> Result<EventRow> {
    let columns = &mut Columns::new(row);
    Ok(EventRow {
        seq: columns.count()?,
        job: columns.optional_parsed()?,
        attempt: columns.plain()?,
        at: columns.time()?,
        kind: columns.plain()?,
        body: columns.json()?,
    })
}
