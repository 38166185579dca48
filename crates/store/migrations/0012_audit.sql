-- Entries of the audit log state how an operation ended.

-- Rows with the same request are one entry: the first is written before or with the operation, the last states its outcome.
ALTER TABLE audit ADD COLUMN request TEXT;
-- The HTTP status of the reply.
ALTER TABLE audit ADD COLUMN status INTEGER;
-- The job that the operation made, changed or read.
ALTER TABLE audit ADD COLUMN job TEXT;
-- How many requests the entry stands for: repeated refusals and reads are counted, not repeated.
ALTER TABLE audit ADD COLUMN count INTEGER NOT NULL DEFAULT 1;

-- Clients that logged in are known to the login rate limiter.
CREATE INDEX audit_logins ON audit (seq) WHERE operation = 'login' AND outcome = 'done';
CREATE INDEX audit_request ON audit (request, seq) WHERE request IS NOT NULL;
