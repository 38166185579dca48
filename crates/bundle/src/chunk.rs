//! One chunk: its name, and the form it is kept and sent in.
//!
//! The *stored* form is one byte that says how, then the content: as it is, or compressed where that helps. Disk, API and
//! link use the same bytes, so a chunk is compressed once, by whoever made it.

use muster_model::bundle::Manifest;
use muster_model::{BundleId, ChunkId};

use crate::cut;

/// The longest stored form.
pub const MAX_STORED: usize = cut::MAX + 1;
/// The length of a digest.
pub const DIGEST: usize = 32;

const RAW: u8 = 0;
const ZSTD: u8 = 1;
/// Fast, and still a third off source code. What travels is little: an edit is a chunk or two.
const LEVEL: i32 = 1;

/// Why bytes are not a chunk.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Empty, too long, compressed in an unknown way, or not decompressed to a chunk's length.
    #[error("the bytes are not a stored chunk")]
    Malformed,
    /// Another content than its name says.
    #[error("the content has another digest than its name says")]
    Mismatch,
    /// A pack that ends too early.
    #[error("the chunk at byte {at} is cut off")]
    CutOff {
        /// Where it begins.
        at: usize,
    },
}

/// The name of a content.
pub fn id(content: &[u8]) -> ChunkId {
    ChunkId::from_digest(blake3::hash(content).to_hex().as_str()).expect("a blake3 digest is a chunk's name")
}

/// The name of a bundle.
pub fn bundle_id(manifest: &Manifest) -> BundleId {
    let digest = blake3::hash(manifest.text().as_bytes());
    BundleId::from_digest(digest.to_hex().as_str()).expect("a blake3 digest is a bundle's name")
}

/// Makes stored forms, with buffers that are kept between them.
pub struct Encoder {
    compressor: zstd::bulk::Compressor<'static>,
}

impl Default for Encoder {
    fn default() -> Self {
        let compressor = zstd::bulk::Compressor::new(LEVEL).expect("the level exists");
        Self { compressor }
    }
}

impl Encoder {
    /// The stored form of a content of at most [`cut::MAX`] bytes.
    pub fn encode(&mut self, content: &[u8]) -> Vec<u8> {
        debug_assert!(content.len() <= cut::MAX);
        let mut stored = vec![0; 1 + content.len()];
        // Into no more room than the content itself has: what does not fit did not get shorter.
        match self.compressor.compress_to_buffer(content, &mut stored[1..]) {
            Ok(length) if length < content.len() => {
                stored.truncate(1 + length);
                stored[0] = ZSTD;
            }
            _ => {
                stored[0] = RAW;
                stored[1..].copy_from_slice(content);
            }
        }
        stored
    }
}

/// What goes before a content in a pack that stores it as it is.
pub fn raw_head(id: &ChunkId, content: &[u8]) -> [u8; 4 + DIGEST + 1] {
    let mut head = [RAW; 4 + DIGEST + 1];
    head[..4].copy_from_slice(&(content.len() as u32 + 1).to_le_bytes());
    head[4..4 + DIGEST].copy_from_slice(&digest(id));
    head
}

/// The content of a stored form, which must have this name.
pub fn decode(id: &ChunkId, stored: &[u8]) -> Result<Vec<u8>, Error> {
    let (how, body) = stored.split_first().ok_or(Error::Malformed)?;
    let content = match *how {
        RAW if body.len() <= cut::MAX => body.to_vec(),
        ZSTD if body.len() <= cut::MAX => {
            zstd::bulk::decompress(body, cut::MAX).map_err(|_| Error::Malformed)?
        }
        _ => return Err(Error::Malformed),
    };
    if self::id(&content) != *id { Err(Error::Mismatch) } else { Ok(content) }
}

/// Compares stored forms with their names, with buffers that are kept between them.
pub struct Verifier {
    decompressor: zstd::bulk::Decompressor<'static>,
    content: Vec<u8>,
}

impl Default for Verifier {
    fn default() -> Self {
        let decompressor = zstd::bulk::Decompressor::new().expect("memory for a decompressor");
        Self { decompressor, content: Vec::with_capacity(cut::MAX) }
    }
}

impl Verifier {
    /// Whether [`decode`] would give the content of this name; nothing is kept of it.
    pub fn verify(&mut self, id: &ChunkId, stored: &[u8]) -> Result<(), Error> {
        let (how, body) = stored.split_first().ok_or(Error::Malformed)?;
        let content = match *how {
            RAW if body.len() <= cut::MAX => body,
            ZSTD if body.len() <= cut::MAX => {
                self.content.clear();
                let decompressed = self.decompressor.decompress_to_buffer(body, &mut self.content);
                decompressed.map_err(|_| Error::Malformed)?;
                &self.content
            }
            _ => return Err(Error::Malformed),
        };
        if self::id(content) != *id { Err(Error::Mismatch) } else { Ok(()) }
    }

    /// The same for a stored form in pieces, as it came. What is not compressed is not put together for it.
    pub fn verify_pieces(&mut self, id: &ChunkId, pieces: &[impl AsRef<[u8]>]) -> Result<(), Error> {
        let pieces = || pieces.iter().map(AsRef::as_ref).filter(|piece| !piece.is_empty());
        let first = pieces().next().ok_or(Error::Malformed)?;
        let length: usize = pieces().map(<[u8]>::len).sum();
        if first.len() == length {
            return self.verify(id, first);
        }
        if first[0] != RAW {
            return self.verify(id, &pieces().collect::<Vec<_>>().concat());
        }
        if length > MAX_STORED {
            return Err(Error::Malformed);
        }
        let mut hasher = blake3::Hasher::new();
        hasher.update(&first[1..]);
        for piece in pieces().skip(1) {
            hasher.update(piece);
        }
        if *hasher.finalize().as_bytes() == digest(id) { Ok(()) } else { Err(Error::Mismatch) }
    }
}

