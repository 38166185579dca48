//! Trees of files as content-addressed chunks.
