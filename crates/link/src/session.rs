//! Many streams over one connection, each with its own flow control: a stream nobody reads stops by itself and
//! delays no other.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use futures::future::poll_fn;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::sync::{mpsc, oneshot};
use tokio_util::compat::{Compat, FuturesAsyncReadCompatExt, TokioAsyncReadCompatExt};

/// A stream of the session, for use with tokio.
pub type Stream = Compat<yamux::Stream>;

/// Streams a peer may open before someone takes them; more are refused, so that a peer cannot make us hoard them.
const WAITING_STREAMS: usize = 256;
/// Streams at once over one connection: beyond the tasks of any node.
const MAX_STREAMS: usize = 4096;
/// Every stream may be sent this much before it is read; the library's own figure, which cannot be chosen.
const FIRST_WINDOW: usize = 256 * 1024;
/// What all streams together may be sent beyond that, as they prove to be read fast: a copy over a long way needs it, and it is
/// all that readers who then stop can make us hold.
const GROWTH: usize = 64 << 20;
/// The unit a stream's bytes are sent in: large enough for bulk, small enough that streams take turns.
const SEND_UNIT: usize = 64 * 1024;

/// Which end of the connection this is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Side {
    /// The agent, who dialled.
    Agent,
    /// The server, who was dialled.
    Server,
}

/// Opens streams; cheap to clone.
#[derive(Debug, Clone)]
pub struct Opener {
    requests: mpsc::Sender<oneshot::Sender<Stream>>,
}

impl Opener {
    /// A new stream to the peer, or an error once the connection is gone.
    pub async fn open(&self) -> io::Result<Stream> {
        let (reply, opened) = oneshot::channel();
        self.requests.send(reply).await.map_err(|_| closed())?;
        opened.await.map_err(|_| closed())
    }
}

fn closed() -> io::Error {
    io::Error::new(io::ErrorKind::NotConnected, "the link is closed")
}

/// The streams the peer opened.
#[derive(Debug)]
pub struct Incoming {
    streams: mpsc::Receiver<Stream>,
}

impl Incoming {
    /// The next stream, or `None` once the connection is gone.
    pub async fn next(&mut self) -> Option<Stream> {
        self.streams.recv().await
    }
}

/// Makes streams of a connection. The returned future moves the bytes: whoever owns the connection polls it until it
/// ends, and dropping it ends every stream.
pub fn start<T>(io: T, side: Side) -> (Opener, Incoming, impl Future<Output = io::Result<()>> + Send)
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let mut config = yamux::Config::default();
    config.set_max_connection_receive_window(Some(MAX_STREAMS * FIRST_WINDOW + GROWTH));
    config.set_max_num_streams(MAX_STREAMS);
    config.set_split_send_size(SEND_UNIT);
    let mode = match side {
        Side::Agent => yamux::Mode::Client,
        Side::Server => yamux::Mode::Server,
    };
    let connection = yamux::Connection::new(io.compat(), config, mode);
    let (requests, waiting) = mpsc::channel(WAITING_STREAMS);
    let (accepted, streams) = mpsc::channel(WAITING_STREAMS);
    let mut driver = Driver { connection, waiting: Some(waiting), opening: None, accepted };
    (Opener { requests }, Incoming { streams }, poll_fn(move |cx| driver.poll(cx)))
}

struct Driver<T> {
    connection: yamux::Connection<Compat<T>>,
    waiting: Option<mpsc::Receiver<oneshot::Sender<Stream>>>,
    opening: Option<oneshot::Sender<Stream>>,
    accepted: mpsc::Sender<Stream>,
}

impl<T: AsyncRead + AsyncWrite + Unpin> Driver<T> {
    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        loop {
            self.poll_open(cx)?;
            match Pin::new(&mut self.connection).poll_next_inbound(cx) {
                Poll::Ready(Some(Ok(stream))) => {
                    // A full queue drops the stream, which resets it: the peer sees a refusal, not silence.
                    if self.accepted.try_send(stream.compat()).is_err() {
                        tracing::warn!("the peer opened more streams than are taken; one was refused");
                    }
                }
                Poll::Ready(Some(Err(error))) => return Poll::Ready(Err(io::Error::other(error))),
                Poll::Ready(None) => return Poll::Ready(Ok(())),
                Poll::Pending => return Poll::Pending,
            }
        }
    }

    fn poll_open(&mut self, cx: &mut Context<'_>) -> io::Result<()> {
        loop {
            if self.opening.is_none() {
                let Some(waiting) = &mut self.waiting else { return Ok(()) };
                match waiting.poll_recv(cx) {
                    Poll::Ready(Some(reply)) => self.opening = Some(reply),
                    Poll::Ready(None) => {
                        self.waiting = None;
                        return Ok(());
                    }
                    Poll::Pending => return Ok(()),
                }
            }
            match Pin::new(&mut self.connection).poll_new_outbound(cx) {
                Poll::Ready(Ok(stream)) => {
                    if let Some(reply) = self.opening.take() {
                        // The asker may have gone; the stream then closes itself.
                        let _ = reply.send(stream.compat());
                    }
                }
                Poll::Ready(Err(error)) => return Err(io::Error::other(error)),
                Poll::Pending => return Ok(()),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;

    #[tokio::test]
    async fn a_stream_nobody_reads_delays_no_other() {
        let (a, b) = tokio::io::duplex(64 * 1024);
        let (agent, _agent_in, agent_driver) = start(a, Side::Agent);
        let (_server, mut server_in, server_driver) = start(b, Side::Server);
        let talk = async {
            let mut stalled = agent.open().await.unwrap();
            let flood = async { while stalled.write_all(&[7; 4096]).await.is_ok() {} };
            let other = async {
                let _unread = server_in.next().await.unwrap();
                let mut stream = agent.open().await.unwrap();
                stream.write_all(b"hello").await.unwrap();
                stream.flush().await.unwrap();
                let mut got = [0; 5];
                server_in.next().await.unwrap().read_exact(&mut got).await.unwrap();
                assert_eq!(&got, b"hello");
            };
            tokio::select! { () = flood => panic!("the flood ended"), () = other => {} }
        };
        tokio::select! {
            _ = agent_driver => panic!("agent side ended"),
            _ = server_driver => panic!("server side ended"),
            done = tokio::time::timeout(std::time::Duration::from_secs(10), talk) => done.unwrap(),
        }
    }

    #[tokio::test]
    async fn opening_fails_once_the_connection_is_gone() {
        let (a, b) = tokio::io::duplex(1024);
        let (agent, _incoming, driver) = start(a, Side::Agent);
        drop(b);
        let _ = driver.await;
        assert!(agent.open().await.is_err());
    }
}
