//! Opening the database.

use std::fs;
use std::path::Path;

use rusqlite::Connection;
use rusqlite::config::DbConfig;

use crate::connection::{self, WalIndex};
use crate::error::{Error, Result, doing};
use crate::mark::CommitMark;
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

    /// The mark of the last commit, beside the database; see [`crate::mark`].
    pub const MARK: &str = "muster.commit";

    /// Whether a directory has a database. An empty file is none.
    pub fn exists(dir: &Path) -> bool {
        fs::metadata(dir.join(Self::FILE)).is_ok_and(|file| file.len() > 0)
    }

    /// Opens the database in a directory that exists, making or migrating it where needed. One that lacks commits which
    /// were acknowledged is not opened, and left as it is. That no other process writes to it is the caller's to ensure.
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

    /// Looks through the database in a directory, also beside its server, and changes nothing: what SQLite finds wrong with its pages, indexes and
    /// references, at most so many; and commits that it lacks. Answers questions about it, too.
    pub fn check(dir: &Path, most: u32) -> Result<(Readers, Vec<String>)> {
        let path = dir.join(Self::FILE);
        // Before the database is read, which is never behind it.
        let marked = CommitMark::read(&dir.join(Self::MARK));
        if !Self::exists(dir) {
            return Err(Error::Missing { path });
        }
        let readers = Readers::new(path, WalIndex::File);
        let mut found = readers.damage(most)?;
        let reader = readers.reader()?;
        match check_commits(&reader, marked) {
            Err(lost @ Error::Lost { .. }) => found.push(lost.to_string()),
            Err(error) => return Err(error),
            Ok(_) => {}
        }
        drop(reader);
        Ok((readers, found))
    }

    fn open_with(dir: &Path, index: WalIndex) -> Result<Self> {
        let path = dir.join(Self::FILE);
        let marked = CommitMark::read(&dir.join(Self::MARK));
        if marked.is_some() && !Self::exists(dir) {
            return Err(Error::Missing { path });
        }
        let mut connection = connection::open_writer(&path, index)?;
        let number = check_commits(&connection, marked)?;
        migration::migrate(&mut connection, migration::ALL)?;
        let mark = CommitMark::begin(dir.join(Self::MARK), number);
        Ok(Self { writer: Writer::new(connection, number, mark), readers: Readers::new(path, index) })
    }
}

/// The number of the last commit in the database, which is not behind its mark. A database that is stays as it is on disk: its log may
/// be looked into, or copied back.
fn check_commits(connection: &Connection, marked: Option<i32>) -> Result<i32> {
    let number: i32 = connection
        .pragma_query_value(None, "user_version", |row| row.get(0))
        .map_err(doing("read the number of the last commit"))?;
    match marked.map(|marked| marked.wrapping_sub(number)) {
        Some(lost @ 1..) => {
            connection
                .set_db_config(DbConfig::SQLITE_DBCONFIG_NO_CKPT_ON_CLOSE, true)
                .map_err(doing("leave the database as it is"))?;
            Err(Error::Lost { commits: lost.unsigned_abs() })
        }
        _ => Ok(number),
    }
}

#[cfg(test)]
mod tests;
