//! How connections are set up. Every setting has its reason here and nowhere else.

use std::ffi::CStr;
use std::fs::{OpenOptions, Permissions};
use std::io;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::path::Path;
use std::time::Duration;

use rusqlite::{Connection, OpenFlags};

use crate::error::{Error, Result, doing};

/// Nobody else should hold the database, but a person with the `sqlite3` tool may, for a moment.
pub(crate) const BUSY: Duration = Duration::from_secs(5);
/// More than the statements there are, so that none is ever prepared twice.
const STATEMENTS: usize = 64;

/// The settings of the one connection that writes.
///
/// - WAL with `synchronous = FULL`: a commit is one append and one sync, and is on disk when it returns.
/// - 1000 pages (4 MB) between checkpoints keep the log small and a checkpoint short; after a burst of large
///   commits the log file is cut back to 16 MB.
/// - `secure_delete`: what is removed, an environment above all, is overwritten and not only unlinked.
/// - No `mmap`: a failing disk would then be a signal that ends the server, not an error that can be reported, and
///   mapped pages count as memory of the idle server. A small cache does as well, with the system's behind it.
const WRITER: &str = "
    PRAGMA journal_mode = WAL;
    PRAGMA synchronous = FULL;
    PRAGMA foreign_keys = ON;
    PRAGMA secure_delete = ON;
    PRAGMA wal_autocheckpoint = 1000;
    PRAGMA journal_size_limit = 16777216;
    PRAGMA mmap_size = 0;
    PRAGMA cache_size = -2048;
    PRAGMA temp_store = MEMORY;
";

/// The settings of the connections that only read; there are several, so each has a smaller cache.
const READER: &str = "
    PRAGMA mmap_size = 0;
    PRAGMA cache_size = -1024;
    PRAGMA temp_store = MEMORY;
";

/// Where the connections of one process keep the index of the write-ahead log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum WalIndex {
    /// In the file `-shm`: other processes may read the database, too.
    File,
    /// In memory, which needs no room on a full disk. Other processes are kept out.
    Memory,
}

impl WalIndex {
    /// The part of SQLite that does so.
    fn vfs(self) -> &'static CStr {
        match self {
            Self::File => c"unix",
            Self::Memory => c"unix-excl",
        }
    }
}

/// Opens the database for writing, readable by its user alone.
pub(crate) fn open_writer(path: &Path, index: WalIndex) -> Result<Connection> {
    make_private(path).map_err(|source| Error::File { path: path.to_owned(), source })?;
    open(path, OpenFlags::SQLITE_OPEN_READ_WRITE, index, WRITER).map_err(doing("open the database"))
}

/// Opens the database for reading.
pub(crate) fn open_reader(path: &Path, index: WalIndex) -> Result<Connection> {
    let (flags, settings) = match index {
        WalIndex::File => (OpenFlags::SQLITE_OPEN_READ_ONLY, READER.to_owned()),
        // A read-only connection would give up the lock that keeps other processes out.
        WalIndex::Memory => (OpenFlags::SQLITE_OPEN_READ_WRITE, format!("{READER}PRAGMA query_only = ON;")),
    };
    open(path, flags, index, &settings).map_err(doing("open the database for reading"))
}

fn open(path: &Path, flags: OpenFlags, index: WalIndex, settings: &str) -> rusqlite::Result<Connection> {
    let flags = flags | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    let connection = Connection::open_with_flags_and_vfs(path, flags, index.vfs())?;
    connection.busy_timeout(BUSY)?;
    connection.execute_batch(settings)?;
    connection.set_prepared_statement_cache_capacity(STATEMENTS);
    Ok(connection)
}

/// The file must never exist with wider rights, not even for a moment, so it is made before SQLite sees it.
pub(crate) fn make_private(path: &Path) -> io::Result<()> {
    let file = OpenOptions::new().write(true).create(true).truncate(false).mode(0o600).open(path)?;
    file.set_permissions(Permissions::from_mode(0o600))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_commit_is_synced_and_every_removal_overwrites() {
        let dir = tempfile::tempdir().unwrap();
        let connection = open_writer(&dir.path().join("test.db"), WalIndex::File).unwrap();
        let setting = |name: &str| -> String {
            let value = connection.query_row(&format!("PRAGMA {name}"), [], |row| row.get(0)).unwrap();
            match value {
                rusqlite::types::Value::Text(text) => text,
                rusqlite::types::Value::Integer(number) => number.to_string(),
                other => panic!("{name} is {other:?}"),
            }
        };
        assert_eq!(setting("journal_mode"), "wal");
        assert_eq!(setting("synchronous"), "2", "FULL");
        for switch in ["foreign_keys", "secure_delete"] {
            assert_eq!(setting(switch), "1", "{switch}");
        }
    }

    #[test]
    fn a_reader_cannot_write() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("test.db");
        open_writer(&path, WalIndex::File).unwrap().execute_batch("CREATE TABLE a (x)").unwrap();
        let insert =
            |index| open_reader(&path, index).unwrap().execute("INSERT INTO a VALUES (1)", []).unwrap_err();
        for index in [WalIndex::File, WalIndex::Memory] {
            assert_eq!(insert(index).sqlite_error_code(), Some(rusqlite::ErrorCode::ReadOnly), "{index:?}");
        }
    }
}
