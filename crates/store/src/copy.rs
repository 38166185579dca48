//! The database as a whole: a copy of it taken beside its writer, and what a copy goes through before a server may go on from it.

use std::path::{Path, PathBuf};

use muster_model::Timestamp;
use rusqlite::{Connection, TransactionBehavior, params};

use crate::connection::{self, WalIndex};
use crate::error::{Error, Result, doing};
use crate::migration;
use crate::read::Readers;
use crate::store::Store;

/// What no agent is called. One that meets this again has not lost what it never had: what it does not know, it may have done and
/// forgotten since the copy was taken.
const NOBODY: &str = "restored";

const HOLD: &str = "
    UPDATE job SET hold = 1, generation = generation + 1
    WHERE state IN ('queued', 'starting', 'running', 'stopping') AND hold = 0 RETURNING id, attempt";
const HELD: &str = "INSERT INTO event (job, attempt, at, kind, body) VALUES (?1, ?2, ?3, 'held', ?4)";

impl Readers {
    /// Writes the database as it is at one moment to a new file. It reads through a connection of its own, so that neither the
    /// writer nor those who ask wait for it.
    pub fn copy_to(&self, path: &Path) -> Result<()> {
        let unusable = |source| Error::File { path: path.to_owned(), source };
        let name = path.to_str().ok_or_else(|| unusable(std::io::ErrorKind::InvalidFilename.into()))?;
        // SQLite writes into a file that is there only if it is empty.
        connection::make_private(path).map_err(unusable)?;
        let connection = self.open_another()?;
        // SQLite takes the new file for a change, too.
        connection.execute_batch("PRAGMA query_only = OFF").map_err(doing("copy the database"))?;
        connection.execute("VACUUM INTO ?1", [name]).map(drop).map_err(doing("copy the database"))
    }

    /// Answers questions about a copy.
    pub fn of_copy(path: PathBuf) -> Self {
        Self::new(path, WalIndex::File)
    }
}

impl Store {
    /// The newest shape of the database that this binary knows.
    pub fn newest_shape() -> u32 {
        migration::ALL.last().map_or(0, |migration| migration.number)
    }

    /// Makes the copy in a directory the database of a server that goes on from it, and says how many jobs are held. What was not over when the copy was
    /// taken may have gone on, or ended, without it. So whatever waits is held until somebody lets it go, and of a task that its node
    /// does not know any more, nobody believes that it never ran.
    pub fn take_over(dir: &Path, now: Timestamp) -> Result<u64> {
        let mut connection = connection::open_writer(&dir.join(Self::FILE), WalIndex::File)?;
        check(&connection)?;
        migration::migrate(&mut connection, migration::ALL)?;
        hold(&mut connection, now).map_err(doing("hold what was not over"))
    }
}

fn check(connection: &Connection) -> Result<()> {
    let found: String = connection
        .query_row("PRAGMA quick_check(1)", [], |row| row.get(0))
        .map_err(doing("check the database"))?;
    if found == "ok" { Ok(()) } else { Err(Error::Damaged { found }) }
}

fn hold(connection: &mut Connection, now: Timestamp) -> rusqlite::Result<u64> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute("UPDATE node SET incarnation = ?1", [NOBODY])?;
    let held: Vec<(String, u32)> = transaction
        .prepare(HOLD)?
        .query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?
        .collect::<rusqlite::Result<_>>()?;
    for (job, attempt) in &held {
        transaction
            .execute(HELD, params![job, attempt, crate::row::time(now), r#"{"because":"restored"}"#])?;
    }
    transaction.commit()?;
    Ok(held.len() as u64)
}

#[cfg(test)]
mod tests;
