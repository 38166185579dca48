//! A manifest as the server holds it: 36 bytes for each chunk, read from a stream.
//!
//! The JSON of a manifest takes 90 bytes for each chunk, and as much again for its owned text. A few large ones at once
//! would fill the server's memory, so neither is ever held whole: the JSON is parsed as it comes, and the text, by
//! which a bundle is named, is hashed line by line.

use std::fmt;
use std::io;

use muster_bundle::{chunk, cut};
use muster_model::bundle::{Manifest, ParseError};
use muster_model::spec::{FieldCode, FieldError};
use muster_model::{BundleId, ChunkId};
use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};

/// Code averages 256 KiB for each chunk; a manifest with smaller ones than this is not code that was cut by a client.
const LEAST_CHUNK: u64 = 64 << 10;
/// The most chunks that any manifest may have, whatever its bundle may hold.
pub(crate) const MAX_CHUNKS: usize = 1 << 20;
/// The most JSON that one chunk takes: its id, its length, and some white space.
const MAX_JSON: u64 = 128;

/// A chunk of a manifest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Piece {
    pub digest: [u8; chunk::DIGEST],
    /// Saturated: no chunk is that long.
    pub bytes: u32,
}

impl Piece {
    pub fn id(&self) -> ChunkId {
        chunk::from_digest(&self.digest)
    }
}

/// The chunks of a bundle.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct CompactManifest {
    pub listing: Vec<Piece>,
    pub content: Vec<Piece>,
}

/// How large a bundle may be, and its manifest with it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct ManifestLimit {
    /// The length of its content, unpacked.
    pub bundle_bytes: u64,
}

impl ManifestLimit {
    pub fn chunks(self) -> usize {
        usize::try_from(self.bundle_bytes / LEAST_CHUNK).unwrap_or(MAX_CHUNKS).clamp(4096, MAX_CHUNKS)
    }

    /// The longest JSON of a manifest.
    pub fn json_bytes(self) -> u64 {
        (self.chunks() as u64 + 32) * MAX_JSON
    }
}

/// Why there is no manifest.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ReadError {
    #[error("{0}")]
    Json(serde_json::Error),
    #[error("a bundle has at most {0} chunks")]
    TooMany(usize),
}

impl CompactManifest {
    /// Reads JSON, and stops at the first chunk that is too many.
    pub fn read_json(from: impl io::Read, limit: ManifestLimit) -> Result<Self, ReadError> {
        let mut left = limit.chunks();
        let mut is_too_long = false;
        let mut json = serde_json::Deserializer::from_reader(from);
        let seed = ManifestSeed { left: &mut left, is_too_long: &mut is_too_long };
        let read = seed.deserialize(&mut json).and_then(|manifest| json.end().map(|()| manifest));
        match read {
            Err(_) if is_too_long => Err(ReadError::TooMany(limit.chunks())),
            read => read.map_err(ReadError::Json),
        }
    }

    /// Reads the canonical text, as nodes send it and the database has it.
    pub fn read_text(text: &str) -> Result<Self, ParseError> {
        let mut manifest = Self::default();
        let mut lines = text.strip_suffix('\n').unwrap_or_default().split('\n');
        if lines.next() != Some(Manifest::HEADING) {
            return Err(ParseError { line: 1 });
        }
        for (index, line) in lines.enumerate() {
            let bad = || ParseError { line: index + 2 };
            let mut words = line.splitn(3, ' ');
            let (list, id, bytes) = (words.next(), words.next(), words.next());
            let id: ChunkId = id.and_then(|id| id.parse().ok()).ok_or_else(bad)?;
            let bytes: u64 = bytes.and_then(|bytes| bytes.parse().ok()).ok_or_else(bad)?;
            let piece = Piece { digest: chunk::digest(&id), bytes: saturate(bytes) };
            match list {
                Some("l") if manifest.content.is_empty() => manifest.listing.push(piece),
                Some("c") => manifest.content.push(piece),
                _ => return Err(bad()),
            }
        }
        Ok(manifest)
    }

    /// Every chunk, those of the listing first.
    pub fn pieces(&self) -> impl Iterator<Item = &Piece> {
        self.listing.iter().chain(&self.content)
    }

    /// The length of the content, unpacked.
    pub fn bytes(&self) -> u64 {
        self.content.iter().map(|piece| u64::from(piece.bytes)).sum()
    }

