//! Which bytes of which chunks a tree's files are, and where another tree has the same ones.

use std::collections::HashMap;

use muster_bundle::listing::{Entry, Kind};
use muster_bundle::{chunk, cut};
use muster_model::bundle::Manifest;

/// A chunk of the content.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Piece {
    pub(super) digest: [u8; chunk::DIGEST],
    pub(super) bytes: u32,
}

/// Why a listing and a manifest do not make a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Error {
    #[error("the bundle's manifest has a chunk that is longer than chunks are")]
    LongChunk,
    #[error("the bundle's listing has {files} bytes of files, and its manifest {chunks} bytes of chunks")]
    Lengths { files: u64, chunks: u64 },
}

/// A tree: what is in it, and the chunks that hold its files, one after the other.
#[derive(Debug)]
pub(super) struct Layout {
    pub(super) entries: Vec<Entry>,
    chunks: Vec<Piece>,
    /// Where each chunk begins in the content.
    chunk_starts: Vec<u64>,
    /// Where each entry begins in the content.
    starts: Vec<u64>,
}

/// The bytes of a file, named so that equal names are equal bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) struct Span<'a> {
    chunks: &'a [Piece],
    /// Where it begins in the first of them.
    within: u64,
    bytes: u64,
}

impl Layout {
    pub(super) fn new(entries: Vec<Entry>, chunks: Vec<Piece>) -> Result<Layout, Error> {
        let (starts, files) = sums(entries.iter().map(Entry::size));
        let (chunk_starts, length) = sums(chunks.iter().map(|chunk| u64::from(chunk.bytes)));
        if files != length {
            return Err(Error::Lengths { files, chunks: length });
        }
        Ok(Layout { entries, chunks, chunk_starts, starts })
    }

    pub(super) fn chunks(&self) -> &[Piece] {
        &self.chunks
    }

    /// How large all files are together.
    pub(super) fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| u64::from(chunk.bytes)).sum()
    }

    /// The bytes of an entry; none of anything but a file.
    pub(super) fn span(&self, entry: usize) -> Span<'_> {
        let (start, bytes) = (self.starts[entry], self.entries[entry].size());
        if bytes == 0 {
            return Span { chunks: &[], within: 0, bytes: 0 };
        }
        let first = self.chunk_starts.partition_point(|at| *at <= start) - 1;
        let end = self.chunk_starts.partition_point(|at| *at < start + bytes);
        Span { chunks: &self.chunks[first..end], within: start - self.chunk_starts[first], bytes }
    }

    /// The files, by their bytes.
    pub(super) fn by_span(&self) -> HashMap<Span<'_>, usize> {
        let files = (0..self.entries.len()).filter(|entry| self.entries[*entry].size() > 0);
        files.map(|entry| (self.span(entry), entry)).collect()
    }

    /// The files, by their paths.
    pub(super) fn find(&self, path: &[u8]) -> Option<usize> {
        let found = self.entries.binary_search_by(|entry| muster_bundle::listing::compare(&entry.path, path));
        found.ok().filter(|entry| matches!(self.entries[*entry].kind, Kind::File { .. }))
    }
}

impl<'a> Span<'a> {
    /// The parts of this span: each chunk with where in it the part begins and how long it is.
    pub(super) fn parts(self) -> impl Iterator<Item = (&'a Piece, u32, u32)> {
        let (mut within, mut left) = (self.within, self.bytes);
        self.chunks.iter().map(move |chunk| {
            let length = (u64::from(chunk.bytes) - within).min(left);
            let part = (chunk, within as u32, length as u32);
            within = 0;
            left -= length;
            part
        })
    }
}

fn sums(lengths: impl Iterator<Item = u64>) -> (Vec<u64>, u64) {
    let mut total = 0_u64;
    let starts = lengths.map(|length| {
        let start = total;
        total = total.saturating_add(length);
        start
    });
    (starts.collect(), total)
}

/// The chunks of a manifest's content.
pub(super) fn content(manifest: &Manifest) -> Result<Vec<Piece>, Error> {
    let piece = |listed: &muster_model::bundle::Chunk| match u32::try_from(listed.bytes) {
        Ok(bytes) if bytes as usize <= cut::MAX => Ok(Piece { digest: chunk::digest(&listed.id), bytes }),
        _ => Err(Error::LongChunk),
    };
    manifest.content.iter().map(piece).collect()
}

#[cfg(test)]
mod tests {
    use muster_bundle::listing::Time;
    use proptest::prelude::{any, prop_assert_eq, proptest};

    use super::*;

    fn file(path: String, size: u64) -> Entry {
        Entry { path: path.into(), kind: Kind::File { size }, mode: 0o644, mtime: Time::default() }
    }

    proptest! {
        #[test]
        fn the_parts_of_all_files_are_the_content_in_order(
            sizes in proptest::collection::vec(0..40_u64, 0..20), cuts in proptest::collection::vec(0..30_u32, 0..40),
            seed in any::<u8>()
        ) {
            let total: u64 = sizes.iter().sum();
            let mut left = total;
            let mut chunks = Vec::new();
            for (index, length) in cuts.into_iter().chain(std::iter::repeat_n(30, 40)).enumerate() {
                let bytes = left.min(u64::from(length)) as u32;
                left -= u64::from(bytes);
                chunks.push(Piece { digest: [index as u8 ^ seed; 32], bytes });
            }
            let content: Vec<(u8, u32)> = chunks
                .iter()
                .flat_map(|chunk| (0..chunk.bytes).map(move |at| (chunk.digest[0], at)))
                .collect();
            let entries: Vec<_> =
                sizes.iter().enumerate().map(|(index, size)| file(format!("{index:03}"), *size)).collect();
            let Ok(layout) = Layout::new(entries, chunks) else { return Ok(()) };
            let mut read = Vec::new();
            for entry in 0..layout.entries.len() {
                let before = read.len();
                for (chunk, within, length) in layout.span(entry).parts() {
                    read.extend((within..within + length).map(|at| (chunk.digest[0], at)));
                }
                prop_assert_eq!((read.len() - before) as u64, layout.entries[entry].size());
            }
            prop_assert_eq!(read, content);
        }
    }

    #[test]
    fn files_and_chunks_of_different_lengths_are_no_tree() {
        let chunks = vec![Piece { digest: [1; 32], bytes: 5 }];
        assert!(matches!(Layout::new(vec![file("a".into(), 6)], chunks), Err(Error::Lengths { .. })));
        assert!(Layout::new(vec![file("a".into(), u64::MAX)], Vec::new()).is_err());
    }
}
