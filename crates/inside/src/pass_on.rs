//! Passing a copy on to the other members of the gang, so that what all of them get comes the long way once.
//!
//! To a member's door one goes with the gang's key, by the way its launchers go. There it is a copy like any other: what is
//! there already is not sent, and what was cut off goes on.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use muster_bundle::copy::{Arrived, Ask, Channel, Error, NO_PEERS, Watch, Wire, send};
use muster_link::control::{self, Received};
use muster_link::message::{Call, Called};
use muster_model::TaskId;
use muster_ssh::client::Client;
use muster_ssh::gang::Gang;
use muster_ssh::keys::{self, PrivateKey};
use tokio::io::{AsyncWriteExt, BufReader, copy_bidirectional_with_sizes};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::copy::Socket;

/// Members that are sent to at once: more share the same way out, and each costs two threads.
const AT_ONCE: usize = 8;
/// What may wait to be told to whoever copies.
const NEWS: usize = 256;
/// How often it is told how far it is.
const TELL_BYTES: u64 = 4 << 20;
/// A member that cannot be reached by then is away.
const REACH: Duration = Duration::from_secs(20);
/// How much is moved at once.
const PIECE: usize = 256 << 10;

/// The other members of the gang.
pub(crate) struct Peers {
    dir: PathBuf,
}

/// Who is passed something on to.
pub(crate) struct Others {
    /// What they let in.
    key: Arc<PrivateKey>,
    /// Where each is reached, with its rank.
    members: VecDeque<(usize, SocketAddr)>,
}

/// What is passed on, and as what.
pub(crate) struct Load {
    pub(crate) arrived: Arrived,
    pub(crate) to: Vec<u8>,
    pub(crate) force: bool,
}

enum News {
    Moved(u64),
    Problem { path: Vec<u8>, reason: String, is_failure: bool },
}

impl Peers {
    /// Those of the task in this directory.
    pub(crate) fn of(dir: &Path) -> Peers {
        Peers { dir: dir.to_owned() }
    }

    /// Everyone who is there, but us.
    pub(crate) fn others(&self) -> Result<Others, String> {
        let files = self.dir.join("ssh");
        let own = self.dir.file_name().and_then(|name| name.to_str()?.parse::<TaskId>().ok());
        let own = own.map(|task| task.rank as usize);
        // A gang whose members do not reach each other has no such files.
        let members = Gang::members(&files).map_err(|_| NO_PEERS.to_owned())?;
        let secret = Gang::secret(&files).map_err(|error| error.to_string())?;
        let key = keys::client(&secret).map_err(|error| error.to_string())?;
        let is_there = |(rank, at): &(usize, SocketAddr)| Some(*rank) != own && !at.ip().is_unspecified();
        let members = members.into_iter().enumerate().filter(is_there).collect();
        Ok(Others { key: Arc::new(key), members })
    }
}

/// Passes on to all of them what has arrived, and tells whoever sent it how that goes.
pub(crate) fn pass_on<W: Wire>(
    channel: &mut Channel<W>,
    Others { key, members }: Others,
    load: &Load,
) -> Result<(), Error> {
    channel.passing(load.arrived.bytes.saturating_mul(members.len() as u64))?;
    let (stop, stopped) = watch::channel(());
    let (tell, news) = sync_channel(NEWS);
    let hands = members.len().min(AT_ONCE);
    let queue = Mutex::new(members);
    thread::scope(|scope| {
        for _ in 0..hands {
            let (key, tell, stopped, queue) = (&key, tell.clone(), stopped.clone(), &queue);
            scope.spawn(move || {
                while stopped.has_changed().is_ok()
                    && let Some((rank, address)) = next(queue)
                {
                    let mut teller = Teller { arrived: &load.arrived, rank, tell: &tell, moved: 0 };
                    if let Err(reason) = to_peer(address, key, load, &mut teller, stopped.clone()) {
                        teller.problem(b"", &reason, true);
                    }
                    teller.flush();
                }
            });
        }
        drop(tell);
        let told = tell_all(channel, news);
        // Whoever has gone wants nothing passed on any more.
        drop(stop);
        told
    })
}