    /// The bundle's name.
    pub fn bundle_id(&self) -> BundleId {
        let mut hasher = blake3::Hasher::new();
        self.each_line(|line| {
            hasher.update(line.as_bytes());
        });
        let digest = hasher.finalize().to_hex();
        BundleId::from_digest(digest.as_str()).expect("a blake3 digest is a bundle's name")
    }

    /// The canonical text.
    pub fn text(&self) -> String {
        let mut text = String::new();
        self.each_line(|line| text.push_str(line));
        text
    }

    fn each_line(&self, mut each: impl FnMut(&str)) {
        each(Manifest::HEADING);
        each("\n");
        for (list, pieces) in [('l', &self.listing), ('c', &self.content)] {
            for piece in pieces {
                each(&format!("{list} {} {}\n", piece.id(), piece.bytes));
            }
        }
    }

    /// What is wrong with it, before any of it is looked for: chunks that cannot be, and more than may be unpacked.
    pub fn check(&self, limit: ManifestLimit) -> Vec<FieldError> {
        let mut errors = Vec::new();
        for (list, pieces) in [("listing", &self.listing), ("content", &self.content)] {
            // No client cuts empty chunks: with them, a long manifest would name code of no length.
            let is_possible = |piece: &Piece| (1..=cut::MAX).contains(&(piece.bytes as usize));
            if let Some(i) = pieces.iter().position(|piece| !is_possible(piece)) {
                let message = format!("must be 1 to {}", cut::MAX);
                errors.push(FieldError::new(format!("{list}[{i}].bytes"), FieldCode::OutOfRange, message));
            }
        }
        if errors.is_empty() && self.bytes() > limit.bundle_bytes {
            errors.push(FieldError::new("content", FieldCode::OutOfRange, too_large(self.bytes(), limit)));
        }
        errors
    }
}

/// The message for a bundle that is too large.
pub(crate) fn too_large(bytes: u64, limit: ManifestLimit) -> String {
    let shown = muster_model::quantity::format_bytes;
    format!(
        "the code unpacks to {}, more than the {} that limits.bundle of the server allows; leave data out of it, or ask an admin to raise the limit",
        shown(bytes),
        shown(limit.bundle_bytes)
    )
}

fn saturate(bytes: u64) -> u32 {
    u32::try_from(bytes).unwrap_or(u32::MAX)
}

struct ManifestSeed<'a> {
    left: &'a mut usize,
    is_too_long: &'a mut bool,
}

impl<'de> DeserializeSeed<'de> for ManifestSeed<'_> {
    type Value = CompactManifest;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<CompactManifest, D::Error> {
        deserializer.deserialize_map(self)
    }
}

impl<'de> Visitor<'de> for ManifestSeed<'_> {
    type Value = CompactManifest;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("an object with `listing` and `content`")
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<CompactManifest, A::Error> {
        let ManifestSeed { left, is_too_long } = self;
        let (mut listing, mut content) = (None, None);
        while let Some(field) = map.next_key::<String>()? {
            let (list, name) = match field.as_str() {
                "listing" => (&mut listing, "listing"),
                "content" => (&mut content, "content"),
                other => return Err(A::Error::unknown_field(other, &["listing", "content"])),
            };
            if list.is_some() {
                return Err(A::Error::duplicate_field(name));
            }
            *list =
                Some(map.next_value_seed(PiecesSeed { left: &mut *left, is_too_long: &mut *is_too_long })?);
        }
        Ok(CompactManifest {
            listing: listing.ok_or_else(|| A::Error::missing_field("listing"))?,
            content: content.ok_or_else(|| A::Error::missing_field("content"))?,
        })
    }
}

struct PiecesSeed<'a> {
    left: &'a mut usize,
    is_too_long: &'a mut bool,
}

impl<'de> DeserializeSeed<'de> for PiecesSeed<'_> {
    type Value = Vec<Piece>;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Vec<Piece>, D::Error> {
        deserializer.deserialize_seq(self)
    }
}

impl<'de> Visitor<'de> for PiecesSeed<'_> {
    type Value = Vec<Piece>;

    fn expecting(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("a list of chunks")
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Vec<Piece>, A::Error> {
        let mut pieces = Vec::new();
        while let Some(listed) = seq.next_element::<muster_model::bundle::Chunk>()? {
            let Some(left) = self.left.checked_sub(1) else {
                *self.is_too_long = true;
                return Err(A::Error::custom("too many chunks"));
            };
            *self.left = left;
            pieces.push(Piece { digest: chunk::digest(&listed.id), bytes: saturate(listed.bytes) });
        }
        Ok(pieces)
    }
}

