//! What became of an array's elements.

use muster_model::JobId;
use muster_model::array::{Element, ElementState};
use rusqlite::{Connection, OptionalExtension, Result, Row};

use super::Readers;
use crate::error::{self, doing};
use crate::row::Columns;

/// In the order [`read`] reads in.
const ELEMENTS: &str = "
    SELECT \"index\", state, tries, attempt, rank, started_at, ended_at, failure, log_from, log_to FROM element
    WHERE job = ?1";

impl Readers {
    /// Elements that have been run to an end, by index: those in a state, or in any, from one index to another.
    pub fn elements(
        &self,
        job: &JobId,
        state: Option<ElementState>,
        (from, to): (u32, u32),
        limit: u32,
    ) -> error::Result<Vec<Element>> {
        let reader = self.reader()?;
        elements(&reader, job, state, (from, to), limit).map_err(doing("read a job's elements"))
    }

    /// The last run of one element, if it has been run to an end.
    pub fn element(&self, job: &JobId, index: u32) -> error::Result<Option<Element>> {
        let reader = self.reader()?;
        element(&reader, job, index).map_err(doing("read an element"))
    }

    /// Whether a job has elements.
    pub fn is_array(&self, job: &JobId) -> error::Result<bool> {
        let reader = self.reader()?;
        is_array(&reader, job).map_err(doing("read whether a job is an array"))
    }
}

fn elements(
    connection: &Connection,
    job: &JobId,
    state: Option<ElementState>,
    (from, to): (u32, u32),
    limit: u32,
) -> Result<Vec<Element>> {
    // Said in words that the index on them is used by.
    let which = match state {
        Some(ElementState::Succeeded) => "AND state = 'succeeded'",
        Some(ElementState::Failed) => "AND state = 'failed' AND state <> 'succeeded'",
        Some(ElementState::Waiting) => "AND state = 'waiting' AND state <> 'succeeded'",
        // What runs has not been run to an end.
        Some(ElementState::Running) => "AND 0",
        None => "",
    };
    let sql = format!("{ELEMENTS} {which} AND \"index\" BETWEEN ?2 AND ?3 ORDER BY \"index\" LIMIT ?4");
    connection.prepare_cached(&sql)?.query_map((job.as_str(), from, to, limit), read)?.collect()
}

fn element(connection: &Connection, job: &JobId, index: u32) -> Result<Option<Element>> {
    let sql = format!("{ELEMENTS} AND \"index\" = ?2");
    connection.prepare_cached(&sql)?.query_row((job.as_str(), index), read).optional()
}

fn is_array(connection: &Connection, job: &JobId) -> Result<bool> {
    connection.prepare_cached("SELECT 1 FROM array WHERE job = ?1")?.exists([job.as_str()])
}

fn read(row: &Row) -> Result<Element> {
    let columns = &mut Columns::new(row);
    Ok(Element {
        index: columns.plain()?,
        state: columns.word()?,
        tries: columns.plain()?,
        attempt: columns.plain()?,
        rank: columns.plain()?,
        started_at: columns.time()?,
        ended_at: columns.optional_time()?,
        failure: columns.optional_json()?,
        log_from: columns.count()?,
        log_to: columns.plain::<Option<i64>>()?.map(|to| to.max(0).cast_unsigned()),
    })
}
