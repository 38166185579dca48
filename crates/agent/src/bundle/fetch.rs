//! Bringing what a bundle is made of from the server, each chunk believed only when its digest says so.
//!
//! A lost connection costs at most the chunks that were on their way: what was taken stays taken. While one batch is
//! taken, which is the disk's work, the next one comes in; never more than these two are in memory.

use std::io::{self, ErrorKind};
use std::time::Duration;

use muster_bundle::{chunk, listing};
use muster_link::control;
use muster_link::message::{MAX_CHUNKS, StreamHeader};
use muster_link::session::Stream;
use muster_model::bundle::{Chunk, Manifest};
use muster_model::{BundleId, ChunkId};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::time::timeout;

use crate::bulk::Bulk;
use crate::disk;

/// How much is handed to the disk at a time.
const BATCH_BYTES: usize = 4 << 20;
/// The longest manifest: of a bundle of hundreds of gigabytes.
const MAX_MANIFEST: u64 = 256 << 20;
/// A server that is there and yet does not give something is asked this often: it may just have been restarted.
const REFUSALS: u32 = 5;
const REFUSAL_PAUSE: Duration = Duration::from_millis(100);
/// How long the server may look at chunks: it reads a gigabyte at most.
const INSPECTION: Duration = Duration::from_secs(10);

/// Why something cannot be had.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("the server does not give {what}")]
    Refused {
        what: String,
        #[source]
        source: io::Error,
    },
    /// The server has removed it because it was damaged, or has lost it.
    #[error("the server does not have {what}")]
    Gone { what: String },
    #[error("the bundle's manifest is not the one it is named after")]
    WrongManifest,
    #[error("the bundle's listing is longer than a listing can be")]
    LongListing,
}

/// What takes chunks, in the order in which it asks for them.
pub(super) trait Sink: Send + 'static {
    type Error: From<io::Error> + From<Error> + Send;

    /// What it still lacks.
    fn missing(&self) -> &[Chunk];

    /// Takes the next one, which is what it should be.
    fn take(&mut self, content: &[u8]) -> Result<(), Self::Error>;
}

/// Asks for a manifest, as long as it takes to have a server that answers.
pub(super) async fn manifest(bulk: &Bulk, bundle: &BundleId) -> Result<Manifest, Error> {
    let mut patience = Patience::default();
    loop {
        let (connection, stream) = bulk.open().await;
        let source = match read_manifest(stream, bundle).await {
            Ok(manifest) if chunk::bundle_id(&manifest) == *bundle => return Ok(manifest),
            Ok(_) => return Err(Error::WrongManifest),
            Err(source) => source,
        };
        patience.lose(bulk.is_open(connection), || bundle.to_string(), source).await?;
    }
}

async fn read_manifest(mut stream: Stream, bundle: &BundleId) -> io::Result<Manifest> {
    control::send(&mut stream, &StreamHeader::Manifest { bundle: bundle.clone() }).await?;
    stream.flush().await?;
    let length = stream.read_u64_le().await?;
    if length == 0 {
        return Err(io::Error::new(ErrorKind::NotFound, "it does not have it"));
    }
    if length > MAX_MANIFEST {
        return Err(io::Error::new(ErrorKind::InvalidData, "it is longer than a manifest can be"));
    }
    let mut text = String::new();
    (&mut stream).take(length).read_to_string(&mut text).await?;
    if text.len() as u64 != length {
        return Err(ErrorKind::UnexpectedEof.into());
    }
    text.parse().map_err(|error| io::Error::new(ErrorKind::InvalidData, error))
}

/// Asks for a listing.
pub(super) async fn listing(bulk: &Bulk, manifest: &Manifest) -> Result<Vec<u8>, super::Error> {
    let length = manifest.listing.iter().fold(0, |sum, chunk| chunk.bytes.saturating_add(sum));
    if length > listing::MAX_BYTES as u64 {
        return Err(Error::LongListing.into());
    }
    let whole = Whole { chunks: manifest.listing.clone(), taken: 0, bytes: Vec::new() };
    Ok(fetch_before(bulk, whole, &manifest.content).await?.bytes)
}

