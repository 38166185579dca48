//! The link of pods that cannot reach the server, carried by the API server's port-forward.
//!
//! For each such pod two connections are kept for as long as it runs, one for each channel: to the agent's port in the pod, and
//! from there to the server's own socket, where nobody is trusted without a token. One that breaks is made anew after a pause.
//! A node says that a pod runs up to a second after it does: who may be early is called upon before that.
//! Both ends of the link notice silence by themselves, so nothing here looks into what it carries.

use std::collections::BTreeMap;
use std::fmt;
use std::io::{self, ErrorKind};
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::{Duration, Instant};

use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, Portforwarder};
use muster_engine::pod::PORT;
use muster_link::dial::{Channel, greeting};
use tokio::io::{AsyncReadExt, AsyncWriteExt, DuplexStream, copy_bidirectional_with_sizes};
use tokio::net::UnixStream;
use tokio::sync::{Semaphore, watch};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::{sleep, timeout};

/// Between two tries; it doubles, and a pod that has just begun listens soon.
const FIRST_PAUSE: Duration = Duration::from_millis(100);
const LONGEST_PAUSE: Duration = Duration::from_secs(10);
/// For how long a pod that is about to run is called upon in short pauses.
const EARLY: Duration = Duration::from_secs(3);
/// A connection that lasted this long was one.
const WORKED: Duration = Duration::from_secs(5);
/// How long the API server and the pod's node may take to make a way.
const OPEN: Duration = Duration::from_secs(15);
/// How long the agent may take to say its first word.
const FIRST_WORD: Duration = Duration::from_secs(15);
/// Ways that are being made at once: each is a connection with all of TLS, and a cluster may start a thousand pods together.
const OPENING: usize = 32;
/// How much is moved at once, in each direction.
const PIECE: usize = 64 << 10;

/// A pod whose agent is called upon.
#[derive(Clone)]
pub(crate) struct Called {
    /// The pods of its namespace.
    pub(crate) api: Api<Pod>,
    /// What it is called there.
    pub(crate) name: String,
    /// What its agent shows the server, and who calls must know.
    pub(crate) token: String,
}

impl fmt::Debug for Called {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Called").field(&self.name).finish()
    }
}

/// Carries the links of pods.
#[derive(Debug)]
pub(crate) struct Carrier {
    socket: PathBuf,
    opening: Arc<Semaphore>,
    carried: Mutex<Carried>,
}

#[derive(Debug, Default)]
struct Carried {
    work: JoinSet<()>,
    /// By the uid of the pod: the work, and whether the pod is known to run.
    pods: BTreeMap<String, (AbortHandle, watch::Sender<bool>)>,
}

impl Carrier {
    /// One that leads to this socket.
    pub(crate) fn new(socket: PathBuf) -> Self {
        Self { socket, opening: Arc::new(Semaphore::new(OPENING)), carried: Mutex::default() }
    }

    /// Carries the links of a pod from now on, which runs or is about to; nothing, if that is done already.
    pub(crate) fn begin(&self, uid: &str, is_running: bool, pod: impl FnOnce() -> Option<Called>) {
        let mut carried = self.carried.lock().unwrap_or_else(PoisonError::into_inner);
        while carried.work.try_join_next().is_some() {}
        if let Some((_, running)) = carried.pods.get(uid) {
            running.send_if_modified(|known| is_running && !std::mem::replace(known, true));
            return;
        }
        let Some(pod) = pod() else { return };
        tracing::debug!(pod = pod.name, "its links are carried");
        let (socket, opening) = (self.socket.clone(), Arc::clone(&self.opening));
        let running = watch::Sender::new(is_running);
        let (known, others) = (running.clone(), running.subscribe());
        let handle = carried.work.spawn(async move {
            let mut begun = known.subscribe();
            let bulk = async {
                // Who carries messages finds out when there is somebody.
                drop(begun.wait_for(|is_running| *is_running).await);
                keep(&pod, Channel::Bulk, &socket, &opening, begun, || ()).await;
            };
            let found = || {
                known.send_if_modified(|known| !std::mem::replace(known, true));
            };
            tokio::join!(keep(&pod, Channel::Control, &socket, &opening, others, found), bulk);
        });
        carried.pods.insert(uid.to_owned(), (handle, running));
    }

