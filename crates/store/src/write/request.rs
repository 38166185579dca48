//! What is kept of the request that made a job: the submitter's environment, and the key it came with.

use muster_model::Timestamp;
use rusqlite::{Result, Transaction, params};

use crate::change::NewJob;
use crate::row::{json, time};

const INSERT_ENVIRONMENT: &str = "INSERT INTO job_environment (job, body) VALUES (?1, ?2)";
const INSERT_IDEMPOTENCY: &str =
    "INSERT INTO idempotency (key, request_digest, job, created_at) VALUES (?1, ?2, ?3, ?4)";
const FORGET_IDEMPOTENCY: &str = "DELETE FROM idempotency WHERE created_at < ?1";

/// Stores what a new job's request came with.
pub(super) fn insert(transaction: &Transaction, new: &NewJob) -> Result<()> {
    let id = new.job.id.as_str();
    if let Some(environment) = &new.environment {
        transaction.prepare_cached(INSERT_ENVIRONMENT)?.execute(params![id, json(environment)?])?;
    }
    if let Some((key, digest)) = &new.idempotency {
        let statement = &mut transaction.prepare_cached(INSERT_IDEMPOTENCY)?;
        statement.execute(params![key, digest, id, time(new.submitted_at)])?;
    }
    Ok(())
}

/// Forgets requests made before a moment.
pub(super) fn forget(transaction: &Transaction, before: Timestamp) -> Result<()> {
    transaction.prepare_cached(FORGET_IDEMPOTENCY)?.execute([time(before)])?;
    Ok(())
}
