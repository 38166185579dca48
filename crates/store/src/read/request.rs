//! What is kept of the request that made a job: the submitter's environment, and the key it came with.

use std::collections::BTreeMap;

use muster_model::JobId;
use rusqlite::Row;

use super::{Readers, one};
use crate::error::{self, doing};
use crate::row::Columns;

/// What a key was used for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IdempotentRow {
    /// The digest of the request it came with.
    pub request_digest: String,
    /// The job that request made.
    pub job: JobId,
}

const ENVIRONMENT: &str = "SELECT body FROM job_environment WHERE job = ?1";
const IDEMPOTENT: &str = "SELECT request_digest, job FROM idempotency WHERE key = ?1";

impl Readers {
    /// The environment a job was submitted with, if it came with one.
    pub fn environment(&self, job: &JobId) -> error::Result<Option<BTreeMap<String, String>>> {
        let reader = self.reader()?;
        one(&reader, ENVIRONMENT, job.as_str(), |row| Columns::new(row).json())
            .map_err(doing("read a job's environment"))
    }

    /// What a key was used for, if it was.
    pub fn idempotent(&self, key: &str) -> error::Result<Option<IdempotentRow>> {
        let reader = self.reader()?;
        let read = |row: &Row| {
            let columns = &mut Columns::new(row);
            Ok(IdempotentRow { request_digest: columns.plain()?, job: columns.parsed()? })
        };
        one(&reader, IDEMPOTENT, key, read).map_err(doing("look up a request"))
    }
}
