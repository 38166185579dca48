-- The account that an attempt was handed over under. Empty: the one that its engine has for all, as everything before this was.

ALTER TABLE allocation ADD COLUMN account TEXT;
