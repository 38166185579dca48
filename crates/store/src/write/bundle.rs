//! Bundles.

use muster_model::{BundleId, Timestamp};
use rusqlite::{Result, Transaction, params};

use crate::row::time;

const PUT_BUNDLE: &str = "
    INSERT INTO bundle (id, manifest, created_at, used_at) VALUES (?1, ?2, ?3, ?3)
    ON CONFLICT (id) DO UPDATE SET used_at = max(used_at, ?3)";
const REMOVE_UNUSED: &str = "
    DELETE FROM bundle WHERE id IN (
        SELECT id FROM bundle
        WHERE used_at < ?1
            AND NOT EXISTS (SELECT 1 FROM job WHERE job.bundle = bundle.id)
            AND NOT EXISTS (SELECT 1 FROM task WHERE json_extract(outputs, '$.bundle') = bundle.id AND outputs IS NOT NULL)
        LIMIT ?2)";

/// Stores a bundle; of one that is there, the same name is the same content, so only its use is new.
pub(super) fn insert(transaction: &Transaction, id: &BundleId, manifest: &str, at: Timestamp) -> Result<()> {
    transaction.prepare_cached(PUT_BUNDLE)?.execute(params![id.as_str(), manifest, time(at)])?;
    Ok(())
}

/// Removes bundles that no job has, and says how many.
pub(super) fn remove_unused(transaction: &Transaction, unused_since: Timestamp, limit: u32) -> Result<u64> {
    let removed = transaction.prepare_cached(REMOVE_UNUSED)?.execute(params![time(unused_since), limit])?;
    Ok(removed as u64)
}
