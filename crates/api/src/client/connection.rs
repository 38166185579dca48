//! One HTTP connection, with the task that drives it.

use std::io;
use std::net::{IpAddr, SocketAddr, ToSocketAddrs};
use std::thread::Builder;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::client::conn::http1::{self, SendRequest};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use muster_link::tls::{self, Connector};
use muster_link::unix;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::sync::oneshot;
use tokio::task::JoinSet;
use tokio::time::timeout;

use super::endpoint::Address;
use super::pieces::Pieces;
use super::{Endpoint, Error, Line};

/// A host that does not answer in this time is not there; the system's own patience is over two minutes.
const CONNECT_DEADLINE: Duration = Duration::from_secs(10);

/// A connection; dropping it closes it.
pub(super) struct Connection {
    sender: SendRequest<Pieces>,
    /// Owns the task that moves the bytes, and ends it with the connection.
    _driver: JoinSet<()>,
}

impl Connection {
    pub async fn open(endpoint: &Endpoint, connector: Option<&Connector>) -> Result<Self, Error> {
        let unreachable = |source| Error::Unreachable { endpoint: endpoint.to_string(), source };
        let dial = async {
            match &endpoint.address {
                Address::Unix(path) => {
                    let path = unix::socket_path(path).map_err(unreachable)?;
                    Self::over(UnixStream::connect(path.as_path()).await.map_err(unreachable)?).await
                }
                Address::Tcp { host, port, .. } => {
                    let addresses = addresses(host, *port).await.map_err(unreachable)?;
                    let stream = TcpStream::connect(addresses.as_slice()).await.map_err(unreachable)?;
                    stream.set_nodelay(true).map_err(unreachable)?;
                    // One type for both, since all that is made of it is made for each type.
                    let stream: Line = match connector {
                        None => Box::new(stream),
                        Some(connector) => Box::new(
                            connector
                                .connect(host, stream)
                                .await
                                .map_err(|error| refused(endpoint, error))?,
                        ),
                    };
                    Self::over(stream).await
                }
            }
        };
        timeout(CONNECT_DEADLINE, dial).await.map_err(|_| unreachable(io::ErrorKind::TimedOut.into()))?
    }

    async fn over<S>(stream: S) -> Result<Self, Error>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let (sender, connection) = http1::handshake(TokioIo::new(stream))
            .await
            .map_err(|error| Error::Lost { source: Some(error) })?;
        let mut driver = JoinSet::new();
        // Its errors reach whoever waits for a reply.
        driver.spawn(async move { drop(connection.with_upgrades().await) });
        Ok(Self { sender, _driver: driver })
    }

    /// Whether it can take another request, as far as is known.
    pub fn is_open(&self) -> bool {
        !self.sender.is_closed()
    }

    /// Sends a request. What was never sent comes back, to be sent elsewhere: a server closes idle connections
    /// whenever it likes.
    pub async fn send(&mut self, request: Request<Pieces>) -> Result<Response<Incoming>, Refused> {
        if let Err(error) = self.sender.ready().await {
            return Err(Refused { error, request: Some(request) });
        }
        self.sender
            .try_send_request(request)
            .await
            .map_err(|mut refused| Refused { request: refused.take_message(), error: refused.into_error() })
    }
}

/// The addresses of a host. The lookup of a name blocks; tokio's own panics where no thread can be made for it.
async fn addresses(host: &str, port: u16) -> io::Result<Vec<SocketAddr>> {
    match host.parse::<IpAddr>() {
        Ok(ip) => Ok(vec![(ip, port).into()]),
        Err(_) => look_up(host, port, |lookup| Builder::new().spawn(lookup).map(drop)).await,
    }
}

/// Looks a name up. `start` does so on a thread.
async fn look_up(
    host: &str,
    port: u16,
    start: impl FnOnce(Box<dyn FnOnce() + Send>) -> io::Result<()>,
) -> io::Result<Vec<SocketAddr>> {
    let (sender, found) = oneshot::channel();
    let name = host.to_owned();
    let lookup = move || {
        let found = (name.as_str(), port).to_socket_addrs().map(Iterator::collect);
        // The caller may have given up.
        let _ = sender.send(found);
    };
    start(Box::new(lookup)).map_err(|error| {
        let what = format!("no thread can be made to look up {host}, see `ulimit -u`: {error}");
        io::Error::new(error.kind(), what)
    })?;
    found.await.map_err(|_| io::Error::other("the lookup of its name failed"))?
}

pub(super) fn refused(endpoint: &Endpoint, error: tls::Error) -> Error {
    let endpoint = endpoint.to_string();
    match error {
        tls::Error::Broken(source) => Error::Unreachable { endpoint, source },
        source => Error::Tls { endpoint, source },
    }
}

/// A request that got no reply.
pub(super) struct Refused {
    pub error: hyper::Error,
    /// There when it was never sent.
    pub request: Option<Request<Pieces>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_name_is_looked_up_beside_and_without_a_thread_there_is_an_error() {
        let found = addresses("localhost", 7).await.unwrap();
        assert!(found.iter().all(|address| address.ip().is_loopback() && address.port() == 7), "{found:?}");
        assert_eq!(addresses("::1", 7).await.unwrap(), ["[::1]:7".parse().unwrap()]);
        let none = |_| Err(io::ErrorKind::WouldBlock.into());
        let refused = look_up("localhost", 7, none).await.unwrap_err();
        assert!(refused.to_string().contains("no thread can be made to look up localhost"), "{refused}");
    }
}
