-- Jobs that were removed and whose files a node has yet to remove: it may be away when they are.

CREATE TABLE removal (
    node TEXT NOT NULL REFERENCES node (id) ON DELETE CASCADE,
    job  TEXT NOT NULL,
    PRIMARY KEY (node, job)
) STRICT, WITHOUT ROWID;
