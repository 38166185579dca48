//! The ways to nodes: where to open a stream to one.

use std::collections::HashMap;
use std::io;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use muster_link::session::{Opener, Stream};
use muster_model::NodeId;
use tokio::sync::{oneshot, watch};
use tokio::time::{Instant, timeout};

/// A node that takes longer to take a stream has stopped.
const OPENING: Duration = Duration::from_secs(10);

/// How long after the start of the server a node that is at work may take to come back, before it counts as away.
const RETURN: Duration = Duration::from_secs(20);

/// The bulk connections of all nodes.
#[derive(Debug)]
pub(crate) struct Bulks {
    open: Mutex<HashMap<NodeId, Open>>,
    next: AtomicU64,
    came: watch::Sender<()>,
    begun: Instant,
}

impl Default for Bulks {
    fn default() -> Self {
        Self {
            open: Mutex::default(),
            next: AtomicU64::default(),
            came: watch::Sender::default(),
            begun: Instant::now(),
        }
    }
}

/// A connection with a number, since a node's new one may come before its old one is known to be gone. The old one is ended by
/// that: it may be broken without anybody having noticed, and a log that it was writing would wait for it.
#[derive(Debug)]
struct Open {
    number: u64,
    opener: Opener,
    _ends_the_way: oneshot::Sender<()>,
}

/// A connection that can be used until this is dropped.
pub(super) struct Way<'a> {
    bulks: &'a Bulks,
    node: NodeId,
    number: u64,
    replaced: oneshot::Receiver<()>,
}

impl Way<'_> {
    /// Ends when the node has connected anew.
    pub(super) async fn replaced(&mut self) {
        // Nothing is ever sent.
        let _ = (&mut self.replaced).await;
    }
}

impl Bulks {
    /// A node has connected.
    pub(super) fn add(&self, node: &NodeId, opener: Opener) -> Way<'_> {
        let number = self.next.fetch_add(1, Ordering::Relaxed);
        let (_ends_the_way, replaced) = oneshot::channel();
        self.lock().insert(node.clone(), Open { number, opener, _ends_the_way });
        self.came.send_replace(());
        Way { bulks: self, node: node.clone(), number, replaced }
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

    /// A new stream to a node where a task runs. A server that has just started waits for it: it is alive, and about to find
    /// that there is a server again.
    pub(crate) async fn open_live(&self, node: &NodeId) -> io::Result<Stream> {
        self.opened(node, RETURN.saturating_sub(self.begun.elapsed())).await;
        self.open(node).await
    }

    /// A new stream to a node.
    pub(crate) async fn open(&self, node: &NodeId) -> io::Result<Stream> {
        let opener = self.lock().get(node).map(|open| open.opener.clone());
        let opener = opener.ok_or(io::ErrorKind::NotConnected)?;
        timeout(OPENING, opener.open()).await?
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<NodeId, Open>> {
        // The map is right after every single step.
        self.open.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Way<'_> {
    fn drop(&mut self) {
        let mut open = self.bulks.lock();
        if open.get(&self.node).is_some_and(|open| open.number == self.number) {
            open.remove(&self.node);
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_link::session::{self, Incoming, Side};
    use tokio::task::JoinSet;
    use tokio::time::sleep;

    use super::*;

    fn node() -> NodeId {
        "node_x".parse().unwrap()
    }

    /// A node's end of a connection, and the server's; and what moves its bytes.
    fn connection() -> (Incoming, Opener, JoinSet<()>) {
        let (near, far) = tokio::io::duplex(1024);
        let (opener, _, driver) = session::start(near, Side::Server);
        let (_, incoming, other) = session::start(far, Side::Agent);
        let mut work = JoinSet::new();
        work.spawn(async move { drop(tokio::join!(driver, other)) });
        (incoming, opener, work)
    }

    #[tokio::test(start_paused = true)]
    async fn a_server_that_has_just_started_waits_for_nodes_where_something_runs() {
        let (bulks, node) = (Bulks::default(), node());
        let (_incoming, opener, _work) = connection();
        let comes = async {
            sleep(Duration::from_secs(9)).await;
            bulks.add(&node, opener)
        };
        let (opened, way) = tokio::join!(bulks.open_live(&node), comes);
        opened.unwrap();
        drop(way);
        assert!(bulks.open(&node).await.is_err(), "nobody else waits");
        sleep(RETURN).await;
        let since = Instant::now();
        assert!(bulks.open_live(&node).await.is_err());
        assert_eq!(since.elapsed(), Duration::ZERO, "one that is long away is not waited for");
    }

    #[tokio::test(start_paused = true)]
    async fn a_node_that_connects_anew_ends_its_old_connection() {
        let (bulks, node) = (Bulks::default(), node());
        let ((_old, first, _work), (_new, second, _other)) = (connection(), connection());
        let mut way = bulks.add(&node, first);
        assert!(timeout(RETURN, way.replaced()).await.is_err());
        let _way = bulks.add(&node, second);
        way.replaced().await;
        drop(way);
        bulks.open(&node).await.expect("the new one is in use");
    }
}
