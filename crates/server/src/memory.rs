//! Being small when idle: the allocator keeps what a burst of work needed, and a server mostly waits.

use std::sync::Arc;
use std::time::Duration;

use tokio_util::sync::CancellationToken;

use crate::state::Shared;

/// Nothing happened for so long: then it is quiet.
const QUIET: Duration = Duration::from_secs(10);

/// Gives back what is not used whenever it has become quiet, until cancelled.
pub(crate) async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let (mut seen, mut given_back) = (None, None);
    loop {
        tokio::select! {
            () = stop.cancelled() => return,
            () = tokio::time::sleep(QUIET) => {}
        }
        let now = Some((*shared.news.borrow(), shared.activity.last()));
        if now == seen && now != given_back {
            give_back();
            given_back = now;
        }
        seen = now;
    }
}

/// Gives back what is not used. Takes a moment, so it is for when nothing else is to be done.
pub(crate) fn give_back() {
    #[cfg(all(target_os = "linux", target_env = "gnu"))]
    #[expect(unsafe_code, reason = "the allocator has no other interface")]
    // SAFETY: it takes no pointer, and touches only memory that nobody has.
    unsafe {
        libc::malloc_trim(0);
    }
}
