//! Getting a connection to the server, for as long as it takes.
//!
//! A server that is restarted should be found at once, a server that is gone should not be hammered: the pause between
//! two tries grows to about a third of the time that the server is away, with some chance in it so that a thousand agents do
//! not come in step, and ends early when the server's socket appears. Where the server is the one who comes, there is nothing to try: its next call is waited for.

use std::io;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use muster_link::dial::{self, Channel, Connection, Server};
use muster_model::NodeId;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::Options;
use crate::callers::Callers;

const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(5);
/// A connection that lasted this long was one.
const WORKED: Duration = Duration::from_secs(1);
/// A peer that says nothing for this long is gone: three times the pause between two of its pings.
const SILENCE: Duration = Duration::from_secs(15);

/// Dials one of the two connections, again and again.
#[derive(Debug)]
pub(crate) struct Dialer {
    server: Server,
    /// Where the server comes here.
    callers: Option<Callers>,
    channel: Channel,
    node: NodeId,
    token_file: PathBuf,
    /// Changes when the server's socket was made anew.
    appeared: watch::Receiver<()>,
    pause: Duration,
    /// The last connection came to nothing: a server that cannot have us now is not asked again at once.
    is_refused: bool,
}

/// A connection, and the sign whether it lives.
pub(crate) struct Connected {
    pub(crate) io: Watched,
    pub(crate) pulse: Pulse,
}

impl Dialer {
    pub(crate) fn new(
        options: &Options,
        channel: Channel,
        appeared: watch::Receiver<()>,
    ) -> io::Result<Dialer> {
        let callers = Callers::open(&options.server, channel, &options.token_file)?;
        Ok(Dialer {
            callers,
            server: options.server.clone(),
            channel,
            node: options.node.clone(),
            token_file: options.token_file.clone(),
            appeared,
            pause: FIRST_PAUSE,
            is_refused: false,
        })
    }

    /// The next connection. Waits for the server as long as it takes.
    pub(crate) async fn connect(&mut self) -> Connected {
        let io = if self.callers.is_some() { self.answer().await } else { self.dial_until_answered().await };
        let pulse = Pulse::new();
        Connected { io: Watched { io, pulse: pulse.clone() }, pulse }
    }

    /// Ends when the server has come anew, by which the connection in use is as good as lost.
    pub(crate) async fn superseded(&mut self) {
        match &mut self.callers {
            Some(callers) => callers.wait().await,
            None => std::future::pending().await,
        }
    }

    async fn answer(&mut self) -> Box<dyn Connection> {
        let Some(callers) = &mut self.callers else { return std::future::pending().await };
        loop {
            let way = callers.next().await;
            let upgrade = async {
                let token = tokio::fs::read_to_string(&self.token_file).await?;
                dial::over(way, self.channel, &self.node, token.trim()).await
            };
            let upgraded = tokio::select! {
                upgraded = upgrade => upgraded,
                () = callers.wait() => continue,
            };
            match upgraded {
                Ok(io) => return io,
                Err(error) => {
                    tracing::info!(channel = self.channel.as_str(), error = %error, "a caller leads to no server");
                }
            }
        }
    }

    async fn dial_until_answered(&mut self) -> Box<dyn Connection> {
        let mut told = false;
        if std::mem::take(&mut self.is_refused) {
            self.wait().await;
        }
        loop {
            self.appeared.mark_unchanged();
            match self.dial().await {
                Ok(io) => return io,
                // Once for each time that the server is away, and not once for each try.
                Err(error) if !told => {
                    tracing::info!(channel = self.channel.as_str(), error = %error, "the server cannot be reached");
                    told = true;
                }
                Err(error) => {
                    tracing::debug!(channel = self.channel.as_str(), error = %error, pause = ?self.pause, "the server cannot be reached yet");
                }
            }
            self.wait().await;
        }
    }

