//! The cache: what it keeps and what it lets go.
