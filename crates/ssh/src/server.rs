//! The server inside a task: takes connections, and runs what they ask for.
//!
//! Its bounds are here and in the modules, each beside its reason: of time to log in and of strangers at once ([`lobby`]), of
//! connections, of channels in one ([`connection`]), of variables ([`shell`]), of what waits to be read ([`backlog`]). The length of a
//! command line is the kernel's to say (128 KiB on Linux), a packet's russh's (256 KiB). What goes *out* waits for the peer's
//! word that there is room and for nothing else. A peer that stops reading its connection altogether holds that one up until the kernel
//! gives up on it.

mod agent;
mod backlog;
mod connection;
mod exec;
mod forward;
mod guest;
mod inbox;
mod lobby;
mod pipe;
mod pty;
mod sftp;
mod shell;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::{Duration, Instant};

use russh::keys::{PrivateKey, PublicKey};
use russh::server::Config;
use russh::{MethodKind, MethodSet, SshId};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::backlog::Backlog;
use self::connection::Connection;
use self::guest::Guest;
use self::lobby::Lobby;
use self::shell::Way;
use crate::keys;

/// Whoever has not logged in by then is nobody we know.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// More at once than any launcher opens; a gang of thousands comes in turns.
const MAX_CONNECTIONS: usize = 1024;
/// A peer whose machine is gone does not keep its commands' place for ever.
const KEEPALIVE: Duration = Duration::from_secs(15);
/// A log is not filled by those who are turned away.
const COMPLAINTS: Duration = Duration::from_secs(60);

/// Speaks SSH with whoever shows the right key. Commands run with this process's own variables and directory.
#[derive(Clone)]
pub struct Server {
    config: Arc<Config>,
    /// What [`DOOR`](crate::gang::DOOR) means here.
    door: Option<Arc<Path>>,
}

impl Server {
    /// A server that is known by this key.
    pub fn new(host: PrivateKey) -> Server {
        Server { config: Arc::new(config(host)), door: None }
    }

    /// Serves one connection to its end, or for as long as it is awaited. Nobody is let in but the holder of this key.
    pub async fn serve<S>(&self, stream: S, authorized: PublicKey)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.serve_guest(stream, None, authorized, watch::Sender::new(false)).await;
    }

    async fn serve_guest<S>(
        &self,
        stream: S,
        way: Option<Way>,
        authorized: PublicKey,
        is_known: watch::Sender<bool>,
    ) where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let mut known = is_known.subscribe();
        let backlog = Backlog::default();
        let (_stay, guest) = Guest::new(stream, backlog.clone());
        let connection = Connection::new(authorized, way, is_known, backlog, self.door.clone());
        let entering = async {
            let session = russh::server::run_stream(self.config.clone(), guest, connection).await.ok()?;
            known.wait_for(|is_known| *is_known).await.ok()?;
            Some(session)
        };
        if let Ok(Some(session)) = timeout(HANDSHAKE, entering).await {
            // How it ended, the other side knows better.
            drop(session.await);
        }
    }
}

/// Serves members of the gang with this secret, for as long as it is awaited. `door` is where they may also call.
pub async fn serve_gang(listener: TcpListener, secret: &str, door: &Path) -> Result<(), keys::Error> {
    let authorized = keys::client(secret)?.public_key().clone();
    let server = Server { door: Some(door.into()), ..Server::new(keys::host(secret)?) };
    let (mut connections, mut lobby, mut complained) = (JoinSet::new(), Lobby::default(), None);
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = connections.join_next() => continue,
        };
        let stream = match accepted {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of descriptors, most likely: those that are open go on, and make room.
                complain("cannot accept a connection", &error, &mut complained);
                tokio::time::sleep(Duration::from_millis(100)).await;
                continue;
            }
        };
        if connections.len() >= MAX_CONNECTIONS && !lobby.send_away() {
            let busy = io::Error::from(io::ErrorKind::ResourceBusy);
            complain("too many connections at once", &busy, &mut complained);
            continue;
        }
        let is_known = watch::Sender::new(false);
        let known = is_known.subscribe();
        let serving = serve_member(server.clone(), stream, authorized.clone(), is_known);
        lobby.enter(connections.spawn(serving), known);
    }
}

async fn serve_member(
    server: Server,
    stream: TcpStream,
    authorized: PublicKey,
    is_known: watch::Sender<bool>,
) {
    // Small answers to small questions: waiting for more to send would only slow them.
    drop(stream.set_nodelay(true));
    let way = stream.peer_addr().and_then(|from| Ok(Way { from, to: stream.local_addr()? }));
    server.serve_guest(stream, way.ok(), authorized, is_known).await;
}

fn config(host: PrivateKey) -> Config {
    Config {
        server_id: SshId::Standard("SSH-2.0-muster".into()),
        methods: MethodSet::from(&[MethodKind::PublicKey][..]),
        keys: vec![host],
        auth_rejection_time: Duration::from_secs(1),
        auth_rejection_time_initial: Some(Duration::ZERO),
        max_auth_attempts: 6,
        inactivity_timeout: None,
        keepalive_interval: Some(KEEPALIVE),
        keepalive_max: 8,
        nodelay: true,
        window_size: backlog::WIDE,
        ..Config::default()
    }
}

/// Where whoever wonders about a failed connection looks.
fn complain(what: &str, error: &io::Error, last: &mut Option<Instant>) {
    use std::io::Write;
    let now = Instant::now();
    if last.is_none_or(|last| now.duration_since(last) >= COMPLAINTS) {
        *last = Some(now);
        let _ = writeln!(io::stderr(), "muster ssh: {what}: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    #[tokio::test(start_paused = true)]
    async fn a_login_that_never_ends_is_ended() {
        let server = Server::new(keys::random().unwrap());
        let authorized = keys::random().unwrap().public_key().clone();
        // Whoever says nothing, and whoever goes as far as the exchange of keys.
        for words in ["", "SSH-2.0-slow\r\n"] {
            let (near, mut far) = tokio::io::duplex(4096);
            let begun = tokio::time::Instant::now();
            far.write_all(words.as_bytes()).await.unwrap();
            server.serve(near, authorized.clone()).await;
            assert_eq!(begun.elapsed().as_secs(), HANDSHAKE.as_secs());
            far.read_to_end(&mut Vec::new()).await.unwrap();
        }
    }
}
