//! From what a person types to the job they mean.

use muster_model::{JobId, State};
use rusqlite::{Connection, OptionalExtension, Result, Row};

use super::Readers;
use super::job::words;
use crate::error::{self, doing};
use crate::row::Columns;

/// Which job a selector means.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Resolution {
    /// This one.
    One(JobId),
    /// None at all.
    None,
    /// Any of these, with their names: the first few.
    Many(Vec<(JobId, String)>),
}

/// As many candidates help a person choose; more are noise.
const MOST_CANDIDATES: usize = 10;

const LAST: &str = "SELECT id FROM job ORDER BY seq DESC LIMIT 1";
const NEWEST_OF_NAME: &str = "SELECT id FROM job WHERE name = ?1 ORDER BY seq DESC LIMIT 1";
/// Ids are letters and digits, which `~` comes after.
const BY_PREFIX: &str = "SELECT id, name FROM job WHERE id >= ?1 AND id < ?1 || '~' ORDER BY id LIMIT ?2";

impl Readers {
    /// The job meant by `last`, an id, a beginning of an id that starts with `job_`, a name (the newest job of that
    /// name that is not over, else the newest), or a beginning of an id without `job_`, tried in this order: a name
    /// someone chose is meant before the letters an id happens to begin with.
    pub fn resolve(&self, selector: &str) -> error::Result<Resolution> {
        let reader = self.reader()?;
        resolve(&reader, selector).map_err(doing("find a job"))
    }
}

fn resolve(connection: &Connection, selector: &str) -> Result<Resolution> {
    if selector == "last" {
        let id = connection.prepare_cached(LAST)?.query_row([], read_id).optional()?;
        return Ok(id.map_or(Resolution::None, Resolution::One));
    }
    if selector.starts_with(JobId::PREFIX) {
        return by_prefix(connection, selector);
    }
    match by_name(connection, selector)? {
        Some(id) => Ok(Resolution::One(id)),
        None => by_prefix(connection, &format!("{}{selector}", JobId::PREFIX)),
    }
}

fn by_name(connection: &Connection, name: &str) -> Result<Option<JobId>> {
    let unfinished = words(State::ALL.iter().filter(|state| !state.is_terminal()));
    let sql =
        format!("SELECT id FROM job WHERE name = ?1 AND +state IN ({unfinished}) ORDER BY seq DESC LIMIT 1");
    let transaction = connection.unchecked_transaction()?;
    let id = transaction.prepare_cached(&sql)?.query_row([name], read_id).optional()?;
    match id {
        Some(id) => Ok(Some(id)),
        None => transaction.prepare_cached(NEWEST_OF_NAME)?.query_row([name], read_id).optional(),
    }
}

fn by_prefix(connection: &Connection, prefix: &str) -> Result<Resolution> {
    let rest = prefix.strip_prefix(JobId::PREFIX).unwrap_or_default();
    // `job_` alone names nothing, and other letters are in no id.
    if rest.is_empty() || !rest.bytes().all(|b| b.is_ascii_alphanumeric()) {
        return Ok(Resolution::None);
    }
    let mut statement = connection.prepare_cached(BY_PREFIX)?;
    let rows = statement.query_map((prefix, MOST_CANDIDATES as i64), |row| {
        let columns = &mut Columns::new(row);
        Ok((columns.parsed()?, columns.plain()?))
    })?;
    let mut found: Vec<(JobId, String)> = rows.collect::<Result<_>>()?;
    Ok(match found.len() {
        0 => Resolution::None,
        1 => Resolution::One(found.remove(0).0),
        _ => Resolution::Many(found),
    })
}

fn read_id(row: &Row) -> Result<JobId> {
    Columns::new(row).parsed()
}
