-- What a server needs that many people share for years.

-- Entries of the audit log may go once a later entry says up to when they do, and only those. So nothing goes without a trace, and
-- nothing goes that is younger than what was said.
CREATE INDEX audit_at ON audit (at);
CREATE INDEX audit_removals ON audit (seq) WHERE operation = 'remove_audit';

DROP TRIGGER audit_is_not_removed;
CREATE TRIGGER audit_is_not_removed BEFORE DELETE ON audit
WHEN NOT EXISTS (
    SELECT 1 FROM audit AS said
    WHERE said.operation = 'remove_audit' AND said.seq > OLD.seq AND json_extract(said.detail, '$.before_us') > OLD.at)
BEGIN SELECT RAISE(ABORT, 'the audit log is append-only'); END;

-- Somebody's own last job.
CREATE INDEX job_owner ON job (owner, seq);
