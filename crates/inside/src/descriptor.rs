//! Descriptors that the runtime waits for.

use std::io;
use std::os::fd::OwnedFd;

use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

#[expect(unsafe_code, reason = "the runtime's promise about descriptors is not in the types")]
pub(crate) fn readable(descriptor: OwnedFd) -> io::Result<AsyncFd<OwnedFd>> {
    // SAFETY: an `OwnedFd` is open and stays the same descriptor for as long as it lives, and it lives in the
    // `AsyncFd`, which lets go of it only after the runtime has.
    unsafe { AsyncFd::register_with_interest(descriptor, Interest::READABLE) }.map_err(io::Error::from)
}
