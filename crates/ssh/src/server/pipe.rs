//! Bytes between a channel and a socket, each way to its own end. What goes out waits for the client's word that there is room,
//! which stops nobody else.

use std::sync::{Arc, Mutex, PoisonError};

use bytes::BytesMut;
use russh::server::Msg;
use russh::{Channel, ChannelWriteHalf};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::sync::oneshot;
use tokio::task::JoinSet;

use super::backlog::{Backlog, Share};
use super::inbox::{End, pour, until_closed};

/// What is read of a socket at once: two packets of the size that clients ask for.
const READ_BYTES: usize = 64 * 1024;

/// Streams at once through one connection; a browser behind `ssh -D` opens a hundred.
const MAX_STREAMS: usize = 512;

/// The streams of one connection, which go with it. Nothing else ends one: while russh waits for the client to agree to a
/// channel, nobody may lose interest in it, or the client's refusal would end the connection.
#[derive(Debug, Clone)]
pub(super) struct Streams {
    all: Arc<Mutex<JoinSet<()>>>,
    backlog: Backlog,
}

impl Streams {
    pub fn new(backlog: Backlog) -> Streams {
        Streams { all: Arc::default(), backlog }
    }

    /// Its part of what waits to be taken.
    pub fn share(&self) -> Share {
        self.backlog.share()
    }

    /// Starts one unless there are too many.
    pub fn start(&self, stream: impl Future<Output = ()> + Send + 'static) {
        let mut all = self.all.lock().unwrap_or_else(PoisonError::into_inner);
        while all.try_join_next().is_some() {}
        if all.len() < MAX_STREAMS {
            all.spawn(stream);
        }
    }
}

/// Moves bytes until both sides have said all, or the client has closed the channel. One side's end is passed on, and
/// leaves the other side as it is.
pub(super) async fn pipe(channel: Channel<Msg>, socket: impl AsyncRead + AsyncWrite, share: Share) {
    let (mut from, to) = channel.split();
    let (reading, mut writing) = split(socket);
    let (send, has_ended) = oneshot::channel();
    let inward = async {
        let end = pour(&mut from, &mut writing, share).await;
        // One that is gone needs no end.
        let _ = writing.shutdown().await;
        if end != End::Closed {
            let _ = send.send(());
            until_closed(&mut from).await;
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
