//! Questions. A small pool of read-only connections answers them, each from a snapshot of its own, so that a
//! reader never makes the writer wait, nor the writer a reader.

use std::fmt;
use std::ops::Deref;
use std::path::PathBuf;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use rusqlite::{Connection, OptionalExtension, Row};

use crate::connection::{self, WalIndex};
use crate::error::{Result, doing};

pub(crate) mod account;
mod allocation;
mod array;
pub(crate) mod bundle;
pub(crate) mod event;
pub(crate) mod job;
pub(crate) mod list;
mod node;
mod pool;
pub(crate) mod quota;
pub(crate) mod removal;
pub(crate) mod request;
pub(crate) mod resolve;
pub(crate) mod retention;
mod schedule;
mod secret;
pub(crate) mod sight;
#[cfg(test)]
mod tests;

/// As many questions are answered at once; further ones wait. Questions take a millisecond, and each connection
/// costs an idle server memory.
const MOST: usize = 4;

/// Answers questions. A clone asks through the same connections.
#[derive(Clone)]
pub struct Readers {
    pool: Arc<Pool>,
}

struct Pool {
    path: PathBuf,
    index: WalIndex,
    connections: Mutex<Connections>,
    returned: Condvar,
}

struct Connections {
    idle: Vec<Connection>,
    opened: usize,
}

/// A connection on loan.
pub(crate) struct Reader<'a> {
    pool: &'a Pool,
    connection: Option<Connection>,
}

impl Readers {
    pub(crate) fn new(path: PathBuf, index: WalIndex) -> Self {
        let connections = Mutex::new(Connections { idle: Vec::new(), opened: 0 });
        Self { pool: Arc::new(Pool { path, index, connections, returned: Condvar::new() }) }
    }

    /// A connection beside the pool.
    pub(crate) fn open_another(&self) -> Result<Connection> {
        connection::open_reader(&self.pool.path, self.pool.index)
    }

    /// What SQLite finds wrong with the database, at most so many.
    pub(crate) fn damage(&self, most: u32) -> Result<Vec<String>> {
        let reader = self.reader()?;
        let text = |row: &Row<'_>| row.get::<_, String>(0);
        let mut found: Vec<String> = reader
            .prepare(&format!("PRAGMA integrity_check({most})"))
            .and_then(|mut statement| statement.query_map([], text)?.collect())
            .map_err(doing("check the database"))?;
        found.retain(|line| line != "ok");
        let tables: Vec<String> = reader
            .prepare("PRAGMA foreign_key_check")
            .and_then(|mut statement| statement.query_map([], text)?.collect())
            .map_err(doing("check the database"))?;
        let dangling =
            tables.into_iter().map(|table| format!("a row of {table} refers to one that is not there"));
        found.extend(dangling.take(most as usize));
        Ok(found)
    }

    /// Takes a connection, opens one, or waits for one to come back.
    pub(crate) fn reader(&self) -> Result<Reader<'_>> {
        let pool = &*self.pool;
        let full = |connections: &mut Connections| connections.idle.is_empty() && connections.opened >= MOST;
        let mut connections =
            pool.returned.wait_while(pool.lock(), full).unwrap_or_else(PoisonError::into_inner);
        let idle = connections.idle.pop();
        connections.opened += usize::from(idle.is_none());
        drop(connections);
        // From here on the loan counts as open, and dropping it gives the place back, also if opening fails.
        let mut reader = Reader { pool, connection: idle };
        if reader.connection.is_none() {
            reader.connection = Some(connection::open_reader(&pool.path, pool.index)?);
        }
        Ok(reader)
    }
}

impl Pool {
    /// A panic between lock and unlock cannot leave the list in a half-changed state, so poison means nothing.
    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.connections.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Deref for Reader<'_> {
    type Target = Connection;

    fn deref(&self) -> &Connection {
        self.connection.as_ref().expect("a loan is given out only with a connection")
    }
}

impl Drop for Reader<'_> {
    fn drop(&mut self) {
        let mut connections = self.pool.lock();
        match self.connection.take() {
            Some(connection) => connections.idle.push(connection),
            None => connections.opened -= 1,
        }
        drop(connections);
        self.pool.returned.notify_one();
    }
}

impl fmt::Debug for Readers {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Readers").field("path", &self.pool.path).finish_non_exhaustive()
    }
}

/// The row with this key, if there is one.
fn one<T>(
    connection: &Connection,
    sql: &str,
    key: &str,
    read: impl FnOnce(&Row) -> rusqlite::Result<T>,
) -> rusqlite::Result<Option<T>> {
    connection.prepare_cached(sql)?.query_row([key], read).optional()
}
