//! Ports and sockets through a connection: the task's for the client (`ssh -L`, `-D`, `-W`) and the client's for the task (`-R`).
//!
//! All of it ends with the connection.

use std::collections::HashMap;
use std::fs::{self, Permissions};
use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::os::unix::fs::{FileTypeExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use russh::server::{ChannelOpenHandle, Handle, Msg};
use russh::{Channel, ChannelOpenFailure};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpListener, TcpStream, UnixListener, UnixStream, lookup_host};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;

use super::backlog::{Backlog, Share};
use super::pipe::{Streams, pipe};
use crate::gang::DOOR;

/// Places where one connection listens.
const MAX_LISTENERS: usize = 64;
/// Whoever has not answered by then is not there.
const CONNECT: Duration = Duration::from_secs(30);
/// What is waited when nobody can be let in for lack of descriptors.
const BREATH: Duration = Duration::from_millis(100);

/// Where a client wants the task to listen, as it called it: it knows what comes from there by that name.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Place {
    Tcp { address: String, port: u32 },
    Unix { path: String },
}

/// The streams and listeners of one connection.
#[derive(Debug)]
pub(super) struct Forwards {
    streams: Streams,
    listeners: HashMap<Place, Vec<AbortHandle>>,
    listening: JoinSet<()>,
    door: Option<Arc<Path>>,
}

impl Forwards {
    pub fn new(backlog: Backlog, door: Option<Arc<Path>>) -> Forwards {
        let (listeners, listening) = Default::default();
        Forwards { streams: Streams::new(backlog), listeners, listening, door }
    }

    /// Connects a channel to a port that the task can reach, and says whether it could.
    pub fn connect_port(&mut self, channel: Channel<Msg>, host: &str, port: u32, reply: ChannelOpenHandle) {
        let host = host.to_owned();
        self.open(channel, reply, async move {
            let port = u16::try_from(port).map_err(|_| io::ErrorKind::InvalidInput)?;
            let stream = TcpStream::connect((host.as_str(), port)).await?;
            let _ = stream.set_nodelay(true);
            Ok(stream)
        });
    }

    /// The same with a socket in the task's filesystem.
    pub fn connect_socket(&mut self, channel: Channel<Msg>, path: &str, reply: ChannelOpenHandle) {
        let path = match &self.door {
            Some(door) if path == DOOR => door.to_path_buf(),
            _ => path.into(),
        };
        self.open(channel, reply, async move { UnixStream::connect(path).await });
    }

    fn open<S>(
        &mut self,
        channel: Channel<Msg>,
        reply: ChannelOpenHandle,
        connecting: impl Future<Output = io::Result<S>> + Send + 'static,
    ) where
        S: AsyncRead + AsyncWrite + Send + 'static,
    {
        let share = self.streams.share();
        // Dropped, the reply is a refusal.
        self.streams.start(async move {
            match timeout(CONNECT, connecting).await {
                Ok(Ok(socket)) => {
                    reply.accept().await;
                    pipe(channel, socket, share).await;
                }
                Ok(Err(_)) | Err(_) => reply.reject(ChannelOpenFailure::ConnectFailed).await,
            }
        });
    }

    /// Listens on a port for the client. Port 0 becomes the one that was free.
    pub async fn listen(&mut self, address: &str, port: u32, handle: Handle) -> io::Result<u32> {
        self.check_room()?;
        let wanted = u16::try_from(port).map_err(|_| io::ErrorKind::InvalidInput)?;
        let listeners = bind(address, wanted).await?;
        let port =
            listeners.first().map_or(Ok(port), |first| first.local_addr().map(|at| at.port().into()))?;
        let place = Place::Tcp { address: address.to_owned(), port };
        let tasks = listeners.into_iter().map(|listener| {
            let at = Accepting::Tcp { listener, address: address.to_owned(), port };
            self.listening.spawn(accept(at, self.streams.clone(), handle.clone()))
        });
        let tasks = tasks.collect();
        self.listeners.insert(place, tasks);
        Ok(port)
    }

    /// Listens on a socket in the task's filesystem for the client.
    pub fn listen_at(&mut self, path: &str, handle: Handle) -> io::Result<()> {
        self.check_room()?;
        let at = Accepting::Unix { socket: Socket::bind(Path::new(path))?, path: path.to_owned() };
        let task = self.listening.spawn(accept(at, self.streams.clone(), handle));
        self.listeners.insert(Place::Unix { path: path.to_owned() }, vec![task]);
        Ok(())
    }

