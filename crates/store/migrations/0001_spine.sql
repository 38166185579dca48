-- The first shape of the database. Applied migrations are never edited: their digest is checked at every start.
-- Times are whole microseconds since 1970; columns that hold JSON say so. Words are spelled as in the model.

-- What users asked for, each once: the thousand jobs of an array share one row.
CREATE TABLE spec (
    id      INTEGER PRIMARY KEY,
    digest  TEXT NOT NULL UNIQUE,
    body    TEXT NOT NULL,           -- JSON
    -- What lists show, so that they never parse the body.
    nodes   INTEGER NOT NULL,
    gpus    TEXT,
    command TEXT NOT NULL
) STRICT;

CREATE TABLE bundle (
    id         TEXT PRIMARY KEY,
    manifest   TEXT NOT NULL,        -- JSON
    created_at INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE job (
    -- The order of submission. AUTOINCREMENT: a cursor must not meet a number that was used before.
    seq          INTEGER PRIMARY KEY AUTOINCREMENT,
    id           TEXT NOT NULL UNIQUE,
    name         TEXT NOT NULL,
    kind         TEXT NOT NULL,
    owner        TEXT NOT NULL,
    workspace    TEXT NOT NULL,
    spec         INTEGER NOT NULL REFERENCES spec (id),
    -- No cascade: whoever removes a parent says what becomes of its children.
    parent       TEXT REFERENCES job (id),
    array_index  INTEGER,
    priority     INTEGER NOT NULL,
    target       TEXT NOT NULL,      -- As written: local, ssh/POOL, …
    bundle       TEXT REFERENCES bundle (id),
    submitted_at INTEGER NOT NULL,
    state        TEXT NOT NULL CHECK (state IN ('queued', 'starting', 'running', 'stopping', 'succeeded', 'failed', 'stopped', 'suspended')),
    ending       TEXT,               -- JSON
    reason       TEXT,               -- JSON
    failed_rank  INTEGER,
    hold         INTEGER NOT NULL,
    attempt      INTEGER NOT NULL,
    retried      INTEGER NOT NULL,
    eligible_at  INTEGER,
    generation   INTEGER NOT NULL,
    exit_code    INTEGER,
    started_at   INTEGER,
    ended_at     INTEGER,
    CHECK ((state = 'stopping') = (ending IS NOT NULL))
) STRICT;

CREATE INDEX job_state ON job (state, seq);
CREATE INDEX job_name ON job (name, seq);
-- Tells whether a spec is still used.
CREATE INDEX job_spec ON job (spec);
CREATE UNIQUE INDEX job_parent ON job (parent, array_index) WHERE parent IS NOT NULL;

CREATE TABLE attempt (
    job         TEXT NOT NULL REFERENCES job (id) ON DELETE CASCADE,
    number      INTEGER NOT NULL,
    started_at  INTEGER NOT NULL,
    ended_at    INTEGER,
    reason      TEXT,                -- JSON
    failed_rank INTEGER,
    PRIMARY KEY (job, number)
) STRICT, WITHOUT ROWID;

CREATE TABLE task (
    job        TEXT NOT NULL,
    attempt    INTEGER NOT NULL,
    rank       INTEGER NOT NULL,
    node       TEXT NOT NULL,
    devices    TEXT NOT NULL,        -- JSON
    phase      TEXT NOT NULL CHECK (phase IN ('assigned', 'ready', 'running', 'ended')),
    address    TEXT,                 -- JSON
    "end"      TEXT,                 -- JSON
    started_at INTEGER,
    ended_at   INTEGER,
    PRIMARY KEY (job, attempt, rank),
    FOREIGN KEY (job, attempt) REFERENCES attempt (job, number) ON DELETE CASCADE
) STRICT, WITHOUT ROWID;

CREATE TABLE event (
    -- The number clients resume from, so it is never given twice.
    seq     INTEGER PRIMARY KEY AUTOINCREMENT,
    job     TEXT REFERENCES job (id) ON DELETE CASCADE,
    attempt INTEGER,
    at      INTEGER NOT NULL,
    kind    TEXT NOT NULL,
    body    TEXT NOT NULL            -- JSON
) STRICT;

CREATE INDEX event_job ON event (job, seq);

CREATE TABLE node (
    id           TEXT PRIMARY KEY,
    engine       TEXT NOT NULL,
    name         TEXT NOT NULL,
    host         TEXT NOT NULL,
    incarnation  TEXT,
    capacity     TEXT NOT NULL,      -- JSON
    token_hash   TEXT,
    last_seen_at INTEGER
) STRICT, WITHOUT ROWID;

-- The submitter's environment. Apart from the job, so that no query of jobs can show it by accident.
CREATE TABLE job_environment (
    job  TEXT PRIMARY KEY REFERENCES job (id) ON DELETE CASCADE,
    body TEXT NOT NULL               -- JSON
) STRICT;

CREATE TABLE idempotency (
    key            TEXT PRIMARY KEY,
    request_digest TEXT NOT NULL,
    job            TEXT NOT NULL REFERENCES job (id) ON DELETE CASCADE,
    created_at     INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE INDEX idempotency_job ON idempotency (job);
