//! What is kept of jobs that are over, and how large it is.

use std::collections::BTreeMap;

use muster_model::task::Outputs;
use muster_model::{JobId, NodeId, TaskId, Timestamp};
use rusqlite::{Connection, OptionalExtension, Result, Row};

use super::Readers;
use crate::error::{self, doing};
use crate::row::Columns;

/// What a job that is over still has here.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptRow {
    /// The job.
    pub job: JobId,
    /// When it ended.
    pub ended_at: Timestamp,
    /// How large it is.
    pub bytes: u64,
}

/// What is to be known of a task that a node still remembers.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Debt {
    /// The node it was given to.
    pub node: NodeId,
    /// It ran, was to leave files behind, and what became of them is not stored yet.
    pub outputs: bool,
    /// Its log is wanted.
    pub log: bool,
}

const HAS_LOG: &str = "SELECT 1 FROM job WHERE id = ?1 AND logs_removed_at IS NULL";
const OUTPUTS: &str =
    "SELECT rank, outputs FROM task WHERE job = ?1 AND attempt = ?2 AND outputs IS NOT NULL";
const DEBT: &str = "
    SELECT task.node,
        task.outputs IS NULL AND task.started_at IS NOT NULL AND json_extract(spec.body, '$.outputs') IS NOT NULL,
        job.logs_removed_at IS NULL
    FROM task CROSS JOIN job ON job.id = task.job CROSS JOIN spec ON spec.id = job.spec
    WHERE task.job = ?1 AND task.attempt = ?2 AND task.rank = ?3";