    /// Ends all but these.
    pub(crate) fn retain(&self, is_there: impl Fn(&str) -> bool) {
        let mut carried = self.carried.lock().unwrap_or_else(PoisonError::into_inner);
        carried.pods.retain(|uid, (handle, _)| {
            let is_there = is_there(uid);
            if !is_there {
                handle.abort();
            }
            is_there
        });
    }
}

/// Runs until it is dropped.
async fn keep(
    pod: &Called,
    channel: Channel,
    socket: &PathBuf,
    opening: &Semaphore,
    mut running: watch::Receiver<bool>,
    found: impl Fn(),
) {
    let mut pause = FIRST_PAUSE;
    let begun_at = Instant::now();
    loop {
        let since = Instant::now();
        let carried = carry(pod, channel, socket, opening, &found).await;
        if since.elapsed() > WORKED {
            pause = FIRST_PAUSE;
        }
        if let Err(error) = carried {
            tracing::debug!(pod = pod.name, channel = channel.as_str(), %error, "its link is made anew");
        }
        // A thousand pods that lost the API server together do not come back in step.
        let chance = f64::from(getrandom::u32().unwrap_or_default()) / f64::from(u32::MAX);
        let is_running = *running.borrow_and_update();
        if !is_running && begun_at.elapsed() >= EARLY {
            // Its image is being pulled, or worse.
            drop(running.changed().await);
            continue;
        }
        tokio::select! {
            () = sleep(pause.mul_f64(0.5 + chance / 2.0)) => {
                pause = if is_running { (pause * 2).min(LONGEST_PAUSE) } else { FIRST_PAUSE };
            }
            Ok(()) = running.changed() => pause = FIRST_PAUSE,
        }
    }
}

/// One connection, from its making to its end.
async fn carry(
    pod: &Called,
    channel: Channel,
    socket: &PathBuf,
    opening: &Semaphore,
    found: &impl Fn(),
) -> io::Result<()> {
    let mut way = {
        let _turn = opening.acquire().await.map_err(io::Error::other)?;
        timeout(OPEN, Way::open(pod, channel)).await.map_err(|_| ErrorKind::TimedOut)??
    };
    // Before the server hears of anybody, there is somebody.
    let mut first = vec![0; PIECE];
    let read = timeout(FIRST_WORD, way.stream.read(&mut first)).await.map_err(|_| ErrorKind::TimedOut)??;
    if read == 0 {
        return Err(way.complaint().await);
    }
    found();
    let mut server = UnixStream::connect(socket).await?;
    server.write_all(&first[..read]).await?;
    drop(first);
    copy_bidirectional_with_sizes(&mut way.stream, &mut server, PIECE, PIECE).await.map(drop)
}

/// A way to an agent's port, which goes when this is dropped.
struct Way {
    stream: DuplexStream,
    forwarder: Portforwarder,
    port: u16,
}

impl Way {
    async fn open(pod: &Called, channel: Channel) -> io::Result<Self> {
        let port = match channel {
            Channel::Control => PORT,
            Channel::Bulk => PORT + 1,
        };
        let mut forwarder = pod.api.portforward(&pod.name, &[port]).await.map_err(io::Error::other)?;
        let stream = forwarder.take_stream(port).ok_or(ErrorKind::NotConnected)?;
        let mut way = Self { stream, forwarder, port };
        greeting::greet(&mut way.stream, channel, &pod.token).await?;
        Ok(way)
    }

    /// Why it leads nowhere.
    async fn complaint(&mut self) -> io::Error {
        let said = match self.forwarder.take_error(self.port) {
            Some(said) => timeout(Duration::from_millis(100), said).await.ok().flatten(),
            None => None,
        };
        io::Error::other(said.unwrap_or_else(|| "nobody listens there yet".into()))
    }
}

impl Drop for Way {
    fn drop(&mut self) {
        self.forwarder.abort();
    }
}

#[cfg(test)]
mod tests;
