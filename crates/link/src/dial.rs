//! The agent's side of making a connection: a Unix socket or TCP, or a way that somebody else has made, then the WebSocket
//! upgrade.

pub mod greeting;
mod post;

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use futures::StreamExt;
use futures::stream::FuturesUnordered;
pub use post::Post;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio_tungstenite::tungstenite::client::IntoClientRequest;
use tokio_tungstenite::tungstenite::http::HeaderValue;

use crate::tls::{self, Fingerprint};

/// The path of the upgrade; the channel is a query parameter.
pub const PATH: &str = "/api/v1/link";
/// Connecting and upgrading together; a server that takes longer is as good as gone, and the caller tries again.
const DEADLINE: Duration = Duration::from_secs(10);
/// How long a TCP connection may take before another is made beside it.
const BESIDE: Duration = Duration::from_secs(1);

/// What a server is called that needs no name.
const LOCALHOST: &str = "localhost";

/// Where the server is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Server {
    /// A socket on this machine.
    Unix(PathBuf),
    /// `host:port`.
    Tcp(String),
    /// `host:port` where TLS is spoken, by whom this machine believes or by the certificate that is pinned.
    Tls { address: String, pinned: Option<Fingerprint> },
    /// It cannot be reached: who carries its connections calls at sockets in this directory.
    Carried(PathBuf),
    /// Somebody leads to it whose address is in this file, a [`Post`]. It is read at every dial, since it may have moved.
    Posted(PathBuf),
    /// It cannot be reached: who carries its connections calls here with a [`greeting`], at this address for messages and at
    /// the next port for the rest.
    Called(SocketAddr),
}

/// Which of an agent's two connections.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Channel {
    /// Messages.
    Control,
    /// Logs and chunks.
    Bulk,
}

impl Channel {
    /// Its name in the query.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Control => "control",
            Self::Bulk => "bulk",
        }
    }
}

/// Dials, shows the token, and gives the connection as bytes.
pub async fn dial(
    server: &Server,
    channel: Channel,
    node: &muster_model::NodeId,
    token: &str,
) -> io::Result<Box<dyn Connection>> {
    in_time(async {
        match server {
            Server::Unix(path) => {
                upgrade(UnixStream::connect(path).await?, LOCALHOST, channel, node, token).await
            }
            Server::Tcp(address) => upgrade(tcp(address).await?, address, channel, node, token).await,
            Server::Tls { address, pinned } => {
                let connector = tls::Connector::new(*pinned)?;
                let stream = connector.connect(host_of(address), tcp(address).await?).await?;
                upgrade(stream, address, channel, node, token).await
            }
            Server::Posted(path) => {
                upgrade(post::connect(path).await?, LOCALHOST, channel, node, token).await
            }
            Server::Carried(_) | Server::Called(_) => {
                Err(io::Error::new(io::ErrorKind::Unsupported, "the server comes here, and is not dialled"))
            }
        }
    })
    .await
}

async fn tcp(address: &str) -> io::Result<TcpStream> {
    let stream = first(|| TcpStream::connect(address)).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}

/// The name or address that a certificate is to have.
fn host_of(address: &str) -> &str {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    host.trim_start_matches('[').trim_end_matches(']')
}

/// The same over a way to the server that somebody else has made.
pub async fn over(
    way: impl Connection + 'static,
    channel: Channel,
    node: &muster_model::NodeId,
    token: &str,
) -> io::Result<Box<dyn Connection>> {
    in_time(upgrade(way, LOCALHOST, channel, node, token)).await
}

/// The first of several tries that comes to something, each made a while after the one before. The address of a cluster's Service
/// leads for a moment to a server that is gone, and all packets of a connection go where its first one went: a try from that moment
/// ends only when time is up, long after the address leads to the next server.
async fn first<T, F: Future<Output = io::Result<T>>>(mut make: impl FnMut() -> F) -> io::Result<T> {
    let mut tries = FuturesUnordered::new();
    let mut again = tokio::time::interval(BESIDE);
    loop {
        tokio::select! {
            _ = again.tick() => tries.push(make()),
            Some(tried) = tries.next() => match tried {
                Err(_) if !tries.is_empty() => {}
                tried => return tried,
            },
        }
    }
}

async fn in_time(
    connecting: impl Future<Output = io::Result<Box<dyn Connection>>>,
) -> io::Result<Box<dyn Connection>> {
    tokio::time::timeout(DEADLINE, connecting)
        .await
        .map_err(|_| io::Error::new(io::ErrorKind::TimedOut, "the server did not answer"))?
}

/// What a dialled connection is.
pub trait Connection: AsyncRead + AsyncWrite + Unpin + Send {}
impl<T: AsyncRead + AsyncWrite + Unpin + Send> Connection for T {}

async fn upgrade<T>(
    stream: T,
    host: &str,
    channel: Channel,
    node: &muster_model::NodeId,
    token: &str,
) -> io::Result<Box<dyn Connection>>
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let url = format!("ws://{host}{PATH}?channel={}&node={node}", channel.as_str());
    let mut request = url.into_client_request().map_err(io::Error::other)?;
    let bearer = HeaderValue::from_str(&format!("Bearer {token}")).map_err(io::Error::other)?;
    request.headers_mut().insert("authorization", bearer);
    let (socket, _) = tokio_tungstenite::client_async(request, stream).await.map_err(io::Error::other)?;
    Ok(Box::new(crate::websocket::client(socket)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_try_that_leads_nowhere_holds_up_no_other() {
        let begun = tokio::time::Instant::now();
        let mut number = 0;
        let found = first(|| {
            number += 1;
            let number = number;
            async move {
                match number {
                    1 => std::future::pending().await,
                    2 | 3 => Err(io::ErrorKind::ConnectionRefused.into()),
                    _ => Ok(number),
                }
            }
        });
        assert_eq!((found.await.unwrap(), begun.elapsed()), (4, 3 * BESIDE));
        // Who is refused at once is told so at once.
        let refused: io::Result<()> = first(|| async { Err(io::ErrorKind::ConnectionRefused.into()) }).await;
        assert!(refused.is_err() && begun.elapsed() == 3 * BESIDE);
    }
}
