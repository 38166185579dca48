//! What a bundle is made of: two lists of chunks, each chunk named by its content.
//!
//! The first list, put together, is the *listing*: names, modes, times and sizes of everything in the tree. The second
//! is the *content*: all files one after the other, in the order of the listing. They are kept apart so that a node
//! knows from a few kilobytes which files it already has.

use std::fmt::Write as _;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

use crate::id::ChunkId;

/// A piece of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Chunk {
    /// Its content's name.
    pub id: ChunkId,
    /// Its length in bytes, before compression.
    pub bytes: u64,
}

/// The chunks that make a bundle. The bundle's id is the digest of [`Manifest::text`].
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Manifest {
    /// The pieces of the listing, in order.
    pub listing: Vec<Chunk>,
    /// The pieces of the content, in order.
    pub content: Vec<Chunk>,
}

/// A text that is not a manifest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("line {line} of the manifest cannot be read")]
pub struct ParseError {
    /// Which line, from 1.
    pub line: usize,
}

impl Manifest {
    /// The first line of the text. Raised when the format changes: the same tree then has another name, and old nodes do
    /// not misread it.
    pub const HEADING: &str = "muster bundle 1";

    /// The length of the content, saturating: the lengths may be anyone's words.
    pub fn bytes(&self) -> u64 {
        self.content.iter().fold(0, |sum, chunk| chunk.bytes.saturating_add(sum))
    }

    /// Every chunk, those of the listing first.
    pub fn chunks(&self) -> impl Iterator<Item = &Chunk> {
        self.listing.iter().chain(&self.content)
    }

    /// The one spelling of this manifest: a heading, then a line for each chunk.
    pub fn text(&self) -> String {
        let mut text = format!("{}\n", Self::HEADING);
        for (list, chunks) in [('l', &self.listing), ('c', &self.content)] {
            for chunk in chunks {
                // Writing to a String cannot fail.
                let _ = writeln!(text, "{list} {} {}", chunk.id, chunk.bytes);
            }
        }
        text
    }
}

impl FromStr for Manifest {
    type Err = ParseError;

    /// Reads what [`Manifest::text`] wrote, and nothing else.
    fn from_str(text: &str) -> Result<Self, ParseError> {
        let mut manifest = Self::default();
        let mut lines = text.strip_suffix('\n').unwrap_or_default().split('\n');
        if lines.next() != Some(Self::HEADING) {
            return Err(ParseError { line: 1 });
        }
        for (index, line) in lines.enumerate() {
            let bad = || ParseError { line: index + 2 };
            let mut words = line.splitn(3, ' ');
            let (list, id, bytes) = (words.next(), words.next(), words.next());
            let chunk = Chunk {
                id: id.and_then(|id| id.parse().ok()).ok_or_else(bad)?,
                bytes: bytes.and_then(|bytes| bytes.parse().ok()).ok_or_else(bad)?,
            };
            match list {
                Some("l") if manifest.content.is_empty() => manifest.listing.push(chunk),
                Some("c") => manifest.content.push(chunk),
                _ => return Err(bad()),
            }
        }
        Ok(manifest)
    }
}

/// Where a bundle's code came from.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Source {
    /// The commit that was checked out.
    pub commit: String,
    /// The branch, unless none was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub branch: Option<String>,
    /// Whether files under version control differed from the commit.
    pub dirty: bool,
    /// The chunk that holds the difference, as `git diff` prints it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub diff: Option<ChunkId>,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(digit: char, bytes: u64) -> Chunk {
        Chunk { id: ChunkId::from_digest(&digit.to_string().repeat(64)).unwrap(), bytes }
    }

    #[test]
    fn a_manifest_is_read_as_it_was_written() {
        let manifest =
            Manifest { listing: vec![chunk('1', 7)], content: vec![chunk('2', 0), chunk('3', u64::MAX)] };
        assert_eq!(manifest.text().parse(), Ok(manifest.clone()));
        assert_eq!(manifest.bytes(), u64::MAX);
        assert_eq!(Manifest::default().text().parse(), Ok(Manifest::default()));
    }

    #[test]
    fn other_texts_are_refused_with_the_line() {
        let good = Manifest { listing: vec![chunk('1', 7)], content: vec![chunk('2', 8)] }.text();
        for (bad, line) in [
            (String::new(), 1),
            ("muster bundle 9\n".to_owned(), 1),
            (good.trim_end().to_owned(), 1),
            (format!("{good}\n"), 4),
            (format!("{good}l {} 1\n", chunk('1', 1).id), 4),
            (good.replace(" 7", " 7 "), 2),
            (good.replace(" 8", " -8"), 3),
        ] {
            assert_eq!(bad.parse::<Manifest>(), Err(ParseError { line }), "{bad:?}");
        }
    }
}
