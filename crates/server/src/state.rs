//! What every handler shares.

use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, PoisonError, RwLock};
use std::time::{Duration, Instant};

use muster_model::Timestamp;
use muster_store::Readers;
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::accounts::{Accounts, Entrance, FIRST_PASSWORD};
use crate::audit::Trail;
use crate::auth::Auth;
use crate::chunk_store::ChunkStore;
use crate::core::Handle;
use crate::delegate::Troubles;
use crate::disk::{DiskFloor, DiskReserve};
use crate::engines::Engines;
use crate::limits::Limits;
use crate::link::Bulks;
use crate::log_store::LogStore;
use crate::manifest::ManifestLimit;
use crate::metrics::{Commits, Metrics};
use crate::reload::Reloads;
use crate::retention::Keep;
use crate::starts::Starts;
use crate::tls::Certificate;
use crate::upload::Uploads;
use crate::usage::WorkspaceUsage;
use crate::vault::Vault;
use crate::volume::Volume;

/// What every handler shares.
pub(crate) struct Shared {
    pub core: Handle,
    pub readers: Readers,
    pub engines: Arc<Engines>,
    pub logs: Arc<LogStore>,
    pub chunks: ChunkStore,
    pub bulks: Bulks,
    pub metrics: Arc<Metrics>,
    pub commits: Arc<Commits>,
    /// Audit entries that the core does not write with an effect.
    pub trail: Trail,
    pub starts: Arc<Starts>,
    pub troubles: Arc<Troubles>,
    pub auth: Auth,
    /// Seals secrets.
    pub vault: Arc<Vault>,
    /// Those who may come in; none where whoever gets in may do everything.
    pub accounts: Option<Arc<Accounts>>,
    /// What tasks find at the same path everywhere.
    pub volumes: Vec<Volume>,
    /// How people come in, where they have accounts.
    pub entrance: Option<Entrance>,
    /// What is shown to whoever comes by TLS.
    pub certificate: Option<Arc<Certificate>>,
    pub news: watch::Receiver<u64>,
    pub activity: Activity,
    /// No new requests; those being answered come to their end.
    pub stop: CancellationToken,
    /// Agents' connections end, after what was said to them is sent.
    pub hang_up: CancellationToken,
    /// What is kept, and for how long.
    pub keep: RwLock<Keep>,
    /// How much may be stored.
    pub limits: RwLock<Limits>,
    /// How much free space stays on the server's disk.
    pub floor: Arc<DiskFloor>,
    /// What the server holds for a full disk.
    pub reserve: Arc<DiskReserve>,
    pub uploads: Uploads,
    pub usage: WorkspaceUsage,
    /// Reads the configuration anew.
    pub reloads: Reloads,
    /// Held while what need not be kept is removed.
    pub collecting: tokio::sync::Mutex<()>,
    pub owner: String,
    pub home: String,
    pub build: String,
    pub version: String,
    pub started_at: Timestamp,
}

impl Shared {
    /// Where the first admin's password is until it is changed.
    pub fn first_password(&self) -> PathBuf {
        Path::new(&self.home).join(FIRST_PASSWORD)
    }

    /// How much may be stored, by the configuration as it is now.
    pub fn limits(&self) -> Limits {
        self.limits.read().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// How large a bundle may be.
    pub fn manifest_limit(&self) -> ManifestLimit {
        ManifestLimit { bundle_bytes: self.limits().disk.bundle_bytes }
    }

    /// What is kept, and for how long, by the configuration as it is now.
    pub fn keep(&self) -> Keep {
        self.keep.read().unwrap_or_else(PoisonError::into_inner).clone()
    }
}

/// Whether anybody uses the server.
pub(crate) struct Activity {
    begun: Instant,
    /// Requests being served, streams included.
    active: AtomicU64,
    /// When the last one ended, in milliseconds since `begun`.
    last: AtomicU64,
    /// For whoever waits until one ends.
    ended: Notify,
}

impl Activity {
    pub fn new() -> Self {
        Self {
            begun: Instant::now(),
            active: AtomicU64::new(0),
            last: AtomicU64::new(0),
            ended: Notify::new(),
        }
    }

    /// A request begins; [`Visit`] sees to it that its end is counted, too.
    pub fn enter(&self) {
        self.active.fetch_add(1, Ordering::Relaxed);
    }

    pub fn leave(&self) {
        self.last.store(self.begun.elapsed().as_millis() as u64, Ordering::Relaxed);
        self.active.fetch_sub(1, Ordering::Relaxed);
        self.ended.notify_one();
    }

    /// Waits until a request ends, or has ended since this was last asked. Only one can wait.
    pub async fn ended(&self) {
        self.ended.notified().await;
    }

    /// For how long nobody has asked for anything.
    pub fn idle(&self) -> Duration {
        if self.active.load(Ordering::Relaxed) > 0 {
            return Duration::ZERO;
        }
        self.begun.elapsed().saturating_sub(Duration::from_millis(self.last.load(Ordering::Relaxed)))
    }
}

/// Counts a request, also when it is cancelled, until dropped.
pub(crate) struct Visit(pub Arc<Shared>);

impl Visit {
    pub fn begin(shared: Arc<Shared>) -> Self {
        shared.activity.enter();
        Self(shared)
    }
}

impl Drop for Visit {
    fn drop(&mut self) {
        self.0.activity.leave();
    }
}
