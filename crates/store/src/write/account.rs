//! People, workspaces, tokens, and the log of what was done.

use muster_model::Timestamp;
use muster_model::account::{Membership, Token, User, Workspace};
use rusqlite::{Result, Transaction, params};

use crate::change::{AccountChange, NewAudit};
use crate::row::{count, optional_json, time, word};

const PUT_USER: &str = "
    INSERT INTO user (name, state, admin, password, account, created_at, display_name)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7)
    ON CONFLICT (name) DO UPDATE SET state = ?2, admin = ?3, password = ?4, account = ?5, display_name = ?7";
const REMOVE_USER: &str = "DELETE FROM user WHERE name = ?1";
const PUT_WORKSPACE: &str = "
    INSERT INTO workspace (name, priority, max_run_time, created_at, display_name) VALUES (?1, ?2, ?3, ?4, ?5)
    ON CONFLICT (name) DO UPDATE SET priority = ?2, max_run_time = ?3, display_name = ?5";
const REMOVE_WORKSPACE: &str = "DELETE FROM workspace WHERE name = ?1";
const PUT_MEMBERSHIP: &str = "
    INSERT INTO membership (workspace, user, role, since) VALUES (?1, ?2, ?3, ?4)
    ON CONFLICT (workspace, user) DO UPDATE SET role = ?3, since = ?4";
const REMOVE_MEMBERSHIP: &str = "DELETE FROM membership WHERE workspace = ?1 AND user = ?2";
const PUT_TOKEN: &str = "
    INSERT INTO token (id, user, name, digest, scope, workspace, created_at, expires_at)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8)
    ON CONFLICT (id) DO UPDATE SET name = ?3, digest = ?4, expires_at = ?8";
const REMOVE_TOKEN: &str = "DELETE FROM token WHERE id = ?1";
const AUDIT: &str = "
    INSERT INTO audit (at, user, token, address, operation, target, outcome, detail, request, status, job, count)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11, ?12)";

/// What nobody has said of stays; the database sees to it as well.
const REMOVE_AUDIT: &str = "
    DELETE FROM audit WHERE seq IN (
        SELECT seq FROM audit
        WHERE at < ?1 AND seq < (SELECT max(seq) FROM audit WHERE operation = 'remove_audit')
        ORDER BY at LIMIT ?2)";

pub(super) fn write(transaction: &Transaction, change: &AccountChange) -> Result<()> {
    match change {
        AccountChange::User(user) => put_user(transaction, user),
        AccountChange::RemoveUser(name) => execute(transaction, REMOVE_USER, params![name]),
        AccountChange::Workspace(workspace) => put_workspace(transaction, workspace),
        AccountChange::RemoveWorkspace(name) => execute(transaction, REMOVE_WORKSPACE, params![name]),
        AccountChange::Membership(membership) => put_membership(transaction, membership),
        AccountChange::RemoveMembership { workspace, user } => {
            execute(transaction, REMOVE_MEMBERSHIP, params![workspace, user])
        }
        AccountChange::Token(token) => put_token(transaction, token),
        AccountChange::RemoveToken(id) => execute(transaction, REMOVE_TOKEN, params![id]),
    }
}

/// Removes the oldest entries from before a moment.
pub(super) fn remove_audit(transaction: &Transaction, before: Timestamp, limit: u32) -> Result<()> {
    execute(transaction, REMOVE_AUDIT, params![time(before), limit])
}

/// Writes down that something was done. There is no way to change it.
pub(super) fn audit(transaction: &Transaction, row: &NewAudit) -> Result<()> {
    let detail = optional_json(row.detail.as_ref())?;
    let NewAudit { at, user, token, address, operation, target, outcome, request, status, job, .. } = row;
    let (at, job, count) = (time(*at), job.as_ref().map(ToString::to_string), count(row.count));
    let values =
        params![at, user, token, address, operation, target, outcome, detail, request, status, job, count];
    execute(transaction, AUDIT, values)
}

fn put_user(transaction: &Transaction, user: &User) -> Result<()> {
    let state = word(&user.state)?;
    let at = time(user.created_at);
    let User { name, display_name, is_admin, password, account, .. } = user;
    execute(transaction, PUT_USER, params![name, state, is_admin, password, account, at, display_name])
}

