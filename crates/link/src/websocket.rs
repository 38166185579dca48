//! A WebSocket as a stream of bytes: binary messages in, binary messages out, boundaries without meaning.

use std::io;

use bytes::Bytes;
use futures::{Sink, SinkExt, Stream, StreamExt};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio_util::io::{CopyToBytes, SinkWriter, StreamReader};

/// Joins the two directions of a WebSocket, already reduced to the bytes of its binary messages.
pub fn bytes<S>(socket: S) -> impl AsyncRead + AsyncWrite + Unpin + Send + 'static
where
    S: Stream<Item = io::Result<Bytes>> + Sink<Bytes, Error = io::Error> + Send + Unpin + 'static,
{
    let (sink, stream) = socket.split();
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

    let reduced = socket
        .filter_map(|message| {
            std::future::ready(match message {
                Ok(Message::Binary(bytes)) => Some(Ok(bytes)),
                // Pings are answered by the library; text is nobody's here.
                Ok(_) => None,
                Err(error) => Some(Err(io::Error::other(error))),
            })
        })
        .sink_map_err(io::Error::other)
        .with(|bytes: Bytes| std::future::ready(io::Result::Ok(Message::Binary(bytes))));
    bytes(reduced)
}