#[cfg(test)]
mod tests {
    use muster_model::bundle::Chunk;
    use serde_json::json;

    use super::*;

    const LIMIT: ManifestLimit = ManifestLimit { bundle_bytes: 1 << 30 };

    fn plain() -> Manifest {
        let chunk = |content: &[u8]| Chunk { id: chunk::id(content), bytes: content.len() as u64 };
        Manifest {
            listing: vec![chunk(b"names")],
            content: vec![chunk(b"one"), chunk(b"two"), chunk(b"one")],
        }
    }

    #[test]
    fn the_compact_form_has_the_name_and_the_text_of_the_plain_one() {
        let plain = plain();
        let json = json!({ "listing": plain.listing, "content": plain.content }).to_string();
        let compact = CompactManifest::read_json(json.as_bytes(), LIMIT).unwrap();
        assert_eq!(compact.text(), plain.text());
        assert_eq!(compact.bundle_id(), chunk::bundle_id(&plain));
        assert_eq!(compact.bytes(), plain.bytes());
        assert_eq!(CompactManifest::read_text(&plain.text()).unwrap(), compact);
        assert!(compact.check(LIMIT).is_empty());
    }

    #[test]
    fn other_json_is_refused_without_panic() {
        let id = chunk::id(b"x");
        for bad in [
            "".to_owned(),
            "[]".into(),
            "{}".into(),
            json!({ "listing": [] }).to_string(),
            json!({ "listing": [], "content": [], "more": 1 }).to_string(),
            json!({ "listing": [], "content": [{ "id": "chunk_1", "bytes": 1 }] }).to_string(),
            json!({ "listing": [], "content": [{ "id": id, "bytes": -1 }] }).to_string(),
            r#"{"listing":[],"listing":[],"content":[]}"#.into(),
            r#"{"listing":[],"content":[]} x"#.into(),
        ] {
            assert!(
                matches!(CompactManifest::read_json(bad.as_bytes(), LIMIT), Err(ReadError::Json(_))),
                "{bad}"
            );
        }
    }

    #[test]
    fn a_manifest_with_too_many_chunks_is_not_read_to_its_end() {
        /// An endless list.
        struct Endless(Vec<u8>, usize);
        impl io::Read for Endless {
            fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
                let length = buffer.len().min(self.0.len() - self.1);
                buffer[..length].copy_from_slice(&self.0[self.1..self.1 + length]);
                self.1 = (self.1 + length) % self.0.len();
                Ok(length)
            }
        }
        let element = format!("{{\"id\":\"{}\",\"bytes\":1}},", chunk::id(b"x"));
        let body = io::Read::chain(&b"{\"listing\":[],\"content\":["[..], Endless(element.into_bytes(), 0));
        let limit = ManifestLimit { bundle_bytes: 1 };
        assert!(matches!(CompactManifest::read_json(body, limit), Err(ReadError::TooMany(4096))));
    }

    #[test]
    fn one_chunk_named_thousands_of_times_counts_with_its_whole_length() {
        let piece = Piece { digest: [7; 32], bytes: 1 << 20 };
        let manifest = CompactManifest { listing: Vec::new(), content: vec![piece; 8192] };
        assert!(manifest.check(ManifestLimit { bundle_bytes: 8 << 30 }).is_empty());
        let errors = manifest.check(ManifestLimit { bundle_bytes: (8 << 30) - 1 });
        assert!(errors[0].field == "content" && errors[0].message.contains("limits.bundle"), "{errors:?}");
        let endless = Piece { digest: [7; 32], bytes: u32::MAX };
        let manifest = CompactManifest { listing: vec![endless], content: vec![endless] };
        let fields: Vec<_> = manifest.check(LIMIT).into_iter().map(|error| error.field).collect();
        assert_eq!(fields, ["listing[0].bytes", "content[0].bytes"]);
        let empty = Piece { digest: [7; 32], bytes: 0 };
        let manifest = CompactManifest { listing: vec![piece], content: vec![piece, empty] };
        let fields: Vec<_> = manifest.check(LIMIT).into_iter().map(|error| error.field).collect();
        assert_eq!(fields, ["content[1].bytes"]);
    }
}
