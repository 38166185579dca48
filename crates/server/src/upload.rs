//! Who uploads, how many at a time, and what each has shown to have.
//!
//! People who share a server must not learn from it what others have. A chunk or a bundle is there for a user only if
//! they have sent it themselves, or a job that they may see has it; everything else is *missing* for them, and is sent
//! and verified again, and then stored once. What a user has sent is remembered in memory, for as long as a chunk that no
//! job has is kept; after a restart it is sent again at worst. Jobs are looked up in the database.

mod possession;

use std::collections::HashMap;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use muster_api::problem::{Code, Problem};
use muster_model::quantity::format_bytes;
use muster_model::{BundleId, ChunkId};
use muster_store::Readers;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::accounts::Caller;
use crate::manifest::{CompactManifest, Piece};
use crate::state::Shared;
pub(crate) use possession::{Possession, Short};

/// Uploads that run at once, of all users and of one. A client sends three requests at a time.
const IN_ALL: usize = 64;
const OF_ONE: usize = 8;
/// Requests of one user that may wait for their turn.
const WAITING_OF_ONE: usize = 32;
/// How long a request waits for its turn.
const PATIENCE: Duration = Duration::from_secs(10);
/// What a client that was turned away is told to wait, in seconds.
const RETRY_AFTER: u64 = 2;
/// Manifests above this length are read a few at a time, whoever sends them.
pub(crate) const LARGE_MANIFEST: u64 = 1 << 20;
const LARGE_IN_ALL: usize = 2;
/// Manifests of the database that are read at once.
const CHECKS: usize = 4;

/// Of a user's jobs, this many are looked at for code that the user has.
const RECENT_JOBS: u32 = 1000;
/// How many bundles of them.
const RECENT_BUNDLES: usize = 64;
/// For how long what was found of a user's jobs holds.
const JOBS_HOLD: Duration = Duration::from_secs(3600);
/// What was sent is remembered at least so long, however soon unused code is removed: a client names its bundle after that.
const LEAST_GRACE: Duration = Duration::from_secs(600);
/// How often it is found out anew which uploads jobs refer to.
const RECOUNT: Duration = Duration::from_secs(10);
/// Manifests may take this part of a user's unused uploads. They have a bound of their own: a user whose chunks have
/// reached the limit must still name the bundle, so that a job uses them.
const MANIFEST_PART: u64 = 8;

/// Everybody's uploads.
pub(crate) struct Uploads {
    slots: Arc<Semaphore>,
    large: Arc<Semaphore>,
    pub checks: Semaphore,
    users: Mutex<HashMap<String, Arc<Uploader>>>,
}

impl Default for Uploads {
    fn default() -> Self {
        Self {
            slots: Arc::new(Semaphore::new(IN_ALL)),
            large: Arc::new(Semaphore::new(LARGE_IN_ALL)),
            checks: Semaphore::new(CHECKS),
            users: Mutex::default(),
        }
    }
}

/// One user's uploads.
pub(crate) struct Uploader {
    name: String,
    slots: Arc<Semaphore>,
    waiting: AtomicUsize,
    possession: Mutex<Possession>,
}

/// Held while an upload runs.
pub(crate) struct Turn {
    _held: Vec<OwnedSemaphorePermit>,
}

impl Uploads {
    fn uploader(&self, name: &str) -> Arc<Uploader> {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        let new = || {
            Arc::new(Uploader {
                name: name.to_owned(),
                slots: Arc::new(Semaphore::new(OF_ONE)),
                waiting: AtomicUsize::new(0),
                possession: Mutex::default(),
            })
        };
        Arc::clone(users.entry(name.to_owned()).or_insert_with(new))
    }

    /// Waits for a turn, or says when to come again.
    pub async fn turn(&self, caller: &Caller, is_large: bool) -> Result<Turn, Problem> {
        let uploader = self.uploader(&caller.name);
        let waiting = Waiting::begin(&uploader).ok_or_else(busy)?;
        let held = async {
            let mut held = vec![uploader.slots.clone().acquire_owned().await];
            held.push(self.slots.clone().acquire_owned().await);
            if is_large {
                held.push(self.large.clone().acquire_owned().await);
            }
            held.into_iter().collect::<Result<Vec<_>, _>>()
        };
        let held = tokio::time::timeout(PATIENCE, held).await.map_err(|_| busy())?;
        drop(waiting);
        // Nobody closes these semaphores.
        Ok(Turn { _held: held.map_err(|_| busy())? })
    }

