//! What a node keeps of tasks that are over: their files, within bounds, the oldest going first.
//!
//! How large a task's files are is measured once, when it is forgotten, and written into its record; what is on the shelf
//! is read once, at the first look, and then known. Two things are never taken from it: what a task that is not over was
//! told of (`previous`), and what the next attempt of a job may ask for, unless it is older than anything may be.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::{SignedDuration, Timestamp};
use muster_link::message::Keep;
use muster_model::{JobId, TaskId};

use crate::bundle::Cache;
use crate::record::{self, TaskDir};
use crate::{disk, secret};

/// How many directories go in one pass: the rest waits for the next, so that a pass ends.
const PASS: usize = 1000;
/// What a directory is called while it goes. No task has such a name.
const GOING: &str = ".going";

/// The files of the tasks that are over.
#[derive(Debug)]
pub(crate) struct Shelf {
    tasks: PathBuf,
    cache: Arc<Cache>,
    /// None before the first look.
    kept: Mutex<Option<BTreeMap<TaskId, Kept>>>,
    /// Whether bundles came or were let go since the last pass.
    has_new_bundles: AtomicBool,
}

/// The files of one task.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Kept {
    pub(crate) ended_at: Timestamp,
    pub(crate) bytes: u64,
    /// Another attempt of its job may come.
    pub(crate) continues: bool,
}

impl Shelf {
    pub(crate) fn new(tasks: PathBuf, cache: Arc<Cache>) -> Shelf {
        Shelf { tasks, cache, kept: Mutex::default(), has_new_bundles: AtomicBool::new(true) }
    }

    /// A task was forgotten, and this is what is left of it.
    pub(crate) fn put(&self, task: &TaskId, new: Kept) {
        if let Some(kept) = self.lock().as_mut() {
            if !new.continues {
                release_earlier(kept, task);
            }
            kept.insert(task.clone(), new);
        }
        self.has_new_bundles.store(true, Ordering::Relaxed);
    }

    /// Remove a task's directory, with all that is in it.
    pub(crate) fn discard(&self, task: &TaskId) -> io::Result<()> {
        if let Some(kept) = self.lock().as_mut() {
            kept.remove(task);
        }
        let dir = TaskDir::new(&self.tasks, task);
        let bundle = dir.bundle();
        secret::remove(dir.path())?;
        remove(dir.path())?;
        if let Some(bundle) = bundle {
            self.cache.release(&bundle, task)?;
            self.has_new_bundles.store(true, Ordering::Relaxed);
        }
        Ok(())
    }

    /// Remove what is left of a job's tasks, but for these.
    pub(crate) fn discard_job(&self, job: &JobId, except: &BTreeSet<TaskId>) -> io::Result<()> {
        let mut removed = Ok(());
        for task in record::of_job(&self.tasks, job, except)? {
            // One that cannot be removed keeps no other.
            removed = self.discard(&task).and(removed);
        }
        removed
    }

    /// Remove what goes beyond the bounds, and give how much that was. `needed` are tasks whose files must stay.
    pub(crate) fn collect(&self, keep: &Keep, needed: &BTreeSet<TaskId>, now: Timestamp) -> io::Result<u64> {
        self.load()?;
        let going = self.lock().as_ref().map(|kept| going(kept, keep, needed, now)).unwrap_or_default();
        let mut freed = 0_u64;
        for (task, bytes) in going {
            if let Err(error) = self.discard(&task) {
                // It keeps no other, and is tried again by the next agent.
                tracing::warn!(task = %task, error = %error, "the files of a task that is over cannot be removed");
                continue;
            }
            tracing::info!(task = %task, bytes, "the files of a task that is over were removed");
            freed = freed.saturating_add(bytes);
        }
        if self.has_new_bundles.swap(false, Ordering::Relaxed) {
            freed = freed.saturating_add(self.cache.evict(keep.bundles_bytes)?);
        }
        Ok(freed)
    }

    /// Look at what is there, once.
    fn load(&self) -> io::Result<()> {
        if self.lock().is_some() {
            return Ok(());
        }
        for entry in std::fs::read_dir(&self.tasks)? {
            let path = entry?.path();
            if path.to_str().is_some_and(|path| path.ends_with(GOING)) {
                // One that cannot be removed keeps nothing else from being looked at; the next start tries again.
                if let Err(error) = disk::remove_tree(&path) {
                    tracing::warn!(path = %path.display(), %error, "could not remove the files of a task");
                }
            }
        }
        let mut found = BTreeMap::new();
        for task in record::scan(&self.tasks)? {
            let dir = TaskDir::new(&self.tasks, &task);
            // Neither is one that is just being prepared.
            if dir.is_forgotten() {
                found.insert(task, self.look(&dir));
            }
        }
        let all: Vec<TaskId> =
            found.iter().filter(|(_, kept)| !kept.continues).map(|(task, _)| task.clone()).collect();
        all.iter().for_each(|task| release_earlier(&mut found, task));
        self.cache.release_lost(&self.tasks)?;
        let mut kept = self.lock();
        // Whatever was put meanwhile is on disk as well, and was found there or is put again by nobody.
        let kept = kept.get_or_insert_default();
        found.append(kept);
        *kept = found;
        Ok(())
    }

