//! Bundles.

use muster_model::bundle::Manifest;
use muster_model::{BundleId, Timestamp};
use rusqlite::Row;

use super::{Readers, one};
use crate::error::{self, doing};
use crate::row::Columns;

/// A bundle whose chunks are all there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleRow {
    /// Its pieces.
    pub manifest: Manifest,
    /// When it was complete.
    pub created_at: Timestamp,
}

const BUNDLE: &str = "SELECT manifest, created_at FROM bundle WHERE id = ?1";

impl Readers {
    /// A bundle, if its chunks are all there.
    pub fn bundle(&self, id: &BundleId) -> error::Result<Option<BundleRow>> {
        let reader = self.reader()?;
        let read = |row: &Row| {
            let columns = &mut Columns::new(row);
            Ok(BundleRow { manifest: columns.json()?, created_at: columns.time()? })
        };
        one(&reader, BUNDLE, id.as_str(), read).map_err(doing("read a bundle"))
    }
}
