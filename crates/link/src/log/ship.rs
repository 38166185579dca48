//! Taking a log's bytes, in order, to send them elsewhere.

use std::fs::File;

use super::segment::read_full;
use super::{Error, SegmentDir};

/// Bytes of one segment, to be stored at the same place elsewhere by `Appender::append_at`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Chunk {
    /// Where the segment starts that holds the bytes.
    pub segment: u64,
    /// Where the bytes start.
    pub offset: u64,
    pub length: usize,
}

impl Chunk {
    pub fn end(&self) -> u64 {
        self.offset + self.length as u64
    }
}

/// Reads a growing log as bytes. It stops at the last whole record, and a chunk never crosses from one segment into
/// another, but a chunk may well end inside a record.
#[derive(Debug)]
pub struct Shipper {
    dir: SegmentDir,
    offset: u64,
    /// A place where a record begins, at or below which everything may be shipped.
    whole: u64,
    segment: Option<(u64, File)>,
}

impl Shipper {
    pub fn new(dir: SegmentDir, offset: u64) -> Shipper {
        Shipper { dir, offset, whole: 0, segment: None }
    }

    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Go back to what the other side has, after a lost connection.
    pub fn seek(&mut self, offset: u64) {
        self.offset = offset;
        self.segment = None;
    }

    /// The next bytes, into the front of `buffer`; none if there is nothing new.
    pub fn next_chunk(&mut self, buffer: &mut [u8]) -> Result<Option<Chunk>, Error> {
        if self.offset >= self.whole {
            self.whole = self.dir.whole_end_after(self.whole)?;
        }
        while self.offset < self.whole && !buffer.is_empty() {
            self.open()?;
            let Some((start, file)) = &self.segment else { return Ok(None) };
            let room = buffer.len().min(usize::try_from(self.whole - self.offset).unwrap_or(usize::MAX));
            let read = read_full(file, &mut buffer[..room], self.offset - start);
            let length = read.map_err(Error::io(&self.dir.segment_path(*start)))?;
            if length > 0 {
                let chunk = Chunk { segment: *start, offset: self.offset, length };
                self.offset = chunk.end();
                return Ok(Some(chunk));
            }
            // The segment is used up, and since the log has more, another one follows.
            if self.dir.start_for(self.offset)? == Some(*start) {
                return Ok(None);
            }
            self.segment = None;
        }
        Ok(None)
    }

    fn open(&mut self) -> Result<(), Error> {
        if self.segment.is_none()
            && let Some(start) = self.dir.start_for(self.offset)?
            && let Some(file) = self.dir.read_segment(start)?
        {
            // Bytes below the first segment are gone; whoever removed them knew that nobody needs them.
            self.offset = self.offset.max(start);
            self.segment = Some((start, file));
        }
        Ok(())
    }
}
