//! What one user has shown to have. Pure: the time is a parameter.

use std::collections::hash_map::Entry;
use std::collections::{HashMap, HashSet};
use std::time::{Duration, Instant};

use muster_bundle::chunk::DIGEST;
use muster_model::BundleId;

/// A chunk takes at least a block of the disk.
const BLOCK: u64 = 4096;

/// The first half of a digest: nobody finds a content for one that is given.
type Short = u128;

/// The chunks and bundles of one user.
#[derive(Default)]
pub(crate) struct Possession {
    uploads: HashMap<Short, Upload>,
    /// Chunks of the code of the user's jobs.
    of_jobs: HashSet<Short>,
    bundles: HashMap<BundleId, Instant>,
    loaded_at: Option<Instant>,
    recounted_at: Option<Instant>,
    /// The bytes of uploads that no job is known to refer to.
    unused_bytes: u64,
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
        let bytes = u32::try_from(bytes.max(BLOCK)).unwrap_or(u32::MAX);
        match self.uploads.entry(short(digest)) {
            // The same bytes again.
            Entry::Occupied(mut before) => before.get_mut().at = now,
            Entry::Vacant(new) => {
                new.insert(Upload { bytes, at: now, is_used: false, is_counted: false });
                self.unused_bytes += u64::from(bytes);
            }
        }
    }

    pub fn add_bundle(&mut self, id: BundleId, now: Instant) {
        self.bundles.insert(id, now);
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
        self.uploads.values_mut().for_each(|upload| upload.is_used = false);
        self.recounted_at = Some(now);
    }

    pub fn mark_used(&mut self, digest: &[u8; DIGEST]) {
        if let Some(upload) = self.uploads.get_mut(&short(digest)) {
            upload.is_used = true;
        }
    }

    pub fn finish_recount(&mut self) {
        let unused = self.uploads.values().filter(|upload| !upload.is_used);
        self.unused_bytes = unused.map(|upload| u64::from(upload.bytes)).sum();
    }

    /// The bytes of those chunks that came with uploads and were not counted before.
    pub fn take_uncounted<'a>(&mut self, digests: impl Iterator<Item = &'a [u8; DIGEST]>) -> u64 {
        let mut bytes = 0;
        for digest in digests {
            if let Some(upload) = self.uploads.get_mut(&short(digest)).filter(|upload| !upload.is_counted) {
                upload.is_counted = true;
                bytes += u64::from(upload.bytes);
            }
        }
        bytes
    }

    /// Forgets what was shown longer ago than the server keeps it: if it is still there, somebody else has it.
    pub fn expire(&mut self, now: Instant, grace: Duration) {
        let is_fresh = |at: Instant| now.duration_since(at) < grace;
        self.uploads.retain(|_, upload| is_fresh(upload.at));
        self.bundles.retain(|_, at| is_fresh(*at));
        if self.loaded_at.is_some_and(|at| !is_fresh(at)) {
            self.of_jobs = HashSet::new();
            self.loaded_at = None;
        }
        self.finish_recount();
    }
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
        assert_eq!(possession.take_uncounted(both.iter()), 10_000);
        assert_eq!(possession.take_uncounted(both.iter()), 0);
    }
}
