-- Since when a node has owed the removal of a job's files. Empty: since before this was known.

ALTER TABLE removal ADD COLUMN owed_at INTEGER;
