//! Bundles on this node: fetched once, unpacked once, copied for each task.
//!
//! A bundle is in the cache whole or not at all. The cache may lose any bundle at any time that nobody is copying from,
//! and is bounded: what was not used for longest goes first.

mod copy;
mod fetch;
#[cfg(test)]
mod tests;
mod unpack;

use std::collections::HashMap;
use std::fs::{self, File, FileTimes};
use std::io;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use muster_link::message::Bundle;
use muster_model::BundleId;
use tokio::sync::OnceCell;

use crate::bulk::Bulk;
use crate::disk;

pub(crate) use copy::copy_tree;

/// What the cache may hold. A bundle is code: thousands of the usual size fit, and a few that were given data.
const MAX_BUNDLES: usize = 256;
const MAX_BYTES: u64 = 8 << 30;
/// What one bundle may hold: beyond any disk that code is on, and small enough to be counted with.
const MAX_BUNDLE_BYTES: u64 = 1 << 40;

/// Why a task has no bundle.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the bundle's manifest is not the one it is named after")]
    WrongName,
    #[error("the bundle's manifest says that it is larger than a bundle can be")]
    TooLarge,
    #[error("the bundle cannot be fetched")]
    Fetch(#[source] fetch::Error),
    #[error("the bundle cannot be unpacked")]
    Unpack(#[source] unpack::Error),
    #[error("the bundle cannot be copied")]
    Copy(#[from] copy::Error),
    #[error("the bundle cannot be kept on this node")]
    Disk(#[from] io::Error),
}

/// The bundles of a node.
#[derive(Debug)]
pub(crate) struct Cache {
    dir: PathBuf,
    /// Those that are being fetched or copied from. Whoever holds one keeps it from being evicted.
    in_use: Mutex<HashMap<BundleId, Arc<OnceCell<()>>>>,
    /// Tells apart two tries at the same bundle, of which the first was given up but has not noticed.
    tries: AtomicU64,
}

/// An unpacked bundle that stays while this is held.
#[derive(Debug)]
pub(crate) struct Tree {
    pub(crate) path: PathBuf,
    _pin: Arc<OnceCell<()>>,
}

impl Cache {
    /// The cache in this directory, without what an earlier agent left unfinished.
    pub(crate) fn open(dir: PathBuf) -> io::Result<Cache> {
        fs::create_dir_all(&dir)?;
        disk::spread_out(&dir);
        for entry in fs::read_dir(&dir)? {
            let entry = entry?;
            if entry.file_name().to_str().is_none_or(|name| name.parse::<BundleId>().is_err()) {
                disk::remove_tree(&entry.path())?;
            }
        }
        Ok(Cache { dir, in_use: Mutex::default(), tries: AtomicU64::new(0) })
    }

    /// The unpacked bundle, fetched if it is not here. Those who ask at the same time share one fetch.
    pub(crate) async fn tree(self: Arc<Cache>, bundle: &Bundle, bulk: &Bulk) -> Result<Tree, Error> {
        let digest = blake3::hash(bundle.manifest.canonical_text().as_bytes()).to_hex();
        if BundleId::from_digest(&digest).as_ref() != Ok(&bundle.id) {
            return Err(Error::WrongName);
        }
        let lengths = bundle.manifest.chunks.iter().map(|chunk| chunk.bytes);
        let total = lengths.fold(0, u64::saturating_add);
        if total > MAX_BUNDLE_BYTES {
            return Err(Error::TooLarge);
        }
        let pin = self.pin(&bundle.id);
        pin.get_or_try_init(|| self.bring(bundle, bulk)).await?;
        Ok(Tree { path: self.entry(&bundle.id).join("tree"), _pin: pin })
    }

    async fn bring(self: &Arc<Cache>, bundle: &Bundle, bulk: &Bulk) -> Result<(), Error> {
        let (cache, id) = (Arc::clone(self), bundle.id.clone());
        if disk::work(move || cache.touch(&id)).await? {
            return Ok(());
        }
        let number = self.tries.fetch_add(1, Ordering::Relaxed);
        let unfinished = Unfinished { dir: self.dir.join(format!("{}.{number}.new", bundle.id)) };
        let dir = unfinished.dir.clone();
        disk::work(move || disk::make_dir(&dir)).await?;
        fetch::fetch(bulk, &bundle.manifest, &unfinished.archive()).await.map_err(Error::Fetch)?;
        let (cache, id, bytes) = (Arc::clone(self), bundle.id.clone(), bundle.manifest.bytes());
        disk::work(move || cache.keep(&id, unfinished, bytes)).await
    }

    /// Say that a bundle is wanted; false if it is not here.
    fn touch(&self, bundle: &BundleId) -> io::Result<bool> {
        match File::open(self.entry(bundle).join("bytes")) {
            Ok(file) => {
                file.set_times(FileTimes::new().set_modified(SystemTime::now()))?;
                Ok(true)
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Unpack a fetched archive and give it its name.
    fn keep(&self, bundle: &BundleId, unfinished: Unfinished, bytes: u64) -> Result<(), Error> {
        let tree = unfinished.dir.join("tree");
        disk::make_dir(&tree)?;
        let archive = io::BufReader::new(File::open(unfinished.archive())?);
        unpack::unpack(archive, &tree).map_err(Error::Unpack)?;
        disk::write(&unfinished.dir.join("bytes"), bytes.to_string().as_bytes())?;
        disk::remove_file(&unfinished.archive())?;
        if let Err(error) = fs::rename(&unfinished.dir, self.entry(bundle))
            // A try that was given up may have come first all the same.
            && !self.touch(bundle)?
        {
            return Err(error.into());
        }
        if let Err(error) = self.evict() {
            tracing::warn!(error = %error, "old bundles could not be removed");
        }
        Ok(())
    }

    /// Remove what was not used for longest, until the rest is within bounds.
    fn evict(&self) -> io::Result<()> {
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let Some(id) = entry?.file_name().to_str().and_then(|name| name.parse::<BundleId>().ok()) else {
                continue;
            };
            let stamp = self.entry(&id).join("bytes");
            let used_at = fs::metadata(&stamp)?.modified()?;
            let bytes: u64 = fs::read_to_string(&stamp)?.parse().map_err(io::Error::other)?;
            kept.push((used_at, bytes, id));
        }
        kept.sort_by(|one, other| other.cmp(one));
        let mut total = 0_u64;
        for (rank, (_, bytes, id)) in kept.iter().enumerate() {
            total = bytes.saturating_add(total);
            if (rank >= MAX_BUNDLES || total > MAX_BYTES)
                && let Some(going) = self.retire(id)?
            {
                disk::remove_tree(&going)?;
            }
        }
        Ok(())
    }

    fn pin(&self, bundle: &BundleId) -> Arc<OnceCell<()>> {
        let mut in_use = self.lock();
        in_use.retain(|_, pin| Arc::strong_count(pin) > 1);
        Arc::clone(in_use.entry(bundle.clone()).or_default())
    }

    /// Take a bundle's name away, unless someone uses it, and give the name under which it can be removed. The map
    /// stays locked meanwhile, so that nobody begins to use what is going.
    fn retire(&self, bundle: &BundleId) -> io::Result<Option<PathBuf>> {
        let in_use = self.lock();
        if in_use.get(bundle).is_some_and(|pin| Arc::strong_count(pin) > 1) {
            return Ok(None);
        }
        let number = self.tries.fetch_add(1, Ordering::Relaxed);
        let going = self.dir.join(format!("{bundle}.{number}.old"));
        fs::rename(self.entry(bundle), &going)?;
        Ok(Some(going))
    }

    fn entry(&self, bundle: &BundleId) -> PathBuf {
        self.dir.join(bundle.as_str())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<BundleId, Arc<OnceCell<()>>>> {
        // The map is right after every single step.
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A bundle on its way into the cache; what is left of it goes when the try is over, however it ended.
struct Unfinished {
    dir: PathBuf,
}

impl Unfinished {
    fn archive(&self) -> PathBuf {
        self.dir.join("archive")
    }
}

impl Drop for Unfinished {
    fn drop(&mut self) {
        let dir = std::mem::take(&mut self.dir);
        let remove = move || {
            if let Err(error) = disk::remove_tree(&dir) {
                tracing::warn!(dir = %dir.display(), error = %error, "an unfinished bundle could not be removed");
            }
        };
        // Dropped by a future that was given up, this runs where nothing may wait for the disk.
        match tokio::runtime::Handle::try_current() {
            Ok(runtime) => drop(runtime.spawn_blocking(remove)),
            Err(_) => remove(),
        }
    }
}
