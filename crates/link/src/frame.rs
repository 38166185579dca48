//! Frames of a log stream: which segment the bytes belong to, how many, then the bytes.
//!
//! Their offset is not sent: the server said how much it has, and frames go on from there without a gap.

use std::io;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};

/// The most bytes in one frame; bounds what a peer can make us hold.
pub const MAX_FRAME: usize = 256 * 1024;

/// The bytes before the bytes.
pub const HEADER: usize = 12;

/// What goes before `length` bytes of a segment; for a sender that keeps room for it in front of them, so that a frame
/// is one write.
pub fn header(segment: u64, length: usize) -> [u8; HEADER] {
    let mut header = [0; HEADER];
    header[..8].copy_from_slice(&segment.to_le_bytes());
    header[8..].copy_from_slice(&(length as u32).to_le_bytes());
    header
}

/// Sends one frame.
pub async fn send(stream: &mut (impl AsyncWrite + Unpin), segment: u64, bytes: &[u8]) -> io::Result<()> {
    stream.write_all(&header(segment, bytes.len())).await?;
    stream.write_all(bytes).await
}

/// Receives one frame into `bytes` and gives its segment; `None` at the end of the stream.
pub async fn receive(stream: &mut (impl AsyncRead + Unpin), bytes: &mut Vec<u8>) -> io::Result<Option<u64>> {
    let mut header = [0; HEADER];
    match stream.read_exact(&mut header).await {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => return Ok(None),
        result => result?,
    };
    let (segment, length) = header.split_at(8);
    let segment = u64::from_le_bytes(segment.try_into().map_err(io::Error::other)?);
    let length = u32::from_le_bytes(length.try_into().map_err(io::Error::other)?) as usize;
    if length > MAX_FRAME {
        return Err(io::Error::new(io::ErrorKind::InvalidData, "a log frame is longer than allowed"));
    }
    bytes.resize(length, 0);
    stream.read_exact(bytes).await?;
    Ok(Some(segment))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn frames_read_back_what_was_sent() {
        let mut wire = Vec::new();
        send(&mut wire, 7, b"abc").await.unwrap();
        send(&mut wire, 9, b"").await.unwrap();
        let (mut reader, mut bytes) = (wire.as_slice(), Vec::new());
        assert_eq!(receive(&mut reader, &mut bytes).await.unwrap(), Some(7));
        assert_eq!(bytes, b"abc");
        assert_eq!(receive(&mut reader, &mut bytes).await.unwrap(), Some(9));
        assert_eq!(receive(&mut reader, &mut bytes).await.unwrap(), None);
    }

    #[tokio::test]
    async fn an_oversized_frame_is_refused() {
        let mut wire = vec![0; 8];
        wire.extend(u32::MAX.to_le_bytes());
        assert!(receive(&mut wire.as_slice(), &mut Vec::new()).await.is_err());
    }
}
