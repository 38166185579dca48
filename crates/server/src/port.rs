//! The port: connections by TCP, with TLS or without, and how long each may take.
//!
//! Whoever can reach the port can open connections and say nothing, or say it slowly. So a connection on which nobody has shown a
//! good token lives for a bounded time in all, and there are a bounded number of them ([`room`]). One on which somebody has
//! may go on for as long as something moves: a stream, a call, an upload; only a request that stops halfway is cut off.

mod patience;
mod room;

use std::io;
use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use axum::Router;
use axum::serve::Listener;
use hyper::body::Incoming;
use hyper::server::conn::http1;
use hyper::service::{Service, service_fn};
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use muster_link::dial::Connection;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;
use tokio::time::{sleep, timeout};
use tokio_util::sync::CancellationToken;

use self::patience::Awaited;
pub(crate) use self::room::{Origin, network};
use self::room::{Room, Seat, Seated};
use crate::tls::Shake;

/// How long everything may take.
#[derive(Debug, Clone, Copy)]
struct Spans {
    /// A handshake is two or three messages; this is for the slowest of networks.
    handshake: Duration,
    /// All that a stranger does on one connection: to log in takes a second.
    stranger: Duration,
    /// Until a request's head is there, from the end of the one before it.
    head: Duration,
    /// Between two pieces of a request's body.
    pause: Duration,
    /// To come to an end, once that is wished.
    farewell: Duration,
}

const SPANS: Spans = Spans {
    handshake: Duration::from_secs(10),
    stranger: Duration::from_secs(30),
    head: Duration::from_secs(60),
    pause: Duration::from_secs(60),
    farewell: Duration::from_secs(5),
};

/// A port that is listened on.
pub(crate) struct Port {
    tcp: TcpListener,
    tls: Option<Shake>,
    room: Arc<Room>,
    spans: Spans,
}

impl Port {
    pub fn new(tcp: TcpListener, tls: Option<Shake>) -> Self {
        Self { tcp, tls, room: Arc::new(Room::of_process()), spans: SPANS }
    }

    /// Serves until it is told to stop; then those who are being answered get their answer.
    pub async fn serve(mut self, app: Router, stop: CancellationToken) {
        let mut connections = JoinSet::new();
        loop {
            tokio::select! {
                (stream, peer) = Listener::accept(&mut self.tcp) => {
                    let Some(seat) = self.room.take(peer.ip()) else {
                        tracing::warn!(%peer, "turned away: there are too many connections");
                        continue;
                    };
                    let one = One { seat, tls: self.tls.clone(), spans: self.spans, stop: stop.clone() };
                    connections.spawn(one.attend(stream, peer, app.clone()));
                }
                Some(_) = connections.join_next() => {}
                () = stop.cancelled() => break,
            }
        }
        while connections.join_next().await.is_some() {}
    }
}

/// One connection.
struct One {
    seat: Arc<Seat>,
    tls: Option<Shake>,
    spans: Spans,
    stop: CancellationToken,
}

impl One {
    async fn attend(self, stream: TcpStream, peer: SocketAddr, app: Router) {
        let seat = Arc::clone(&self.seat);
        tokio::select! {
            () = self.converse(stream, peer, app) => {}
            () = seat.given_up() => tracing::debug!(%peer, "gave way to somebody else"),
        }
    }

    async fn converse(self, stream: TcpStream, peer: SocketAddr, app: Router) {
        let stream = match self.open(stream).await {
            Ok(Some(stream)) => Seated::new(stream, Arc::clone(&self.seat)),
            Ok(None) => return,
            Err(error) => return tracing::debug!(%peer, %error, "no TLS"),
        };
        let origin = Origin { address: peer.ip(), seat: Arc::clone(&self.seat) };
        let pause = self.spans.pause;
        let service = service_fn(move |request: hyper::Request<Incoming>| {
            let mut request = request.map(|body| Awaited::new(body, pause));
            request.extensions_mut().insert(origin.clone());
            TowerToHyperService::new(app.clone()).call(request)
        });
        let connection = http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(self.spans.head)
            .serve_connection(TokioIo::new(stream), service)
            .with_upgrades();
        let mut connection = pin!(connection);
        tokio::select! {
            ended = connection.as_mut() => {
                return ended.unwrap_or_else(|error| tracing::debug!(%peer, %error, "a connection ended"));
            }
            () = self.stop.cancelled() => {}
            () = overstayed(&self.seat, self.spans.stranger) => tracing::debug!(%peer, "a stranger overstayed"),
        }
        connection.as_mut().graceful_shutdown();
        // Whatever it was, it has had its time.
        drop(timeout(self.spans.farewell, connection).await);
    }

    /// The connection as HTTP has it; none where it came to nothing.
    async fn open(&self, stream: TcpStream) -> io::Result<Option<Box<dyn Connection>>> {
        // It is only quicker.
        drop(stream.set_nodelay(true));
        let Some(tls) = &self.tls else { return Ok(Some(Box::new(stream))) };
        timeout(self.spans.handshake, tls.shake(stream)).await?
    }
}

/// Ends if nobody is known here when the time is over.
async fn overstayed(seat: &Seat, span: Duration) {
    sleep(span).await;
    if seat.is_known() {
        std::future::pending().await
    }
}

#[cfg(test)]
mod tests;
