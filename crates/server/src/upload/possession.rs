//! What one user has shown to have. Pure: the time is a parameter.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use muster_bundle::chunk::DIGEST;
use muster_model::BundleId;

/// A chunk takes at least a block of the disk.
const BLOCK: u64 = 4096;

/// The first half of a digest: nobody finds a content for one that is given.
pub(crate) type Short = u128;

/// The chunks and bundles of one user.
#[derive(Default)]
pub(crate) struct Possession {
    uploads: HashMap<Short, Upload>,
    /// Chunks of the code of the user's jobs.
    of_jobs: HashSet<Short>,
    /// Bundles that the user has named, with the length of their manifests.
    bundles: HashMap<BundleId, Upload>,
    loaded_at: Option<Instant>,
    recounted_at: Option<Instant>,
    /// The bytes of uploads, manifests included, that no job is known to refer to.
    unused_bytes: u64,
    /// Of these, the bytes of manifests.
    unused_manifest_bytes: u64,
}

struct Upload {
    bytes: u32,
    at: Instant,
    is_used: bool,
    /// It was counted to the workspace of a job.
    is_counted: bool,
}

impl Possession {
    pub fn is_empty(&self) -> bool {
        self.uploads.is_empty() && self.bundles.is_empty()
    }

    pub fn loaded_at(&self) -> Option<Instant> {
        self.loaded_at
    }

    pub fn recounted_at(&self) -> Option<Instant> {
        self.recounted_at
    }

    pub fn unused_bytes(&self) -> u64 {
        self.unused_bytes
    }

    pub fn unused_manifest_bytes(&self) -> u64 {
        self.unused_manifest_bytes
    }

    /// Whether the user has shown a chunk. One that is asked for stays: so does its file.
    pub fn has(&mut self, digest: &[u8; DIGEST], now: Instant) -> bool {
        let short = short(digest);
        match self.uploads.get_mut(&short) {
            Some(upload) => {
                upload.at = now;
                true
            }
            None => self.of_jobs.contains(&short),
        }
    }

    pub fn add_upload(&mut self, digest: &[u8; DIGEST], bytes: u64, now: Instant) {
        self.unused_bytes += add(self.uploads.entry(short(digest)), bytes, now);
    }

    pub fn add_bundle(&mut self, id: BundleId, manifest_bytes: u64, now: Instant) {
        let bytes = add(self.bundles.entry(id), manifest_bytes, now);
        self.unused_bytes += bytes;
        self.unused_manifest_bytes += bytes;
    }

    pub fn has_bundle(&self, id: &BundleId) -> bool {
        self.bundles.contains_key(id)
    }

    /// What jobs have is found out anew.
    pub fn begin_load(&mut self, now: Instant) {
        self.of_jobs.clear();
        self.loaded_at = Some(now);
    }

    pub fn add_of_job(&mut self, digest: [u8; DIGEST]) {
        self.of_jobs.insert(short(&digest));
    }

    /// Which uploads jobs refer to is found out anew.
    pub fn begin_recount(&mut self, now: Instant) {
        self.uploads.values_mut().chain(self.bundles.values_mut()).for_each(|upload| upload.is_used = false);
        self.recounted_at = Some(now);
    }

    pub fn mark_used(&mut self, digest: &[u8; DIGEST]) {
        if let Some(upload) = self.uploads.get_mut(&short(digest)) {
            upload.is_used = true;
        }
    }

    pub fn mark_bundle_used(&mut self, id: &BundleId) {
        if let Some(bundle) = self.bundles.get_mut(id) {
            bundle.is_used = true;
        }
    }

    pub fn finish_recount(&mut self) {
        self.unused_manifest_bytes = unused(self.bundles.values());
        self.unused_bytes = unused(self.uploads.values()) + self.unused_manifest_bytes;
    }

    /// Those of some chunks that came with uploads and were not counted.
    pub fn uncounted<'a>(&self, digests: impl Iterator<Item = &'a [u8; DIGEST]>) -> Vec<Short> {
        let is_uncounted = |short: &Short| self.uploads.get(short).is_some_and(|upload| !upload.is_counted);
        digests.map(short).filter(is_uncounted).collect()
    }

    /// Marks a bundle's manifest and chunks as counted. Returns the bytes of those that were not before.
    pub fn count(&mut self, id: &BundleId, chunks: &[Short]) -> u64 {
        let mut bytes = self.bundles.get_mut(id).map_or(0, Upload::count);
        for chunk in chunks {
            bytes += self.uploads.get_mut(chunk).map_or(0, Upload::count);
        }
        bytes
    }

    /// Forgets what was shown longer ago than the server keeps it: if it is still there, somebody else has it.
    pub fn expire(&mut self, now: Instant, grace: Duration) {
        let is_fresh = |at: Instant| now.duration_since(at) < grace;
        self.uploads.retain(|_, upload| is_fresh(upload.at));
        self.bundles.retain(|_, bundle| is_fresh(bundle.at));
        if self.loaded_at.is_some_and(|at| !is_fresh(at)) {
            self.of_jobs = HashSet::new();
            self.loaded_at = None;
        }
        self.finish_recount();
    }
}

