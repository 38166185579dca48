//! When something changes in a session's directory, or in a command's output.

use std::io;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use muster_link::descriptor::register;
use rustix::fs::inotify::{CreateFlags, WatchFlags, add_watch, init};
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

/// How often to look where the kernel has no watch left to give.
const LOOK: Duration = Duration::from_millis(100);
/// Reads before the changes are looked at, however fast more of them come.
const AT_ONCE: usize = 64;

pub(super) struct Changes {
    watch: Option<AsyncFd<OwnedFd>>,
}

impl Changes {
    /// When files appear in a directory, or are finished. What is written to them meanwhile would be far too often.
    pub(super) fn of_directory(dir: &Path) -> Changes {
        Changes {
            watch: watch(dir, WatchFlags::CREATE | WatchFlags::CLOSE_WRITE | WatchFlags::MOVED_TO).ok(),
        }
    }

    /// When a file is written to.
    pub(super) fn of_file(file: &Path) -> Changes {
        Changes { watch: watch(file, WatchFlags::MODIFY).ok() }
    }

    /// Waits for a change since the last time. Also returns without any now and then; whoever waits looks anyway.
    pub(super) async fn next(&mut self) {
        let Some(watch) = &self.watch else { return tokio::time::sleep(LOOK).await };
        let Ok(mut ready) = watch.readable().await else { return tokio::time::sleep(LOOK).await };
        // What has happened is of no interest: all of it is looked at.
        let mut buffer = [0; 4096];
        for _ in 0..AT_ONCE {
            if rustix::io::read(watch.get_ref(), &mut buffer).is_err() {
                ready.clear_ready();
                return;
            }
        }
    }
}

fn watch(path: &Path, kinds: WatchFlags) -> io::Result<AsyncFd<OwnedFd>> {
    let watch = init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC)?;
    add_watch(&watch, path, kinds)?;
    register(watch, Interest::READABLE)
}