/// Chunks put together in memory.
struct Whole {
    chunks: Vec<Chunk>,
    taken: usize,
    bytes: Vec<u8>,
}

impl Sink for Whole {
    type Error = super::Error;

    fn missing(&self) -> &[Chunk] {
        &self.chunks[self.taken..]
    }

    fn take(&mut self, content: &[u8]) -> Result<(), Self::Error> {
        self.bytes.extend_from_slice(content);
        self.taken += 1;
        Ok(())
    }
}

/// Gives a sink all it lacks. Waits for a server as long as it takes: the caller drops this future when nobody wants
/// the bundle any more.
pub(super) async fn fetch<S: Sink>(bulk: &Bulk, sink: S) -> Result<S, S::Error> {
    fetch_before(bulk, sink, &[]).await
}

/// The same before others, which the server looks at as well if one is damaged or gone.
async fn fetch_before<S: Sink>(bulk: &Bulk, mut sink: S, later: &[Chunk]) -> Result<S, S::Error> {
    let mut patience = Patience::default();
    let mut is_inspected = false;
    while let Some(wanted) = sink.missing().first().map(|chunk| chunk.id.clone()) {
        let (connection, stream) = bulk.open().await;
        let before = sink.missing().len();
        let (returned, received) = receive(stream, sink).await?;
        sink = returned;
        let Err(Trouble { damaged, source }) = received else { continue };
        if let Some(chunk) = damaged {
            tracing::warn!(chunk = %chunk, "the server gave a chunk that is not what its name says");
        }
        // What the server itself found damaged, it has removed, and does not have.
        if !is_inspected && matches!(source.kind(), ErrorKind::InvalidData | ErrorKind::NotFound) {
            let chunks = sink.missing().iter().chain(later).take(MAX_CHUNKS);
            let chunks = chunks.map(|chunk| chunk.id.clone()).collect();
            is_inspected = have_inspected(bulk, chunks).await;
        }
        if sink.missing().len() < before {
            patience = Patience::default();
        }
        patience.lose(bulk.is_open(connection), || wanted.to_string(), source).await?;
    }
    Ok(sink)
}

/// How often in a row a server that is there did not give something.
#[derive(Default)]
struct Patience {
    refusals: u32,
}

impl Patience {
    /// A connection that broke is no refusal.
    async fn lose(
        &mut self,
        is_open: bool,
        what: impl FnOnce() -> String,
        source: io::Error,
    ) -> Result<(), Error> {
        tokio::time::sleep(REFUSAL_PAUSE).await;
        self.refusals = if is_open { self.refusals + 1 } else { 0 };
        match self.refusals >= REFUSALS {
            true if source.kind() == ErrorKind::NotFound => Err(Error::Gone { what: what() }),
            true => Err(Error::Refused { what: what(), source }),
            false => Ok(()),
        }
    }
}

/// What is wrong with a stream, after which another one may be tried.
struct Trouble {
    /// A chunk that came and was not what was asked for.
    damaged: Option<ChunkId>,
    source: io::Error,
}

impl From<io::Error> for Trouble {
    fn from(source: io::Error) -> Self {
        Self { damaged: None, source }
    }
}

/// Has the server look at chunks that are damaged on its side, or may be: where one is, others are, and all of them are to be found now and
/// not one with each job. The next client that submits the code is then told of all missing chunks. Whether the server has done so; if not, it is
/// asked again.
async fn have_inspected(bulk: &Bulk, chunks: Vec<ChunkId>) -> bool {
    let (_, mut stream) = bulk.open().await;
    let inspection = async {
        control::send(&mut stream, &StreamHeader::Damaged { chunks }).await?;
        stream.shutdown().await?;
        // It answers nothing, and closes the stream when it is done.
        stream.read(&mut [0]).await
    };
    timeout(INSPECTION, inspection).await.is_ok_and(|ended| ended.is_ok())
}

