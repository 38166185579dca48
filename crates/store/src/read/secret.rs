//! Secrets, sealed.

use rusqlite::{OptionalExtension, Result, Row, params};

use super::Readers;
use crate::change::SecretRow;
use crate::error::{self, doing};
use crate::row::Columns;

const OF_WORKSPACE: &str = "
    SELECT workspace, name, sealed, size, put_by, put_at FROM secret WHERE workspace = ?1 ORDER BY name";
const ONE: &str = "
    SELECT workspace, name, sealed, size, put_by, put_at FROM secret WHERE workspace = ?1 AND name = ?2";
const ALL: &str = "SELECT workspace, name, sealed, size, put_by, put_at FROM secret ORDER BY workspace, name";

impl Readers {
    /// The secrets of a workspace, by name.
    pub fn secrets(&self, workspace: &str) -> error::Result<Vec<SecretRow>> {
        let reader = self.reader()?;
        let read = || -> Result<Vec<SecretRow>> {
            reader.prepare_cached(OF_WORKSPACE)?.query_map([workspace], read_secret)?.collect()
        };
        read().map_err(doing("list the secrets"))
    }

    /// One of them, if it is there.
    pub fn secret(&self, workspace: &str, name: &str) -> error::Result<Option<SecretRow>> {
        let reader = self.reader()?;
        let read = || reader.prepare_cached(ONE)?.query_row(params![workspace, name], read_secret).optional();
        read().map_err(doing("read a secret"))
    }

    /// Those of every workspace.
    pub fn all_secrets(&self) -> error::Result<Vec<SecretRow>> {
        let reader = self.reader()?;
        let read = || -> Result<Vec<SecretRow>> {
            reader.prepare_cached(ALL)?.query_map([], read_secret)?.collect()
        };
        read().map_err(doing("list the secrets"))
    }
}

fn read_secret(row: &Row) -> Result<SecretRow> {
    let columns = &mut Columns::new(row);
    Ok(SecretRow {
        workspace: columns.plain()?,
        name: columns.plain()?,
        sealed: columns.plain()?,
        size: columns.plain::<i64>()?.max(0).cast_unsigned(),
        put_by: columns.plain()?,
        put_at: columns.time()?,
    })
}
