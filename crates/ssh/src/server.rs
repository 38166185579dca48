//! The server inside a task: takes connections of the gang's members and runs what they ask for.

mod connection;
mod exec;

use std::io;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use russh::server::Config;
use russh::{MethodKind, MethodSet, SshId};
use tokio::net::TcpListener;
use tokio::task::JoinSet;
use tokio::time::timeout;

use self::connection::Connection;
use crate::door::{Door, Error};
use crate::keys;

/// Whoever has not logged in by then is not a member.
const HANDSHAKE: Duration = Duration::from_secs(30);
/// More at once than any launcher opens; a gang of thousands comes in turns.
const MAX_CONNECTIONS: usize = 1024;
/// A peer whose machine is gone does not keep its commands' place for ever.
const KEEPALIVE: Duration = Duration::from_secs(15);

/// Serves the door in `dir` until the process is ended. Commands run with this process's own variables and directory.
pub async fn run(dir: &Path) -> Result<(), Error> {
    let listen = Door::read(dir)?;
    let listener = TcpListener::bind(listen.address).await?;
    serve(listener, &listen.secret).await
}

/// Serves members of the gang with this secret, for as long as it is awaited.
pub async fn serve(listener: TcpListener, secret: &str) -> Result<(), Error> {
    let authorized = keys::client(secret)?.public_key().clone();
    let config = Arc::new(config(secret)?);
    let mut connections = JoinSet::new();
    loop {
        let (stream, _) = tokio::select! {
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
        let (config, handler) = (config.clone(), Connection::new(authorized.clone()));
        connections.spawn(async move {
            // Small answers to small questions: waiting for more to send would only slow them.
            drop(stream.set_nodelay(true));
            let begun = timeout(HANDSHAKE, russh::server::run_stream(config, stream, handler)).await;
            if let Ok(Ok(session)) = begun {
                // How it ended, the peer knows better.
                drop(session.await);
            }
        });
    }
}

fn config(secret: &str) -> Result<Config, Error> {
    Ok(Config {
        server_id: SshId::Standard("SSH-2.0-muster".into()),
        methods: MethodSet::from(&[MethodKind::PublicKey][..]),
        keys: vec![keys::host(secret)?],
        auth_rejection_time: Duration::from_secs(1),
        auth_rejection_time_initial: Some(Duration::ZERO),
        max_auth_attempts: 6,
        inactivity_timeout: None,
        keepalive_interval: Some(KEEPALIVE),
        keepalive_max: 8,
        nodelay: true,
        ..Config::default()
    })
}

/// Into the task's log, where whoever wonders about a failed connection looks.
fn complain(what: &str, error: &io::Error) {
    use std::io::Write;
    let _ = writeln!(io::stderr(), "muster ssh: {what}: {error}");
}