    fn look(&self, dir: &TaskDir) -> Kept {
        let contents = dir.contents().unwrap_or_default();
        let changed = || std::fs::metadata(dir.path()).and_then(|metadata| metadata.modified()).ok();
        let ended_at = contents.ended.as_ref().map(|ended| ended.at);
        let ended_at = ended_at.or_else(|| Timestamp::try_from(changed()?).ok());
        let files = contents.files.unwrap_or_else(|| {
            // A record of an older agent, or of a full disk.
            let files = record::Files { bytes: dir.usage(), continues: false };
            let _ = dir.write_files_of_forgotten(files);
            files
        });
        let ended_at = ended_at.unwrap_or(Timestamp::UNIX_EPOCH);
        Kept { ended_at, bytes: files.bytes, continues: files.continues }
    }

    fn lock(&self) -> MutexGuard<'_, Option<BTreeMap<TaskId, Kept>>> {
        // The map is right after every single step.
        self.kept.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A job is over: nobody will ask for what its earlier attempts left.
fn release_earlier(kept: &mut BTreeMap<TaskId, Kept>, task: &TaskId) {
    let of_job = kept.iter_mut().filter(|(other, _)| other.attempt.job == task.attempt.job);
    of_job.for_each(|(_, kept)| kept.continues = false);
}

/// What is to go, the oldest first.
fn going(
    kept: &BTreeMap<TaskId, Kept>,
    keep: &Keep,
    needed: &BTreeSet<TaskId>,
    now: Timestamp,
) -> Vec<(TaskId, u64)> {
    let mut total: u64 = kept.values().fold(0, |sum, kept| kept.bytes.saturating_add(sum));
    let mut oldest: Vec<_> = kept.iter().filter(|(task, _)| !needed.contains(*task)).collect();
    oldest.sort_by_key(|(_, kept)| kept.ended_at);
    let mut going = Vec::new();
    let limit = SignedDuration::from_secs(i64::try_from(keep.files_seconds).unwrap_or(i64::MAX));
    for (task, kept) in oldest {
        let is_old = now.duration_since(kept.ended_at) > limit;
        if (is_old || total > keep.files_bytes && !kept.continues) && going.len() < PASS {
            total = total.saturating_sub(kept.bytes);
            going.push((task.clone(), kept.bytes));
        }
    }
    going
}

/// Take its name away first: half a directory would be taken for a whole one.
fn remove(path: &Path) -> io::Result<()> {
    let mut going = path.as_os_str().to_owned();
    going.push(GOING);
    let going = PathBuf::from(going);
    match std::fs::rename(path, &going) {
        Ok(()) => disk::remove_tree(&going),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
        // Something of an earlier try is in the way.
        Err(_) => {
            disk::remove_tree(&going)?;
            disk::remove_tree(path)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn task(job: u64, attempt: u32) -> TaskId {
        format!("task0.{}.{attempt}", JobId::from_random(job)).parse().unwrap()
    }

    fn kept(ended: i64, bytes: u64, continues: bool) -> Kept {
        Kept { ended_at: Timestamp::from_second(ended).unwrap(), bytes, continues }
    }

    fn gone(kept: &BTreeMap<TaskId, Kept>, bytes: u64, seconds: u64, needed: &[TaskId]) -> Vec<TaskId> {
        let keep = Keep { files_bytes: bytes, files_seconds: seconds, bundles_bytes: 0 };
        let needed = needed.iter().cloned().collect();
        let now = Timestamp::from_second(1000).unwrap();
        going(kept, &keep, &needed, now).into_iter().map(|(task, _)| task).collect()
    }

    #[test]
    fn the_oldest_go_first_and_only_as_many_as_must() {
        let all = BTreeMap::from([
            (task(1, 1), kept(900, 10, false)),
            (task(2, 1), kept(800, 10, false)),
            (task(3, 1), kept(990, 10, false)),
        ]);
        assert_eq!(gone(&all, 30, 1000, &[]), []);
        assert_eq!(gone(&all, 29, 1000, &[]), [task(2, 1)]);
        assert_eq!(gone(&all, 5, 1000, &[]), [task(2, 1), task(1, 1), task(3, 1)]);
        assert_eq!(gone(&all, 30, 150, &[]), [task(2, 1)]);
    }

    #[test]
    fn what_another_attempt_needs_or_may_need_stays() {
        let mut all = BTreeMap::from([
            (task(1, 1), kept(800, 10, true)),
            (task(2, 1), kept(700, 10, false)),
            (task(3, 1), kept(990, 10, false)),
        ]);
        assert_eq!(gone(&all, 0, 1000, &[task(2, 1)]), [task(3, 1)]);
        // One that nobody came for is not kept for ever, and one that is in use is.
        assert_eq!(gone(&all, 100, 150, &[task(2, 1)]), [task(1, 1)]);
        release_earlier(&mut all, &task(1, 2));
        assert_eq!(gone(&all, 15, 1000, &[]), [task(2, 1), task(1, 1)]);
    }
}