fn next(queue: &Mutex<VecDeque<(usize, SocketAddr)>>) -> Option<(usize, SocketAddr)> {
    queue.lock().unwrap_or_else(PoisonError::into_inner).pop_front()
}

fn tell_all<W: Wire>(channel: &mut Channel<W>, news: Receiver<News>) -> Result<(), Error> {
    for one in news {
        match one {
            News::Moved(bytes) => channel.passed(bytes)?,
            News::Problem { path, reason, is_failure } => channel.problem(&path, &reason, is_failure)?,
        }
    }
    Ok(())
}

/// One member's copy. A thread moves the bytes, with a runtime of its own, so that members do not wait for each other.
fn to_peer(
    address: SocketAddr,
    key: &Arc<PrivateKey>,
    load: &Load,
    teller: &mut Teller<'_>,
    stopped: watch::Receiver<()>,
) -> Result<(), String> {
    let (near, far) = UnixStream::pair().map_err(|error| error.to_string())?;
    thread::scope(|scope| {
        let carrying = scope.spawn(|| carry(address, key.clone(), far, stopped));
        let mut channel = Channel::new(Socket::new(near));
        let ask = Ask::Put { to: load.to.clone(), force: load.force, pass_on: false };
        let Arrived { sources, is_several, .. } = &load.arrived;
        let copied = channel.ask(&ask).and_then(|()| send(&mut channel, sources, *is_several, teller));
        drop(channel);
        let carried = carrying.join().unwrap_or_else(|_| Err(io::Error::other("a thread panicked")));
        match (copied, carried) {
            (Ok(()), _) => Ok(()),
            // Why the way broke is known at its other end.
            (Err(Error::Lost(_)), Err(error)) => Err(format!("it cannot be reached: {error}")),
            (Err(error), _) => Err(error.to_string()),
        }
    })
}

/// Moves bytes to a member's door and back, until either end has had enough.
fn carry(
    address: SocketAddr,
    key: Arc<PrivateKey>,
    near: UnixStream,
    mut stopped: watch::Receiver<()>,
) -> io::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build()?;
    runtime.block_on(async {
        near.set_nonblocking(true)?;
        let mut near = tokio::net::UnixStream::from_std(near)?;
        let reaching = async {
            let stream = TcpStream::connect(address).await?;
            stream.set_nodelay(true)?;
            let client = Client::connect(stream, key).await.map_err(io::Error::other)?;
            let mut door = BufReader::new(client.door().await.map_err(io::Error::other)?);
            control::send(&mut door, &Call::Copy).await?;
            door.flush().await?;
            match control::receive(&mut door).await? {
                Some(Received::Message(Called::Open)) => Ok((client, door)),
                Some(Received::Message(Called::Refused { message, .. })) => Err(io::Error::other(message)),
                Some(Received::Unknown { .. }) | None => Err(io::ErrorKind::UnexpectedEof.into()),
            }
        };
        let (_client, mut door) = timeout(REACH, reaching).await??;
        tokio::select! {
            moved = copy_bidirectional_with_sizes(&mut near, &mut door, PIECE, PIECE) => moved.map(drop),
            _ = stopped.changed() => Ok(()),
        }
    })
}

/// Tells of one member's copy.
struct Teller<'a> {
    arrived: &'a Arrived,
    rank: usize,
    tell: &'a SyncSender<News>,
    moved: u64,
}

impl Teller<'_> {
    fn flush(&mut self) {
        // Nobody listens any more when whoever copies has gone.
        let _ = self.tell.send(News::Moved(std::mem::take(&mut self.moved)));
    }
}

impl Watch for Teller<'_> {
    fn moved(&mut self, bytes: u64) {
        self.moved += bytes;
        if self.moved >= TELL_BYTES {
            self.flush();
        }
    }

    fn problem(&mut self, path: &[u8], reason: &str, is_failure: bool) {
        let mut named = format!("task{}", self.rank).into_bytes();
        if !path.is_empty() {
            named.extend([b": ", path].concat());
        }
        let _ = self.tell.send(News::Problem { path: named, reason: reason.to_owned(), is_failure });
    }

    /// What lies beside it is not ours to pass on.
    fn is_done(&self, path: &[u8]) -> bool {
        !self.arrived.has(path)
    }
}
