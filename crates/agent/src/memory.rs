//! Being small when idle: the allocator's habits suit programs that stay busy, and an agent mostly waits.

/// One heap for all threads, instead of one each that keeps what it once had. Called before there are threads.
pub(crate) fn share_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "the allocator has no other interface")]
    // SAFETY: it only sets a number, and refuses one that it does not know.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Give back what is not used. Takes a moment, so it is for when nothing else is to be done.
pub(crate) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "the allocator has no other interface")]
    // SAFETY: it takes no pointer, and touches only memory that nobody has.
    unsafe {
        libc::malloc_trim(0);
    }
}
