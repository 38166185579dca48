//! The code directory as a bundle: found, archived, cut into chunks, and sent as far as the server lacks it.
//!
//! The archive is never made as a whole. It is a function from offsets to bytes over the list of files, so a chunk can
//! be had again at any time by reading the files it covers: memory stays small whatever the size of the tree, and no
//! copy of it is written anywhere. A chunk that reads differently the second time means that someone is editing; then
//! everything is done again, because a bundle must be one state of the tree and its chunks must have their digests.

use std::collections::{HashMap, HashSet};
use std::path::{Path, PathBuf};

use bytes::Bytes;
use muster_api::model::bundle::Chunk;
use muster_api::model::quantity::format_bytes;
use muster_api::model::{BundleId, ChunkId};
use muster_api::view::PutBundle;

use crate::error::{self, Code, chain};
use crate::progress::Bar;
use crate::session::Session;
use crate::terminal;

mod archive;
#[cfg(test)]
mod tests;
mod walk;

use archive::Archive;
use walk::Tree;

/// Small trees stay in memory between the hash and the sending.
const KEPT: u64 = 8 << 20;
/// How often an edited tree is read again before giving up.
const TRIES: u32 = 3;
/// How often the server may ask for chunks: once, and again after it lost some.
const ROUNDS: u32 = 3;
/// From here on it is said what is being sent: people forget about data sets and checkpoints.
const LARGE: u64 = 512 << 20;
/// How many files or names a remark lists.
const NAMED: usize = 5;

/// Why there is no bundle.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// A directory that cannot be listed.
    #[error("cannot read the code directory")]
    Walk(#[source] ignore::Error),
    /// A file that cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// A name that does not fit an archive.
    #[error("cannot put {} into an archive", path.display())]
    Name {
        path: PathBuf,
        #[source]
        source: std::io::Error,
    },
    /// Edited or removed in between.
    #[error("{} changes while it is read", path.display())]
    Changed { path: PathBuf },
    /// Chunks the server asks for again and again.
    #[error("the server lacks {missing} chunks although they were sent")]
    Refused { missing: usize },
    #[error(transparent)]
    Server(error::Error),
}

impl From<Error> for error::Error {
    fn from(error: Error) -> Self {
        let text = chain(&error);
        match error {
            Error::Server(error) => error,
            Error::Walk(_) | Error::Read { .. } => Self::new(Code::BundleFileUnreadable, text),
            Error::Name { .. } => Self::new(Code::BundleNameInvalid, text),
            Error::Changed { .. } => Self::new(Code::BundleFileChanges, text),
            Error::Refused { .. } => Self::new(Code::BundleRefused, text),
        }
    }
}

/// A tree as it was at one moment.
pub(crate) struct Snapshot {
    archive: Archive,
    chunks: Vec<Chunk>,
    /// The content of each chunk, if the tree is small.
    kept: Option<Vec<Bytes>>,
    skipped: Vec<PathBuf>,
}

impl Snapshot {
    /// Reads a tree, leaving out what its ignore files name and the folders given.
    pub fn take(root: &Path, leave_out: &[&Path]) -> Result<Self, Error> {
        let mut tries = 1;
        loop {
            match Self::try_take(root, leave_out) {
                Err(Error::Changed { .. }) if tries < TRIES => tries += 1,
                other => return other,
            }
        }
    }

    fn try_take(root: &Path, leave_out: &[&Path]) -> Result<Self, Error> {
        let Tree { entries, skipped } = walk::walk(root, leave_out)?;
        let archive = Archive::new(root.to_owned(), entries)?;
        let mut kept = (archive.bytes() <= KEPT).then(Vec::new);
        let mut bar = Bar::new("reading", archive.bytes());
        let mut chunks = Vec::new();
        for index in 0..archive.chunk_count() {
            let content = archive.chunk(index)?;
            let bytes = content.len() as u64;
            chunks.push(Chunk { id: digest(&content), bytes });
            bar.add(bytes);
            if let Some(kept) = &mut kept {
                kept.push(Bytes::from(content));
            }
        }
        Ok(Self { archive, chunks, kept, skipped })
    }

