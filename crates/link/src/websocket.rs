//! A WebSocket as a stream of bytes: binary messages in, binary messages out, boundaries without meaning.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll};

use bytes::Bytes;
use futures::{Sink, SinkExt, Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::io::{CopyToBytes, SinkWriter, StreamReader};

/// The bytes of any library's WebSocket, given what a message carries and how a message is made. Pings are answered by
/// the libraries themselves, and text is nobody's here: `payload` gives none for either.
pub fn bytes<S, M, E>(
    socket: S,
    payload: fn(M) -> Option<Bytes>,
    message: fn(Bytes) -> M,
) -> impl AsyncRead + AsyncWrite + Unpin + Send + 'static
where
    S: Stream<Item = Result<M, E>> + Sink<M, Error = E> + Send + Unpin + 'static,
    M: Send + 'static,
    E: std::error::Error + Send + Sync + 'static,
{
    let socket = socket.filter_map(move |received| {
        std::future::ready(received.map(payload).map_err(io::Error::other).transpose())
    });
    let (sink, stream) =
        Errors(socket).with(move |bytes: Bytes| std::future::ready(io::Result::Ok(message(bytes)))).split();
    tokio::io::join(StreamReader::new(stream), SinkWriter::new(CopyToBytes::new(sink)))
}

/// A socket whose errors are those of bytes, as often as they come: `sink_map_err` panics at the second one, and whoever
/// learns of the first flushes and closes all the same.
struct Errors<S>(S);

impl<S: Stream + Unpin> Stream for Errors<S> {
    type Item = S::Item;

    fn poll_next(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Option<S::Item>> {
        self.0.poll_next_unpin(cx)
    }
}

impl<S, M> Sink<M> for Errors<S>
where
    S: Sink<M> + Unpin,
    S::Error: std::error::Error + Send + Sync + 'static,
{
    type Error = io::Error;

    fn poll_ready(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_ready_unpin(cx).map_err(io::Error::other)
    }

    fn start_send(mut self: Pin<&mut Self>, message: M) -> io::Result<()> {
        self.0.start_send_unpin(message).map_err(io::Error::other)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_flush_unpin(cx).map_err(io::Error::other)
    }

    fn poll_close(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.poll_close_unpin(cx).map_err(io::Error::other)
    }
}

/// The bytes of a WebSocket made by tungstenite: the dialling side.
pub fn client<T>(
    socket: tokio_tungstenite::WebSocketStream<T>,
) -> impl AsyncRead + AsyncWrite + Unpin + Send + 'static
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    use tokio_tungstenite::tungstenite::Message;

    let payload = |message| if let Message::Binary(bytes) = message { Some(bytes) } else { None };
    bytes(socket, payload, Message::Binary)
}

/// The same over bytes that were upgraded by others.
pub async fn over<T>(stream: T) -> impl AsyncRead + AsyncWrite + Unpin + Send + 'static
where
    T: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    use tokio_tungstenite::tungstenite::protocol::Role;

    client(tokio_tungstenite::WebSocketStream::from_raw_socket(stream, Role::Client, None).await)
}

/// What a client sends to be upgraded: any 16 bytes.
pub fn key() -> String {
    tokio_tungstenite::tungstenite::handshake::client::generate_key()
}

#[cfg(test)]
mod tests {
    use tokio::io::AsyncWriteExt;

    use super::*;

    #[tokio::test]
    async fn a_connection_that_broke_says_so_as_often_as_it_is_asked() {
        let (one, other) = tokio::io::duplex(64);
        let mut socket = over(one).await;
        drop(other);
        for _ in 0..3 {
            let written = socket.write_all(&[0; 1 << 20]).await;
            let flushed = socket.flush().await;
            assert!(written.is_err() || flushed.is_err());
            let _ = socket.shutdown().await;
        }
    }
}
