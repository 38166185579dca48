//! What nodes have yet to remove.

use muster_model::{JobId, NodeId};
use rusqlite::{Connection, Result, Row, params};

use super::Readers;
use crate::error::{self, doing};
use crate::row::Columns;

const REMOVALS: &str = "SELECT job FROM removal WHERE node = ?1 AND job > ?2 ORDER BY job LIMIT ?3";

impl Readers {
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
