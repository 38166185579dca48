//! What the scheduler remembers beyond jobs and nodes.

use std::collections::BTreeMap;

use muster_model::NodeId;
use rusqlite::{Result, Transaction, params};

use crate::change::UsageRow;
use crate::row::time;

const REMOVE_USAGE: &str = "DELETE FROM usage";
const INSERT_USAGE: &str = "INSERT INTO usage (workspace, user, mean, at) VALUES (?1, ?2, ?3, ?4)";
const REMOVE_LABELS: &str = "DELETE FROM label WHERE node = ?1";
const INSERT_LABEL: &str = "INSERT INTO label (node, key, value) VALUES (?1, ?2, ?3)";

/// Stores what everybody has used; who is not named has used nothing that still counts.
pub(super) fn put_usage(transaction: &Transaction, rows: &[UsageRow]) -> Result<()> {
    transaction.prepare_cached(REMOVE_USAGE)?.execute([])?;
    let mut insert = transaction.prepare_cached(INSERT_USAGE)?;
    for row in rows {
        let user = row.user.as_deref().unwrap_or_default();
        insert.execute(params![row.workspace, user, row.mean, time(row.at)])?;
    }
    Ok(())
}

/// Stores what a node is labelled with, all of it.
pub(super) fn put_labels(
    transaction: &Transaction,
    node: &NodeId,
    labels: &BTreeMap<String, String>,
) -> Result<()> {
    transaction.prepare_cached(REMOVE_LABELS)?.execute([node.as_str()])?;
    let mut insert = transaction.prepare_cached(INSERT_LABEL)?;
    for (key, value) in labels {
        insert.execute(params![node.as_str(), key, value])?;
    }
    Ok(())
}
