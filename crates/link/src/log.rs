//! A task's log: one stream of records, kept in segment files.
//!
//! The supervisor writes it, the agent ships its bytes, the server keeps the same bytes and reads them. All three
//! therefore share one layout, and an offset means the same everywhere: the number of bytes of the task's whole record
//! stream, headers included, that come before. A segment is named by the offset of its first byte.
//!
//! Only whole records are ever shown or shipped. The bytes after the last whole one belong to whoever is writing them,
//! and may still be taken back.

mod append;
mod mark;
mod reader;
mod record;
mod segment;
mod ship;
mod sum;
mod tail;
#[cfg(test)]
mod tests;
mod time;

pub use append::Appender;
pub use reader::Reader;
pub use record::{Header, Record, Stream};
pub use segment::{SEGMENT_BYTES, SegmentDir};
pub use ship::{Chunk, Shipper};
pub use sum::Sum;
pub use tail::Tail;

use std::io;
use std::path::{Path, PathBuf};

/// What can go wrong with a log on disk.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    #[error("log file {path}")]
    Io {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("no record begins at log offset {offset}")]
    Corrupt { offset: u64 },
    /// The sender must go back to `end`: what it sent does not continue what is here.
    #[error("bytes at log offset {offset} do not continue a log that ends at {end}")]
    Gap { offset: u64, end: u64 },
}

impl Error {
    fn io(path: &Path) -> impl FnOnce(io::Error) -> Error + '_ {
        move |source| Error::Io { path: path.to_owned(), source }
    }
}