    /// A turn of a node, which sends what a task left behind.
    pub async fn node_turn(&self) -> Option<OwnedSemaphorePermit> {
        self.large.clone().acquire_owned().await.ok()
    }

    /// Forgets what has expired, and users of whom nothing is left.
    pub fn forget(&self, grace: Duration) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        users.retain(|_, uploader| {
            let is_empty = {
                let mut possession = uploader.possession();
                possession.expire(Instant::now(), grace.max(LEAST_GRACE));
                possession.is_empty()
            };
            !is_empty || Arc::strong_count(uploader) > 1
        });
    }
}

/// Counts a request that waits.
struct Waiting<'a>(&'a Uploader);

impl<'a> Waiting<'a> {
    fn begin(uploader: &'a Uploader) -> Option<Self> {
        let before = uploader.waiting.fetch_add(1, Ordering::AcqRel);
        let waiting = Waiting(uploader);
        (before < WAITING_OF_ONE).then_some(waiting)
    }
}

impl Drop for Waiting<'_> {
    fn drop(&mut self) {
        self.0.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

fn busy() -> Problem {
    Problem::new(
        Code::TooManyRequests,
        format!(
            "too many uploads are under way; at most {OF_ONE} of one user run at a time, and {IN_ALL} in all"
        ),
    )
    .hint(format!("try again in {RETRY_AFTER} s; `muster run` does so by itself"))
    .retry_after(RETRY_AFTER)
}

/// The user whose possession counts; none where the caller may see everything.
pub(crate) fn tenant(shared: &Shared, caller: &Caller) -> Option<Arc<Uploader>> {
    let is_bound = shared.accounts.is_some() && !caller.rights.is_admin();
    is_bound.then(|| shared.uploads.uploader(&caller.name))
}

impl Uploader {
    fn possession(&self) -> MutexGuard<'_, Possession> {
        self.possession.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has the code of the user's own jobs known. May wait for the disk.
    pub fn load(&self, readers: &Readers, grace: Duration) -> muster_store::Result<()> {
        let now = Instant::now();
        let mut possession = self.possession();
        if possession.loaded_at().is_some_and(|at| now.duration_since(at) < JOBS_HOLD) {
            return Ok(());
        }
        possession.expire(now, grace.max(LEAST_GRACE));
        possession.begin_load(now);
        self.each_part_of_jobs(readers, RECENT_BUNDLES, |part| {
            if let CodePart::Chunk(digest) = part {
                possession.add_of_job(digest);
            }
        })
    }

    fn each_part_of_jobs(
        &self,
        readers: &Readers,
        most: usize,
        mut each: impl FnMut(CodePart<'_>),
    ) -> muster_store::Result<()> {
        let (bundles, diffs) = readers.recent_code(&self.name, RECENT_JOBS)?;
        for diff in diffs {
            each(CodePart::Chunk(muster_bundle::chunk::digest(&diff)));
        }
        for bundle in bundles.into_iter().take(most) {
            each(CodePart::Bundle(&bundle));
            let Some(row) = readers.bundle(&bundle)? else { continue };
            // One that cannot be read has no chunks that could be reused.
            let manifest = CompactManifest::read_text(&row.manifest).unwrap_or_default();
            manifest.pieces().for_each(|piece| each(CodePart::Chunk(piece.digest)));
        }
        Ok(())
    }

    /// Whether the user has shown to have a chunk.
    pub fn has_chunk(&self, digest: &[u8; 32]) -> bool {
        self.possession().has(digest, Instant::now())
    }

    /// The user has sent a chunk, whose stored form has this length.
    pub fn on_chunk(&self, id: &ChunkId, stored_bytes: u64) {
        let digest = muster_bundle::chunk::digest(id);
        self.possession().add_upload(&digest, stored_bytes, Instant::now());
    }

    /// The user has named a bundle, all of whose chunks they have, and whose manifest has this length.
    pub fn on_bundle(&self, id: &BundleId, manifest_bytes: u64) {
        self.possession().add_bundle(id.clone(), manifest_bytes, Instant::now());
    }

    /// Whether the user has named a bundle.
    pub fn has_bundle(&self, id: &BundleId) -> bool {
        self.possession().has_bundle(id)
    }

    /// Chunks of a job's code that came with uploads and were not yet counted to any workspace.
    pub fn uncounted<'a>(&self, pieces: impl Iterator<Item = &'a Piece>) -> Vec<Short> {
        self.possession().uncounted(pieces.map(|piece| &piece.digest))
    }

    /// Marks a bundle and chunks of it as counted. Returns the bytes of those that were not before.
    pub fn count(&self, id: &BundleId, chunks: &[Short]) -> u64 {
        self.possession().count(id, chunks)
    }

    /// Refuses more uploads of a user while too much of what they sent is in no job. May wait for the disk.
    pub fn check_unused(&self, readers: &Readers, limit: u64, grace: Duration) -> Result<(), Problem> {
        match self.unused_bytes(readers, limit, grace, Possession::unused_bytes)? {
            bytes if bytes < limit => Ok(()),
            bytes => Err(too_much_unused(bytes, "", limit)),
        }
    }

    /// Refuses another bundle of a user while the manifests of too many are in no job. May wait for the disk.
    pub fn check_unused_manifests(
        &self,
        id: &BundleId,
        readers: &Readers,
        limit: u64,
        grace: Duration,
    ) -> Result<(), Problem> {
        // The manifest is counted already.
        if self.has_bundle(id) {
            return Ok(());
        }
        let most = limit / MANIFEST_PART;
        match self.unused_bytes(readers, most, grace, Possession::unused_manifest_bytes)? {
            bytes if bytes < most => Ok(()),
            bytes => Err(too_much_unused(bytes, "manifests of ", most)),
        }
    }

    /// Unused bytes of a kind, counted anew if they have reached the limit.
    fn unused_bytes(
        &self,
        readers: &Readers,
        limit: u64,
        grace: Duration,
        kind: impl Fn(&Possession) -> u64,
    ) -> Result<u64, Problem> {
        let now = Instant::now();
        let mut possession = self.possession();
        if kind(&possession) < limit {
            return Ok(kind(&possession));
        }
        if possession.recounted_at().is_none_or(|at| now.duration_since(at) >= RECOUNT) {
            possession.expire(now, grace.max(LEAST_GRACE));
            possession.begin_recount(now);
            let counted = self.each_part_of_jobs(readers, usize::MAX, |part| match part {
                CodePart::Chunk(digest) => possession.mark_used(&digest),
                CodePart::Bundle(id) => possession.mark_bundle_used(id),
            });
            counted.map_err(|error| crate::core::internal(&error))?;
            possession.finish_recount();
        }
        Ok(kind(&possession))
    }
}

/// Part of the code of a job.
enum CodePart<'a> {
    Chunk([u8; 32]),
    Bundle(&'a BundleId),
}

fn too_much_unused(bytes: u64, kind: &str, limit: u64) -> Problem {
    Problem::new(
        Code::StorageLimit,
        format!(
            "{} of {kind}code that you have uploaded is in no job; the limit of a user is {} (limits.unused_uploads)",
            format_bytes(bytes),
            format_bytes(limit)
        ),
    )
    .hint("submit a job with it, or wait until unused code is removed (keep.unused); an admin can raise the limit")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn uploads_of_one_user_wait_and_those_of_others_do_not() {
        let uploads = Arc::new(Uploads::default());
        let (ada, bob) = (Caller::operator("ada"), Caller::operator("bob"));
        let mut held = Vec::new();
        for _ in 0..OF_ONE {
            held.push(uploads.turn(&ada, false).await.unwrap());
        }
        let refused = uploads.turn(&ada, false).await.err().unwrap();
        assert_eq!((refused.code, refused.retry_after), (Code::TooManyRequests, Some(RETRY_AFTER)));
        uploads.turn(&bob, false).await.unwrap();
        held.pop();
        uploads.turn(&ada, false).await.unwrap();
    }

    #[tokio::test(start_paused = true)]
    async fn large_manifests_are_read_a_few_at_a_time() {
        let uploads = Uploads::default();
        let callers: Vec<Caller> =
            (0..=LARGE_IN_ALL).map(|i| Caller::operator(&format!("user{i}"))).collect();
        let mut held = Vec::new();
        for caller in &callers[..LARGE_IN_ALL] {
            held.push(uploads.turn(caller, true).await.unwrap());
        }
        assert!(uploads.turn(&callers[LARGE_IN_ALL], true).await.is_err());
        uploads.turn(&callers[LARGE_IN_ALL], false).await.unwrap();
    }
}
