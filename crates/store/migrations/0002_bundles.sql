-- Bundles become two lists of chunks, jobs know where their code came from, tasks what they left behind, and everything
-- that is kept for a while says how large it is and since when nobody needs it.

-- A manifest is now its canonical text, by which the bundle is named. The JSON of before names chunks in a form that no
-- node unpacks any more. Jobs that are over lose the name of their code, nothing else. One that still waits keeps it, with
-- a manifest that is empty: its node then says that the code is gone, rather than run the job without any.
UPDATE job SET bundle = NULL WHERE state IN ('succeeded', 'failed', 'stopped');
DELETE FROM bundle WHERE id NOT IN (SELECT bundle FROM job WHERE bundle IS NOT NULL);
UPDATE bundle SET manifest = '';

-- When somebody last asked for it; what no job has and nobody asked for is removed.
ALTER TABLE bundle ADD COLUMN used_at INTEGER NOT NULL DEFAULT 0;
-- Tells whether a bundle is still used.
CREATE INDEX job_bundle ON job (bundle) WHERE bundle IS NOT NULL;

ALTER TABLE job ADD COLUMN source TEXT;              -- JSON
-- The size of its logs on this server, once the job is over and they are all here.
ALTER TABLE job ADD COLUMN log_bytes INTEGER;
-- When its logs were removed to make room.
ALTER TABLE job ADD COLUMN logs_removed_at INTEGER;
CREATE INDEX job_kept_log ON job (ended_at) WHERE log_bytes > 0 AND logs_removed_at IS NULL;
CREATE INDEX job_unmeasured_log ON job (ended_at) WHERE log_bytes IS NULL AND ended_at IS NOT NULL;

ALTER TABLE task ADD COLUMN outputs TEXT;            -- JSON
CREATE INDEX task_outputs ON task (json_extract(outputs, '$.bundle')) WHERE outputs IS NOT NULL;
