//! What is known of a tree in the cache without walking it: its chunks and its listing, in a file beside it.
//!
//! The file also says in which boot of the machine the tree was made. Nothing here waits for the disk, so a tree may
//! have lost files in a power cut that came soon after; therefore none is trusted that is older than the boot.

use std::fs::File;
use std::io::{self, ErrorKind, Read, Write};
use std::path::Path;

use muster_bundle::listing;

use super::layout::{Layout, Piece};

const NAME: &str = "index";
/// Raised when the format changes; an index of another format is as good as none.
const HEADING: &[u8; 8] = b"mtree 1\n";
/// The length of a boot's id.
const BOOT: usize = 36;
const PIECE: usize = 36;

/// The index of a tree, with its listing unread.
pub(super) struct Index {
    pub(super) boot: String,
    pub(super) chunks: Vec<Piece>,
    rest: File,
}

/// Writes the index of a tree. `dir` is what the tree is in.
pub(super) fn write(dir: &Path, boot: &str, layout: &Layout) -> io::Result<()> {
    let mut bytes = Vec::with_capacity(HEADING.len() + BOOT + 16 + layout.chunks().len() * PIECE);
    bytes.extend_from_slice(HEADING);
    let mut named = [b' '; BOOT];
    let length = boot.len().min(BOOT);
    named[..length].copy_from_slice(&boot.as_bytes()[..length]);
    bytes.extend_from_slice(&named);
    bytes.extend_from_slice(&u32::try_from(layout.entries.len()).unwrap_or(u32::MAX).to_le_bytes());
    bytes.extend_from_slice(&layout.bytes().to_le_bytes());
    bytes.extend_from_slice(&(layout.chunks().len() as u32).to_le_bytes());
    for chunk in layout.chunks() {
        bytes.extend_from_slice(&chunk.digest);
        bytes.extend_from_slice(&chunk.bytes.to_le_bytes());
    }
    bytes.extend(listing::encode(&layout.entries));
    File::create_new(dir.join(NAME))?.write_all(&bytes)
}

/// What an index begins with.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Head {
    /// In which boot the tree was made.
    pub(super) boot: String,
    /// How much is in it.
    pub(super) entries: u32,
    pub(super) bytes: u64,
    chunks: u32,
}

/// The beginning of a tree's index; none if it has none that can be read.
pub(super) fn head(dir: &Path) -> Option<Head> {
    read_head(&mut File::open(dir.join(NAME)).ok()?)
}

fn read_head(file: &mut File) -> Option<Head> {
    let mut bytes = [0; HEADING.len() + BOOT + 16];
    file.read_exact(&mut bytes).ok()?;
    let (heading, rest) = bytes.split_first_chunk::<8>()?;
    let (boot, rest) = rest.split_first_chunk::<BOOT>()?;
    let (entries, rest) = rest.split_first_chunk()?;
    let (bytes, rest) = rest.split_first_chunk()?;
    let (chunks, _) = rest.split_first_chunk()?;
    (heading == HEADING).then(|| Head {
        boot: String::from_utf8_lossy(boot).trim_end().to_owned(),
        entries: u32::from_le_bytes(*entries),
        bytes: u64::from_le_bytes(*bytes),
        chunks: u32::from_le_bytes(*chunks),
    })
}

/// Opens the index of a tree; none if there is none that can be read.
pub(super) fn open(dir: &Path) -> Option<Index> {
    let mut file = File::open(dir.join(NAME)).ok()?;
    let head = read_head(&mut file)?;
    let count = head.chunks as usize;
    let mut bytes = Vec::new();
    (&mut file).take((count * PIECE) as u64).read_to_end(&mut bytes).ok()?;
    let (pieces, []) = bytes.as_chunks::<PIECE>() else { return None };
    if pieces.len() != count {
        return None;
    }
    Some(Index { boot: head.boot, chunks: pieces.iter().map(piece).collect(), rest: file })
}

fn piece(bytes: &[u8; PIECE]) -> Piece {
    let (digest, length) = bytes.split_at(32);
    let digest = digest.try_into().unwrap_or_default();
    Piece { digest, bytes: u32::from_le_bytes(length.try_into().unwrap_or_default()) }
}

impl Index {
    /// The whole tree.
    pub(super) fn layout(mut self) -> io::Result<Layout> {
        let mut bytes = Vec::new();
        self.rest.read_to_end(&mut bytes)?;
        let invalid = |error: String| io::Error::new(ErrorKind::InvalidData, error);
        let entries = listing::decode(&bytes).map_err(|error| invalid(error.to_string()))?;
        Layout::new(entries, self.chunks).map_err(|error| invalid(error.to_string()))
    }
}

#[cfg(test)]
mod tests {
    use muster_bundle::listing::{Entry, Kind, Time};

    use super::*;

    #[test]
    fn an_index_is_read_as_it_was_written_and_a_damaged_one_is_none() {
        let home = tempfile::tempdir().unwrap();
        let entry =
            Entry { path: b"a".into(), kind: Kind::File { size: 7 }, mode: 0o644, mtime: Time::default() };
        let chunks = vec![Piece { digest: [3; 32], bytes: 7 }];
        write(home.path(), "boot", &Layout::new(vec![entry], chunks.clone()).unwrap()).unwrap();
        let index = open(home.path()).unwrap();
        assert_eq!((index.boot.as_str(), &index.chunks), ("boot", &chunks));
        assert_eq!(index.layout().unwrap().entries.len(), 1);
        assert_eq!(head(home.path()), Some(Head { boot: "boot".into(), entries: 1, bytes: 7, chunks: 1 }));
        let path = home.path().join(NAME);
        let whole = std::fs::read(&path).unwrap();
        for cut in 0..whole.len() {
            std::fs::write(&path, &whole[..cut]).unwrap();
            // Whatever is left of it, it is read or refused.
            if let Some(index) = open(home.path()) {
                assert!(index.layout().is_err(), "{cut}");
            }
        }
    }
}
