//! What the peer of one connection has sent and nobody has read yet.
//!
//! SSH lets every channel say how much it can take, and russh says so again as soon as something has *arrived*, whether or not
//! anybody has read it; and while a channel's queue is full, its whole connection waits, the other channels' words with it: one
//! command that does not read its input would stop every other, and itself too when the word that its output may go on is
//! behind more input. So everything that arrives is taken ([`Share`]), and what piles up is bounded by other means:
//!
//! | piled up | then |
//! | --- | --- |
//! | [`SOME`] | channels are told of room for [`NARROW`] bytes instead of [`WIDE`]: little is then on its way before any other word |
//! | [`MUCH`] | the connection is read a little at a time ([`super::guest`]): everything else still gets through, late by a fraction of a second |
//! | [`TOO_MUCH`] | the connection is over; at that pace, hours later |
//!
//! A command that reads slowly is thereby fed at its own pace and never waits for more. What remains: while one channel is that far
//! behind, what others *send* is slow too; and the peer's packets may be larger than it was told, so all of this is about accidents. Whoever
//! is let in may run any command, and can fill the task's memory more easily than this way.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What a channel may have on its way when all is read as it comes: enough for a distant peer.
pub(super) const WIDE: u32 = 2 << 20;
const NARROW: u32 = 1 << 10;
const SOME: usize = 1 << 20;
/// What several channels have on their way when the first is found to be behind is taken at once.
const MUCH: usize = 16 << 20;
const TOO_MUCH: usize = 64 << 20;
/// What a packet costs beside its bytes.
const EACH: usize = 64;

/// How far a connection is behind.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Level {
    Fine,
    Much,
    TooMuch,
}

/// The backlog of one connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Backlog(Arc<AtomicUsize>);

impl Backlog {
    pub fn level(&self) -> Level {
        match self.bytes() {
            ..MUCH => Level::Fine,
            MUCH..TOO_MUCH => Level::Much,
            TOO_MUCH.. => Level::TooMuch,
        }
    }

    /// What a channel is told that there is room for.
    pub fn window(&self) -> u32 {
        if self.bytes() < SOME { WIDE } else { NARROW }
    }

    /// The part that one channel has in it.
    pub fn share(&self) -> Share {
        Share { of: self.clone(), bytes: 0 }
    }

    fn bytes(&self) -> usize {
        self.0.load(Ordering::Relaxed)
    }
}

/// What has arrived on one channel and was not read. Dropped, it is nobody's any more.
#[derive(Debug)]
pub(super) struct Share {
    of: Backlog,
    bytes: usize,
}

impl Share {
    /// A packet with so many bytes has arrived.
    pub fn add(&mut self, bytes: usize) {
        self.bytes += bytes + EACH;
        self.of.0.fetch_add(bytes + EACH, Ordering::Relaxed);
    }

    /// So many bytes were read; with them, or not, the end of a packet.
    pub fn remove(&mut self, bytes: usize, is_end: bool) {
        let bytes = (bytes + if is_end { EACH } else { 0 }).min(self.bytes);
        self.bytes -= bytes;
        self.of.0.fetch_sub(bytes, Ordering::Relaxed);
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.of.0.fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_piles_up_on_any_channel_counts_until_it_is_read_or_dropped() {
        let backlog = Backlog::default();
        let (mut one, mut other) = (backlog.share(), backlog.share());
        one.add(SOME);
        assert_eq!((backlog.window(), backlog.level()), (NARROW, Level::Fine));
        other.add(MUCH);
        assert_eq!(backlog.level(), Level::Much);
        one.add(TOO_MUCH);
        assert_eq!(backlog.level(), Level::TooMuch);
        drop(one);
        other.remove(MUCH / 2, false);
        other.remove(MUCH / 2, true);
        assert_eq!((backlog.window(), backlog.bytes()), (WIDE, 0));
    }
}
