//! What nodes have yet to remove.

use muster_model::{JobId, NodeId, Timestamp};
use rusqlite::{Connection, Result, Row, params};

use super::Readers;
use crate::error::{self, doing};
use crate::row::Columns;

const REMOVALS: &str = "SELECT job FROM removal WHERE node = ?1 AND job > ?2 ORDER BY job LIMIT ?3";

const OWED: &str = "SELECT node, count(*), min(owed_at) FROM removal GROUP BY node ORDER BY node";

/// What a node has yet to remove.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OwedRemovals {
    /// The node.
    pub node: NodeId,
    /// Of how many jobs.
    pub jobs: u64,
    /// Since when, for the first of them; `None`: since before that was written down.
    pub since: Option<Timestamp>,
}

impl Readers {
    /// Every node that has something to remove.
    pub fn owed_removals(&self) -> error::Result<Vec<OwedRemovals>> {
        let reader = self.reader()?;
        owed_removals(&reader).map_err(doing("read what nodes have to remove"))
    }

    /// Removed jobs whose files a node has yet to remove, in order, those after one of them.
    pub fn removals(&self, node: &NodeId, after: Option<&JobId>, limit: u32) -> error::Result<Vec<JobId>> {
        let reader = self.reader()?;
        removals(&reader, node, after, limit).map_err(doing("read what a node has to remove"))
    }
}

fn removals(connection: &Connection, node: &NodeId, after: Option<&JobId>, limit: u32) -> Result<Vec<JobId>> {
    let read = |row: &Row| Columns::new(row).parsed();
    let values = params![node.as_str(), after.map_or("", JobId::as_str), limit];
    connection.prepare_cached(REMOVALS)?.query_map(values, read)?.collect()
}

fn owed_removals(connection: &Connection) -> Result<Vec<OwedRemovals>> {
    let read = |row: &Row| {
        let mut columns = Columns::new(row);
        let (node, jobs) = (columns.parsed()?, columns.count()?);
        Ok(OwedRemovals { node, jobs, since: columns.optional_time()? })
    };
    connection.prepare_cached(OWED)?.query_map([], read)?.collect()
}
