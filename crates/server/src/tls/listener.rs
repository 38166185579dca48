//! Connections by TCP, with TLS or without.
//!
//! Handshakes go on beside one another, each for a bounded time, so that nobody who is slow keeps others waiting. There are a
//! bounded number of them; when there is one more, the oldest is given up, which a client in good faith has left behind in
//! milliseconds. So whoever opens connections and says nothing gives up his own.

use std::collections::VecDeque;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use muster_api::problem::{Code, Problem};
use muster_link::dial::Connection;
use muster_link::tls;
use rustls::ServerConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::{AbortHandle, JoinSet};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;

use super::Certificate;

/// A handshake is two or three messages; this is for the slowest of networks.
const DEADLINE: Duration = Duration::from_secs(10);
/// Each has a descriptor and a few kilobytes.
const MAX_HANDSHAKES: usize = 512;
/// What every TLS connection begins with: a record of a handshake.
const HANDSHAKE: u8 = 22;
/// How much of a request is read by whoever does not want it, so that its sender gets to read the answer.
const MAX_STRAY: u64 = 64 << 10;

/// Where connections come in.
pub(crate) struct Listener {
    tcp: TcpListener,
    tls: Option<Handshakes>,
}

impl Listener {
    pub fn plain(tcp: TcpListener) -> Self {
        Self { tcp, tls: None }
    }

    pub fn tls(tcp: TcpListener, certificate: Arc<Certificate>) -> Result<Self, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(certificate);
        config.alpn_protocols = vec![tls::ALPN.to_vec()];
        Ok(Self { tcp, tls: Some(Handshakes::new(TlsAcceptor::from(Arc::new(config)))) })
    }
}

