//! A WebSocket as a stream of bytes: binary messages in, binary messages out, boundaries without meaning.

use std::io;

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
    let (sink, stream) = socket
        .filter_map(move |received| {
            std::future::ready(received.map(payload).map_err(io::Error::other).transpose())
        })
        .sink_map_err(io::Error::other)
        .with(move |bytes: Bytes| std::future::ready(io::Result::Ok(message(bytes))))
        .split();
    tokio::io::join(StreamReader::new(stream), SinkWriter::new(CopyToBytes::new(sink)))
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
