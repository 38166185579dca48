//! Secrets, sealed.

use rusqlite::{Result, Transaction, params};

use crate::change::SecretRow;
use crate::row::{count, time};

const PUT: &str = "
    INSERT INTO secret (workspace, name, sealed, size, put_by, put_at) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
    ON CONFLICT (workspace, name) DO UPDATE SET sealed = ?3, size = ?4, put_by = ?5, put_at = ?6";
const REMOVE: &str = "DELETE FROM secret WHERE workspace = ?1 AND name = ?2";

pub(super) fn put(transaction: &Transaction, row: &SecretRow) -> Result<()> {
    let SecretRow { workspace, name, sealed, size, put_by, put_at } = row;
    let values = params![workspace, name, sealed, count(*size), put_by, time(*put_at)];
    transaction.prepare_cached(PUT)?.execute(values).map(drop)
}

pub(super) fn remove(transaction: &Transaction, workspace: &str, name: &str) -> Result<()> {
    transaction.prepare_cached(REMOVE)?.execute(params![workspace, name]).map(drop)
}

#[cfg(test)]
mod tests {
    use muster_model::Timestamp;
    use muster_model::account::Workspace;

    use super::*;
    use crate::change::{AccountChange, Change};
    use crate::fixture::Fixture;

    #[test]
    fn a_secret_is_put_replaced_and_goes_with_its_workspace() {
        let mut store = Fixture::new();
        let row = |workspace: &str, name: &str, sealed: &[u8]| SecretRow {
            workspace: workspace.into(),
            name: name.into(),
            sealed: sealed.into(),
            size: 3,
            put_by: "ada".into(),
            put_at: Timestamp::UNIX_EPOCH,
        };
        let workspace = Workspace {
            name: "vision".into(),
            display_name: None,
            priority: None,
            max_run_time: None,
            created_at: Timestamp::UNIX_EPOCH,
        };
        let rows = [row("vision", "B", b"1"), row("vision", "A", b"2"), row("default", "A", b"3")];
        let mut changes = vec![Change::Account(AccountChange::Workspace(workspace))];
        changes.extend(rows.map(Change::Secret));
        store.writer.commit(&changes).unwrap();
        store.writer.commit(&[Change::Secret(row("vision", "B", b"4"))]).unwrap();
        let names = |workspace| -> Vec<String> {
            store.readers.secrets(workspace).unwrap().into_iter().map(|row| row.name).collect()
        };
        assert_eq!(names("vision"), ["A", "B"]);
        assert_eq!(store.readers.secret("vision", "B").unwrap(), Some(row("vision", "B", b"4")));
        let gone = Change::RemoveSecret { workspace: "vision".into(), name: "B".into() };
        store.writer.commit(&[gone]).unwrap();
        assert_eq!(names("vision"), ["A"]);
        store.writer.commit(&[Change::Account(AccountChange::RemoveWorkspace("vision".into()))]).unwrap();
        assert!(names("vision").is_empty());
        assert_eq!(names("default"), ["A"]);
    }
}