/// Whether bytes can be a stored form at all: a look at how they are put together, without decompressing them. What a
/// power cut left of a file mostly is not.
pub fn is_plausible(stored: &[u8]) -> bool {
    match stored.split_first() {
        Some((&RAW, body)) => body.len() <= cut::MAX,
        Some((&ZSTD, body)) => zstd::zstd_safe::find_frame_compressed_size(body) == Ok(body.len()),
        _ => false,
    }
}

/// Adds a chunk to a pack: many of them in one body. A record is the length of the stored form (four bytes, little
/// endian), the digest, and the stored form.
pub fn push(pack: &mut Vec<u8>, id: &ChunkId, stored: &[u8]) {
    pack.extend_from_slice(&(stored.len() as u32).to_le_bytes());
    pack.extend_from_slice(&digest(id));
    pack.extend_from_slice(stored);
}

/// The chunks of a pack, as they were pushed; nothing is decoded.
pub fn records(pack: &[u8]) -> impl Iterator<Item = Result<(ChunkId, &[u8]), Error>> {
    let mut at = 0;
    std::iter::from_fn(move || {
        if at == pack.len() {
            return None;
        }
        let record = record(&pack[at..]).ok_or(Error::CutOff { at });
        // After a record that is cut off nothing can be found.
        at = record.as_ref().map_or(pack.len(), |(_, stored)| at + 4 + DIGEST + stored.len());
        Some(record)
    })
}

fn record(rest: &[u8]) -> Option<(ChunkId, &[u8])> {
    let (length, rest) = rest.split_first_chunk::<4>()?;
    let (digest, rest) = rest.split_first_chunk::<DIGEST>()?;
    let stored = rest.get(..u32::from_le_bytes(*length) as usize)?;
    Some((from_digest(digest), stored))
}

/// The digest in a chunk's name.
pub fn digest(id: &ChunkId) -> [u8; DIGEST] {
    let hex = id.as_str().trim_start_matches(ChunkId::PREFIX);
    *blake3::Hash::from_hex(hex).expect("a chunk's name is a digest").as_bytes()
}

/// The name with this digest.
pub fn from_digest(digest: &[u8; DIGEST]) -> ChunkId {
    let hex = blake3::Hash::from_bytes(*digest).to_hex();
    ChunkId::from_digest(hex.as_str()).expect("a blake3 digest is a chunk's name")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn what_is_stored_comes_back(content in prop::collection::vec(any::<u8>(), 0..5000), repeat in 1..40_usize, at in any::<prop::sample::Index>()) {
            let content = content.repeat(repeat);
            let stored = Encoder::default().encode(&content);
            prop_assert!(stored.len() <= content.len() + 1);
            let name = id(&content);
            let decoded = decode(&name, &stored);
            prop_assert_eq!(decoded.as_ref(), Ok(&content));
            let mut verifier = Verifier::default();
            let (begin, rest) = stored.split_at(at.index(stored.len() + 1));
            for name in [&id(b"another"), &name] {
                let verdict = decode(name, &stored).map(drop);
                prop_assert_eq!(verifier.verify(name, &stored), verdict.clone());
                prop_assert_eq!(verifier.verify_pieces(name, &[begin, rest]), verdict);
            }
            prop_assert!(is_plausible(&stored));
            prop_assert!(stored[0] == RAW || !is_plausible(&stored[..stored.len() - 1]));
            prop_assert_eq!(from_digest(&digest(&name)), name);
        }

        #[test]
        fn any_bytes_are_refused_without_panic(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
            prop_assert!(decode(&id(b"other"), &bytes).is_err());
            prop_assert!(Verifier::default().verify(&id(b"other"), &bytes).is_err());
            let (begin, rest) = bytes.split_at(bytes.len() / 2);
            prop_assert!(Verifier::default().verify_pieces(&id(b"other"), &[begin, rest]).is_err());
            let _ = is_plausible(&bytes);
            for record in records(&bytes) {
                let _ = record;
            }
        }

        #[test]
        fn a_pack_gives_what_was_pushed(contents in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..50), 0..9)) {
            let mut pack = Vec::new();
            for content in &contents {
                push(&mut pack, &id(content), &Encoder::default().encode(content));
            }
            for content in &contents {
                let raw = [&raw_head(&id(content), content)[..], content].concat();
                let (name, stored) = records(&raw).next().unwrap().unwrap();
                let decoded = decode(&name, stored);
                prop_assert_eq!(decoded.as_ref(), Ok(content));
            }
            let read: Result<Vec<_>, _> = records(&pack).collect();
            let read: Vec<_> = read.unwrap().into_iter().map(|(id, stored)| decode(&id, stored).unwrap()).collect();
            prop_assert_eq!(&read, &contents);
            if !pack.is_empty() {
                prop_assert!(records(&pack[..pack.len() - 1]).any(|record| record.is_err()));
            }
        }
    }

    #[test]
    fn a_bomb_does_not_grow_beyond_a_chunk() {
        let zeros = vec![0; 64 << 20];
        let mut stored = vec![ZSTD];
        stored.extend(zstd::bulk::compress(&zeros, 19).unwrap());
        assert_eq!(decode(&id(&zeros), &stored), Err(Error::Malformed));
        assert_eq!(Verifier::default().verify(&id(&zeros), &stored), Err(Error::Malformed));
    }
}
