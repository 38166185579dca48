//! Shipping a task's log to the server: from where the server has it, whole records only, until all is acknowledged.
//!
//! What the server acknowledged may go from this node; nothing else ever does. A lost connection needs no repair: the
//! next stream begins with the server saying what it has. A server that reads slowly stops its stream and nothing
//! else, since the log is on disk and not in memory.
use std::io;
use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use muster_link::control::{self, Received};
use muster_link::frame;
use muster_link::log::{self, Chunk, SEGMENT_BYTES, SegmentDir, Shipper};
use muster_link::message::{LogHave, StreamHeader};
use muster_link::session::Stream;
use muster_model::TaskId;
use tokio::io::{AsyncReadExt, AsyncWriteExt, BufReader, ReadHalf, WriteHalf, split};
use tokio::sync::Notify;

use crate::bulk::Bulk;
use crate::disk;

/// A stream begins with this much room and gets more when that is not enough: most logs are a trickle, and a node may
/// have a thousand of them.
const FIRST_BUFFER: usize = 16 * 1024;
/// Acknowledgements are eight bytes.
const ACK_BUFFER: usize = 512;
/// How long the rest of a record is awaited before it is looked for.
const UNFINISHED: Duration = Duration::from_millis(20);
const FIRST_PAUSE: Duration = Duration::from_millis(50);
const LAST_PAUSE: Duration = Duration::from_secs(5);

/// A log that is to be shipped.
#[derive(Debug)]
pub(crate) struct Source {
    task: TaskId,
    log: SegmentDir,
    changed: Notify,
    end: OnceLock<u64>,
    /// How much of it the server is known to have.
    acked: AtomicU64,
}

impl Source {
    pub(crate) fn new(task: TaskId, log: SegmentDir) -> Source {
        Source { task, log, changed: Notify::new(), end: OnceLock::new(), acked: AtomicU64::new(0) }
    }

    /// There may be more.
    pub(crate) fn changed(&self) {
        self.changed.notify_one();
    }

    /// There is nothing after this.
    pub(crate) fn ended(&self, end: u64) {
        // Only the first word counts, and an end never changes.
        let _ = self.end.set(end);
        self.changed.notify_one();
    }

    /// How much of it the server is known to have.
    pub(crate) fn acked(&self) -> u64 {
        self.acked.load(Ordering::Relaxed)
    }

    fn is_end(&self, offset: u64) -> bool {
        self.end.get().is_some_and(|end| *end <= offset)
    }
}

/// Ship until the log has ended and the server has all of it.
pub(crate) async fn ship(source: Arc<Source>, bulk: Bulk) {
    let mut cursor = Cursor::new(source.log.clone());
    let mut acked = 0;
    let mut pause = FIRST_PAUSE;
    // Also a stream that was lost with nothing left to send is made anew: its end is what makes the server sure of the log.
    let mut is_closed = true;
    while !is_closed || !source.is_end(acked) {
        let progress = Progress { is_wanted: !is_closed, ..Progress::default() };
        let shipped = try_ship(&source, &mut cursor, acked, &progress, &bulk).await;
        let now = progress.acked().max(acked);
        is_closed = shipped.is_ok();
        if let Err(error) = shipped {
            tracing::debug!(task = %source.task, error = %error, "a log stream ended early");
            pause = if now > acked { FIRST_PAUSE } else { (pause * 2).min(LAST_PAUSE) };
            tokio::time::sleep(pause).await;
        }
        acked = now;
    }
}

/// How far one stream has come.
#[derive(Default)]
struct Progress {
    /// A stream is to be made even if there is nothing to send.
    is_wanted: bool,
    sent: AtomicU64,
    acked: AtomicU64,
    changed: Notify,
}

impl Progress {
    fn begin(&self, have: u64) {
        self.sent.store(have, Ordering::Relaxed);
        self.acked.store(have, Ordering::Relaxed);
    }

    fn sent(&self) -> u64 {
        self.sent.load(Ordering::Relaxed)
    }

    fn acked(&self) -> u64 {
        self.acked.load(Ordering::Relaxed)
    }
}

/// Ship over one stream, from when there is something to ship. `acked` is what the server is known to have.
async fn try_ship(
    source: &Source,
    cursor: &mut Cursor,
    acked: u64,
    progress: &Progress,
    bulk: &Bulk,
) -> io::Result<()> {
    cursor.seek(acked);
    while cursor.next().await?.is_none() {
        match source.is_end(acked) {
            true if progress.is_wanted => break,
            true => return Ok(()),
            false => {}
        }
        // A task that says nothing needs no stream.
        cursor.wait(source).await;
    }
    let (connection, stream) = bulk.open().await;
    let (reader, mut writer) = split(stream);
    let mut reader = BufReader::with_capacity(ACK_BUFFER, reader);
    let is_closed = AtomicBool::new(false);
    let have = begin(&source.task, &mut reader, &mut writer).await?;
    progress.begin(have);
    source.acked.fetch_max(have, Ordering::Relaxed);
    cursor.seek(have);
    let feeding = async {
        feed(source, cursor, progress, &mut writer).await?;
        while progress.acked() < progress.sent() {
            progress.changed.notified().await;
        }
        writer.shutdown().await?;
        is_closed.store(true, Ordering::Relaxed);
        // The server ends its side when it is sure of what it has.
        std::future::pending().await
    };
    let ended: io::Result<()> = tokio::select! {
        fed = feeding => fed,
        ended = acknowledge(source, progress, &mut reader) => ended,
    };
    match ended {
        Err(error)
            if error.kind() == io::ErrorKind::UnexpectedEof
                && is_closed.load(Ordering::Relaxed)
                && bulk.is_open(connection) =>
        {
            Ok(())
        }
        ended => ended,
    }
}

