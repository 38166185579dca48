//! Nodes.

use rusqlite::{Result, Transaction, params};

use crate::change::NodeRow;
use crate::row::{json, time};

const PUT_NODE: &str = "
    INSERT INTO node (id, engine, name, host, incarnation, capacity, token_hash, last_seen_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
    ON CONFLICT (id) DO UPDATE SET
        engine = ?2, name = ?3, host = ?4, incarnation = ?5, capacity = ?6, token_hash = ?7, last_seen_at = ?8";

/// Stores a node as it is now.
pub(super) fn put(transaction: &Transaction, node: &NodeRow) -> Result<()> {
    transaction.prepare_cached(PUT_NODE)?.execute(params![
        node.id.as_str(),
        node.engine,
        node.name,
        node.host,
        node.incarnation,
        json(&node.capacity)?,
        node.token_hash,
        node.last_seen_at.map(time),
    ])?;
    Ok(())
}
