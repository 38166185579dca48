//! Being small when idle, at both ends: the allocator's habits suit programs that stay busy, and server and agent mostly
//! wait.

/// One heap for all threads, instead of one each that keeps what it once had; and only that one's end can be given back when
/// asked for. Called before there are threads: one that is there already has a heap of its own, and keeps it.
pub fn share_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    set(libc::M_ARENA_MAX, 1);
}

/// Keeps up to `spare` bytes that were freed at the end of the heap until [`give_back`]; pieces longer than `large` come from
/// the system and go back to it at once.
pub fn keep(spare: i32, large: i32) {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    for (parameter, value) in [(libc::M_MMAP_THRESHOLD, large), (libc::M_TRIM_THRESHOLD, spare)] {
        set(parameter, value);
    }
    #[cfg(not(all(target_os = "linux", target_env = "gnu")))]
    let _ = (spare, large);
}

/// Gives back what is not used. Takes a moment, so it is for when nothing else is to be done.
pub fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "the allocator has no other interface")]
    // SAFETY: it takes no pointer, and touches only memory that nobody has.
    unsafe {
        libc::malloc_trim(0);
    }
}

#[cfg(all(target_os = "linux", target_env = "gnu"))]
#[expect(unsafe_code, reason = "the allocator has no other interface")]
fn set(parameter: libc::c_int, value: libc::c_int) {
    // SAFETY: it takes no pointer, changes only how later allocations are made, and refuses what it does not know.
    unsafe {
        libc::mallopt(parameter, value);
    }
}
