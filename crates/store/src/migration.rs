//! The shape of the database, step by step.
//!
//! Each step is a file in `migrations/`, applied once, in order, each in its own transaction. An applied step is
//! never edited: its digest is remembered and compared at every start. To change the shape, add a file.

use muster_model::Timestamp;
use rusqlite::{Connection, TransactionBehavior, params};

use crate::error::{Error, Result, doing};

/// One step.
pub(crate) struct Migration {
    pub number: u32,
    pub name: &'static str,
    pub sql: &'static str,
}

/// Every step, in order.
pub(crate) const ALL: &[Migration] = &[
    Migration { number: 1, name: "spine", sql: include_str!("../migrations/0001_spine.sql") },
    Migration { number: 2, name: "bundles", sql: include_str!("../migrations/0002_bundles.sql") },
    Migration { number: 3, name: "pools", sql: include_str!("../migrations/0003_pools.sql") },
    Migration { number: 4, name: "allocations", sql: include_str!("../migrations/0004_allocations.sql") },
    Migration { number: 5, name: "members", sql: include_str!("../migrations/0005_members.sql") },
    Migration { number: 6, name: "accounts", sql: include_str!("../migrations/0006_accounts.sql") },
    Migration { number: 7, name: "secrets", sql: include_str!("../migrations/0007_secrets.sql") },
    Migration { number: 8, name: "shared", sql: include_str!("../migrations/0008_shared.sql") },
    Migration { number: 9, name: "scheduling", sql: include_str!("../migrations/0009_scheduling.sql") },
    Migration { number: 10, name: "quotas", sql: include_str!("../migrations/0010_quotas.sql") },
    Migration { number: 11, name: "arrays", sql: include_str!("../migrations/0011_arrays.sql") },
    Migration { number: 12, name: "audit", sql: include_str!("../migrations/0012_audit.sql") },
    Migration { number: 13, name: "removals", sql: include_str!("../migrations/0013_removals.sql") },
    Migration { number: 14, name: "owed_at", sql: include_str!("../migrations/0014_owed_at.sql") },
    Migration {
        number: 15,
        name: "display_names",
        sql: include_str!("../migrations/0015_display_names.sql"),
    },
    Migration {
        number: 16,
        name: "machine_names",
        sql: include_str!("../migrations/0016_machine_names.sql"),
    },
    Migration {
        number: 17,
        name: "allocation_account",
        sql: include_str!("../migrations/0017_allocation_account.sql"),
    },
];

const TABLE: &str = "
    CREATE TABLE IF NOT EXISTS migration (
        number     INTEGER PRIMARY KEY,
        name       TEXT NOT NULL,
        digest     TEXT NOT NULL,
        applied_at INTEGER NOT NULL
    ) STRICT
";

impl Migration {
    fn digest(&self) -> String {
        blake3::hash(self.sql.as_bytes()).to_hex().to_string()
    }
}

/// Brings the database to the newest shape this binary knows, or says why it must not be touched.
pub(crate) fn migrate(connection: &mut Connection, all: &[Migration]) -> Result<()> {
    let applied = applied(connection).map_err(doing("read which migrations were applied"))?;
    let known = all.last().map_or(0, |migration| migration.number);
    if let Some((found, _)) = applied.last().filter(|(number, _)| *number > known) {
        return Err(Error::Newer { found: *found, known });
    }
    for migration in all {
        match applied.iter().find(|(number, _)| *number == migration.number) {
            Some((_, digest)) if *digest == migration.digest() => {}
            Some(_) => return Err(Error::Edited { number: migration.number, name: migration.name.into() }),
            None => {
                apply(connection, migration).map_err(doing("migrate the database"))?;
                tracing::info!(number = migration.number, name = migration.name, "migrated the database");
            }
        }
    }
    Ok(())
}

fn applied(connection: &Connection) -> rusqlite::Result<Vec<(u32, String)>> {
    connection.execute_batch(TABLE)?;
    let mut statement = connection.prepare("SELECT number, digest FROM migration ORDER BY number")?;
    statement.query_map([], |row| Ok((row.get(0)?, row.get(1)?)))?.collect()
}

fn apply(connection: &mut Connection, migration: &Migration) -> rusqlite::Result<()> {
    let transaction = connection.transaction_with_behavior(TransactionBehavior::Immediate)?;
    transaction.execute_batch(migration.sql)?;
    // The moment is for people alone, so the machine's clock will do.
    let now = Timestamp::now().as_microsecond();
    transaction.execute(
        "INSERT INTO migration (number, name, digest, applied_at) VALUES (?1, ?2, ?3, ?4)",
        params![migration.number, migration.name, migration.digest(), now],
    )?;
    transaction.commit()
}

#[cfg(test)]
mod tests;