impl Upload {
    fn count(&mut self) -> u64 {
        if std::mem::replace(&mut self.is_counted, true) { 0 } else { u64::from(self.bytes) }
    }
}

/// Adds an upload. Returns its bytes, or 0 if the same was there before.
fn add<K>(entry: Entry<'_, K, Upload>, bytes: u64, now: Instant) -> u64 {
    match entry {
        Entry::Occupied(mut before) => {
            before.get_mut().at = now;
            0
        }
        Entry::Vacant(new) => {
            let bytes = u32::try_from(bytes.max(BLOCK)).unwrap_or(u32::MAX);
            new.insert(Upload { bytes, at: now, is_used: false, is_counted: false });
            u64::from(bytes)
        }
    }
}

fn unused<'a>(uploads: impl Iterator<Item = &'a Upload>) -> u64 {
    uploads.filter(|upload| !upload.is_used).map(|upload| u64::from(upload.bytes)).sum()
}

fn short(digest: &[u8; DIGEST]) -> Short {
    let (first, _) = digest.split_at(size_of::<Short>());
    Short::from_le_bytes(first.try_into().expect("half of a digest has the length of a short one"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const GRACE: Duration = Duration::from_secs(100);

    fn digest(byte: u8) -> [u8; DIGEST] {
        [byte; DIGEST]
    }

    fn bundle(digit: char) -> BundleId {
        BundleId::from_digest(&digit.to_string().repeat(64)).unwrap()
    }

    #[test]
    fn only_what_was_sent_or_is_in_an_own_job_is_there_and_it_expires() {
        let (mut possession, now) = (Possession::default(), Instant::now());
        assert!(!possession.has(&digest(1), now));
        possession.add_upload(&digest(1), 10_000, now);
        possession.begin_load(now);
        possession.add_of_job(digest(2));
        assert!(possession.has(&digest(1), now) && possession.has(&digest(2), now));
        assert!(!possession.has(&digest(3), now));
        possession.expire(now + GRACE, GRACE);
        assert!(!possession.has(&digest(1), now) && !possession.has(&digest(2), now));
        assert!(possession.is_empty() && possession.unused_bytes() == 0);
    }

    #[test]
    fn uploads_count_until_a_job_has_them_and_again_when_it_is_gone() {
        let (mut possession, now) = (Possession::default(), Instant::now());
        possession.add_upload(&digest(1), 10_000, now);
        possession.add_upload(&digest(1), 10_000, now);
        possession.add_upload(&digest(2), 1, now);
        assert_eq!(possession.unused_bytes(), 10_000 + BLOCK);
        possession.begin_recount(now);
        possession.mark_used(&digest(1));
        possession.finish_recount();
        assert_eq!(possession.unused_bytes(), BLOCK);
        possession.begin_recount(now);
        possession.finish_recount();
        assert_eq!(possession.unused_bytes(), 10_000 + BLOCK);
    }

    #[test]
    fn an_upload_is_counted_to_one_workspace_once() {
        let (mut possession, now) = (Possession::default(), Instant::now());
        possession.add_upload(&digest(1), 10_000, now);
        let both = [digest(1), digest(1), digest(2)];
        let id = bundle('b');
        possession.add_bundle(id.clone(), 5_000, now);
        let chunks = possession.uncounted(both.iter());
        assert_eq!(chunks, possession.uncounted(both.iter()), "a look counts nothing");
        assert_eq!(possession.count(&id, &chunks), 15_000);
        assert_eq!(possession.count(&id, &chunks), 0);
        assert_eq!(possession.uncounted(both.iter()), []);
    }

    #[test]
    fn manifests_count_until_a_job_has_their_bundle() {
        let (mut possession, now) = (Possession::default(), Instant::now());
        possession.add_upload(&digest(1), 10_000, now);
        for _ in 0..2 {
            possession.add_bundle(bundle('a'), 5_000, now);
            possession.add_bundle(bundle('b'), 1, now);
        }
        assert_eq!(possession.unused_manifest_bytes(), 5_000 + BLOCK);
        assert_eq!(possession.unused_bytes(), 15_000 + BLOCK);
        possession.begin_recount(now);
        possession.mark_bundle_used(&bundle('a'));
        possession.finish_recount();
        assert_eq!((possession.unused_manifest_bytes(), possession.unused_bytes()), (BLOCK, 10_000 + BLOCK));
        possession.expire(now + GRACE, GRACE);
        assert_eq!((possession.unused_manifest_bytes(), possession.unused_bytes()), (0, 0));
    }
}
