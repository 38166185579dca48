//! Chunks of bundles, each in a file named by its content.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::PathBuf;

use muster_model::bundle::Manifest;
use muster_model::{BundleId, ChunkId};

/// The longest chunk a client may send: far above the size they are cut to, far below what would strain memory.
pub(crate) const MAX_CHUNK: usize = 16 << 20;
/// The most chunks in a bundle: at the usual size, a terabyte.
pub(crate) const MAX_CHUNKS: usize = 1 << 20;

/// Every chunk this server keeps.
pub(crate) struct ChunkStore {
    root: PathBuf,
}

/// Why a chunk was not taken.
#[derive(Debug, thiserror::Error)]
pub(crate) enum PutError {
    #[error("the content has another digest than its name says")]
    Mismatch,
    #[error("the chunk cannot be written")]
    Io(#[from] io::Error),
}

impl ChunkStore {
    pub fn new(root: PathBuf) -> Self {
        Self { root }
    }

    /// Spread over 256 directories, so that none grows large.
    fn path(&self, id: &ChunkId) -> PathBuf {
        let digest = id.as_str().trim_start_matches(ChunkId::PREFIX);
        self.root.join(&digest[..2]).join(digest)
    }

    /// The chunks of a bundle that are not here, each once.
    pub fn missing(&self, manifest: &Manifest) -> Vec<ChunkId> {
        let mut seen = std::collections::HashSet::new();
        let absent = |id: &ChunkId| fs::metadata(self.path(id)).is_err();
        manifest
            .chunks
            .iter()
            .map(|chunk| &chunk.id)
            .filter(|id| seen.insert(*id) && absent(id))
            .cloned()
            .collect()
    }

    /// Keeps a chunk, on disk when this returns.
    pub fn put(&self, id: &ChunkId, bytes: &[u8]) -> Result<(), PutError> {
        let digest = ChunkId::from_digest(blake3::hash(bytes).to_hex().as_str());
        if digest.as_ref() != Ok(id) {
            return Err(PutError::Mismatch);
        }
        let path = self.path(id);
        if path.exists() {
            return Ok(());
        }
        let directory = path.parent().unwrap_or(&self.root);
        fs::create_dir_all(directory)?;
        let temporary = directory.join(format!("new-{:016x}", crate::random::bits()));
        let written = File::create(&temporary).and_then(|mut file| {
            file.write_all(bytes)?;
            file.sync_data()?;
            fs::rename(&temporary, &path)
        });
        if written.is_err() {
            drop(fs::remove_file(&temporary));
        }
        Ok(written?)
    }

    /// A chunk's content.
    pub fn get(&self, id: &ChunkId) -> io::Result<Vec<u8>> {
        fs::read(self.path(id))
    }
}

/// A bundle's name: the digest of the list of its chunks.
pub(crate) fn bundle_id(manifest: &Manifest) -> BundleId {
    let digest = blake3::hash(manifest.canonical_text().as_bytes());
    BundleId::from_digest(digest.to_hex().as_str()).expect("a blake3 digest is a bundle's name")
}

#[cfg(test)]
mod tests {
    use muster_model::bundle::Chunk;

    use super::*;

    #[test]
    fn a_chunk_is_kept_under_its_own_digest_only() {
        let dir = tempfile::tempdir().unwrap();
        let store = ChunkStore::new(dir.path().into());
        let id = ChunkId::from_digest(blake3::hash(b"hello").to_hex().as_str()).unwrap();
        assert!(matches!(store.put(&id, b"other"), Err(PutError::Mismatch)));
        let manifest =
            Manifest { chunks: vec![Chunk { id: id.clone(), bytes: 5 }, Chunk { id: id.clone(), bytes: 5 }] };
        assert_eq!(store.missing(&manifest), std::slice::from_ref(&id));
        store.put(&id, b"hello").unwrap();
        store.put(&id, b"hello").unwrap();
        assert!(store.missing(&manifest).is_empty());
        assert_eq!(store.get(&id).unwrap(), b"hello");
    }
}
