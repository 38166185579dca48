//! The beginning of a connection with TLS.
//!
//! How long it may take, and how many there may be, is the port's to say ([`crate::port`]).

use std::io;
use std::sync::Arc;

use muster_api::problem::{Code, Problem};
use muster_link::dial::Connection;
use muster_link::tls;
use rustls::ServerConfig;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;

use super::Certificate;

/// What every TLS connection begins with: a record of a handshake.
const HANDSHAKE: u8 = 22;
/// How much of a request is read by whoever does not want it, so that its sender gets to read the answer.
const MAX_STRAY: u64 = 64 << 10;

/// Shakes hands with whoever connects.
#[derive(Clone)]
pub(crate) struct Shake {
    acceptor: TlsAcceptor,
}

impl Shake {
    pub fn new(certificate: Arc<Certificate>) -> Result<Self, rustls::Error> {
        let mut config = ServerConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()?
            .with_no_client_auth()
            .with_cert_resolver(certificate);
        config.alpn_protocols = vec![tls::ALPN.to_vec()];
        Ok(Self { acceptor: TlsAcceptor::from(Arc::new(config)) })
    }

    /// The connection, as the other end sees it; none where it has ended, or has nothing to do with TLS and was told so.
    pub async fn shake(&self, stream: TcpStream) -> io::Result<Option<Box<dyn Connection>>> {
        let mut first = [0];
        match stream.peek(&mut first).await? {
            0 => Ok(None),
            _ if first[0] == HANDSHAKE => Ok(Some(Box::new(self.acceptor.accept(stream).await?))),
            _ => explain(stream).await.map(|()| None),
        }
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
    use std::net::SocketAddr;

    use muster_link::tls::{Connector, Error};
    use tokio::net::TcpListener;
    use tokio::task::JoinSet;

    use super::*;

    /// A port whose connections answer with what they are sent, and the certificate it shows.
    async fn echoing() -> (SocketAddr, Arc<Certificate>, JoinSet<()>) {
        let dir = tempfile::tempdir().unwrap();
        let certificate = Certificate::own(dir.path(), &["localhost"]).unwrap();
        let tcp = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = tcp.local_addr().unwrap();
        let shake = Shake::new(certificate.clone()).unwrap();
        let mut serving = JoinSet::new();
        serving.spawn(async move {
            let mut connections = JoinSet::new();
            loop {
                let (stream, _) = tcp.accept().await.unwrap();
                let shake = shake.clone();
                connections.spawn(async move {
                    let Ok(Some(stream)) = shake.shake(stream).await else { return };
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
    async fn only_the_certificate_that_is_pinned_will_do() {
        let (address, certificate, _serving) = echoing().await;
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
        let (address, certificate, _serving) = echoing().await;
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
