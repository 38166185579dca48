//! People, workspaces, tokens, and the log of what was done.

use std::time::Duration;

use muster_model::Timestamp;
use muster_model::account::{Membership, Token, User, Workspace};
use rusqlite::{Connection, Result, Row, params};

use super::Readers;
use crate::change::NewAudit;
use crate::error::{self, doing};
use crate::row::{Columns, count, time};

const USERS: &str =
    "SELECT name, display_name, state, admin, password, account, created_at FROM user ORDER BY name";
const WORKSPACES: &str =
    "SELECT name, display_name, priority, max_run_time, created_at FROM workspace ORDER BY name";
const MEMBERSHIPS: &str = "SELECT workspace, user, role, since FROM membership ORDER BY workspace, user";
const TOKENS: &str = "SELECT id, user, name, digest, scope, workspace, created_at, expires_at FROM token ORDER BY created_at, id";
/// The last row of each request is its entry.
const AUDIT: &str = "
    SELECT seq, at, user, token, address, operation, target, outcome, detail, request, status, job, count FROM audit
    WHERE seq < ?1 AND (?2 IS NULL OR user = ?2) AND (?3 IS NULL OR operation = ?3)
        AND NOT EXISTS (SELECT 1 FROM audit AS later WHERE later.request = audit.request AND later.seq > audit.seq)
    ORDER BY seq DESC LIMIT ?4";
const AUDIT_AFTER: &str = "
    SELECT seq, at, user, token, address, operation, target, outcome, detail, request, status, job, count FROM audit
    WHERE seq > ?1
        AND NOT EXISTS (SELECT 1 FROM audit AS later WHERE later.request = audit.request AND later.seq > audit.seq)
    ORDER BY seq LIMIT ?2";

const LOGINS: &str = "
    SELECT user, address FROM audit WHERE operation = 'login' AND outcome = 'done' AND user IS NOT NULL
    ORDER BY seq DESC LIMIT ?1";
const AUDIT_BEFORE: &str = "SELECT count(*) FROM audit WHERE at < ?1";

/// Everybody, and everything they are known by.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Accounts {
    /// People, by name.
    pub users: Vec<User>,
    /// Workspaces, by name.
    pub workspaces: Vec<Workspace>,
    /// Who is what where.
    pub memberships: Vec<Membership>,
    /// Tokens, the oldest first.
    pub tokens: Vec<Token>,
}

/// Which entries of the audit log to read; an empty one is all of them.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct AuditFilter {
    /// Only what this person did.
    pub user: Option<String>,
    /// Only this operation.
    pub operation: Option<String>,
    /// Only before this one: the last of the page before.
    pub before: Option<u64>,
}

/// An entry of the audit log.
#[derive(Debug, Clone, PartialEq)]
pub struct AuditRow {
    /// Its number; the cursor for the next page.
    pub seq: u64,
    /// What it says.
    pub entry: NewAudit,
}

impl Readers {
    /// Everybody, and everything they are known by.
    pub fn accounts(&self) -> error::Result<Accounts> {
        let reader = self.reader()?;
        accounts(&reader).map_err(doing("read the accounts"))
    }

    /// What was done, newest first, at most `limit` of it.
    pub fn audit(&self, filter: &AuditFilter, limit: u32) -> error::Result<Vec<AuditRow>> {
        let reader = self.reader()?;
        audit(&reader, filter, limit).map_err(doing("read the audit log"))
    }

    /// Entries after one, oldest first, at most `limit` of them.
    pub fn audit_after(&self, seq: u64, limit: u32) -> error::Result<Vec<AuditRow>> {
        let reader = self.reader()?;
        let read = |connection: &Connection| {
            let mut statement = connection.prepare_cached(AUDIT_AFTER)?;
            statement.query_map(params![count(seq), limit], read_audit)?.collect::<Result<Vec<_>>>()
        };
        read(&reader).map_err(doing("read the audit log"))
    }

