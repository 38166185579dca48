//! Messages on a stream: one JSON object a line, bounded, and forgiving towards newer peers.

use std::io;

use serde::Serialize;
use serde::de::DeserializeOwned;
use tokio::io::{AsyncBufRead, AsyncBufReadExt, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// A message may carry a whole environment and a large hello, but never without bound.
pub const MAX_LINE: u64 = 32 << 20;

/// A line that was received.
#[derive(Debug, PartialEq)]
pub enum Received<T> {
    /// A message.
    Message(T),
    /// A message of a kind this version does not know; to be answered `unsupported`.
    Unknown {
        /// Its kind.
        kind: String,
    },
}

/// Sends one message. The caller flushes when it has nothing more to say.
pub async fn send<T: Serialize>(stream: &mut (impl AsyncWrite + Unpin), message: &T) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    stream.write_all(&line).await
}

/// Receives one message; `None` at the end of the stream. A line that is no JSON object is an error: the peer is
/// not one of ours.
pub async fn receive<T: DeserializeOwned>(
    stream: &mut (impl AsyncBufRead + Unpin),
) -> io::Result<Option<Received<T>>> {
    let mut line = Vec::new();
    let length = stream.take(MAX_LINE).read_until(b'\n', &mut line).await?;
    if length == 0 {
        return Ok(None);
    }
    if line.last() != Some(&b'\n') {
        let (kind, problem) = if length as u64 == MAX_LINE {
            (io::ErrorKind::InvalidData, "a message is longer than allowed")
        } else {
            (io::ErrorKind::UnexpectedEof, "the connection ended inside a message")
        };
        return Err(io::Error::new(kind, problem));
    }
    parse(&line).map(Some)
}

fn parse<T: DeserializeOwned>(line: &[u8]) -> io::Result<Received<T>> {
    match serde_json::from_slice(line) {
        Ok(message) => Ok(Received::Message(message)),
        Err(error) => {
            let value: serde_json::Value = serde_json::from_slice(line)?;
            match value.get("kind").and_then(serde_json::Value::as_str) {
                Some(kind) => Ok(Received::Unknown { kind: kind.chars().take(80).collect() }),
                None => Err(io::Error::new(io::ErrorKind::InvalidData, error)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::{ToAgent, ToServer};

    async fn read<T: DeserializeOwned>(text: &str) -> io::Result<Option<Received<T>>> {
        receive(&mut text.as_bytes()).await
    }

    #[tokio::test]
    async fn messages_survive_the_wire() {
        let mut wire = Vec::new();
        send(&mut wire, &ToAgent::Ping).await.unwrap();
        let got = receive::<ToAgent>(&mut wire.as_slice()).await.unwrap();
        assert_eq!(got, Some(Received::Message(ToAgent::Ping)));
    }

    #[tokio::test]
    async fn a_newer_peer_is_understood_as_far_as_possible() {
        let known = read::<ToServer>("{\"kind\":\"ping\",\"new_field\":1}\n").await.unwrap();
        assert_eq!(known, Some(Received::Message(ToServer::Ping)));
        let unknown = read::<ToServer>("{\"kind\":\"teleport\",\"to\":\"mars\"}\n").await.unwrap();
        assert_eq!(unknown, Some(Received::Unknown { kind: "teleport".into() }));
    }

    #[tokio::test]
    async fn garbage_is_an_error_and_never_a_panic() {
        for garbage in ["hello\n", "[1,2]\n", "{\n", "{\"kind\":5}\n", "{\"kind\":\"ping\"}"] {
            assert!(read::<ToServer>(garbage).await.is_err(), "{garbage}");
        }
        assert_eq!(read::<ToServer>("").await.unwrap(), None);
    }
}
