//! Bundles.

use std::collections::HashSet;

use muster_model::{BundleId, ChunkId, Timestamp};
use rusqlite::types::Value;
use rusqlite::{Connection, Result, Row, params_from_iter};

use super::sight::Sight;
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

/// Whether a user may name a bundle, and the difference beside it: a job has both that is the user's own or in sight.
const NAMED: &str = "
    SELECT 1 FROM job WHERE bundle = ?1 AND (?2 IS NULL OR json_extract(source, '$.diff') = ?2)";
const RECENT_CODE: &str = "
    SELECT bundle, json_extract(source, '$.diff') FROM job
    WHERE owner = ?1 AND (bundle IS NOT NULL OR source IS NOT NULL) ORDER BY seq DESC LIMIT ?2";

impl Readers {
    /// Whether a job has this bundle, and this difference if one is asked for, that is the owner's own or in sight.
    pub fn has_code(
        &self,
        bundle: &BundleId,
        diff: Option<&ChunkId>,
        owner: &str,
        sight: &Sight,
    ) -> error::Result<bool> {
        let reader = self.reader()?;
        let mut values: Vec<Value> = vec![
            bundle.as_str().to_owned().into(),
            diff.map(|diff| diff.as_str().to_owned()).into(),
            owner.to_owned().into(),
        ];
        let whose = match sight.condition("workspace", &mut values) {
            Some(condition) => format!("{NAMED} AND (owner = ?3 OR {condition}) LIMIT 1"),
            None => format!("{NAMED} AND ?3 = ?3 LIMIT 1"),
        };
        let found = reader
            .prepare_cached(&whose)
            .and_then(|mut statement| statement.exists(params_from_iter(values)));
        found.map_err(doing("look for a bundle of a job"))
    }

    /// The bundles and the differences of an owner's newest jobs, the newest first, each once.
    pub fn recent_code(&self, owner: &str, jobs: u32) -> error::Result<(Vec<BundleId>, Vec<ChunkId>)> {
        let reader = self.reader()?;
        recent_code(&reader, owner, jobs).map_err(doing("read the code of jobs"))
    }

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

fn recent_code(connection: &Connection, owner: &str, jobs: u32) -> Result<(Vec<BundleId>, Vec<ChunkId>)> {
    let (mut bundles, mut diffs) = (Vec::new(), Vec::new());
    let mut seen = HashSet::new();
    let mut statement = connection.prepare_cached(RECENT_CODE)?;
    let mut rows = statement.query((owner, jobs))?;
    while let Some(row) = rows.next()? {
        let columns = &mut Columns::new(row);
        let (bundle, diff): (Option<BundleId>, Option<ChunkId>) =
            (columns.optional_parsed()?, columns.optional_parsed()?);
        bundles.extend(bundle.filter(|bundle| seen.insert(bundle.as_str().to_owned())));
        diffs.extend(diff.filter(|diff| seen.insert(diff.as_str().to_owned())));
    }
    Ok((bundles, diffs))
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
