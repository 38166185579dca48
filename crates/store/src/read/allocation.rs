//! What other schedulers keep for attempts.

use muster_model::{AttemptId, JobId};
use rusqlite::{Connection, Params, Result, Row};

use super::Readers;
use crate::change::AllocationRow;
use crate::error::{self, doing};
use crate::row::Columns;

const OPEN: &str = "
    SELECT job, attempt, target, nodes, external, hosts, since, closing, account FROM allocation
    WHERE closed_at IS NULL ORDER BY since, job, attempt";
const OF_JOB: &str = "
    SELECT job, attempt, target, nodes, external, hosts, since, closing, account FROM allocation WHERE job = ?1 ORDER BY attempt";

impl Readers {
    /// Every allocation that is not known to be gone, the oldest first.
    pub fn open_allocations(&self) -> error::Result<Vec<AllocationRow>> {
        let reader = self.reader()?;
        rows(&reader, OPEN, []).map_err(doing("read what other schedulers keep"))
    }

    /// What a job's attempts have or had, the first one first.
    pub fn allocations(&self, job: &JobId) -> error::Result<Vec<AllocationRow>> {
        let reader = self.reader()?;
        rows(&reader, OF_JOB, [job.as_str()]).map_err(doing("read a job's allocations"))
    }
}

fn rows(connection: &Connection, sql: &str, parameters: impl Params) -> Result<Vec<AllocationRow>> {
    connection.prepare_cached(sql)?.query_map(parameters, read)?.collect()
}

fn read(row: &Row) -> Result<AllocationRow> {
    let columns = &mut Columns::new(row);
    Ok(AllocationRow {
        attempt: AttemptId { job: columns.parsed()?, number: columns.plain()? },
        target: columns.parsed()?,
        nodes: columns.json()?,
        external: columns.plain()?,
        hosts: columns.json()?,
        since: columns.time()?,
        closing: columns.plain()?,
        account: columns.plain()?,
    })
}
