-- Machines of a group come and go one by one: what a member alone was asked, and is over by.

ALTER TABLE task ADD COLUMN parting TEXT CHECK (parting IN ('suspend', 'stop'));

-- Those of groups that are parked were, all of them.
UPDATE task SET parting = 'suspend'
WHERE (job, attempt) IN (SELECT id, attempt FROM job WHERE kind = 'machine' AND state = 'suspended');
