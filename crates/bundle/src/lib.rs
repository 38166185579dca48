//! Trees of files as content-addressed chunks.
//!
//! A tree becomes a [`listing`] (names, modes, times, sizes) and a content (all files, one after the other). Both are
//! [cut](cut) where the content itself says so, so that an edit changes a chunk or two however large the tree is, and
//! small files share chunks. Chunks are named by their digest and travel compressed ([`chunk`]).
//!
//! Client, server and agent share this format, so it lives here once. What is read may have been made to harm: nothing
//! in this crate panics on it, allocates by its word, or writes outside the directory it was given.

pub mod chunk;
pub mod copy;
pub mod cut;
pub mod listing;
pub mod pack;
pub mod tar;
pub mod tree;
pub mod unpack;
pub mod untar;