fn put_workspace(transaction: &Transaction, workspace: &Workspace) -> Result<()> {
    let millis = |span: std::time::Duration| count(u64::try_from(span.as_millis()).unwrap_or(u64::MAX));
    let longest = workspace.max_run_time.map(millis);
    let at = time(workspace.created_at);
    let Workspace { name, display_name, priority, .. } = workspace;
    execute(transaction, PUT_WORKSPACE, params![name, priority, longest, at, display_name])
}

fn put_membership(transaction: &Transaction, membership: &Membership) -> Result<()> {
    let Membership { workspace, user, role, since } = membership;
    let role = role.map(|role| role.as_str());
    execute(transaction, PUT_MEMBERSHIP, params![workspace, user, role, time(*since)])
}

fn put_token(transaction: &Transaction, token: &Token) -> Result<()> {
    let (made, ends) = (time(token.created_at), token.expires_at.map(time));
    let Token { id, user, name, digest, scope, workspace, .. } = token;
    let scope = scope.as_str();
    execute(transaction, PUT_TOKEN, params![id, user, name, digest, scope, workspace, made, ends])
}

fn execute(transaction: &Transaction, sql: &str, values: impl rusqlite::Params) -> Result<()> {
    transaction.prepare_cached(sql)?.execute(values).map(drop)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use muster_model::JobId;
    use muster_model::account::{Role, Scope, UserState};
    use serde_json::json;

    use super::*;
    use crate::change::Change;
    use crate::fixture::{Fixture, at};
    use crate::read::account::AuditFilter;

    fn user(name: &str) -> User {
        User {
            name: name.into(),
            display_name: Some("王芳".into()).filter(|_| name == "ada"),
            state: UserState::Active,
            is_admin: name == "root",
            password: Some("$argon2id$…".into()),
            account: Some(format!("u-{name}")),
            created_at: at(1),
        }
    }

    fn all() -> Vec<AccountChange> {
        let workspace = Workspace {
            name: "nlp".into(),
            display_name: Some("自然语言处理".into()),
            priority: Some(700),
            max_run_time: Some(Duration::from_secs(3600)),
            created_at: at(2),
        };
        let membership =
            |name: &str, role| Membership { workspace: "nlp".into(), user: name.into(), role, since: at(3) };
        let token = Token {
            id: "tok_1".into(),
            user: "ada".into(),
            name: Some("laptop".into()),
            digest: [7; 32],
            scope: Scope::Write,
            workspace: Some("nlp".into()),
            created_at: at(4),
            expires_at: Some(at(99)),
        };
        vec![
            AccountChange::User(user("ada")),
            AccountChange::User(user("root")),
            AccountChange::Workspace(workspace),
            AccountChange::Membership(membership("ada", Some(Role::Lead))),
            AccountChange::Membership(membership("root", None)),
            AccountChange::Token(token),
        ]
    }

    #[test]
    fn accounts_come_back_as_they_were_put() {
        let mut store = Fixture::new();
        let changes: Vec<Change> = all().into_iter().map(Change::Account).collect();
        store.writer.commit(&changes).unwrap();
        let store = &mut store.reopen();
        let read = store.readers.accounts().unwrap();
        let users: Vec<_> = read.users.into_iter().map(AccountChange::User).collect();
        let workspaces: Vec<_> = read.workspaces.into_iter().map(AccountChange::Workspace).collect();
        let members: Vec<_> = read.memberships.into_iter().map(AccountChange::Membership).collect();
        let tokens: Vec<_> = read.tokens.into_iter().map(AccountChange::Token).collect();
        assert_eq!([users, workspaces, members, tokens].concat(), all());

        store.writer.commit(&[Change::Account(AccountChange::RemoveUser("ada".into()))]).unwrap();
        let read = store.readers.accounts().unwrap();
        assert_eq!((read.users.len(), read.memberships.len(), read.tokens.len()), (1, 1, 0));
    }

    #[test]
    fn what_was_done_is_never_changed() {
        let mut store = Fixture::new();
        let row = |user: &str, target: &str| NewAudit {
            user: Some(user.into()),
            address: Some("127.0.0.1".into()),
            target: target.into(),
            detail: Some(json!({ "grace": 1 })),
            status: Some(202),
            job: Some(JobId::from_random(7)),
            ..NewAudit::new(at(1), "stop_job", "done")
        };
        let rows = [row("ada", "a"), row("bob", "b"), row("ada", "c")];
        store.writer.commit(&rows.map(Change::Audit)).unwrap();
        for sql in ["UPDATE audit SET user = 'eve'", "DELETE FROM audit"] {
            let path = store.dir.path().join(crate::store::Store::FILE);
            let error = rusqlite::Connection::open(path).unwrap().execute_batch(sql).unwrap_err();
            assert!(error.to_string().contains("append-only"), "{error}");
        }
        let filter = AuditFilter { user: Some("ada".into()), ..AuditFilter::default() };
        let read = store.readers.audit(&filter, 10).unwrap();
        let targets: Vec<&str> = read.iter().map(|row| row.entry.target.as_str()).collect();
        assert_eq!(targets, ["c", "a"], "newest first");
        let before = AuditFilter { before: Some(read[0].seq), ..filter };
        assert_eq!(store.readers.audit(&before, 10).unwrap().len(), 1);
        assert_eq!(read[0].entry, row("ada", "c"));
    }

    #[test]
    fn rows_of_one_request_are_one_entry_with_the_last_outcome() {
        let mut store = Fixture::new();
        let row = |request: Option<&str>, outcome: &str, count| NewAudit {
            request: request.map(Into::into),
            count,
            ..NewAudit::new(at(1), "ssh", outcome)
        };
        let rows = [
            row(Some("req_1"), "started", 1),
            row(None, "done", 1),
            row(Some("req_2"), "forbidden", 1),
            row(Some("req_1"), "done", 1),
            row(Some("req_2"), "forbidden", 40),
            row(None, "done", 1),
        ];
        store.writer.commit(&rows.map(Change::Audit)).unwrap();
        let read = store.readers.audit(&AuditFilter::default(), 10).unwrap();
        let entries: Vec<_> = read.iter().map(|row| (row.entry.outcome.as_str(), row.entry.count)).collect();
        assert_eq!(entries, [("done", 1), ("forbidden", 40), ("done", 1), ("done", 1)]);
        let lines = store.readers.audit_after(read[3].seq, 2).unwrap();
        assert_eq!(lines.iter().map(|row| row.seq).collect::<Vec<_>>(), [read[2].seq, read[1].seq]);
    }

    #[test]
    fn old_entries_go_only_after_an_entry_that_says_so() {
        let mut store = Fixture::new();
        let row = |second: i64| NewAudit { at: at(second), ..NewAudit::removal(at(0), at(0), 0) };
        let row = |second: i64| NewAudit { operation: "stop_job".into(), detail: None, ..row(second) };
        let rows: Vec<Change> = (1..=9).map(|second| Change::Audit(row(second))).collect();
        store.writer.commit(&rows).unwrap();
        let left = |store: &Fixture| store.readers.audit(&AuditFilter::default(), 100).unwrap().len();
        let remove = |before: i64, limit| Change::RemoveAudit { before: at(before), limit };
        store.writer.commit(&[remove(5, 100)]).unwrap();
        assert_eq!(left(&store), 9, "nobody has said so");
        assert_eq!(store.readers.audit_before(at(5)).unwrap(), 4);
        let said = Change::Audit(NewAudit::removal(at(20), at(5), 4));
        store.writer.commit(&[said, remove(5, 3)]).unwrap();
        assert_eq!(left(&store), 7);
        store.writer.commit(&[remove(5, 3)]).unwrap();
        assert_eq!(left(&store), 6, "the four, and one that says so");
        // Younger ones stay, whatever is asked for.
        store.writer.commit(&[remove(8, 100)]).unwrap_err();
        let path = store.dir.path().join(crate::store::Store::FILE);
        let error = rusqlite::Connection::open(path).unwrap().execute_batch("DELETE FROM audit").unwrap_err();
        assert!(error.to_string().contains("append-only"), "{error}");
        assert_eq!(left(&store), 6);
    }
}
