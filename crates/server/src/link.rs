//! Agents dialling in: the two connections of each, and what they carry.

mod bulk;
mod ways;

use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use axum::Extension;
use axum::extract::State;
use axum::extract::ws::rejection::WebSocketUpgradeRejection;
use axum::extract::ws::{Message, WebSocket, WebSocketUpgrade};
use axum::http::HeaderMap;
use axum::response::Response;
use muster_api::problem::{Code, Problem};
use muster_link::control::{self, Received};
use muster_link::dial::Channel;
use muster_link::message::{Hello, ToAgent, ToServer};
use muster_link::session::{self, Side, Stream};
use muster_model::NodeId;
use muster_store::NewAudit;
use serde::Deserialize;
use tokio::io::{AsyncRead, AsyncWrite, AsyncWriteExt, BufReader, BufWriter, ReadHalf, WriteHalf};
use tokio::sync::mpsc;
use tokio::task::{JoinError, JoinSet};
use tokio::time::timeout;

use crate::audit::CountedKind;
use crate::core::{ConnectionId, Input};
use crate::http::{Failure, Params};
use crate::port::Origin;
use crate::state::Shared;

use bulk::LaneLogs;
pub(crate) use ways::Bulks;

/// Messages an agent may be behind before it is cut off; enough for the largest burst of prepares to one node.
const OUTBOX: usize = 4096;
/// A connection says something at least this often.
const PING: Duration = Duration::from_secs(5);
/// A peer silent for three pings is gone.
const SILENCE: Duration = Duration::from_secs(15);
/// How long an agent may take to hear the last words.
const GOODBYE: Duration = Duration::from_secs(1);
/// Streams one agent may have served at once; the rest wait in its session.
const STREAMS: usize = 1024;

static NEXT_CONNECTION: AtomicU64 = AtomicU64::new(1);

/// What an agent says in the URL it dials.
#[derive(Debug, Deserialize)]
pub(crate) struct Dial {
    channel: Channel,
    node: NodeId,
}

/// `GET /api/v1/link`: the upgrade.
pub(crate) async fn accept(
    State(shared): State<Arc<Shared>>,
    Params(dial): Params<Dial>,
    headers: HeaderMap,
    origin: Option<Extension<Origin>>,
    upgrade: Result<WebSocketUpgrade, WebSocketUpgradeRejection>,
) -> Result<Response, Failure> {
    if !shared.auth.is_node(&dial.node, &headers) {
        let address = origin.map(|Extension(origin)| origin.address.to_string());
        let entry = NewAudit::new(crate::core::now(), "link", Code::Unauthorized.entry().code);
        let target = dial.node.to_string();
        shared.trail.count(NewAudit { address, target, status: Some(401), ..entry }, CountedKind::Refusal);
        return Err(Problem::new(Code::Unauthorized, format!("not the token of {}", dial.node)).into());
    }
    let is_tcp = origin.is_some();
    origin.into_iter().for_each(|Extension(origin)| origin.seat.know());
    let upgrade = upgrade.map_err(|rejection| Problem::new(Code::InvalidRequest, rejection.body_text()))?;
    Ok(upgrade.on_upgrade(async move |socket| {
        let result = match dial.channel {
            Channel::Control => serve_control(&shared, &dial.node, is_tcp, bytes(socket)).await,
            Channel::Bulk => serve_bulk(&shared, &dial.node, bytes(socket)).await,
        };
        if let Err(error) = result {
            tracing::debug!(node = %dial.node, channel = dial.channel.as_str(), %error, "a link ended");
        }
    }))
}

/// An upgraded WebSocket as bytes.
pub(crate) fn bytes(socket: WebSocket) -> impl AsyncRead + AsyncWrite + Unpin + Send + 'static {
    let payload = |message| if let Message::Binary(bytes) = message { Some(bytes) } else { None };
    muster_link::websocket::bytes(socket, payload, Message::Binary)
}

