//! Bundles.

use muster_model::{BundleId, Timestamp};
use rusqlite::{Connection, Result, Row};

use super::{Readers, one};
use crate::error::{self, doing};
use crate::row::Columns;

/// A bundle whose chunks are all there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BundleRow {
    /// The text of its manifest.
    pub manifest: String,
    /// When it was complete.
    pub created_at: Timestamp,
    /// When somebody last asked for it.
    pub used_at: Timestamp,
}

/// An empty manifest is one of an older format, whose chunks are gone.
const BUNDLE: &str = "SELECT manifest, created_at, used_at FROM bundle WHERE id = ?1 AND manifest <> ''";
const USED_AT: &str = "SELECT used_at FROM bundle WHERE id = ?1 AND manifest <> ''";
const MANIFESTS: &str = "
    SELECT manifest FROM bundle
    WHERE manifest <> ''
        AND (?1 IS NULL OR used_at >= ?1
            OR EXISTS (SELECT 1 FROM job WHERE job.bundle = bundle.id)
            OR EXISTS (SELECT 1 FROM task WHERE json_extract(outputs, '$.bundle') = bundle.id AND outputs IS NOT NULL))";
const DIFFS: &str = "SELECT json_extract(source, '$.diff') FROM job WHERE source IS NOT NULL AND json_extract(source, '$.diff') IS NOT NULL";
const UNUSED: &str = "
    SELECT count(*) FROM bundle
    WHERE used_at < ?1
        AND NOT EXISTS (SELECT 1 FROM job WHERE job.bundle = bundle.id)
        AND NOT EXISTS (SELECT 1 FROM task WHERE json_extract(outputs, '$.bundle') = bundle.id AND outputs IS NOT NULL)";

impl Readers {
    /// A bundle, if its chunks are all there.
    pub fn bundle(&self, id: &BundleId) -> error::Result<Option<BundleRow>> {
        let reader = self.reader()?;
        let read = |row: &Row| {
            let columns = &mut Columns::new(row);
            Ok(BundleRow {
                manifest: columns.plain()?,
                created_at: columns.time()?,
                used_at: columns.time()?,
            })
        };
        one(&reader, BUNDLE, id.as_str(), read).map_err(doing("read a bundle"))
    }

    /// When somebody last asked for a bundle, if its chunks are all there. The manifest is not read.
    pub fn bundle_used_at(&self, id: &BundleId) -> error::Result<Option<Timestamp>> {
        let reader = self.reader()?;
        one(&reader, USED_AT, id.as_str(), |row| Columns::new(row).time()).map_err(doing("look for a bundle"))
    }

    /// Shows every manifest, one at a time, all of one moment; then every chunk that a job names besides. Bundles that
    /// nobody asked for since `unused_since` and no job has are left out.
    pub fn each_manifest(
        &self,
        unused_since: Option<Timestamp>,
        manifest: impl FnMut(&str),
        chunk: impl FnMut(&str),
    ) -> error::Result<()> {
        let reader = self.reader()?;
        each_manifest(&reader, unused_since, manifest, chunk).map_err(doing("read the bundles"))
    }

    /// How many bundles nobody asked for since a moment and no job has.
    pub fn unused_bundles(&self, unused_since: Timestamp) -> error::Result<u64> {
        let reader = self.reader()?;
        let counted = reader.prepare_cached(UNUSED).and_then(|mut statement| {
            statement.query_row([crate::row::time(unused_since)], |row| Columns::new(row).count())
        });
        counted.map_err(doing("count unused bundles"))
    }
}

fn each_manifest(
    connection: &Connection,
    unused_since: Option<Timestamp>,
    mut manifest: impl FnMut(&str),
    mut chunk: impl FnMut(&str),
) -> Result<()> {
    let transaction = connection.unchecked_transaction()?;
    let mut statement = transaction.prepare_cached(MANIFESTS)?;
    let mut rows = statement.query([unused_since.map(crate::row::time)])?;
    while let Some(row) = rows.next()? {
        manifest(row.get_ref(0)?.as_str()?);
    }
    let mut statement = transaction.prepare_cached(DIFFS)?;
    let mut rows = statement.query([])?;
    while let Some(row) = rows.next()? {
        chunk(row.get_ref(0)?.as_str()?);
    }
    Ok(())
}