    /// Listens no more. What came from there goes on.
    pub fn cancel(&mut self, place: &Place) -> bool {
        let tasks = self.listeners.remove(place);
        tasks.iter().flatten().for_each(AbortHandle::abort);
        tasks.is_some()
    }

    fn check_room(&mut self) -> io::Result<()> {
        while self.listening.try_join_next().is_some() {}
        if self.listeners.len() < MAX_LISTENERS { Ok(()) } else { Err(io::ErrorKind::ResourceBusy.into()) }
    }
}

/// `localhost` is this machine alone. Every address of it is meant by an empty name or `*`, which `ssh -R` sends when
/// somebody asked for that and never by itself, and by an address of zeros.
async fn bind(address: &str, port: u16) -> io::Result<Vec<TcpListener>> {
    let (first, second) = match address {
        "localhost" => (IpAddr::from(Ipv4Addr::LOCALHOST), Some(IpAddr::from(Ipv6Addr::LOCALHOST))),
        // Takes IPv4 as well.
        "" | "*" => match TcpListener::bind((Ipv6Addr::UNSPECIFIED, port)).await {
            Ok(listener) => return Ok(vec![listener]),
            Err(_) => (Ipv4Addr::UNSPECIFIED.into(), None),
        },
        name => {
            let mut found = lookup_host((name, port)).await?;
            (found.next().ok_or(io::ErrorKind::NotFound)?.ip(), None)
        }
    };
    let mut listeners = vec![TcpListener::bind((first, port)).await?];
    // A machine without IPv6 is none without a loopback.
    if let Some(second) = second {
        let port = listeners[0].local_addr()?.port();
        listeners.extend(TcpListener::bind(SocketAddr::new(second, port)).await);
    }
    Ok(listeners)
}

enum Accepting {
    Tcp { listener: TcpListener, address: String, port: u32 },
    Unix { socket: Socket, path: String },
}

/// Opens a channel to the client for whoever comes.
async fn accept(at: Accepting, streams: Streams, handle: Handle) {
    loop {
        let came = async {
            match &at {
                Accepting::Tcp { listener, address, port } => {
                    let (stream, from) = listener.accept().await?;
                    let _ = stream.set_nodelay(true);
                    Ok(Came::Tcp { stream, from, address: address.clone(), port: *port })
                }
                Accepting::Unix { socket, path } => {
                    let (stream, _) = socket.listener.accept().await?;
                    Ok(Came::Unix { stream, path: path.clone() })
                }
            }
        };
        let came: io::Result<Came> = came.await;
        match came {
            Ok(came) => streams.start(came.forward(handle.clone(), streams.share())),
            Err(_) => tokio::time::sleep(BREATH).await,
        }
    }
}

/// Somebody who connected to the task, and is to be connected to the client.
enum Came {
    Tcp { stream: TcpStream, from: SocketAddr, address: String, port: u32 },
    Unix { stream: UnixStream, path: String },
}

impl Came {
    async fn forward(self, handle: Handle, share: Share) {
        match self {
            Came::Tcp { stream, from, address, port } => {
                let (ip, from_port) = (from.ip().to_canonical().to_string(), from.port().into());
                let opened = handle.channel_open_forwarded_tcpip(address, port, ip, from_port).await;
                if let Ok(channel) = opened {
                    pipe(channel, stream, share).await;
                }
            }
            Came::Unix { stream, path } => {
                if let Ok(channel) = handle.channel_open_forwarded_streamlocal(path).await {
                    pipe(channel, stream, share).await;
                }
            }
        }
    }
}

/// A listening socket with a name in the filesystem, which goes with it.
#[derive(Debug)]
pub(super) struct Socket {
    pub listener: UnixListener,
    path: PathBuf,
}

impl Socket {
    /// Only its owner can connect to it.
    pub fn bind(path: &Path) -> io::Result<Socket> {
        let listener = match UnixListener::bind(path) {
            Err(error) if error.kind() == io::ErrorKind::AddrInUse && is_abandoned(path) => {
                fs::remove_file(path)?;
                UnixListener::bind(path)?
            }
            outcome => outcome?,
        };
        let socket = Socket { listener, path: path.to_owned() };
        fs::set_permissions(path, Permissions::from_mode(0o600))?;
        Ok(socket)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.path);
    }
}

/// A socket whose process was killed leaves its name behind. Whatever else is there is not ours to remove.
fn is_abandoned(path: &Path) -> bool {
    let is_socket = fs::symlink_metadata(path).is_ok_and(|of| of.file_type().is_socket());
    let tried = std::os::unix::net::UnixStream::connect(path);
    is_socket && tried.is_err_and(|error| error.kind() == io::ErrorKind::ConnectionRefused)
}
