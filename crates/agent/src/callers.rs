//! Who calls on an agent that cannot reach its server.
//!
//! The server's engine comes through the machine's sshd and calls at a socket in the agent's directory, or comes through the API
//! of a cluster and calls at a port; there is one for each channel. The newest caller is the one that counts, because the way
//! of an older one may be broken without either end having noticed. At a port anybody may call, so there a caller is one who
//! has shown that they know the token.

use std::fs;
use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use muster_link::dial::{Channel, Connection, Server, greeting};
use muster_link::unix::socket_path;
use tokio::net::{TcpListener, TcpSocket, TcpStream, UnixListener};
use tokio::task::JoinSet;

/// What keeps a machine from taking calls, too many open files for one, does not pass in no time.
const PAUSE: Duration = Duration::from_millis(100);
/// Whoever has nothing to say for so long will not say it.
const GREETING: Duration = Duration::from_secs(10);
/// How many may be about to say who they are. More wait.
const AT_THE_DOOR: usize = 16;
/// As many as may wait to be let in.
const BACKLOG: u32 = 64;

/// A way that a caller has made.
pub(crate) type Way = Box<dyn Connection>;

/// Those who call for one channel.
pub(crate) struct Callers {
    door: Door,
    channel: Channel,
    /// Who has come while another was served.
    next: Option<Way>,
}

impl std::fmt::Debug for Callers {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Callers").field("door", &self.door).finish_non_exhaustive()
    }
}

#[derive(Debug)]
enum Door {
    /// Only who may enter the agent's directory.
    Socket(UnixListener),
    /// Anybody.
    Port { listener: TcpListener, token_file: PathBuf, coming: JoinSet<io::Result<TcpStream>> },
}

impl Callers {
    /// Listens, where the server is one who comes. This agent must be the only one of its directory.
    pub(crate) fn open(server: &Server, channel: Channel, token_file: &Path) -> io::Result<Option<Callers>> {
        let door = match server {
            Server::Carried(dir) => socket(dir, channel)?,
            Server::Called(address) => {
                let listener = listen(at(*address, channel))?;
                Door::Port { listener, token_file: token_file.to_owned(), coming: JoinSet::new() }
            }
            Server::Unix(_) | Server::Tcp(_) | Server::Tls { .. } | Server::Posted(_) => return Ok(None),
        };
        Ok(Some(Callers { door, channel, next: None }))
    }

    /// The next caller.
    pub(crate) async fn next(&mut self) -> Way {
        if let Some(way) = self.next.take() {
            return way;
        }
        loop {
            match self.door.open(self.channel).await {
                Ok(Some(way)) => return way,
                Ok(None) => {}
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

impl Door {
    /// A caller, or none if it was somebody else.
    async fn open(&mut self, channel: Channel) -> io::Result<Option<Way>> {
        match self {
            Door::Socket(listener) => Ok(Some(Box::new(listener.accept().await?.0))),
            Door::Port { listener, token_file, coming } => tokio::select! {
                accepted = listener.accept(), if coming.len() < AT_THE_DOOR => {
                    coming.spawn(admit(accepted?.0, channel, token_file.clone()));
                    Ok(None)
                }
                Some(admitted) = coming.join_next() => match admitted {
                    Ok(Ok(stream)) => Ok(Some(Box::new(stream))),
                    // Nothing that a stranger does is worth a word of ours.
                    Ok(Err(_)) | Err(_) => Ok(None),
                },
            },
        }
    }
}

fn socket(dir: &Path, channel: Channel) -> io::Result<Door> {
    let path = dir.join(format!("{}.sock", channel.as_str()));
    match fs::remove_file(&path) {
        Err(error) if error.kind() != ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    Ok(Door::Socket(UnixListener::bind(socket_path(&path)?.as_path())?))
}

fn at(address: SocketAddr, channel: Channel) -> SocketAddr {
    let port = match channel {
        Channel::Control => address.port(),
        Channel::Bulk => address.port().saturating_add(1),
    };
    SocketAddr::new(address.ip(), port)
}

fn listen(address: SocketAddr) -> io::Result<TcpListener> {
    let named = |error: io::Error| io::Error::new(error.kind(), format!("{address}: {error}"));
    let socket = if address.is_ipv4() { TcpSocket::new_v4()? } else { TcpSocket::new_v6()? };
    // The connections of an agent that was here before may not be forgotten yet.
    socket.set_reuseaddr(true)?;
    socket.bind(address).map_err(named)?;
    socket.listen(BACKLOG).map_err(named)
}

async fn admit(mut stream: TcpStream, channel: Channel, token_file: PathBuf) -> io::Result<TcpStream> {
    stream.set_nodelay(true)?;
    let token = tokio::fs::read_to_string(token_file).await?;
    let admitted = greeting::admit(&mut stream, channel, token.trim());
    tokio::time::timeout(GREETING, admitted).await.map_err(|_| ErrorKind::TimedOut)??;
    Ok(stream)
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn at_a_port_only_who_knows_the_token_is_a_caller() {
        let home = tempfile::tempdir().unwrap();
        let token = home.path().join("token");
        fs::write(&token, "secret\n").unwrap();
        // A port that is free for a moment; the next one is for the other channel.
        let free = TcpListener::bind("127.0.0.1:0").await.unwrap().local_addr().unwrap();
        let mut callers = Callers::open(&Server::Called(free), Channel::Control, &token).unwrap().unwrap();
        let _silent = TcpStream::connect(free).await.unwrap();
        let mut stranger = TcpStream::connect(free).await.unwrap();
        greeting::greet(&mut stranger, Channel::Control, "guess").await.unwrap();
        let mut caller = TcpStream::connect(free).await.unwrap();
        greeting::greet(&mut caller, Channel::Control, "secret").await.unwrap();
        caller.write_all(b"hello").await.unwrap();
        let mut way = callers.next().await;
        let mut said = [0; 5];
        way.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"hello");
        let mut newest = TcpStream::connect(free).await.unwrap();
        greeting::greet(&mut newest, Channel::Control, "secret").await.unwrap();
        callers.wait().await;
    }
}
