-- What the scheduler remembers beyond jobs and nodes.

-- What workspaces, and their users, have used in the mean: an empty user stands for the workspace itself.
CREATE TABLE usage (
    workspace TEXT NOT NULL,
    user      TEXT NOT NULL,
    mean      REAL NOT NULL,
    at        INTEGER NOT NULL,
    PRIMARY KEY (workspace, user)
) STRICT, WITHOUT ROWID;

-- What nodes are labelled with; where they stand is among it.
CREATE TABLE label (
    node  TEXT NOT NULL,
    key   TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (node, key)
) STRICT, WITHOUT ROWID;
