//! What somebody says first who calls on an agent, where anybody may call.
//!
//! An agent shows its token to whoever leads to its server, so whoever comes must show first that they know it. What they say
//! is made of the token, which cannot be had back from it.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

use super::Channel;

/// What the proof is made for: the same token shown elsewhere looks different.
const CONTEXT: &str = "muster 2026-11 who calls on an agent";

/// The line that opens an agent's door for this channel.
fn line(channel: Channel, token: &str) -> String {
    let mut hasher = blake3::Hasher::new_derive_key(CONTEXT);
    hasher.update(channel.as_str().as_bytes()).update(b"\n").update(token.as_bytes());
    format!("muster {} {}\n", channel.as_str(), hasher.finalize().to_hex())
}

/// Says who comes.
pub async fn greet(stream: &mut (impl AsyncWrite + Unpin), channel: Channel, token: &str) -> io::Result<()> {
    stream.write_all(line(channel, token).as_bytes()).await?;
    stream.flush().await
}

/// Lets somebody in who knows the token. Not a byte beyond their greeting is read.
pub async fn admit(stream: &mut (impl AsyncRead + Unpin), channel: Channel, token: &str) -> io::Result<()> {
    let expected = line(channel, token);
    let mut said = vec![0; expected.len()];
    stream.read_exact(&mut said).await?;
    // Whoever guesses learns nothing from how long it takes.
    let differs = said.iter().zip(expected.as_bytes()).fold(0, |differs, (a, b)| differs | (a ^ b));
    match differs {
        0 => Ok(()),
        _ => Err(io::Error::new(io::ErrorKind::PermissionDenied, "it is somebody else")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    async fn try_with(said: &str, channel: Channel) -> io::Result<String> {
        let (mut one, mut other) = tokio::io::duplex(1024);
        match said {
            "" => other.write_all("x".repeat(200).as_bytes()).await?,
            token => greet(&mut other, Channel::Control, token).await?,
        }
        other.write_all(b"more").await?;
        drop(other);
        admit(&mut one, channel, "secret").await?;
        let mut rest = String::new();
        one.read_to_string(&mut rest).await?;
        Ok(rest)
    }

    #[tokio::test]
    async fn only_who_knows_the_token_is_let_in() {
        assert_eq!(try_with("secret", Channel::Control).await.unwrap(), "more");
        for (said, channel) in
            [("guess", Channel::Control), ("", Channel::Control), ("secret", Channel::Bulk)]
        {
            assert!(try_with(said, channel).await.is_err(), "{said}");
        }
        assert!(!line(Channel::Control, "secret").contains("secret"));
    }
}