/// Takes what one stream brings.
async fn receive<S: Sink>(mut stream: Stream, mut sink: S) -> Result<(S, Result<(), Trouble>), S::Error> {
    let mut asked = sink.missing().iter().take(MAX_CHUNKS).cloned().collect::<Vec<_>>().into_iter();
    if let Err(error) = ask(&mut stream, asked.as_slice()).await {
        return Ok((sink, Err(error.into())));
    }
    let mut come = read_batch(&mut stream, &mut asked).await;
    loop {
        let (batch, trouble) = come;
        if batch.is_empty() {
            return Ok((sink, trouble.map_or(Ok(()), |error| Err(error.into()))));
        }
        let taken = disk::work(move || {
            let taken = take(&mut sink, batch);
            Ok::<_, S::Error>((sink, taken))
        });
        let (taken, next) = match trouble {
            None => tokio::join!(taken, read_batch(&mut stream, &mut asked)),
            Some(error) => (taken.await, (Vec::new(), Some(error))),
        };
        let (returned, taken) = taken?;
        sink = returned;
        match taken {
            Ok(()) => come = next,
            Err(Taken::Wrong(trouble)) => return Ok((sink, Err(trouble))),
            Err(Taken::Not(error)) => return Err(error),
        }
    }
}

enum Taken<E> {
    /// It is not what was asked for.
    Wrong(Trouble),
    /// The sink cannot have it.
    Not(E),
}

fn take<S: Sink>(sink: &mut S, batch: Vec<(Chunk, Vec<u8>)>) -> Result<(), Taken<S::Error>> {
    for (chunk, stored) in batch {
        let wrong = |error: chunk::Error| {
            let source = io::Error::new(ErrorKind::InvalidData, error);
            Taken::Wrong(Trouble { damaged: Some(chunk.id.clone()), source })
        };
        let content = chunk::decode(&chunk.id, &stored).map_err(wrong)?;
        if content.len() as u64 != chunk.bytes {
            return Err(wrong(chunk::Error::Mismatch));
        }
        sink.take(&content).map_err(Taken::Not)?;
    }
    Ok(())
}

async fn ask(stream: &mut Stream, chunks: &[Chunk]) -> io::Result<()> {
    let chunks: Vec<ChunkId> = chunks.iter().map(|chunk| chunk.id.clone()).collect();
    control::send(stream, &StreamHeader::Chunks { chunks }).await?;
    stream.flush().await
}

/// As many of the next chunks as make a batch, with what kept the next one from coming; none when all have come.
async fn read_batch(
    stream: &mut Stream,
    asked: &mut std::vec::IntoIter<Chunk>,
) -> (Vec<(Chunk, Vec<u8>)>, Option<io::Error>) {
    let (mut batch, mut bytes) = (Vec::new(), 0);
    while bytes < BATCH_BYTES
        && let Some(chunk) = asked.next()
    {
        match read_chunk(stream).await {
            Ok(stored) => {
                bytes += stored.len();
                batch.push((chunk, stored));
            }
            Err(error) => return (batch, Some(error)),
        }
    }
    (batch, None)
}

async fn read_chunk(stream: &mut Stream) -> io::Result<Vec<u8>> {
    let length = stream.read_u32_le().await? as usize;
    if length == 0 {
        return Err(io::Error::new(ErrorKind::NotFound, "it does not have it"));
    }
    if length > chunk::MAX_STORED {
        return Err(io::Error::new(ErrorKind::InvalidData, "it is longer than a chunk can be"));
    }
    let mut stored = vec![0; length];
    stream.read_exact(&mut stored).await?;
    Ok(stored)
}
