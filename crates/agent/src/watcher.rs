//! Changes in directories, from one inotify instance for all of them: a user has few instances and many watches.

use std::collections::{HashMap, HashSet};
use std::hash::Hash;
use std::io;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::path::Path;
use std::time::Duration;

use rustix::fs::inotify::{self, CreateFlags, ReadFlags, Reader, WatchFlags};
use rustix::io::Errno;
use tokio::io::Interest;
use tokio::io::unix::AsyncFd;

use muster_link::descriptor::register;

/// How often a watcher looks that was refused its eyes.
const BLIND_PAUSE: Duration = Duration::from_millis(200);

/// Watches directories, each for someone named by a `K`.
#[derive(Debug)]
pub(crate) struct Watcher<K> {
    /// None where the user has no instance left.
    inotify: Option<AsyncFd<OwnedFd>>,
    keys: HashMap<i32, K>,
    /// Something cannot be watched, so that it must be looked at instead.
    is_blind: bool,
}

/// What changed since the last look.
#[derive(Debug, PartialEq)]
pub(crate) enum Changes<K: Hash + Eq> {
    /// These directories, each with the name of what changed in it.
    Some(HashSet<(K, Vec<u8>)>),
    /// Nobody could see: anything may have changed.
    Unknown,
}

impl<K: Clone + Hash + Eq> Watcher<K> {
    pub(crate) fn new() -> Watcher<K> {
        let inotify = inotify::init(CreateFlags::NONBLOCK | CreateFlags::CLOEXEC).map_err(io::Error::from);
        let inotify =
            inotify.and_then(|inotify| register(inotify, Interest::READABLE)).inspect_err(refused).ok();
        Watcher { is_blind: inotify.is_none(), inotify, keys: HashMap::new() }
    }

    /// Watch a directory. What happened before this call is not told, so the caller looks for itself afterwards.
    pub(crate) fn add(&mut self, path: &Path, flags: WatchFlags, key: K) {
        let Some(inotify) = &self.inotify else { return };
        match inotify::add_watch(inotify.get_ref(), path, flags | WatchFlags::ONLYDIR) {
            Ok(watch) => _ = self.keys.insert(watch, key),
            // What is gone does not change.
            Err(Errno::NOENT | Errno::NOTDIR) => {}
            Err(errno) => {
                refused(&errno.into());
                self.is_blind = true;
            }
        }
    }

    /// No longer watch for this one.
    pub(crate) fn remove(&mut self, key: &K) {
        let Some(inotify) = &self.inotify else { return };
        self.keys.retain(|watch, held| {
            if held == key {
                // The directory may be gone, and the watch with it.
                let _ = inotify::remove_watch(inotify.get_ref(), *watch);
            }
            held != key
        });
    }

    /// Wait for changes. May be dropped and called again without losing any.
    pub(crate) async fn changes(&mut self) -> Changes<K> {
        if !self.is_blind {
            return self.seen().await;
        }
        tokio::time::sleep(BLIND_PAUSE).await;
        Changes::Unknown
    }

    async fn seen(&mut self) -> Changes<K> {
        loop {
            let Some(inotify) = &self.inotify else { std::future::pending().await };
            let changes = match inotify.readable().await {
                Ok(mut ready) => {
                    let changes = read(ready.get_inner(), &self.keys);
                    // Everything was read, so that the next event makes it readable again.
                    ready.clear_ready();
                    changes
                }
                Err(error) => Err(error),
            };
            match changes {
                Ok(Changes::Some(changes)) if changes.is_empty() => {}
                Ok(changes) => return changes,
                Err(error) => {
                    refused(&error);
                    self.is_blind = true;
                    return Changes::Unknown;
                }
            }
        }
    }
}

fn refused(error: &io::Error) {
    tracing::warn!(error = %error, "changes cannot be watched and are looked for instead; see fs.inotify in sysctl");
}

fn read<K: Clone + Hash + Eq>(inotify: &OwnedFd, keys: &HashMap<i32, K>) -> io::Result<Changes<K>> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut reader = Reader::new(inotify, &mut buffer);
    let (mut changes, mut lost) = (HashSet::new(), false);
    loop {
        let event = match reader.next() {
            Ok(event) => event,
            Err(Errno::AGAIN) => break,
            Err(Errno::INTR) => continue,
            Err(errno) => return Err(errno.into()),
        };
        lost |= event.events().contains(ReadFlags::QUEUE_OVERFLOW);
        let name = event.file_name().map(|name| name.to_bytes().to_vec()).unwrap_or_default();
        if let Some(key) = keys.get(&event.wd()) {
            changes.insert((key.clone(), name));
        }
    }
    Ok(if lost { Changes::Unknown } else { Changes::Some(changes) })
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[tokio::test]
    async fn a_rename_into_a_watched_directory_is_told_with_its_name() {
        let home = tempfile::tempdir().unwrap();
        let (one, two) = (home.path().join("one"), home.path().join("two"));
        fs::create_dir(&one).unwrap();
        fs::create_dir(&two).unwrap();
        let mut watcher = Watcher::new();
        watcher.add(&one, WatchFlags::MOVED_TO, 1);
        watcher.add(&two, WatchFlags::MOVED_TO, 2);
        fs::write(one.join("a.new"), "").unwrap();
        fs::rename(one.join("a.new"), one.join("a")).unwrap();
        assert_eq!(watcher.changes().await, Changes::Some([(1, b"a".to_vec())].into()));
        watcher.remove(&1);
        fs::rename(one.join("a"), one.join("b")).unwrap();
        fs::rename(one.join("b"), two.join("b")).unwrap();
        assert_eq!(watcher.changes().await, Changes::Some([(2, b"b".to_vec())].into()));
    }

    #[tokio::test(start_paused = true)]
    async fn a_watcher_that_is_refused_its_eyes_says_again_and_again_that_anything_may_have_changed() {
        let mut watcher = Watcher::<u8> { inotify: None, keys: HashMap::new(), is_blind: true };
        watcher.add(Path::new("/"), WatchFlags::MOVED_TO, 1);
        watcher.remove(&1);
        for _ in 0..3 {
            assert_eq!(watcher.changes().await, Changes::Unknown);
        }
    }
}
