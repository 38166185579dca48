//! Bundles on this node: each unpacked once, then seen or copied by the tasks that run it.
//!
//! A tree is in the cache whole or not at all, and nobody ever writes to it: trees share the files they have in common.
//! The cache may lose any tree at any time that nobody needs, and is bounded: what was not used for longest goes first.
//!
//! A tree is needed by whoever holds a [`Tree`], and by tasks whose working directory shows it. Those outlive this
//! process, and so are written down beside the tree (`users/`).

mod build;
mod copy;
mod fetch;
mod index;
mod layout;
#[cfg(test)]
mod tests;

use std::collections::{HashMap, HashSet};
use std::fmt;
use std::fs::{self, File, FileTimes};
use std::io;
use std::path::{Path, PathBuf};
use std::str::FromStr;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::SystemTime;

use muster_bundle::{listing, unpack};
use muster_link::message::DiskLimits;
use muster_model::bundle::Manifest;
use muster_model::quantity::format_bytes;
use muster_model::{BundleId, TaskId};
use tokio::sync::OnceCell;

use crate::account::Owner;
use crate::bulk::Bulk;
use crate::disk;
use crate::tree::kernel_boot;

use build::{Base, Build};
use layout::{Layout, Piece};

pub(crate) use copy::copy_tree;

