//! Bytes between a channel and a socket, each way to its own end.
//!
//! What comes in is taken off the channel even while the socket does not take it, up to a bound: russh's loop waits for a channel
//! that is full, and with it would wait every other channel of the connection. It also tells the client that there is room again
//! as soon as something arrived, so the bound cannot be left to the client. What goes out waits for the client's word that
//! there is room, which stops nobody else.

use std::collections::VecDeque;
use std::sync::{Arc, Mutex, PoisonError};

use bytes::{Bytes, BytesMut};
use russh::server::Msg;
use russh::{Channel, ChannelMsg, ChannelReadHalf, ChannelWriteHalf};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

/// What a socket may be behind. Past it, its whole connection waits: the other way is to break the stream.
const BEHIND_BYTES: usize = 16 * 1024 * 1024;
/// What is read of a socket at once: two packets of the size that clients ask for.
const READ_BYTES: usize = 64 * 1024;

/// Streams at once through one connection; a browser behind `ssh -D` opens a hundred.
const MAX_STREAMS: usize = 512;

/// The streams of one connection, which go with it. Nothing else ends one: while russh waits for the client to agree to a
/// channel, nobody may lose interest in it, or the client's refusal would end the connection.
#[derive(Debug, Clone, Default)]
pub(super) struct Streams(Arc<Mutex<JoinSet<()>>>);

impl Streams {
    /// Starts one unless there are too many.
    pub fn start(&self, stream: impl Future<Output = ()> + Send + 'static) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        while all.try_join_next().is_some() {}
        if all.len() < MAX_STREAMS {
            all.spawn(stream);
        }
    }
}

/// Moves bytes until both sides have said all, or the client has closed the channel. One side's end is passed on, and
/// leaves the other side as it is.
pub(super) async fn pipe(channel: Channel<Msg>, socket: impl AsyncRead + AsyncWrite) {
    let (mut from, to) = channel.split();
    let (reading, writing) = split(socket);
    let (send, has_ended) = oneshot::channel();
    let inward = async {
        if feed(&mut from, writing).await == Fed::Ended {
            let _ = send.send(());
            while !matches!(from.wait().await, None | Some(ChannelMsg::Close)) {}
        }
    };
    let both = async {
        drain(reading, &to).await;
        let _ = has_ended.await;
    };
    tokio::select! {
        () = inward => {}
        () = both => {}
    }
    // A client that has closed it already needs no answer.
    let _ = to.close().await;
}

/// How a channel's input came to its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fed {
    /// The client has said all, or what reads it wants no more.
    Ended,
    /// The client has closed the channel.
    Closed,
}

/// Writes all that comes in on a channel, and closes the writer at its end.
pub(super) async fn feed(from: &mut ChannelReadHalf, mut to: impl AsyncWrite + Unpin) -> Fed {
    let mut waiting = Waiting::default();
    let mut end = None;
    loop {
        if waiting.is_empty()
            && let Some(end) = end
        {
            let _ = to.shutdown().await;
            return end;
        }
        // A client that has said all closes at once: what it said before is still to be written.
        let listens = end != Some(Fed::Closed) && waiting.bytes < BEHIND_BYTES;
        tokio::select! {
            message = from.wait(), if listens => match message {
                Some(ChannelMsg::Data { data }) => waiting.push(data),
                Some(ChannelMsg::Eof) => end = Some(Fed::Ended),
                Some(ChannelMsg::Close) | None => end = Some(Fed::Closed),
                Some(_) => {}
            },
            written = waiting.write(&mut to), if !waiting.is_empty() => {
                if written.is_err() {
                    return Fed::Ended;
                }
            }
        }
    }
}

/// What was taken and not yet written.
#[derive(Default)]
struct Waiting {
    parts: VecDeque<Bytes>,
    bytes: usize,
}

impl Waiting {
    fn push(&mut self, data: Bytes) {
        if !data.is_empty() {
            self.bytes += data.len();
            self.parts.push_back(data);
        }
    }

    fn is_empty(&self) -> bool {
        self.parts.is_empty()
    }

    /// Writes some of it. Dropped before it is done, it has written nothing.
    async fn write(&mut self, to: &mut (impl AsyncWrite + Unpin)) -> std::io::Result<()> {
        let Some(first) = self.parts.front_mut() else { return Ok(()) };
        let written = to.write_buf(first).await?;
        self.bytes -= written;
        if first.is_empty() {
            self.parts.pop_front();
        }
        match written {
            0 => Err(std::io::ErrorKind::WriteZero.into()),
            _ => Ok(()),
        }
    }
}

async fn drain(mut from: impl AsyncRead + Unpin, to: &ChannelWriteHalf<Msg>) {
    let mut buffer = BytesMut::new();
    loop {
        buffer.reserve(READ_BYTES);
        // A socket that broke has no more to say, as one that ended.
        if !from.read_buf(&mut buffer).await.is_ok_and(|read| read > 0) {
            break;
        }
        if to.data_bytes(buffer.split().freeze()).await.is_err() {
            break;
        }
    }
    let _ = to.eof().await;
}
