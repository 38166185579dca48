//! Names that machines have of their own.

use muster_model::JobId;
use rusqlite::{OptionalExtension, Transaction, params};

use crate::error::{Error, doing};
use crate::row::count;

const IS_CURRENT: &str = "SELECT 1 FROM job WHERE id = ?1 AND generation = ?2";
const PUT: &str = "
    INSERT INTO machine_name (job, rank, name) VALUES (?1, ?2, ?3)
    ON CONFLICT (job, rank) DO UPDATE SET name = excluded.name";
const REMOVE: &str = "DELETE FROM machine_name WHERE job = ?1 AND rank = ?2";

/// Stores the name of a machine, or that it has none, if the stored job is of the generation that this was decided on.
pub(super) fn put(
    transaction: &Transaction,
    id: &JobId,
    generation: u64,
    rank: u32,
    name: Option<&str>,
) -> Result<(), Error> {
    let is_current = transaction.prepare_cached(IS_CURRENT).and_then(|mut statement| {
        statement.query_row(params![id.as_str(), count(generation)], |_| Ok(())).optional()
    });
    if is_current.map_err(doing("name a machine"))?.is_none() {
        return Err(Error::Stale { job: id.clone() });
    }
    let written = match name {
        Some(name) => transaction
            .prepare_cached(PUT)
            .and_then(|mut statement| statement.execute(params![id.as_str(), rank, name])),
        None => transaction
            .prepare_cached(REMOVE)
            .and_then(|mut statement| statement.execute(params![id.as_str(), rank])),
    };
    written.map(drop).map_err(doing("name a machine"))
}
