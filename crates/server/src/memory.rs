//! Being small when idle: the allocator keeps what a burst of work needed, and a server mostly waits.

use std::sync::Arc;
use std::time::Duration;

use muster_link::memory;
use tokio::sync::watch;
use tokio::time::{Instant, timeout_at};
use tokio_util::sync::CancellationToken;

use crate::state::Shared;

/// Nothing happened for so long: then it is quiet.
const QUIET: Duration = Duration::from_secs(1);
/// Where it never is: seldom enough to cost nothing.
const LATEST: Duration = Duration::from_secs(10);

/// Gives back what is not used whenever it has become quiet, until cancelled. Sleeps until something happens.
pub(crate) async fn run(shared: Arc<Shared>, stop: CancellationToken) {
    let mut news = shared.news.clone();
    let work = async {
        while happens(&shared, &mut news).await {
            let latest = Instant::now() + LATEST;
            let quiet = || latest.min(Instant::now() + QUIET);
            while Instant::now() < latest && timeout_at(quiet(), happens(&shared, &mut news)).await.is_ok() {}
            give_back();
        }
    };
    tokio::select! {
        () = stop.cancelled() => {}
        () = work => {}
    }
}

/// Waits for a change or for the end of a request, which may have changed nothing: an upload that was given up. False when
/// there will be none.
async fn happens(shared: &Shared, news: &mut watch::Receiver<u64>) -> bool {
    tokio::select! {
        changed = news.changed() => changed.is_ok(),
        () = shared.activity.ended() => true,
    }
}

/// An idle server is to be below 25 MB, also while it is asked how it is.
const MOST_RESIDENT: usize = 20 << 20;

/// Gives back what is not used.
pub(crate) fn give_back() {
    memory::give_back(MOST_RESIDENT);
}

/// What is freed at the end of a heap stays while this much is free: given back at once, it would come back page by page
/// with the next chunk of an upload. [`run`] gives it back.
const SPARE: i32 = 32 << 20;
/// Longer pieces of memory come from the system, and go back to it. Chunks and what they are received into are shorter.
const LARGE: i32 = 4 << 20;

/// One heap, and one that does not give back what will be needed in a moment. Called before there are threads.
pub fn share_heap() {
    memory::share_heap();
    memory::keep(SPARE, LARGE);
}
