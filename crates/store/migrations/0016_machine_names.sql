-- Names of machines of their own: one of a group may be called something else than taskN.GROUP.

CREATE TABLE machine_name (
    job  TEXT    NOT NULL REFERENCES job (id) ON DELETE CASCADE,
    rank INTEGER NOT NULL,
    name TEXT    NOT NULL,
    PRIMARY KEY (job, rank)
) STRICT, WITHOUT ROWID;

CREATE INDEX machine_name_by_name ON machine_name (name);
