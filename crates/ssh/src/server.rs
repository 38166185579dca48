//! The server inside a task: takes connections, and runs what they ask for.

mod agent;
mod connection;
mod exec;
mod forward;
mod inbox;
mod pipe;
mod pty;
mod sftp;
mod shell;

use std::io;
use std::sync::Arc;
use std::time::Duration;

use russh::keys::{PrivateKey, PublicKey};
use russh::server::Config;
use russh::{MethodKind, MethodSet, SshId};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::connection::Connection;
use self::shell::Way;
use crate::keys;

/// Whoever has not logged in by then is nobody we know.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// More at once than any launcher opens; a gang of thousands comes in turns.
const MAX_CONNECTIONS: usize = 1024;
/// A peer whose machine is gone does not keep its commands' place for ever.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Speaks SSH with whoever shows the right key. Commands run with this process's own variables and directory.
#[derive(Clone)]
pub struct Server {
    config: Arc<Config>,
}

impl Server {
    /// A server that is known by this key.
    pub fn new(host: PrivateKey) -> Server {
        Server { config: Arc::new(config(host)) }
    }

    /// Serves one connection to its end. Nobody is let in but the holder of this key.
    pub async fn serve<S>(&self, stream: S, authorized: PublicKey)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        self.serve_from(None, stream, authorized).await;
    }

    async fn serve_from<S>(&self, way: Option<Way>, stream: S, authorized: PublicKey)
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let connection = Connection::new(authorized, way);
        let running = russh::server::run_stream(self.config.clone(), stream, connection);
        if let Ok(Ok(session)) = timeout(HANDSHAKE, running).await {
            // How it ended, the other side knows better.
            drop(session.await);
        }
    }
}

/// Serves members of the gang with this secret, for as long as it is awaited.
pub async fn serve_gang(listener: TcpListener, secret: &str) -> Result<(), keys::Error> {
    let authorized = keys::client(secret)?.public_key().clone();
    let server = Server::new(keys::host(secret)?);
    let mut connections = JoinSet::new();
    loop {
        let (stream, from) = tokio::select! {
            accepted = listener.accept() => match accepted {
                Ok(accepted) => accepted,
                Err(error) => {
                    // Out of descriptors, most likely: those that are open go on, and make room.
                    complain("cannot accept a connection", &error);
                    tokio::time::sleep(Duration::from_millis(100)).await;
                    continue;
                }
            },
            Some(_) = connections.join_next() => continue,
        };
        if connections.len() >= MAX_CONNECTIONS {
            complain("too many connections at once", &io::Error::from(io::ErrorKind::ResourceBusy));
            continue;
        }
        let (server, authorized) = (server.clone(), authorized.clone());
        connections.spawn(async move {
            // Small answers to small questions: waiting for more to send would only slow them.
            drop(stream.set_nodelay(true));
            let way = stream.local_addr().ok().map(|to| Way { from, to });
            server.serve_from(way, stream, authorized).await;
        });
    }
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
        ..Config::default()
    }
}

/// Where whoever wonders about a failed connection looks.
fn complain(what: &str, error: &io::Error) {
    use std::io::Write;
    let _ = writeln!(io::stderr(), "muster ssh: {what}: {error}");
}
