//! What a bundle is made of: an ordered list of chunks, each named by its content.

use serde::{Deserialize, Serialize};

use crate::id::ChunkId;

/// A piece of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Chunk {
    /// Its content's name.
    pub id: ChunkId,
    /// Its length in bytes.
    pub bytes: u64,
}

/// The chunks that make a bundle when put together in order. The bundle's id is the digest of this list.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Manifest {
    /// The pieces, in order.
    pub chunks: Vec<Chunk>,
}

impl Manifest {
    /// The length of the whole.
    pub fn bytes(&self) -> u64 {
        self.chunks.iter().map(|chunk| chunk.bytes).sum()
    }

    /// The text whose digest names the bundle: one chunk a line.
    pub fn canonical_text(&self) -> String {
        self.chunks.iter().map(|chunk| format!("{} {}\n", chunk.id, chunk.bytes)).collect()
    }
}
