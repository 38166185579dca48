-- What workspaces and users may have. Neither need be a row of its own table: a server without accounts has only names.

CREATE TABLE workspace_quota (
    workspace    TEXT PRIMARY KEY,
    weight       REAL NOT NULL,
    cpu_millis   TEXT,               -- JSON, as are the next three: nominal, borrow, lend.
    memory_bytes TEXT,
    gpus         TEXT,
    models       TEXT NOT NULL       -- By model.
) STRICT, WITHOUT ROWID;

-- The user `*` is everybody who has no limit of their own.
CREATE TABLE user_quota (
    user        TEXT PRIMARY KEY,
    weight      REAL NOT NULL,
    max_running INTEGER
) STRICT, WITHOUT ROWID;

CREATE TRIGGER workspace_takes_its_quota AFTER DELETE ON workspace
BEGIN DELETE FROM workspace_quota WHERE workspace = OLD.name; END;

CREATE TRIGGER user_takes_their_quota AFTER DELETE ON user
BEGIN DELETE FROM user_quota WHERE user = OLD.name; END;