impl axum::serve::Listener for Listener {
    // One type for both, since all that serves a connection is made for each type.
    type Io = Box<dyn Connection>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, SocketAddr) {
        let Some(handshakes) = &mut self.tls else {
            let (stream, peer) = axum::serve::Listener::accept(&mut self.tcp).await;
            // It is only quicker.
            drop(stream.set_nodelay(true));
            return (Box::new(stream), peer);
        };
        loop {
            tokio::select! {
                (stream, peer) = axum::serve::Listener::accept(&mut self.tcp) => handshakes.begin(stream, peer),
                Some(done) = handshakes.running.join_next() => {
                    // None: nothing came of it, or it was given up.
                    if let Ok(Some(connection)) = done {
                        return connection;
                    }
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.tcp.local_addr()
    }
}

type Accepted = (Box<dyn Connection>, SocketAddr);

struct Handshakes {
    acceptor: TlsAcceptor,
    running: JoinSet<Option<Accepted>>,
    /// Those that run, and some that are over, the oldest first.
    order: VecDeque<AbortHandle>,
    limit: usize,
}

impl Handshakes {
    fn new(acceptor: TlsAcceptor) -> Self {
        Self { acceptor, running: JoinSet::new(), order: VecDeque::new(), limit: MAX_HANDSHAKES }
    }

    fn begin(&mut self, stream: TcpStream, peer: SocketAddr) {
        if self.order.len() >= self.limit {
            self.order.retain(|handshake| !handshake.is_finished());
        }
        if self.order.len() >= self.limit
            && let Some(oldest) = self.order.pop_front()
        {
            oldest.abort();
        }
        let acceptor = self.acceptor.clone();
        self.order.push_back(self.running.spawn(async move {
            match timeout(DEADLINE, handshake(acceptor, stream)).await {
                Ok(Ok(connection)) => connection.map(|connection| (connection, peer)),
                Ok(Err(error)) => {
                    tracing::debug!(%peer, %error, "no TLS");
                    None
                }
                Err(_) => {
                    tracing::debug!(%peer, "no TLS in time");
                    None
                }
            }
        }));
    }
}

async fn handshake(acceptor: TlsAcceptor, stream: TcpStream) -> io::Result<Option<Box<dyn Connection>>> {
    drop(stream.set_nodelay(true));
    let mut first = [0];
    match stream.peek(&mut first).await? {
        0 => Ok(None),
        _ if first[0] == HANDSHAKE => Ok(Some(Box::new(acceptor.accept(stream).await?))),
        _ => explain(stream).await.map(|()| None),
    }
}

/// Whoever does not speak TLS most likely speaks HTTP.
async fn explain(mut stream: TcpStream) -> io::Result<()> {
    let problem =
        Problem::new(Code::InvalidRequest, "this port speaks TLS").hint("write https:// in place of http://");
    let body = serde_json::to_vec(&problem).unwrap_or_default();
    let head = format!(
        "HTTP/1.1 400 Bad Request\r\ncontent-type: application/problem+json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
        body.len()
    );
    stream.write_all(head.as_bytes()).await?;
    stream.write_all(&body).await?;
    stream.shutdown().await?;
    // What is left unread makes the system break the connection, and the answer is lost with it.
    tokio::io::copy(&mut stream.take(MAX_STRAY), &mut tokio::io::sink()).await.map(drop)
}

#[cfg(test)]
mod tests {
    use muster_link::tls::{Connector, Error};

    use super::*;

    /// A listener whose connections answer with what they are sent, and the certificate it shows.
    async fn echoing(limit: usize) -> (SocketAddr, Arc<Certificate>, JoinSet<()>) {
        let dir = tempfile::tempdir().unwrap();
        let certificate = Certificate::own(dir.path(), &["localhost"]).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let mut listener = Listener::tls(tcp, certificate.clone()).unwrap();
        listener.tls.as_mut().unwrap().limit = limit;
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = axum::serve::Listener::accept(&mut listener).await;
                connections.spawn(async move {
                    let (mut read, mut write) = tokio::io::split(stream);
                    drop(tokio::io::copy(&mut read, &mut write).await);
                });
            }
        });
        (address, certificate, serving)
    }

    async fn echo(address: SocketAddr, connector: &Connector) -> Result<(), Error> {
        let stream = TcpStream::connect(address).await.unwrap();
        let mut stream = connector.connect("nobody.example", stream).await?;
        stream.write_all(b"hello").await.unwrap();
        let mut said = [0; 5];
        stream.read_exact(&mut said).await.unwrap();
        assert_eq!(&said, b"hello");
        Ok(())
    }

    #[tokio::test]
    async fn the_oldest_of_too_many_who_are_silent_gives_way() {
        let (address, certificate, _serving) = echoing(3).await;
        let connector = Connector::new(Some(certificate.fingerprint())).unwrap();
        let mut silent = Vec::new();
        for _ in 0..9 {
            silent.push(TcpStream::connect(address).await.unwrap());
        }
        let begun = tokio::time::Instant::now();
        echo(address, &connector).await.unwrap();
        assert!(begun.elapsed() < DEADLINE / 2);
        // The first were given up, long before their time was over.
        assert_eq!(silent[0].read(&mut [0]).await.unwrap_or(0), 0);
        assert!(begun.elapsed() < DEADLINE / 2);
    }

    #[tokio::test]
    async fn only_the_certificate_that_is_pinned_will_do() {
        let (address, certificate, _serving) = echoing(MAX_HANDSHAKES).await;
        let found = certificate.fingerprint();
        echo(address, &Connector::new(Some(found)).unwrap()).await.unwrap();
        let other = tls::Fingerprint::of(b"another");
        let refused = echo(address, &Connector::new(Some(other)).unwrap()).await.unwrap_err();
        assert!(matches!(refused, Error::Changed { pinned, found: it } if (pinned, it) == (other, found)));
        let unknown = echo(address, &Connector::new(None).unwrap()).await.unwrap_err();
        assert!(matches!(unknown, Error::Unknown { found: it, .. } if it == found));
    }

    #[tokio::test]
    async fn whoever_does_not_speak_tls_is_told_so() {
        let (address, certificate, _serving) = echoing(MAX_HANDSHAKES).await;
        let mut plain = TcpStream::connect(address).await.unwrap();
        plain.write_all(b"GET / HTTP/1.1\r\nhost: x\r\n\r\n").await.unwrap();
        let mut said = String::new();
        // The end comes from the server as soon as the client has no more to say.
        plain.shutdown().await.unwrap();
        plain.read_to_string(&mut said).await.unwrap();
        assert!(said.starts_with("HTTP/1.1 400 ") && said.contains("https://"), "{said}");
        // The other way round.
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let at = tcp.local_addr().unwrap();
        let mut answering = JoinSet::new();
        answering.spawn(async move {
            let (mut stream, _) = tcp.accept().await.unwrap();
            stream.write_all(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.unwrap();
            // Whoever reads it is the one to hang up.
            drop(tokio::io::copy(&mut stream, &mut tokio::io::sink()).await);
        });
        let refused = echo(at, &Connector::new(Some(certificate.fingerprint())).unwrap()).await.unwrap_err();
        assert!(matches!(refused, Error::NotTls), "{refused:?}");
    }
}
