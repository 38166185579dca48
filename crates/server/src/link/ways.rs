//! The ways to nodes: where to open a stream to one.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_link::session::{Opener, Stream};
use muster_model::NodeId;
use tokio::sync::watch;
use tokio::time::timeout;

/// A node that takes longer to take a stream has stopped.
const OPENING: Duration = Duration::from_secs(10);

/// The bulk connections of all nodes.
#[derive(Debug, Default)]
pub(crate) struct Bulks {
    /// Each with a number, since a node's new connection may come before its old one is known to be gone.
    open: Mutex<HashMap<NodeId, (u64, Opener)>>,
    next: AtomicU64,
    came: watch::Sender<()>,
}

/// A connection that can be used until this is dropped.
pub(super) struct Way<'a> {
    bulks: &'a Bulks,
    node: NodeId,
    number: u64,
}

impl Bulks {
    /// A node has connected.
    pub(super) fn add(&self, node: &NodeId, opener: Opener) -> Way<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        self.lock().insert(node.clone(), (number, opener));
        self.came.send_replace(());
        Way { bulks: self, node: node.clone(), number }
    }

    pub(crate) fn is_open(&self, node: &NodeId) -> bool {
        self.lock().contains_key(node)
    }

    /// Waits until a node has connected, but not for ever.
    pub(crate) async fn opened(&self, node: &NodeId, longest: Duration) {
        let mut came = self.came.subscribe();
        let opened = async { while !self.is_open(node) && came.changed().await.is_ok() {} };
        // Whoever opens a stream next sees whether it came.
        drop(timeout(longest, opened).await);
    }

    /// A new stream to a node.
    pub(crate) async fn open(&self, node: &NodeId) -> io::Result<Stream> {
        let opener = self.lock().get(node).map(|(_, opener)| opener.clone());
        let opener = opener.ok_or(io::ErrorKind::NotConnected)?;
        timeout(OPENING, opener.open()).await?
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, (u64, Opener)>> {
        // The map is right after every single step.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Way<'_> {
    fn drop(&mut self) {
        let mut open = self.bulks.lock();
        if open.get(&self.node).is_some_and(|(number, _)| *number == self.number) {
            open.remove(&self.node);
        }
    }
}
