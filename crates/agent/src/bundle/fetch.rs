//! Bringing a bundle's archive from the server, chunk by chunk, each believed only when its digest says so.
//!
//! A lost connection costs at most the chunk that was on its way: what was verified stays.

use std::fs::File;
use std::io::{self, ErrorKind, Seek, SeekFrom, Write};
use std::path::Path;
use std::time::Duration;

use blake3::Hasher;
use muster_link::control;
use muster_link::message::StreamHeader;
use muster_link::session::Stream;
use muster_model::ChunkId;
use muster_model::bundle::{Chunk, Manifest};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::bulk::Bulk;
use crate::disk;

/// How much is handed to the disk at a time.
const BLOCK: u64 = 1 << 20;
/// Chunks asked for with one stream, so that no request grows with the bundle.
const BATCH: usize = 1024;
/// A server that is there and yet does not give a chunk is asked this often: it may just have been restarted.
const REFUSALS: u32 = 5;
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);

/// Why there is no archive.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the server does not give {chunk}")]
    Refused {
        chunk: ChunkId,
        #[source]
        source: io::Error,
    },
    #[error("the bundle cannot be kept on this node")]
    Disk(#[from] io::Error),
}

/// Fetch the whole archive into a new file. Waits for a server as long as it takes: the caller drops this future when
/// nobody wants the bundle any more.
pub(crate) async fn fetch(bulk: &Bulk, manifest: &Manifest, path: &Path) -> Result<(), Error> {
    let (path, chunks) = (path.to_owned(), manifest.chunks.clone());
    let mut spool = disk::work(move || Spool::create(&path, chunks)).await?;
    let mut refusals = 0;
    while let Some(wanted) = spool.missing().first().map(|chunk| chunk.id.clone()) {
        let (connection, stream) = bulk.open().await;
        let before = spool.verified;
        let (returned, received) = receive(stream, spool).await?;
        spool = returned;
        let Err(source) = received else { continue };
        tokio::time::sleep(REFUSAL_PAUSE).await;
        // A connection that broke, or chunks that came, are no refusal.
        refusals = if spool.verified > before || !bulk.is_open(connection) { 0 } else { refusals + 1 };
        if refusals >= REFUSALS {
            return Err(Error::Refused { chunk: wanted, source });
        }
        spool = disk::work(move || spool.rewind()).await?;
    }
    Ok(())
}

/// Take what one stream brings. The inner error is the stream's, after which another one may be tried.
async fn receive(mut stream: Stream, mut spool: Spool) -> Result<(Spool, io::Result<()>), Error> {
    let missing = spool.missing();
    let chunks = missing[..missing.len().min(BATCH)].to_vec();
    let mut left: u64 = chunks.iter().map(|chunk| chunk.bytes).sum();
    if let Err(error) = ask(&mut stream, chunks).await {
        return Ok((spool, Err(error)));
    }
    while left > 0 {
        let mut block = vec![0; left.min(BLOCK) as usize];
        if let Err(error) = stream.read_exact(&mut block).await {
            return Ok((spool, Err(error)));
        }
        left -= block.len() as u64;
        let (returned, pushed) = disk::work(move || {
            let pushed = spool.push(&block);
            Ok::<_, io::Error>((spool, pushed))
        })
        .await?;
        spool = returned;
        match pushed {
            Err(error) if error.kind() == ErrorKind::InvalidData => return Ok((spool, Err(error))),
            pushed => pushed?,
        }
    }
    Ok((spool, Ok(())))
}

async fn ask(stream: &mut Stream, chunks: Vec<Chunk>) -> io::Result<()> {
    control::send(stream, &StreamHeader::Chunks { chunks }).await?;
    stream.flush().await
}

/// The archive as far as it is here.
struct Spool {
    file: File,
    chunks: Vec<Chunk>,
    /// How many chunks are here and right.
    verified: usize,
    /// The next one, so far.
    hasher: Hasher,
    filled: u64,
}

impl Spool {
    fn create(path: &Path, chunks: Vec<Chunk>) -> io::Result<Spool> {
        let file = File::create(path)?;
        let mut spool = Spool { file, chunks, verified: 0, hasher: Hasher::new(), filled: 0 };
        // Chunks of no length are complete without a byte.
        spool.push(&[])?;
        Ok(spool)
    }

    fn missing(&self) -> &[Chunk] {
        &self.chunks[self.verified..]
    }

    /// Add bytes. An error about the data means that they were not what the manifest says.
    fn push(&mut self, mut bytes: &[u8]) -> io::Result<()> {
        while let Some(chunk) = self.chunks.get(self.verified) {
            let room = usize::try_from(chunk.bytes - self.filled).unwrap_or(usize::MAX);
            let (taken, rest) = bytes.split_at(bytes.len().min(room));
            self.hasher.update(taken);
            self.file.write_all(taken)?;
            self.filled += taken.len() as u64;
            bytes = rest;
            if self.filled < chunk.bytes {
                break;
            }
            let digest = self.hasher.finalize().to_hex();
            if ChunkId::from_digest(&digest).as_ref() != Ok(&chunk.id) {
                return Err(io::Error::new(
                    ErrorKind::InvalidData,
                    "a chunk arrived that is not what was asked for",
                ));
            }
            self.verified += 1;
            self.filled = 0;
            self.hasher.reset();
        }
        Ok(())
    }

    /// Back to the end of the last chunk that was right.
    fn rewind(mut self) -> io::Result<Spool> {
        let whole = self.chunks[..self.verified].iter().map(|chunk| chunk.bytes).sum();
        self.file.set_len(whole)?;
        self.file.seek(SeekFrom::Start(whole))?;
        self.hasher.reset();
        self.filled = 0;
        Ok(self)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(bytes: &[u8]) -> Chunk {
        let id = ChunkId::from_digest(&blake3::hash(bytes).to_hex()).unwrap();
        Chunk { id, bytes: bytes.len() as u64 }
    }

    #[test]
    fn only_what_the_digests_say_is_kept() {
        let home = tempfile::tempdir().unwrap();
        let path = home.path().join("archive");
        let chunks = vec![chunk(b""), chunk(b"one"), chunk(b""), chunk(b"three"), chunk(b"")];
        let mut spool = Spool::create(&path, chunks).unwrap();
        assert_eq!(spool.verified, 1);
        spool.push(b"o").unwrap();
        spool.push(b"net").unwrap();
        assert_eq!(spool.missing().len(), 2);
        assert_eq!(spool.push(b"hrew").unwrap_err().kind(), ErrorKind::InvalidData);
        let mut spool = spool.rewind().unwrap();
        spool.push(b"three").unwrap();
        assert!(spool.missing().is_empty());
        assert_eq!(std::fs::read(&path).unwrap(), b"onethree");
    }
}