    /// The connection ended. One that lasted makes the next try prompt.
    pub(crate) fn lost(&mut self, since: Instant) {
        let worked = since.elapsed() >= WORKED;
        if worked {
            self.pause = FIRST_PAUSE;
        }
        self.is_refused = !worked;
    }

    async fn dial(&mut self) -> io::Result<Box<dyn Connection>> {
        let token = tokio::fs::read_to_string(&self.token_file).await?;
        dial::dial(&self.server, self.channel, &self.node, token.trim()).await
    }

    async fn wait(&mut self) {
        let chance = getrandom::u32().unwrap_or_default();
        // Between half and all of the pause.
        let pause = self.pause.mul_f64(0.5 + f64::from(chance) / f64::from(u32::MAX) / 2.0);
        let appeared = async {
            // Nobody watches for servers that have no socket here.
            if self.appeared.changed().await.is_err() {
                std::future::pending().await
            }
        };
        let soon = tokio::select! {
            () = tokio::time::sleep(pause) => false,
            () = appeared => true,
        };
        self.pause = if soon { FIRST_PAUSE } else { (self.pause * 4 / 3).min(LAST_PAUSE) };
    }
}

/// When the peer was last heard: any byte is a sign of life, also those of a message that is not complete.
#[derive(Debug, Clone)]
pub(crate) struct Pulse {
    epoch: Instant,
    heard_ms: Arc<AtomicU64>,
}

impl Pulse {
    fn new() -> Pulse {
        Pulse { epoch: Instant::now(), heard_ms: Arc::default() }
    }

    fn beat(&self) {
        self.heard_ms.store(self.epoch.elapsed().as_millis() as u64, Ordering::Relaxed);
    }

    /// Ends when the peer was silent for too long.
    pub(crate) async fn silence(&self) {
        loop {
            let deadline =
                self.epoch + Duration::from_millis(self.heard_ms.load(Ordering::Relaxed)) + SILENCE;
            if deadline <= Instant::now() {
                return;
            }
            tokio::time::sleep_until(deadline).await;
        }
    }
}

/// A connection whose pulse is taken.
pub(crate) struct Watched {
    io: Box<dyn Connection>,
    pulse: Pulse,
}

impl AsyncRead for Watched {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let polled = Pin::new(&mut self.io).poll_read(cx, buffer);
        if polled.is_ready() {
            self.pulse.beat();
        }
        polled
    }
}

impl AsyncWrite for Watched {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.io).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.io).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use muster_link::websocket;
    use tokio::net::UnixStream;

    use super::*;

    /// Somebody who leads to a server.
    async fn call(options: &Options) -> impl AsyncRead + AsyncWrite + use<> {
        let stream = UnixStream::connect(options.dir.join("bulk.sock")).await.unwrap();
        websocket::client(tokio_tungstenite::accept_async(stream).await.unwrap())
    }

    #[tokio::test]
    async fn the_newest_caller_is_the_one_that_counts() {
        let home = tempfile::tempdir().unwrap();
        let (dir, token) = (home.path().to_owned(), home.path().join("token"));
        std::fs::write(&token, "token").unwrap();
        let server = Server::Carried(dir.clone());
        let options = Options::new(dir, "node_test".parse().unwrap(), server, token, "/bin/false".into());
        let mut dialer = Dialer::new(&options, Channel::Bulk, watch::channel(()).1).unwrap();
        // One that leads nowhere holds nobody up.
        let _silent = UnixStream::connect(options.dir.join("bulk.sock")).await.unwrap();
        let (connected, _first) = tokio::join!(dialer.connect(), call(&options));
        let (superseded, other) = tokio::join!(
            async {
                dialer.superseded().await;
                // What was in use is dropped by whoever used it.
                drop(connected);
                dialer.connect().await
            },
            call(&options)
        );
        drop((superseded, other));
        // The next agent of the directory listens in its turn.
        drop(dialer);
        Dialer::new(&options, Channel::Bulk, watch::channel(()).1).unwrap();
    }
}
