-- Pools of SSH hosts, and nodes that are to get no new tasks.

CREATE TABLE pool (
    name       TEXT PRIMARY KEY,
    -- A directory that all of its hosts share.
    shared     TEXT,
    -- It came from config.toml, and is changed there.
    configured INTEGER NOT NULL
) STRICT, WITHOUT ROWID;

CREATE TABLE host (
    -- The order in which hosts were given.
    seq         INTEGER PRIMARY KEY,
    node        TEXT NOT NULL UNIQUE,
    pool        TEXT NOT NULL REFERENCES pool (name) ON DELETE CASCADE,
    destination TEXT NOT NULL,
    port        INTEGER,
    key         TEXT,
    address     TEXT
) STRICT;

CREATE INDEX host_pool ON host (pool);

-- Apart from the node's own row, which its agent's words write: draining is somebody's wish, also for a node that has
-- never spoken.
CREATE TABLE drain (
    node TEXT PRIMARY KEY,
    at   INTEGER NOT NULL
) STRICT, WITHOUT ROWID;
