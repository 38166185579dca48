//! Copying files between two ends of a connection, as `muster cp` does.
//!
//! The caller says what it wants ([`Ask`]); then one end [sends](send) and the other one [receives](receive), whichever way
//! the files go. The sender names entries in batches of thousands; the receiver answers each batch with what it lacks, so that
//! what is there already is not sent again and what was cut off goes on; the contents follow one after the other. So there is
//! one round trip for a batch and none for a file, and what either end holds is bounded by a batch.
//!
//! A connection that breaks needs no memory of its own: whoever copies again finds whole files, which have the size and time
//! of their source, and at most one part, which goes on if its content is how the source begins.
//!
//! Both ends are blocking code over a [`Wire`], on a thread of their own: disks make them wait, and nothing else is to wait
//! with them. What comes over the wire may have been made to harm: names are walked by [`crate::unpack::Walk`], lengths are
//! bounded, and what was not asked for is refused.

mod channel;
mod frame;
mod part;
mod place;
mod receive;
mod send;
mod source;
#[cfg(test)]
mod tests;

use std::io::{self, Read, Write};

pub use channel::Channel;
pub use frame::Ask;
pub use place::Destination;
pub use receive::{Arrived, Expected, Receiver};
pub use send::{Source, send};
pub use source::{Surroundings, base, expand, has_pattern};

/// What a task says that is asked to pass something on, and has nobody to pass it on to.
pub const NO_PEERS: &str = "the task has no peers to pass anything on to";

/// A connection that can also be asked whether there is something to read.
pub trait Wire: Read + Write {
    /// Whether a read would not wait.
    fn is_ready(&mut self) -> io::Result<bool>;
}

/// Why a copy ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The connection broke: it may be tried again.
    #[error("the connection broke")]
    Lost(#[source] io::Error),
    /// The other end gave up, and said why.
    #[error("{0}")]
    Peer(String),
    /// This end gave up, and told the other one.
    #[error("{0}")]
    Here(String),
    /// The other end does not speak as it should.
    #[error("the other end sent {0}")]
    Protocol(&'static str),
}

/// Who is told how a copy goes.
pub trait Watch {
    /// So many more files, of so many bytes in all, are to be copied unless they are there.
    fn found(&mut self, _files: u64, _bytes: u64) {}
    /// So many bytes more are there: moved just now, or already there as the beginning of what is.
    fn moved(&mut self, _bytes: u64) {}
    /// A file or link is whole.
    fn done(&mut self, _path: &[u8], _bytes: u64) {}
    /// A file is the same already.
    fn skipped(&mut self, _path: &[u8], _bytes: u64) {}
    /// Something was not copied, or not quite. `is_failure` when the whole is not as it was asked for.
    fn problem(&mut self, _path: &[u8], _reason: &str, _is_failure: bool) {}
    /// Whether a file was copied earlier in this copy, over a connection that broke. Asked when all is copied anew.
    fn is_done(&self, _path: &[u8]) -> bool {
        false
    }
}

/// Nobody is told.
impl Watch for () {}

/// What the system said, without the number that nobody needs.
fn reason(error: &io::Error) -> String {
    let text = error.to_string();
    match text.find(" (os error") {
        Some(at) => text[..at].to_lowercase(),
        None => text,
    }
}
