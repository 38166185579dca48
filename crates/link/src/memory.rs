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

/// Gives back what is not used. Takes a moment, so it is for when nothing else is to be done. The program's own code goes
/// too, but only where more than `most` bytes would stay in memory otherwise: what a job needs to start is quickly needed
/// again, and takes most of a millisecond to come back.
pub fn give_back(most: usize) {
    give_back_heap();
    if resident().is_some_and(|bytes| bytes > most) {
        forget_code();
    }
}

/// How much of this process is in memory.
fn resident() -> Option<usize> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let kib = status.lines().find_map(|line| line.strip_prefix("VmRSS:")?.trim().strip_suffix(" kB"))?;
    Some(kib.parse::<usize>().ok()? << 10)
}

fn give_back_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "the allocator has no other interface")]
    // SAFETY: it takes no pointer, and touches only memory that nobody has.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Lets go of the program's own code, most of which is not needed again soon: with every page that is, the kernel has mapped
/// its neighbours. What is needed comes back from the page cache.
fn forget_code() {
    #[cfg(target_os = "linux")]
    {
        let Ok(maps) = std::fs::read_to_string("/proc/self/maps") else { return };
        let own = maps.lines().next().and_then(|line| line.split_once('/')).map(|(_, path)| path);
        let is_own =
            |line: &&str| line.contains(" r-xp ") && line.split_once('/').map(|(_, path)| path) == own;
        for line in maps.lines().filter(is_own) {
            let range = line.split_once(' ').and_then(|(range, _)| range.split_once('-'));
            let number = |text: &str| usize::from_str_radix(text, 16).ok();
            let range = range.and_then(|(from, to)| Some((number(from)?, number(to)?)));
            let Some((from, to)) = range.filter(|(from, to)| from < to) else { continue };
            #[expect(unsafe_code, reason = "advice on memory is given by address")]
            // SAFETY: the mapping is of a file, and nobody writes to code: a page that is touched again is read from
            // the file as it was.
            unsafe {
                libc::madvise(from as *mut libc::c_void, to - from, libc::MADV_DONTNEED);
            }
        }
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
