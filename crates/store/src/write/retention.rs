//! What is kept for a while: outputs and logs of jobs that are over. None of it is part of a job's state, so none of these
//! writes has to be fenced by it.

use muster_model::task::Outputs;
use muster_model::{JobId, TaskId, Timestamp};
use rusqlite::{Result, Transaction, params};

use crate::row::{count, json, time};

const PUT_OUTPUTS: &str =
    "UPDATE task SET outputs = ?4 WHERE job = ?1 AND attempt = ?2 AND rank = ?3 AND outputs IS NULL";
const REMOVE_OUTPUTS: &str = "
    UPDATE task SET outputs = ?2 WHERE job = ?1 AND outputs IS NOT NULL AND json_extract(outputs, '$.bundle') IS NOT NULL";
const PUT_LOG_BYTES: &str = "UPDATE job SET log_bytes = ?2 WHERE id = ?1";
const REMOVE_LOGS: &str = "UPDATE job SET log_bytes = 0, logs_removed_at = ?2 WHERE id = ?1";

pub(super) fn put_outputs(transaction: &Transaction, task: &TaskId, outputs: &Outputs) -> Result<()> {
    let attempt = &task.attempt;
    transaction.prepare_cached(PUT_OUTPUTS)?.execute(params![
        attempt.job.as_str(),
        attempt.number,
        task.rank,
        json(outputs)?
    ])?;
    Ok(())
}

pub(super) fn remove_outputs(transaction: &Transaction, job: &JobId, at: Timestamp) -> Result<()> {
    let removed = json(&Outputs::Removed { at })?;
    transaction.prepare_cached(REMOVE_OUTPUTS)?.execute(params![job.as_str(), removed])?;
    Ok(())
}

pub(super) fn put_log_bytes(transaction: &Transaction, job: &JobId, bytes: u64) -> Result<()> {
    transaction.prepare_cached(PUT_LOG_BYTES)?.execute(params![job.as_str(), count(bytes)])?;
    Ok(())
}

pub(super) fn remove_logs(transaction: &Transaction, job: &JobId, at: Timestamp) -> Result<()> {
    transaction.prepare_cached(REMOVE_LOGS)?.execute(params![job.as_str(), time(at)])?;
    Ok(())
}

#[cfg(test)]
mod tests;
