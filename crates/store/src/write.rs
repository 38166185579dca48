//! The one writer: a batch of changes is one transaction, and so one sync of the disk.
//!
//! Nothing here chooses what to write. A change whose fence does not hold, or that the database's own rules refuse,
//! ends the batch, and nothing of it is stored.

use std::time::Duration;

use rusqlite::{Connection, Transaction, TransactionBehavior};

use crate::change::{Change, Committed};
use crate::error::{Result, doing};
use crate::mark::CommitMark;

mod account;
mod allocation;
mod array;
mod bundle;
mod event;
mod job;
mod machine_name;
mod node;
mod pool;
mod quota;
mod removal;
mod request;
mod retention;
mod schedule;
mod secret;
#[cfg(test)]
mod tests;

/// The only way to change the database.
#[derive(Debug)]
pub struct Writer {
    connection: Connection,
    /// The number of the last commit.
    number: i32,
    mark: CommitMark,
}

impl Writer {
    pub(crate) fn new(connection: Connection, number: i32, mark: CommitMark) -> Self {
        Self { connection, number, mark }
    }

    /// Writes all of a batch, or nothing. When it returns, the batch is on disk; when it fails, the writer can be
    /// used again, and the error's class says whether the same batch may work then.
    pub fn commit(&mut self, changes: &[Change]) -> Result<Committed> {
        // Immediate: a batch that finds the database held fails before it has done any work. Dropping the
        // transaction on any error below rolls it back, also where SQLite has already done so by itself.
        let transaction = self
            .connection
            .transaction_with_behavior(TransactionBehavior::Immediate)
            .map_err(doing("begin a write"))?;
        let mut committed = Committed::default();
        for change in changes {
            write(&transaction, change, &mut committed)?;
        }
        let number = self.number.wrapping_add(1);
        let numbered = transaction.pragma_update(None, "user_version", number);
        numbered.and_then(|()| transaction.commit()).map_err(doing("commit a write"))?;
        self.number = number;
        self.mark.put(number);
        Ok(committed)
    }

    /// Moves everything from the log into the database file and empties the log: for quiet moments, so that what
    /// was removed is also gone from the disk. Never waits for readers; `false` says that one was in the way.
    pub fn checkpoint(&mut self) -> Result<bool> {
        let truncate = |connection: &Connection| {
            connection.query_row("PRAGMA wal_checkpoint(TRUNCATE)", [], |row| row.get::<_, bool>(0))
        };
        self.connection.busy_timeout(Duration::ZERO).map_err(doing("empty the log"))?;
        let busy = truncate(&self.connection);
        self.connection.busy_timeout(crate::connection::BUSY).map_err(doing("empty the log"))?;
        Ok(!busy.map_err(doing("empty the log"))?)
    }
}

fn write(transaction: &Transaction, change: &Change, committed: &mut Committed) -> Result<()> {
    match change {
        Change::NewJob(new) => {
            committed.jobs.push(job::insert(transaction, new).map_err(doing("store a new job"))?);
        }
        Change::Job { before_generation, job, touched, at } => {
            job::update(transaction, *before_generation, job, touched, *at)?;
        }
        Change::Rename { job, generation, name } => job::rename(transaction, job, *generation, name)?,
        Change::NameMachine { job, generation, rank, name } => {
            machine_name::put(transaction, job, *generation, *rank, name.as_deref())?;
        }
        Change::Reprioritise { job, generation, priority } => {
            job::reprioritise(transaction, job, *generation, *priority)?;
        }
        Change::Elements { job, elements } => {
            array::put_elements(transaction, job, elements).map_err(doing("store elements"))?;
        }
        Change::Event(event) => {
            committed.events.push(event::insert(transaction, event).map_err(doing("store an event"))?);
        }
        Change::RemoveJob { job, at } => job::remove(transaction, job, *at)?,
        Change::ConfirmRemoval { node, job } => {
            removal::confirm(transaction, node, job).map_err(doing("store what a node has removed"))?;
        }
        Change::Node(node) => node::put(transaction, node).map_err(doing("store a node"))?,
        Change::RemoveNode(id) => pool::remove_node(transaction, id).map_err(doing("forget a node"))?,
        Change::Drain { node, since } => {
            pool::drain(transaction, node, *since).map_err(doing("store whether a node is drained"))?;
        }
        Change::Labels { node, labels } => {
            schedule::put_labels(transaction, node, labels).map_err(doing("store the labels of a node"))?
        }
        Change::Usage(rows) => {
            schedule::put_usage(transaction, rows).map_err(doing("store what was used"))?
        }
        Change::Allocation(row) => {
            allocation::put(transaction, row).map_err(doing("store what another scheduler keeps"))?;
        }
        Change::CloseAllocation { attempt, at } => {
            let closed = allocation::close(transaction, attempt, *at);
            closed.map_err(doing("store what another scheduler has given back"))?;
        }
        Change::Pool(pool) => pool::put(transaction, pool).map_err(doing("store a pool"))?,
        Change::RemovePool(name) => pool::remove(transaction, name).map_err(doing("remove a pool"))?,
        Change::Bundle { id, manifest, at } => {
            bundle::insert(transaction, id, manifest, *at).map_err(doing("store a bundle"))?;
        }
        Change::RemoveBundles { unused_since, limit } => {
            let removed = bundle::remove_unused(transaction, *unused_since, *limit);
            committed.removed_bundles += removed.map_err(doing("remove bundles"))?;
        }
        Change::Outputs { task, outputs } => {
            retention::put_outputs(transaction, task, outputs).map_err(doing("store a task's outputs"))?;
        }
        Change::RemoveOutputs { job, at } => {
            retention::remove_outputs(transaction, job, *at).map_err(doing("remove a job's outputs"))?;
        }
        Change::LogBytes { job, bytes } => {
            retention::put_log_bytes(transaction, job, *bytes).map_err(doing("store the size of a log"))?;
        }
        Change::RemoveLogs { job, at } => {
            retention::remove_logs(transaction, job, *at).map_err(doing("remove a job's logs"))?;
        }
        Change::Account(change) => account::write(transaction, change).map_err(doing("store an account"))?,
        Change::Secret(row) => secret::put(transaction, row).map_err(doing("store a secret"))?,
        Change::RemoveSecret { workspace, name } => {
            secret::remove(transaction, workspace, name).map_err(doing("remove a secret"))?;
        }
        Change::WorkspaceQuota { workspace, quota } => {
            quota::put_workspace(transaction, workspace, quota.as_ref()).map_err(doing("store a quota"))?;
        }
        Change::UserQuota { user, quota } => {
            quota::put_user(transaction, user, quota.as_ref()).map_err(doing("store a user's quota"))?;
        }
        Change::Audit(row) => account::audit(transaction, row).map_err(doing("write to the audit log"))?,
        Change::RemoveAudit { before, limit } => {
            let removed = account::remove_audit(transaction, *before, *limit);
            removed.map_err(doing("remove old entries of the audit log"))?;
        }
        Change::ForgetIdempotency { before } => {
            request::forget(transaction, *before).map_err(doing("forget old requests"))?;
        }
    }
    Ok(())
}
