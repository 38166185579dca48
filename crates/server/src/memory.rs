//! Being small when idle: the allocator keeps what a burst of work needed, and a server mostly waits.

/// Gives back what is not used. Takes a moment, so it is for when nothing else is to be done.
pub(crate) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "the allocator has no other interface")]
    // SAFETY: it takes no pointer, and touches only memory that nobody has.
    unsafe {
        libc::malloc_trim(0);
    }
}