/// Say whose log follows, and hear how much of it the server has.
async fn begin(
    task: &TaskId,
    reader: &mut BufReader<ReadHalf<Stream>>,
    writer: &mut WriteHalf<Stream>,
) -> io::Result<u64> {
    control::send(writer, &StreamHeader::Log { task: task.clone() }).await?;
    writer.flush().await?;
    match control::receive::<LogHave>(reader).await? {
        Some(Received::Message(have)) => Ok(have.offset),
        _ => Err(io::Error::new(io::ErrorKind::InvalidData, "the server did not say what it has")),
    }
}

/// Send what there is and what comes, to the end of the log.
async fn feed(
    source: &Source,
    cursor: &mut Cursor,
    progress: &Progress,
    writer: &mut WriteHalf<Stream>,
) -> io::Result<()> {
    loop {
        while let Some(chunk) = cursor.next().await? {
            if chunk.offset != progress.sent() {
                // The server once had these bytes and said so, or they would still be here.
                return Err(io::Error::new(
                    io::ErrorKind::NotFound,
                    "the server wants bytes that it said it had",
                ));
            }
            progress.sent.store(chunk.end(), Ordering::Relaxed);
            writer.write_all(cursor.frame(&chunk)).await?;
        }
        writer.flush().await?;
        if source.is_end(progress.sent()) {
            return Ok(());
        }
        cursor.shrink();
        cursor.wait(source).await;
    }
}

/// Take note of what the server has, and let go of it here. Ends only when the stream does.
async fn acknowledge(
    source: &Source,
    progress: &Progress,
    reader: &mut BufReader<ReadHalf<Stream>>,
) -> io::Result<()> {
    let mut removed = progress.acked();
    loop {
        let offset = reader.read_u64_le().await?;
        if offset > progress.sent() {
            return Err(io::Error::new(io::ErrorKind::InvalidData, "the server has more than was sent"));
        }
        progress.acked.store(offset, Ordering::Relaxed);
        source.acked.fetch_max(offset, Ordering::Relaxed);
        progress.changed.notify_one();
        if offset.saturating_sub(removed) >= SEGMENT_BYTES {
            removed = offset;
            let log = source.log.clone();
            disk::work(move || log.remove_before(offset).map_err(io::Error::other)).await?;
        }
    }
}

/// A place in the log, with room for one frame.
struct Cursor {
    log: SegmentDir,
    offset: u64,
    /// Away while the disk is asked.
    reading: Option<Reading>,
    room: usize,
    /// The log ends inside a record.
    is_unfinished: bool,
}

struct Reading {
    shipper: Shipper,
    /// A frame: its header, then its bytes.
    buffer: Vec<u8>,
}

impl Cursor {
    fn new(log: SegmentDir) -> Cursor {
        Cursor { log, offset: 0, reading: None, room: FIRST_BUFFER, is_unfinished: false }
    }

    fn seek(&mut self, offset: u64) {
        self.offset = offset;
        if let Some(reading) = &mut self.reading {
            reading.shipper.seek(offset);
        }
    }

    /// The next bytes, if there are any. When this is dropped, `seek` makes the cursor whole again.
    async fn next(&mut self) -> io::Result<Option<Chunk>> {
        let (log, offset, room) = (self.log.clone(), self.offset, frame::HEADER + self.room);
        let reading = self.reading.take();
        let (reading, chunk, is_unfinished) = disk::work(move || {
            let mut reading = reading.unwrap_or_else(|| Reading {
                shipper: Shipper::new(log.clone(), offset),
                buffer: Vec::new(),
            });
            reading.buffer.resize(room, 0);
            let chunk = reading.shipper.next_chunk(&mut reading.buffer[frame::HEADER..])?;
            let is_unfinished = chunk.is_none() && log.end()? > reading.shipper.offset();
            Ok::<_, Failed>((reading, chunk, is_unfinished))
        })
        .await?;
        self.offset = reading.shipper.offset();
        self.reading = Some(reading);
        self.is_unfinished = is_unfinished;
        if chunk.is_some_and(|chunk| chunk.length == self.room) {
            self.room = (self.room * 2).min(frame::MAX_FRAME);
        }
        Ok(chunk)
    }

    /// Wait until there may be more. The end of a record is not always told: old kernels are silent about `splice`.
    async fn wait(&self, source: &Source) {
        let changed = source.changed.notified();
        if self.is_unfinished {
            let _ = tokio::time::timeout(UNFINISHED, changed).await;
        } else {
            changed.await;
        }
    }

    /// The chunk that `next` gave, as it is sent.
    fn frame(&mut self, chunk: &Chunk) -> &[u8] {
        let Some(reading) = &mut self.reading else { return &[] };
        let frame = &mut reading.buffer[..frame::HEADER + chunk.length];
        frame[..frame::HEADER].copy_from_slice(&frame::header(chunk.segment, chunk.length));
        frame
    }

    /// Nothing will be read for a while.
    fn shrink(&mut self) {
        self.room = FIRST_BUFFER;
        if let Some(reading) = &mut self.reading {
            reading.buffer = Vec::new();
        }
    }
}

/// A log that cannot be read.
#[derive(Debug, thiserror::Error)]
enum Failed {
    #[error(transparent)]
    Log(#[from] log::Error),
    #[error(transparent)]
    Io(#[from] io::Error),
}

impl From<Failed> for io::Error {
    fn from(failed: Failed) -> io::Error {
        io::Error::other(failed)
    }
}
