//! Descriptors whose events the runtime waits for.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// Hands a descriptor to the runtime.
#[expect(unsafe_code, reason = "the runtime cannot know that a descriptor stays open and the same")]
pub fn register(descriptor: OwnedFd, interest: Interest) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` names one descriptor for all its life, and nothing else closes it. It lives inside the
    // `AsyncFd`, which lets go of it only after the runtime has.
    unsafe { AsyncFd::register_with_interest(descriptor, interest) }.map_err(io::Error::from)
}
