//! Nodes.

use rusqlite::{Connection, Result, Row};

use super::Readers;
use crate::change::NodeRow;
use crate::error::{self, doing};
use crate::row::Columns;

const NODES: &str = "
    SELECT id, engine, name, host, incarnation, capacity, token_hash, last_seen_at FROM node ORDER BY id";

impl Readers {
    /// Every node, by id.
    pub fn nodes(&self) -> error::Result<Vec<NodeRow>> {
        let reader = self.reader()?;
        nodes(&reader).map_err(doing("read the nodes"))
    }
}

fn nodes(connection: &Connection) -> Result<Vec<NodeRow>> {
    connection.prepare_cached(NODES)?.query_map([], read_node)?.collect()
}

fn read_node(row: &Row) -> Result<NodeRow> {
    let columns = &mut Columns::new(row);
    Ok(NodeRow {
        id: columns.parsed()?,
        engine: columns.plain()?,
        name: columns.plain()?,
        host: columns.plain()?,
        incarnation: columns.plain()?,
        capacity: columns.json()?,
        token_hash: columns.plain()?,
        last_seen_at: columns.optional_time()?,
    })
}
