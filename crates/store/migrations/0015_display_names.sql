-- What people call a job, a user or a workspace, in any script. Jobs are found by it as well; nothing is unique.

ALTER TABLE user ADD COLUMN display_name TEXT;
ALTER TABLE workspace ADD COLUMN display_name TEXT;
ALTER TABLE job ADD COLUMN display_name TEXT;

CREATE INDEX job_display_name ON job (display_name, seq) WHERE display_name IS NOT NULL;
