//! Bundles.

use muster_model::bundle::Manifest;
use muster_model::{BundleId, Timestamp};
use rusqlite::{Result, Transaction, params};

use crate::row::{json, time};

const INSERT_BUNDLE: &str = "
    INSERT INTO bundle (id, manifest, created_at) VALUES (?1, ?2, ?3) ON CONFLICT (id) DO NOTHING";

/// Stores a bundle, unless it is there: the same name is the same content.
pub(super) fn insert(
    transaction: &Transaction,
    id: &BundleId,
    manifest: &Manifest,
    at: Timestamp,
) -> Result<()> {
    transaction.prepare_cached(INSERT_BUNDLE)?.execute(params![id.as_str(), json(manifest)?, time(at)])?;
    Ok(())
}
