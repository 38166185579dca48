//! Waiting for a condition, with a deadline.

use std::time::{Duration, Instant};

/// Far above what anything takes on an idle machine; a test that waits this long has found something.
pub const DEADLINE: Duration = Duration::from_secs(60);

/// Waits until a condition holds; panics with `what` if it does not in time.
pub fn wait_for(what: &str, mut condition: impl FnMut() -> bool) {
    wait_for_some(what, || condition().then_some(()));
}

/// The same for what is known to take longer than anything else.
pub fn wait_within(limit: Duration, what: &str, mut condition: impl FnMut() -> bool) {
    wait(limit, what, || condition().then_some(()));
}

/// Waits until something is there; panics with `what` if it is not in time.
pub fn wait_for_some<T>(what: &str, look: impl FnMut() -> Option<T>) -> T {
    wait(DEADLINE, what, look)
}

/// Both.
pub(crate) fn wait<T>(limit: Duration, what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begun.elapsed() < limit, "waited {limit:?} in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}
