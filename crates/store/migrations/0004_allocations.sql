-- What other people's schedulers keep for attempts that were handed over to them.

CREATE TABLE allocation (
    -- No reference: a job may be removed while what it had is still being given back.
    job       TEXT NOT NULL,
    attempt   INTEGER NOT NULL,
    target    TEXT NOT NULL,         -- As written: slurm/PARTITION, …
    nodes     TEXT NOT NULL,         -- JSON: the nodes of its agents, by rank
    -- What the other scheduler calls it; absent until it has said so.
    external  TEXT,
    hosts     TEXT NOT NULL,         -- JSON: its machines there
    since     INTEGER NOT NULL,
    -- Its attempt is over: it is being given back.
    closing   INTEGER NOT NULL,
    -- It is known to be gone.
    closed_at INTEGER,
    PRIMARY KEY (job, attempt)
) STRICT, WITHOUT ROWID;

CREATE INDEX allocation_open ON allocation (since) WHERE closed_at IS NULL;
