//! What workspaces and users may have.

use muster_model::quota::{UserQuota, WorkspaceQuota};
use rusqlite::{Result, Transaction, params};

use crate::row::{json, optional_json};

const PUT_WORKSPACE: &str = "
    INSERT INTO workspace_quota (workspace, weight, cpu_millis, memory_bytes, gpus, models) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
    ON CONFLICT (workspace) DO UPDATE SET weight = ?2, cpu_millis = ?3, memory_bytes = ?4, gpus = ?5, models = ?6";
const REMOVE_WORKSPACE: &str = "DELETE FROM workspace_quota WHERE workspace = ?1";
const PUT_USER: &str = "
    INSERT INTO user_quota (user, weight, max_running) VALUES (?1, ?2, ?3)
    ON CONFLICT (user) DO UPDATE SET weight = ?2, max_running = ?3";
const REMOVE_USER: &str = "DELETE FROM user_quota WHERE user = ?1";

pub(super) fn put_workspace(
    transaction: &Transaction,
    workspace: &str,
    quota: Option<&WorkspaceQuota>,
) -> Result<()> {
    let Some(quota) = quota else {
        return transaction.prepare_cached(REMOVE_WORKSPACE)?.execute([workspace]).map(drop);
    };
    let WorkspaceQuota { weight, cpu_millis, memory_bytes, gpus, models } = quota;
    let [cpu_millis, memory_bytes, gpus] =
        [cpu_millis, memory_bytes, gpus].map(|one| optional_json(one.as_ref()));
    let values = params![workspace, weight, cpu_millis?, memory_bytes?, gpus?, json(models)?];
    transaction.prepare_cached(PUT_WORKSPACE)?.execute(values).map(drop)
}

pub(super) fn put_user(transaction: &Transaction, user: &str, quota: Option<&UserQuota>) -> Result<()> {
    match quota {
        Some(UserQuota { weight, max_running }) => {
            transaction.prepare_cached(PUT_USER)?.execute(params![user, weight, max_running]).map(drop)
        }
        None => transaction.prepare_cached(REMOVE_USER)?.execute([user]).map(drop),
    }
}

#[cfg(test)]
mod tests {
    use muster_model::Timestamp;
    use muster_model::account::{User, UserState, Workspace};
    use muster_model::quota::{EVERYBODY, Quota};

    use super::*;
    use crate::change::{AccountChange, Change};
    use crate::fixture::Fixture;

    fn quota() -> WorkspaceQuota {
        WorkspaceQuota {
            weight: 2.5,
            cpu_millis: Some(Quota::fixed(200_000)),
            memory_bytes: None,
            gpus: Some(Quota::shared(16)),
            models: [("H100".to_owned(), Quota { borrow: Some(4), ..Quota::shared(8) })].into(),
        }
    }

    fn of(workspace: &str, quota: Option<WorkspaceQuota>) -> Change {
        Change::WorkspaceQuota { workspace: workspace.into(), quota }
    }

    fn mine(user: &str, quota: Option<UserQuota>) -> Change {
        Change::UserQuota { user: user.into(), quota }
    }

    #[test]
    fn quotas_come_back_as_they_were_put_and_go() {
        let mut store = Fixture::new();
        let limit = UserQuota { weight: 1.0, max_running: Some(3) };
        let changes = [
            of("vision", Some(quota())),
            mine("ada", Some(limit)),
            mine(EVERYBODY, Some(UserQuota::default())),
        ];
        store.writer.commit(&changes).unwrap();
        let mut store = store.reopen();
        let read = store.readers.quotas().unwrap();
        assert_eq!(read.workspaces, [("vision".to_owned(), quota())].into());
        assert_eq!(read.users, [("ada".to_owned(), limit), (EVERYBODY.into(), UserQuota::default())].into());
        let other = WorkspaceQuota { gpus: None, ..quota() };
        store.writer.commit(&[of("vision", Some(other.clone())), mine("ada", None)]).unwrap();
        let read = store.readers.quotas().unwrap();
        assert_eq!((read.workspaces["vision"].clone(), read.users.len()), (other, 1));
        store.writer.commit(&[of("vision", None)]).unwrap();
        assert!(store.readers.quotas().unwrap().workspaces.is_empty());
    }

    #[test]
    fn a_workspace_and_a_user_take_their_quotas_with_them() {
        let mut store = Fixture::new();
        let created_at = Timestamp::UNIX_EPOCH;
        let workspace = Workspace {
            name: "vision".into(),
            display_name: None,
            priority: None,
            max_run_time: None,
            created_at,
        };
        let user = User {
            name: "ada".into(),
            display_name: None,
            state: UserState::Active,
            is_admin: false,
            password: None,
            account: None,
            created_at,
        };
        let account = Change::Account;
        store
            .writer
            .commit(&[
                account(AccountChange::Workspace(workspace)),
                account(AccountChange::User(user)),
                of("vision", Some(quota())),
                of("nlp", Some(quota())),
                mine("ada", Some(UserQuota::default())),
            ])
            .unwrap();
        let gone = [AccountChange::RemoveWorkspace("vision".into()), AccountChange::RemoveUser("ada".into())];
        store.writer.commit(&gone.map(account)).unwrap();
        let read = store.readers.quotas().unwrap();
        assert_eq!(read.workspaces.keys().collect::<Vec<_>>(), ["nlp"]);
        assert!(read.users.is_empty());
    }
}
