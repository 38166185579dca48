-- What tasks are given that nobody is shown. A workspace need not be a row: a server without accounts has only names.

CREATE TABLE secret (
    workspace TEXT NOT NULL,
    name      TEXT NOT NULL,
    sealed    BLOB NOT NULL,
    size      INTEGER NOT NULL,
    put_by    TEXT NOT NULL,
    put_at    INTEGER NOT NULL,
    PRIMARY KEY (workspace, name)
) STRICT, WITHOUT ROWID;

CREATE TRIGGER workspace_takes_its_secrets AFTER DELETE ON workspace
BEGIN DELETE FROM secret WHERE workspace = OLD.name; END;