    /// How many files it has, and how many bytes they have together.
    pub fn size(&self) -> (usize, u64) {
        let sizes = self.archive.entries().iter().filter_map(|entry| entry.file_size());
        sizes.fold((0, 0), |(files, bytes), size| (files + 1, bytes + size))
    }

    /// Says what was left out that no ignore file names.
    pub fn remark_on_skipped(&self) {
        if !self.skipped.is_empty() {
            let names = listed(self.skipped.iter().map(|path| path.display().to_string()));
            terminal::note(&format!(
                "left out, because they are neither files nor directories nor links: {names}"
            ));
        }
    }

    /// Sends what the server lacks.
    async fn send(&self, session: &Session) -> Result<BundleId, Error> {
        let bundle = PutBundle { chunks: self.chunks.clone() };
        let places: HashMap<&ChunkId, usize> =
            self.chunks.iter().enumerate().map(|(i, chunk)| (&chunk.id, i)).collect();
        let mut missing = 0;
        for _ in 0..ROUNDS {
            let status =
                session.call(async |client| client.put_bundle(&bundle).await).await.map_err(Error::Server)?;
            let wanted: HashSet<usize> =
                status.missing.iter().filter_map(|id| places.get(id).copied()).collect();
            if status.missing.is_empty() {
                return Ok(status.id);
            }
            missing = status.missing.len();
            let mut wanted: Vec<usize> = wanted.into_iter().collect();
            wanted.sort_unstable();
            self.send_chunks(session, &wanted).await?;
        }
        Err(Error::Refused { missing })
    }

    async fn send_chunks(&self, session: &Session, wanted: &[usize]) -> Result<(), Error> {
        let total = wanted.iter().map(|index| self.chunks[*index].bytes).sum();
        if total > LARGE {
            self.remark_on_size(total);
        }
        let mut bar = Bar::new("sending", total);
        for index in wanted {
            let content = self.content(*index)?;
            let id = &self.chunks[*index].id;
            let sent = session.call(async |client| client.put_chunk(id, content.clone()).await).await;
            sent.map_err(Error::Server)?;
            bar.add(content.len() as u64);
        }
        Ok(())
    }

    /// A chunk as it was hashed.
    fn content(&self, index: usize) -> Result<Bytes, Error> {
        if let Some(kept) = &self.kept {
            return Ok(kept[index].clone());
        }
        let content = self.archive.chunk(index)?;
        if digest(&content) != self.chunks[index].id {
            return Err(Error::Changed { path: self.archive.first_file_in(index) });
        }
        Ok(Bytes::from(content))
    }

    fn remark_on_size(&self, total: u64) {
        let mut files: Vec<_> = self
            .archive
            .entries()
            .iter()
            .filter_map(|entry| Some((entry.file_size()?, &entry.path)))
            .collect();
        files.sort_unstable_by(|a, b| b.cmp(a));
        let names = files
            .iter()
            .take(NAMED)
            .map(|(size, path)| format!("{} ({})", path.display(), format_bytes(*size)));
        let names: Vec<String> = names.collect();
        terminal::note(&format!("sending {}; the largest files: {}", format_bytes(total), names.join(", ")));
        terminal::hint(
            "files that the job does not need can be left out: write their names into .musterignore",
        );
    }
}

/// Takes a snapshot and sends it; again from the beginning when the tree is edited meanwhile.
pub(crate) async fn upload(root: &Path, leave_out: &[&Path], session: &Session) -> Result<BundleId, Error> {
    let mut tries = 1;
    loop {
        let snapshot = Snapshot::take(root, leave_out)?;
        match snapshot.send(session).await {
            Err(Error::Changed { .. }) if tries < TRIES => tries += 1,
            Ok(id) => {
                snapshot.remark_on_skipped();
                return Ok(id);
            }
            Err(error) => return Err(error),
        }
    }
}

fn digest(content: &[u8]) -> ChunkId {
    let hex = blake3::hash(content).to_hex();
    ChunkId::from_digest(&hex).expect("blake3 writes 64 hexadecimal digits")
}

/// The first few, and how many more there are.
fn listed(names: impl ExactSizeIterator<Item = String>) -> String {
    let more = names.len().saturating_sub(NAMED);
    let mut text = names.take(NAMED).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}
