-- Arrays: jobs that run their command once for each of many elements.

-- Who has which element, as the state machine keeps it; the counts of it, for lists.
CREATE TABLE array (
    job       TEXT PRIMARY KEY REFERENCES job (id) ON DELETE CASCADE,
    total     INTEGER NOT NULL,
    running   INTEGER NOT NULL,
    succeeded INTEGER NOT NULL,
    failed    INTEGER NOT NULL,
    progress  TEXT NOT NULL          -- JSON
) STRICT, WITHOUT ROWID;

-- The last run of each element that has been run to an end. `waiting` are those that failed and are tried again.
CREATE TABLE element (
    job        TEXT NOT NULL REFERENCES job (id) ON DELETE CASCADE,
    "index"    INTEGER NOT NULL,
    state      TEXT NOT NULL CHECK (state IN ('waiting', 'succeeded', 'failed')),
    tries      INTEGER NOT NULL,
    attempt    INTEGER NOT NULL,
    rank       INTEGER NOT NULL,
    started_at INTEGER NOT NULL,
    ended_at   INTEGER,
    failure    TEXT,                 -- JSON
    log_from   INTEGER NOT NULL,
    log_to     INTEGER,
    PRIMARY KEY (job, "index")
) STRICT, WITHOUT ROWID;

-- Most succeed, and are not looked for.
CREATE INDEX element_failed ON element (job, state, "index") WHERE state <> 'succeeded';
