//! What happened.

use muster_model::JobId;
use rusqlite::{Result, Transaction, params};

use crate::change::NewEvent;
use crate::row::{json, time};

const INSERT_EVENT: &str = "INSERT INTO event (job, attempt, at, kind, body) VALUES (?1, ?2, ?3, ?4, ?5)";

/// Stores an event; its number comes back.
pub(super) fn insert(transaction: &Transaction, event: &NewEvent) -> Result<u64> {
    transaction.prepare_cached(INSERT_EVENT)?.execute(params![
        event.job.as_ref().map(JobId::as_str),
        event.attempt,
        time(event.at),
        event.kind,
        json(&event.body)?,
    ])?;
    Ok(transaction.last_insert_rowid().cast_unsigned())
}
