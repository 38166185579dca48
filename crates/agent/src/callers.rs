//! Who calls on the agent of a carried node.
//!
//! Such an agent cannot reach its server: the server's engine comes through the machine's sshd and calls at a socket in
//! the agent's directory, one for each channel. The newest caller is the one that counts, because the way of an older one
//! may be broken without either end having noticed.

use std::fs;
use std::io::{self, ErrorKind};
use std::path::Path;
use std::time::Duration;

use muster_link::dial::Channel;
use muster_link::unix::socket_path;
use tokio::net::{UnixListener, UnixStream};

/// What keeps a machine from taking calls, too many open files for one, does not pass in no time.
const PAUSE: Duration = Duration::from_millis(100);

/// Those who call at one of the two sockets.
#[derive(Debug)]
pub(crate) struct Callers {
    listener: UnixListener,
    /// Who has come while another was served.
    next: Option<UnixStream>,
}

impl Callers {
    /// Listens in the agent's directory, of which this agent must be the only one.
    pub(crate) fn open(dir: &Path, channel: Channel) -> io::Result<Callers> {
        let path = dir.join(format!("{}.sock", channel.as_str()));
        match fs::remove_file(&path) {
            Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let listener = UnixListener::bind(socket_path(&path)?.as_path())?;
        Ok(Callers { listener, next: None })
    }

    /// The next caller.
    pub(crate) async fn next(&mut self) -> UnixStream {
        if let Some(stream) = self.next.take() {
            return stream;
        }
        loop {
            match self.listener.accept().await {
                Ok((stream, _)) => return stream,
                Err(error) => {
                    tracing::warn!(error = %error, "a caller could not be let in");
                    tokio::time::sleep(PAUSE).await;
                }
            }
        }
    }

    /// Ends when there is a next caller.
    pub(crate) async fn wait(&mut self) {
        if self.next.is_none() {
            self.next = Some(self.next().await);
        }
    }
}
