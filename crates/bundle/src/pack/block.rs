//! The memory that files are read into.
//!
//! Chunks leave as parts of a block, not as copies, and a block whose chunks are all gone is filled again: memory that is
//! new to the process costs a page fault for every 4 KiB, which for a gigabyte is as much as hashing it.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::Bytes;

use super::MOST_AHEAD;

/// Blocks that nobody uses now. Only those of the full length are kept; the small ones are few.
#[derive(Default)]
pub(super) struct Blocks {
    idle: Arc<Mutex<Vec<Vec<u8>>>>,
}

/// A block that is being filled.
pub(super) struct Block {
    memory: Memory,
    filled: usize,
}

/// Goes back to where it came from.
struct Memory {
    bytes: Vec<u8>,
    idle: Arc<Mutex<Vec<Vec<u8>>>>,
}

impl Blocks {
    /// An empty block of this length.
    pub fn take(&self, length: usize) -> Block {
        let used = || self.idle.lock().unwrap_or_else(PoisonError::into_inner).pop();
        let used = if length == MOST_AHEAD { used() } else { None };
        // The system gives pages of zeros when they are first touched, so nothing is written here.
        let bytes = used.unwrap_or_else(|| vec![0; length]);
        Block { memory: Memory { bytes, idle: self.idle.clone() }, filled: 0 }
    }
}

impl Block {
    /// What can still be filled.
    pub fn room(&mut self) -> &mut [u8] {
        &mut self.memory.bytes[self.filled..]
    }

    /// So much of the room was filled.
    pub fn add(&mut self, length: usize) {
        self.filled += length;
    }

    /// Fills in bytes, for which there must be room.
    pub fn push(&mut self, bytes: &[u8]) {
        self.room()[..bytes.len()].copy_from_slice(bytes);
        self.add(bytes.len());
    }

    /// Begins anew.
    pub fn clear(&mut self) {
        self.filled = 0;
    }

    /// What was filled in; the memory is used again when the last part of it is dropped.
    pub fn freeze(self) -> Bytes {
        Bytes::from_owner(self.memory).slice(..self.filled)
    }
}

impl AsRef<[u8]> for Memory {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Memory {
    fn drop(&mut self) {
        if self.bytes.len() == MOST_AHEAD {
            let bytes = std::mem::take(&mut self.bytes);
            self.idle.lock().unwrap_or_else(PoisonError::into_inner).push(bytes);
        }
    }
}
