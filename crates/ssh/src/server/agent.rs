//! The client's keys for the task's commands (`ssh -A`): a socket that speaks for the agent on the client's machine.
//!
//! One for each connection, as sshd has it. Every use is a channel to the client, which decides what it signs; no key ever gets here.

use std::fs;
use std::io;
use std::os::unix::fs::DirBuilderExt;
use std::path::{Path, PathBuf};
use std::time::Duration;

use russh::server::Handle;
use tokio::task::JoinSet;

use super::backlog::Backlog;
use super::forward::Socket;
use super::pipe::{Streams, pipe};

/// What is waited when nobody can be let in for lack of descriptors.
const BREATH: Duration = Duration::from_millis(100);
/// The longest path that a socket can have.
const MAX_PATH: usize = 107;

/// The socket of one connection, once somebody asked for it.
#[derive(Debug)]
pub(super) struct Agent {
    backlog: Backlog,
    path: Option<PathBuf>,
    answering: JoinSet<()>,
}

impl Agent {
    pub fn new(backlog: Backlog) -> Agent {
        Agent { backlog, path: None, answering: JoinSet::new() }
    }

    /// Where commands find it.
    pub fn socket(&mut self, handle: Handle) -> io::Result<&Path> {
        if self.path.is_none() {
            let dir = Private::make()?;
            let path = dir.0.join("agent");
            let place = Place { socket: Socket::bind(&path)?, _dir: dir };
            self.answering.spawn(answer(place, handle, Streams::new(self.backlog.clone())));
            self.path = Some(path);
        }
        self.path.as_deref().ok_or_else(|| io::ErrorKind::NotFound.into())
    }
}

/// What is removed at the end, in this order.
struct Place {
    socket: Socket,
    _dir: Private,
}

async fn answer(place: Place, handle: Handle, streams: Streams) {
    loop {
        match place.socket.listener.accept().await {
            Ok((stream, _)) => {
                let (handle, share) = (handle.clone(), streams.share());
                streams.start(async move {
                    if let Ok(channel) = handle.channel_open_agent().await {
                        pipe(channel, stream, share).await;
                    }
                });
            }
            Err(_) => tokio::time::sleep(BREATH).await,
        }
    }
}

/// A directory into which nobody else sees.
#[derive(Debug)]
struct Private(PathBuf);

impl Private {
    fn make() -> io::Result<Private> {
        let mut bytes = [0; 8];
        getrandom::fill(&mut bytes).map_err(|error| io::Error::other(error.to_string()))?;
        let name = format!("muster-agent-{:016x}", u64::from_be_bytes(bytes));
        let own = std::env::temp_dir().join(&name);
        let path = if own.as_os_str().len() + "/agent".len() > MAX_PATH {
            Path::new("/tmp").join(name)
        } else {
            own
        };
        fs::DirBuilder::new().mode(0o700).create(&path)?;
        Ok(Private(path))
    }
}

impl Drop for Private {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}