async fn serve_control(
    shared: &Shared,
    node: &NodeId,
    is_tcp: bool,
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> io::Result<()> {
    let (_opener, mut incoming, driver) = session::start(io, Side::Server);
    let conversation = async {
        let stream = timeout(SILENCE, incoming.next()).await?.ok_or(io::ErrorKind::UnexpectedEof)?;
        let (reader, writer) = tokio::io::split(stream);
        let mut reader = BufReader::new(reader);
        let hello = receive_hello(&mut reader, node).await?;
        let connection = ConnectionId(NEXT_CONNECTION.fetch_add(1, Ordering::Relaxed));
        let (outbox, messages) = mpsc::channel(OUTBOX);
        // Only the core holds on to it: dropping it there is how it ends this connection.
        let unsupported = outbox.downgrade();
        let connected = Input::AgentConnected { connection, hello: Box::new(hello), outbox, is_tcp };
        shared.core.tell(connected).await.map_err(io::Error::other)?;
        let ended = tokio::select! {
            ended = receive_all(shared, connection, node, &mut reader, unsupported) => ended,
            ended = send_all(shared, messages, BufWriter::new(writer)) => ended,
        };
        shared.metrics.gone(node, connection);
        // The core may already be gone.
        drop(shared.core.tell(Input::AgentGone { connection, node: node.clone() }).await);
        ended
    };
    // The conversation must get to say that the agent is gone, also when the connection ends first.
    let mut conversation = std::pin::pin!(conversation);
    tokio::select! {
        ended = &mut conversation => ended,
        _ = driver => conversation.await,
    }
}

async fn receive_hello(reader: &mut BufReader<ReadHalf<Stream>>, node: &NodeId) -> io::Result<Hello> {
    match timeout(SILENCE, control::receive(reader)).await?? {
        Some(Received::Message(ToServer::Hello(hello))) if hello.node == *node => Ok(*hello),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the agent did not say hello for its node")),
    }
}

async fn receive_all(
    shared: &Shared,
    connection: ConnectionId,
    node: &NodeId,
    reader: &mut BufReader<ReadHalf<Stream>>,
    outbox: mpsc::WeakSender<ToAgent>,
) -> io::Result<()> {
    while let Some(received) = timeout(SILENCE, control::receive(reader)).await?? {
        match received {
            Received::Message(ToServer::Ping) => {}
            // They decide nothing, so the core is not bothered with them.
            Received::Message(ToServer::Metrics(sample)) => shared.metrics.put(node, connection, *sample),
            Received::Message(message) => {
                let said = Input::AgentSaid { connection, node: node.clone(), message };
                shared.core.tell(said).await.map_err(io::Error::other)?;
            }
            Received::Unknown { kind } => {
                if let Some(outbox) = outbox.upgrade() {
                    // One that does not read is not waited for.
                    let _ = outbox.try_send(ToAgent::Unsupported { what: kind });
                }
            }
        }
    }
    Ok(())
}

async fn send_all(
    shared: &Shared,
    mut messages: mpsc::Receiver<ToAgent>,
    mut writer: BufWriter<WriteHalf<Stream>>,
) -> io::Result<()> {
    loop {
        let hanging_up = tokio::select! {
            message = timeout(PING, messages.recv()) => {
                match message {
                    Ok(Some(message)) => control::send(&mut writer, &message).await?,
                    // The core has dropped this connection.
                    Ok(None) => return Ok(()),
                    Err(_) => control::send(&mut writer, &ToAgent::Ping).await?,
                }
                false
            }
            () = shared.hang_up.cancelled() => true,
        };
        while let Ok(message) = messages.try_recv() {
            control::send(&mut writer, &message).await?;
        }
        writer.flush().await?;
        if hanging_up {
            writer.shutdown().await?;
            // The agent hangs up when it has read everything, which ends the receiving side first.
            tokio::time::sleep(GOODBYE).await;
            return Ok(());
        }
    }
}

async fn serve_bulk(
    shared: &Arc<Shared>,
    node: &NodeId,
    io: impl AsyncRead + AsyncWrite + Unpin + Send + 'static,
) -> io::Result<()> {
    let (opener, mut incoming, driver) = session::start(io, Side::Server);
    let mut way = shared.bulks.add(node, opener);
    let mut driver = Box::pin(driver);
    let (mut streams, lanes) = (JoinSet::new(), Arc::new(LaneLogs::default()));
    let ended = loop {
        tokio::select! {
            ended = &mut driver => break ended,
            () = way.replaced() => break Ok(()),
            () = shared.hang_up.cancelled() => return Ok(()),
            stream = incoming.next(), if streams.len() < STREAMS => match stream {
                Some(stream) => {
                    drop(streams.spawn(bulk::serve(shared.clone(), node.clone(), lanes.clone(), stream)));
                }
                None => break Ok(()),
            },
            Some(done) = streams.join_next() => log_stream_end(done),
        }
    };
    drop((driver, incoming, way));
    // What they wait for, and what they were sent, is of no use any more: the agent sends it again over its next connection.
    streams.abort_all();
    while let Some(done) = streams.join_next().await {
        log_stream_end(done);
    }
    for task in lanes.take() {
        bulk::tell_growth(shared, &task).await?;
    }
    ended
}

fn log_stream_end(done: Result<io::Result<()>, JoinError>) {
    if let Ok(Err(error)) = done {
        tracing::debug!(%error, "a bulk stream ended");
    }
}

#[cfg(test)]
mod tests;