/// How many trees the cache may hold, so that looking through it takes no time.
const MAX_TREES: usize = 256;
/// Among how many of the trees used last the one to begin with is chosen.
const BASES: usize = 8;
/// What is copied faster than a mount is made and undone.
const SMALL_ENTRIES: u32 = 32;
const SMALL_BYTES: u64 = 1 << 20;
/// Why a task has no bundle.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the bundle unpacks to {}, more than the {} that limits.bundle allows", format_bytes(*.bytes), format_bytes(*.limit))]
    TooLarge { bytes: u64, limit: u64 },
    #[error("the bundle cannot be fetched")]
    Fetch(#[source] fetch::Error),
    #[error("the bundle cannot be unpacked")]
    Listing(#[source] listing::Error),
    #[error("the bundle cannot be unpacked")]
    Layout(#[source] layout::Error),
    #[error("the bundle cannot be unpacked")]
    Unpack(#[source] unpack::Error),
    #[error("the bundle cannot be copied")]
    Copy(#[from] copy::Error),
    #[error("the bundle cannot be kept on this node")]
    Disk(#[from] io::Error),
}

impl Error {
    /// Whether a part of it is damaged at the server, or gone from there.
    pub(crate) fn is_damaged(&self) -> bool {
        match self {
            Error::Fetch(fetch::Error::Gone { .. }) => true,
            Error::Fetch(fetch::Error::Refused { source, .. }) => source.kind() == io::ErrorKind::InvalidData,
            _ => false,
        }
    }

    /// Whether there was no room for it.
    pub(crate) fn is_full(&self) -> bool {
        match self {
            Error::Unpack(error) => error.disk().is_some_and(disk::is_full),
            Error::Copy(error) => error.disk().is_some_and(disk::is_full),
            Error::Disk(error) => disk::is_full(error),
            Error::TooLarge { .. } | Error::Fetch(_) | Error::Listing(_) | Error::Layout(_) => false,
        }
    }
}

/// A bundle as somebody's tasks have it: its files belong to them, or to the agent.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(crate) struct Key {
    pub(crate) id: BundleId,
    pub(crate) owner: Option<Owner>,
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.owner {
            Some(owner) => write!(f, "{}@{}.{}", self.id, owner.uid, owner.gid),
            None => self.id.fmt(f),
        }
    }
}

impl FromStr for Key {
    type Err = ();

    fn from_str(text: &str) -> Result<Key, ()> {
        let (id, owner) = match text.split_once('@') {
            Some((id, owner)) => {
                let (uid, gid) = owner.split_once('.').ok_or(())?;
                let number = |text: &str| text.parse().map_err(|_| ());
                (id, Some(Owner { uid: number(uid)?, gid: number(gid)? }))
            }
            None => (text, None),
        };
        Ok(Key { id: id.parse().map_err(|_| ())?, owner })
    }
}

/// The bundles of a node.
#[derive(Debug)]
pub(crate) struct Cache {
    dir: PathBuf,
    /// Which boot of the machine this is.
    boot: String,
    /// Those that are being fetched or copied from. Whoever holds one keeps it from being evicted.
    in_use: Mutex<HashMap<Key, Arc<OnceCell<()>>>>,
    /// Tells apart two tries at the same bundle, of which the first was given up but has not noticed.
    tries: AtomicU64,
}

/// An unpacked bundle that stays while this is held.
#[derive(Debug)]
pub(crate) struct Tree {
    entry: PathBuf,
    _pin: Arc<OnceCell<()>>,
}

impl Tree {
    /// The files. Nothing may be written there.
    pub(crate) fn path(&self) -> PathBuf {
        self.entry.join(TREE)
    }

    /// Whether copying it takes no time.
    pub(crate) fn is_small(&self) -> bool {
        let head = index::head(&self.entry);
        head.is_some_and(|head| head.entries <= SMALL_ENTRIES && head.bytes <= SMALL_BYTES)
    }

    /// How large its files are together, as far as that is known.
    pub(crate) fn bytes(&self) -> u64 {
        index::head(&self.entry).map_or(0, |head| head.bytes)
    }

    /// Keep it also when this is no longer held, until the task is [released](Cache::release).
    pub(crate) fn keep_for(&self, task: &TaskId) -> io::Result<()> {
        let users = self.entry.join(USERS);
        disk::make_dir(&users)?;
        File::create(users.join(task.to_string())).map(|_| ())
    }
}

const TREE: &str = "tree";
const USERS: &str = "users";
/// Its length, as text; its time of change is when the tree was used last.
const STAMP: &str = "bytes";

impl Cache {
    /// The cache in this directory, without what an earlier agent left unfinished.
    pub(crate) fn open(dir: PathBuf, boot: &str) -> io::Result<Cache> {
        fs::create_dir_all(&dir)?;
        disk::spread_out(&dir);
        // Files outlive a container that is started anew, since the kernel that holds them goes on.
        let boot = kernel_boot(boot).to_owned();
        let cache = Cache { dir, boot, in_use: Mutex::default(), tries: AtomicU64::new(0) };
        for entry in fs::read_dir(&cache.dir)? {
            let entry = entry?;
            if entry.file_name().to_str().is_none_or(|name| name.parse::<Key>().is_err()) {
                disk::remove_tree(&entry.path())?;
            }
        }
        Ok(cache)
    }

    /// Where the files of a bundle are, or would be.
    pub(crate) fn path(&self, bundle: &Key) -> PathBuf {
        self.entry(bundle).join(TREE)
    }

    /// The unpacked bundle, if it is here.
    pub(crate) fn at_hand(&self, bundle: &Key) -> io::Result<Option<Tree>> {
        // Pinned before it is looked for, so that what is found stays.
        let pin = self.pin(bundle);
        Ok(self.touch(bundle)?.then(|| Tree { entry: self.entry(bundle), _pin: pin }))
    }

    /// The unpacked bundle, fetched if it is not here. Those who ask at the same time share one fetch.
    pub(crate) async fn tree(
        self: Arc<Cache>,
        bundle: &Key,
        bulk: &Bulk,
        limits: &DiskLimits,
    ) -> Result<Tree, Error> {
        let pin = self.pin(bundle);
        pin.get_or_try_init(|| self.bring(bundle, bulk, limits)).await?;
        Ok(Tree { entry: self.entry(bundle), _pin: pin })
    }

    /// The task no longer needs the bundle.
    pub(crate) fn release(&self, bundle: &Key, task: &TaskId) -> io::Result<()> {
        disk::remove_file(&self.entry(bundle).join(USERS).join(task.to_string()))
    }

    async fn bring(self: &Arc<Cache>, bundle: &Key, bulk: &Bulk, limits: &DiskLimits) -> Result<(), Error> {
        let (cache, id) = (Arc::clone(self), bundle.clone());
        if disk::work(move || cache.touch(&id)).await? {
            return Ok(());
        }
        let manifest = fetch::manifest(bulk, &bundle.id).await?;
        check_size(&manifest, limits)?;
        let listed = fetch::listing(bulk, &manifest).await?;
        let number = self.tries.fetch_add(1, Ordering::Relaxed);
        let unfinished = Unfinished { dir: self.dir.join(format!("{bundle}.{number}.new")) };
        let (cache, dir) = (Arc::clone(self), unfinished.dir.clone());
        let (owner, floor) = (bundle.owner, limits.free_bytes);
        let build = disk::work(move || cache.begin(&manifest, &listed, &dir, owner, floor)).await?;
        tracing::debug!(bundle = %bundle, bytes = build.bytes(), "a bundle is being fetched");
        let build = fetch::fetch(bulk, build).await?;
        let (cache, id) = (Arc::clone(self), bundle.clone());
        disk::work(move || cache.keep(&id, unfinished, build)).await
    }

    /// Say that a bundle is wanted; false if it is not here, or not to be trusted.
    fn touch(&self, bundle: &Key) -> io::Result<bool> {
        let entry = self.entry(bundle);
        match File::open(entry.join(STAMP)) {
            Ok(file) => {
                file.set_times(FileTimes::new().set_modified(SystemTime::now()))?;
                Ok(self.is_trusted(&entry))
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Whether a tree was made in this boot.
    fn is_trusted(&self, entry: &Path) -> bool {
        index::head(entry).is_some_and(|head| head.boot == self.boot)
    }

    /// What is known of a tree, if it was made in this boot.
    fn index(&self, entry: &Path) -> Option<index::Index> {
        index::open(entry).filter(|index| index.boot == self.boot)
    }

    /// Make all of a tree that is here already, in a new directory.
    fn begin(
        &self,
        manifest: &Manifest,
        listed: &[u8],
        dir: &Path,
        owner: Option<Owner>,
        floor: Option<u64>,
    ) -> Result<Build, Error> {
        let layout = Layout::new(listing::decode(listed)?, layout::content(manifest)?)?;
        let tree = dir.join(TREE);
        disk::make_dir(dir)?;
        disk::make_dir(&tree)?;
        let base = self.base(layout.chunks(), owner);
        // Its files are held by the pin until they have further names.
        let base_of = base.as_ref().map(|(tree, layout)| (tree.path(), layout));
        let base = base_of.as_ref().map(|(tree, layout)| Base { tree, layout });
        Ok(Build::begin(layout, &tree, base, floor)?)
    }

    /// The tree to begin with: of those used last, the one that has most of these chunks. Files that trees share have one owner.
    fn base(&self, chunks: &[Piece], owner: Option<Owner>) -> Option<(Tree, Layout)> {
        let wanted: HashSet<&Piece> = chunks.iter().collect();
        let shared = |index: &index::Index| -> u64 {
            let known = index.chunks.iter().filter(|chunk| wanted.contains(chunk));
            known.map(|chunk| u64::from(chunk.bytes)).sum()
        };
        let recent = self.recent().ok()?.into_iter().filter(|kept| kept.id.owner == owner).take(BASES);
        let best = recent
            .filter_map(|kept| {
                let pin = self.pin(&kept.id);
                let entry = self.entry(&kept.id);
                let index = self.index(&entry)?;
                Some((shared(&index), Tree { entry, _pin: pin }, index))
            })
            .max_by_key(|(shared, ..)| *shared)?;
        let (shared, tree, index) = best;
        (shared > 0).then_some(())?;
        Some((tree, index.layout().ok()?))
    }

    /// Give a tree that is whole its name.
    fn keep(&self, bundle: &Key, unfinished: Unfinished, build: Build) -> Result<(), Error> {
        let layout = build.finish()?;
        if let Some(owner) = bundle.owner {
            owner.give(&unfinished.dir.join(TREE))?;
        }
        index::write(&unfinished.dir, &self.boot, &layout)?;
        disk::write(&unfinished.dir.join(STAMP), layout.bytes().to_string().as_bytes())?;
        let entry = self.entry(bundle);
        let old = match fs::rename(&unfinished.dir, &entry) {
            Ok(()) => return Ok(()),
            // A try that was given up may have come first all the same.
            Err(_) if self.touch(bundle)? => return Ok(()),
            Err(error) if !entry.exists() => return Err(error.into()),
            Err(_) => self.dir.join(format!("{}.old", unfinished.name())),
        };
        // One of an earlier boot is there, which tasks that are over may still show: they go on with this one.
        match fs::rename(entry.join(USERS), unfinished.dir.join(USERS)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error.into()),
            _ => {}
        }
        fs::rename(&entry, &old)?;
        fs::rename(&unfinished.dir, &entry)?;
        Ok(disk::remove_tree(&old)?)
    }

    /// All trees, the one used last first.
    fn recent(&self) -> io::Result<Vec<Kept>> {
        let mut kept = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let Some(id) = entry?.file_name().to_str().and_then(|name| name.parse::<Key>().ok()) else {
                continue;
            };
            let stamp = self.entry(&id).join(STAMP);
            let used_at = fs::metadata(&stamp).and_then(|metadata| metadata.modified());
            let bytes = fs::read_to_string(&stamp).ok().and_then(|text| text.parse().ok());
            // What has no stamp is of no use, and goes first.
            let (used_at, bytes) = (used_at.unwrap_or(SystemTime::UNIX_EPOCH), bytes.unwrap_or(u64::MAX));
            kept.push(Kept { used_at, bytes, id });
        }
        kept.sort_by(|one, other| (other.used_at, &other.id).cmp(&(one.used_at, &one.id)));
        Ok(kept)
    }

    /// Remove what was not used for longest, until the rest is within bounds, and what cannot be trusted. Gives the
    /// bytes that were in it.
    pub(crate) fn evict(&self, max_bytes: u64) -> io::Result<u64> {
        let (mut total, mut freed) = (0_u64, 0_u64);
        for (rank, kept) in self.recent()?.into_iter().enumerate() {
            total = kept.bytes.saturating_add(total);
            let is_good = rank < MAX_TREES && total <= max_bytes && self.is_trusted(&self.entry(&kept.id));
            if !is_good && let Some(going) = self.retire(&kept.id)? {
                disk::remove_tree(&going)?;
                freed = freed.saturating_add(if kept.bytes == u64::MAX { 0 } else { kept.bytes });
                total = total.saturating_sub(kept.bytes);
            }
        }
        Ok(freed)
    }

    /// Forget those who are gone and never said so: their directories are not among these.
    pub(crate) fn release_lost(&self, tasks: &Path) -> io::Result<()> {
        for kept in self.recent()? {
            let users = match fs::read_dir(self.entry(&kept.id).join(USERS)) {
                Ok(users) => users,
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                Err(error) => return Err(error),
            };
            for user in users {
                let user = user?;
                if !tasks.join(user.file_name()).exists() {
                    disk::remove_file(&user.path())?;
                }
            }
        }
        Ok(())
    }

    fn pin(&self, bundle: &Key) -> Arc<OnceCell<()>> {
        let mut in_use = self.lock();
        in_use.retain(|_, pin| Arc::strong_count(pin) > 1);
        Arc::clone(in_use.entry(bundle.clone()).or_default())
    }

    /// Take a bundle's name away, unless someone needs it, and give the name under which it can be removed. The map
    /// stays locked meanwhile, so that nobody begins to use what is going.
    fn retire(&self, bundle: &Key) -> io::Result<Option<PathBuf>> {
        let in_use = self.lock();
        if in_use.get(bundle).is_some_and(|pin| Arc::strong_count(pin) > 1) {
            return Ok(None);
        }
        match fs::remove_dir(self.entry(bundle).join(USERS)) {
            Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => return Ok(None),
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let number = self.tries.fetch_add(1, Ordering::Relaxed);
        let going = self.dir.join(format!("{bundle}.{number}.old"));
        fs::rename(self.entry(bundle), &going)?;
        Ok(Some(going))
    }

    fn entry(&self, bundle: &Key) -> PathBuf {
        self.dir.join(bundle.to_string())
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<Key, Arc<OnceCell<()>>>> {
        // The map is right after every single step.
        self.in_use.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Refuses a bundle by its manifest, before anything of it is fetched or written: a manifest may name one chunk any
/// number of times, and its unpacked size is then no longer bounded by what was sent.
fn check_size(manifest: &Manifest, limits: &DiskLimits) -> Result<(), Error> {
    let (bytes, limit) = (manifest.bytes(), limits.bundle_bytes);
    if bytes > limit { Err(Error::TooLarge { bytes, limit }) } else { Ok(()) }
}

/// A tree in the cache.
#[derive(Debug)]
struct Kept {
    used_at: SystemTime,
    bytes: u64,
    id: Key,
}

/// A bundle on its way into the cache; what is left of it goes when the try is over, however it ended.
struct Unfinished {
    dir: PathBuf,
}

impl Unfinished {
    fn name(&self) -> String {
        self.dir.file_name().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default()
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