    /// Users who logged in, and from which address, newest first.
    pub fn logins(&self, limit: u32) -> error::Result<Vec<(String, Option<String>)>> {
        let reader = self.reader()?;
        let read = |connection: &Connection| {
            let mut statement = connection.prepare_cached(LOGINS)?;
            let rows = statement.query_map([limit], |row| Ok((row.get(0)?, row.get(1)?)))?;
            rows.collect::<Result<Vec<_>>>()
        };
        read(&reader).map_err(doing("read the logins"))
    }

    /// How much of it is from before a moment.
    pub fn audit_before(&self, before: Timestamp) -> error::Result<u64> {
        let reader = self.reader()?;
        let counted = |connection: &Connection| {
            connection
                .prepare_cached(AUDIT_BEFORE)?
                .query_row([time(before)], |row| Columns::new(row).count())
        };
        counted(&reader).map_err(doing("read the audit log"))
    }
}

fn accounts(connection: &Connection) -> Result<Accounts> {
    // One moment of all four.
    let transaction = connection.unchecked_transaction()?;
    let read = &*transaction;
    Ok(Accounts {
        users: read.prepare_cached(USERS)?.query_map([], read_user)?.collect::<Result<_>>()?,
        workspaces: read.prepare_cached(WORKSPACES)?.query_map([], read_workspace)?.collect::<Result<_>>()?,
        memberships: read
            .prepare_cached(MEMBERSHIPS)?
            .query_map([], read_membership)?
            .collect::<Result<_>>()?,
        tokens: read.prepare_cached(TOKENS)?.query_map([], read_token)?.collect::<Result<_>>()?,
    })
}

fn read_user(row: &Row) -> Result<User> {
    let columns = &mut Columns::new(row);
    Ok(User {
        name: columns.plain()?,
        display_name: columns.plain()?,
        state: columns.word()?,
        is_admin: columns.plain()?,
        password: columns.plain()?,
        account: columns.plain()?,
        created_at: columns.time()?,
    })
}

fn read_workspace(row: &Row) -> Result<Workspace> {
    let columns = &mut Columns::new(row);
    Ok(Workspace {
        name: columns.plain()?,
        display_name: columns.plain()?,
        priority: columns.plain()?,
        max_run_time: columns
            .plain::<Option<i64>>()?
            .map(|ms| Duration::from_millis(ms.max(0).cast_unsigned())),
        created_at: columns.time()?,
    })
}

fn read_membership(row: &Row) -> Result<Membership> {
    let columns = &mut Columns::new(row);
    Ok(Membership {
        workspace: columns.plain()?,
        user: columns.plain()?,
        role: columns.optional_word()?,
        since: columns.time()?,
    })
}

fn read_token(row: &Row) -> Result<Token> {
    let columns = &mut Columns::new(row);
    Ok(Token {
        id: columns.plain()?,
        user: columns.plain()?,
        name: columns.plain()?,
        digest: columns.plain()?,
        scope: columns.word()?,
        workspace: columns.plain()?,
        created_at: columns.time()?,
        expires_at: columns.optional_time()?,
    })
}

fn audit(connection: &Connection, filter: &AuditFilter, limit: u32) -> Result<Vec<AuditRow>> {
    let before = filter.before.map_or(i64::MAX, count);
    let mut statement = connection.prepare_cached(AUDIT)?;
    statement.query_map(params![before, filter.user, filter.operation, limit], read_audit)?.collect()
}

fn read_audit(row: &Row) -> Result<AuditRow> {
    let columns = &mut Columns::new(row);
    let seq = columns.count()?;
    let entry = NewAudit {
        at: columns.time()?,
        user: columns.plain()?,
        token: columns.plain()?,
        address: columns.plain()?,
        operation: columns.plain()?,
        target: columns.plain()?,
        outcome: columns.plain()?,
        detail: columns.optional_json()?,
        request: columns.plain()?,
        status: columns.plain()?,
        job: columns.optional_parsed()?,
        count: columns.count()?,
    };
    Ok(AuditRow { seq, entry })
}