/// What the nodes said the logs would come to, beside each job.
const UNMEASURED: &str = "
    SELECT id, ended_at,
        (SELECT coalesce(sum(json_extract(\"end\", '$.log_bytes')), 0) FROM task WHERE task.job = job.id)
    FROM job WHERE log_bytes IS NULL AND ended_at IS NOT NULL AND ended_at > ?1 ORDER BY ended_at LIMIT ?2";
const LOG_TOTAL: &str = "
    SELECT coalesce(sum(log_bytes), 0) FROM job WHERE log_bytes > 0 AND logs_removed_at IS NULL";
const OLDEST_LOGS: &str = "
    SELECT id, ended_at, log_bytes FROM job
    WHERE log_bytes > 0 AND logs_removed_at IS NULL AND ended_at > ?1 ORDER BY ended_at LIMIT ?2";
/// Jobs that are not over keep what earlier attempts left behind.
const OUTPUT_TOTAL: &str = "
    SELECT coalesce(sum(json_extract(outputs, '$.bytes')), 0) FROM task
    WHERE outputs IS NOT NULL AND json_extract(outputs, '$.bundle') IS NOT NULL";
const OLDEST_OUTPUTS: &str = "
    SELECT job.id, job.ended_at, sum(json_extract(outputs, '$.bytes'))
    FROM task CROSS JOIN job ON job.id = task.job
    WHERE outputs IS NOT NULL AND json_extract(outputs, '$.bundle') IS NOT NULL AND job.ended_at > ?1
    GROUP BY job.id ORDER BY job.ended_at LIMIT ?2";

/// Logs of jobs that are over: as measured, or as their nodes said.
const WORKSPACE_LOGS: &str = "
    SELECT coalesce(sum(coalesce(log_bytes,
        (SELECT sum(json_extract(\"end\", '$.log_bytes')) FROM task WHERE task.job = job.id), 0)), 0)
    FROM job WHERE workspace = ?1 AND ended_at IS NOT NULL AND logs_removed_at IS NULL";
const WORKSPACE_OUTPUTS: &str = "
    SELECT coalesce(sum(json_extract(outputs, '$.bytes')), 0)
    FROM job CROSS JOIN task ON task.job = job.id
    WHERE job.workspace = ?1 AND outputs IS NOT NULL AND json_extract(outputs, '$.bundle') IS NOT NULL";
const WORKSPACE_LIVE: &str = "SELECT id FROM job WHERE workspace = ?1 AND ended_at IS NULL AND attempt > 0";
const WORKSPACE_CODE: &str = "
    SELECT DISTINCT job.workspace, bundle.id, bundle.manifest FROM job CROSS JOIN bundle ON bundle.id = job.bundle
    WHERE bundle.manifest <> '' ORDER BY job.workspace, bundle.id";

impl Readers {
    /// The bytes of logs and outputs of a workspace's jobs that are over, outputs of earlier attempts included; and its jobs
    /// that are not over, whose logs still grow.
    pub fn workspace_bytes(&self, workspace: &str) -> error::Result<(u64, Vec<JobId>)> {
        let reader = self.reader()?;
        workspace_bytes(&reader, workspace).map_err(doing("add up what a workspace has"))
    }

    /// Shows the manifest of every bundle that jobs of a workspace have, workspace by workspace.
    pub fn each_workspace_manifest(&self, each: impl FnMut(&str, &str)) -> error::Result<()> {
        let reader = self.reader()?;
        each_workspace_manifest(&reader, each).map_err(doing("read the code of workspaces"))
    }

    /// What became of the files of an attempt's tasks, by rank, where that is known.
    pub fn outputs(&self, job: &JobId, attempt: u32) -> error::Result<BTreeMap<u32, Outputs>> {
        let reader = self.reader()?;
        outputs(&reader, job, attempt).map_err(doing("read what tasks left behind"))
    }

    /// What a node that remembers a task still owes, if the task is known here.
    pub fn debt(&self, task: &TaskId) -> error::Result<Option<Debt>> {
        let reader = self.reader()?;
        debt(&reader, task).map_err(doing("look up a task"))
    }

    /// Whether a job is known and its logs were not removed.
    pub fn has_log(&self, job: &JobId) -> error::Result<bool> {
        let reader = self.reader()?;
        let found = super::one(&reader, HAS_LOG, job.as_str(), |_| Ok(()));
        Ok(found.map_err(doing("look up a job"))?.is_some())
    }

    /// Jobs that ended after a moment and whose logs were not measured yet, with what their nodes said they come to.
    pub fn unmeasured_logs(&self, after: Timestamp, limit: u32) -> error::Result<Vec<KeptRow>> {
        self.kept(UNMEASURED, after, limit)
    }

    /// The size of all logs of jobs that are over.
    pub fn log_total(&self) -> error::Result<u64> {
        self.total(LOG_TOTAL)
    }

    /// Logs of jobs that ended after a moment, the oldest first.
    pub fn oldest_logs(&self, after: Timestamp, limit: u32) -> error::Result<Vec<KeptRow>> {
        self.kept(OLDEST_LOGS, after, limit)
    }

    /// The size of everything tasks left behind.
    pub fn output_total(&self) -> error::Result<u64> {
        self.total(OUTPUT_TOTAL)
    }

    /// What jobs that ended after a moment left behind, the oldest first.
    pub fn oldest_outputs(&self, after: Timestamp, limit: u32) -> error::Result<Vec<KeptRow>> {
        self.kept(OLDEST_OUTPUTS, after, limit)
    }

    fn total(&self, sql: &str) -> error::Result<u64> {
        let reader = self.reader()?;
        let total = reader
            .prepare_cached(sql)
            .and_then(|mut statement| statement.query_row([], |row| Columns::new(row).count()));
        total.map_err(doing("add up what is kept"))
    }

    fn kept(&self, sql: &str, after: Timestamp, limit: u32) -> error::Result<Vec<KeptRow>> {
        let reader = self.reader()?;
        kept(&reader, sql, after, limit).map_err(doing("list what is kept"))
    }
}

fn outputs(connection: &Connection, job: &JobId, attempt: u32) -> Result<BTreeMap<u32, Outputs>> {
    let read = |row: &Row| {
        let columns = &mut Columns::new(row);
        Ok((columns.plain()?, columns.json()?))
    };
    connection.prepare_cached(OUTPUTS)?.query_map((job.as_str(), attempt), read)?.collect()
}

fn workspace_bytes(connection: &Connection, workspace: &str) -> Result<(u64, Vec<JobId>)> {
    let sum = |sql: &str| -> Result<u64> {
        connection.prepare_cached(sql)?.query_row([workspace], |row| Columns::new(row).count())
    };
    let live = |row: &Row| Columns::new(row).parsed();
    let live =
        connection.prepare_cached(WORKSPACE_LIVE)?.query_map([workspace], live)?.collect::<Result<_>>()?;
    Ok((sum(WORKSPACE_LOGS)?.saturating_add(sum(WORKSPACE_OUTPUTS)?), live))
}

fn each_workspace_manifest(connection: &Connection, mut each: impl FnMut(&str, &str)) -> Result<()> {
    let mut statement = connection.prepare_cached(WORKSPACE_CODE)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        each(row.get_ref(0)?.as_str()?, row.get_ref(2)?.as_str()?);
    }
    Ok(())
}

fn debt(connection: &Connection, task: &TaskId) -> Result<Option<Debt>> {
    let read = |row: &Row| {
        let columns = &mut Columns::new(row);
        Ok(Debt { node: columns.parsed()?, outputs: columns.plain()?, log: columns.plain()? })
    };
    let key = (task.attempt.job.as_str(), task.attempt.number, task.rank);
    connection.prepare_cached(DEBT)?.query_row(key, read).optional()
}

fn kept(connection: &Connection, sql: &str, after: Timestamp, limit: u32) -> Result<Vec<KeptRow>> {
    let read = |row: &Row| {
        let columns = &mut Columns::new(row);
        Ok(KeptRow { job: columns.parsed()?, ended_at: columns.time()?, bytes: columns.count()? })
    };
    connection.prepare_cached(sql)?.query_map((crate::row::time(after), limit), read)?.collect()
}
