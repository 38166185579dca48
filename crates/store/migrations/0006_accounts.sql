-- People, the workspaces they share, what they are known by, and what they did.

CREATE TABLE user (
    name       TEXT PRIMARY KEY,
    state      TEXT NOT NULL CHECK (state IN ('pending', 'active', 'disabled')),
    admin      INTEGER NOT NULL,
    password   TEXT,               -- A hash that says how it was made.
    account    TEXT,
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE workspace (
    name         TEXT PRIMARY KEY,
    priority     INTEGER,
    max_run_time INTEGER,          -- Milliseconds.
    created_at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

-- Without a role: has asked for one.
CREATE TABLE membership (
    workspace TEXT NOT NULL REFERENCES workspace (name) ON DELETE CASCADE,
    user      TEXT NOT NULL REFERENCES user (name) ON DELETE CASCADE,
    role      TEXT CHECK (role IN ('viewer', 'member', 'lead')),
    since     INTEGER NOT NULL,
    PRIMARY KEY (workspace, user)
) STRICT, WITHOUT ROWID;

CREATE TABLE token (
    id         TEXT PRIMARY KEY,
    user       TEXT NOT NULL REFERENCES user (name) ON DELETE CASCADE,
    name       TEXT,
    digest     BLOB NOT NULL UNIQUE,
    scope      TEXT NOT NULL CHECK (scope IN ('read', 'write', 'admin')),
    workspace  TEXT REFERENCES workspace (name) ON DELETE CASCADE,
    created_at INTEGER NOT NULL,
    expires_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE TABLE audit (
    seq       INTEGER PRIMARY KEY AUTOINCREMENT,
    at        INTEGER NOT NULL,
    user      TEXT,
    token     TEXT,
    address   TEXT,
    operation TEXT NOT NULL,
    target    TEXT NOT NULL,
    outcome   TEXT NOT NULL,
    detail    TEXT                 -- JSON
) STRICT;

CREATE INDEX audit_user ON audit (user, seq);

-- What was written down once stays as it was.
CREATE TRIGGER audit_is_not_changed BEFORE UPDATE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;
CREATE TRIGGER audit_is_not_removed BEFORE DELETE ON audit
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;

-- Lists of what somebody may see.
CREATE INDEX job_workspace ON job (workspace, seq);
