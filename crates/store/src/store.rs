//! Opening the database.

use std::path::Path;

use crate::connection::{self, WalIndex};
use crate::error::Result;
use crate::migration;
use crate::read::Readers;
use crate::write::Writer;

/// The database of one server: its one writer and its readers.
#[derive(Debug)]
pub struct Store {
    /// The only way to change anything.
    pub writer: Writer,
    /// Any number of questions at once, a few at a time.
    pub readers: Readers,
}

impl Store {
    /// The database's file in the data directory. SQLite puts `-wal` and `-shm` beside it, with the same rights.
    pub const FILE: &str = "muster.db";

    /// Opens the database in a directory that exists, making or migrating it where needed. That no other process
    /// writes to it is the caller's to ensure.
    pub fn open(dir: &Path) -> Result<Self> {
        match Self::open_with(dir, WalIndex::File) {
            // Questions can be answered all the same, and a write works as soon as there is room.
            Err(error) if error.is_disk_full() => {
                tracing::error!(%error, "the disk is full; the database is opened without its index file");
                Self::open_with(dir, WalIndex::Memory)
            }
            opened => opened,
        }
    }

    fn open_with(dir: &Path, index: WalIndex) -> Result<Self> {
        let path = dir.join(Self::FILE);
        let mut connection = connection::open_writer(&path, index)?;
        migration::migrate(&mut connection, migration::ALL)?;
        Ok(Self { writer: Writer::new(connection), readers: Readers::new(path, index) })
    }
}
