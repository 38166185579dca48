//! Reading a log record by record while it grows.
//!
//! A reader never waits: at the end it says that there is nothing yet, and is asked again when something changed.

use std::fs::File;
use std::os::unix::fs::MetadataExt;

use muster_model::array::Mark;

use super::segment::read_full;
use super::{Error, Header, Record, SegmentDir};

/// Reads whole records, in order, across segments.
#[derive(Debug)]
pub struct Reader {
    dir: SegmentDir,
    offset: u64,
    segment: Option<Segment>,
    /// Bytes of the segment from `offset` on, of which the first `taken` were already given out.
    window: Vec<u8>,
    taken: usize,
    /// The longest part of a record that is given out at once.
    longest_part: usize,
    /// How many bytes of the record at `offset` were given out in parts.
    given: usize,
    /// The element whose end is the end of what is read.
    element: Option<u32>,
    is_over: bool,
}

#[derive(Debug)]
struct Segment {
    start: u64,
    file: File,
}

/// What was found.
enum Taken {
    Output(Record),
    Mark,
}

impl Reader {
    // Enough that small records do not cost a system call each, and little enough for thousands of readers.
    const READ_AHEAD: usize = 64 << 10;

    /// A reader from `offset`, where a record must begin (see `SegmentDir::align` for offsets from outside). If the
    /// segments there are gone already, it begins with the oldest record there is.
    pub fn new(dir: SegmentDir, offset: u64) -> Reader {
        Reader {
            dir,
            offset,
            segment: None,
            window: Vec::new(),
            taken: 0,
            longest_part: usize::MAX,
            given: 0,
            element: None,
            is_over: false,
        }
    }

    /// Give long records in parts of at most so many bytes, which end with a line or at least with a whole character. Shorter
    /// than what is read ahead in any case, a part is no shorter than that.
    #[must_use]
    pub fn in_parts(self, longest: usize) -> Reader {
        Reader { longest_part: longest.max(Reader::READ_AHEAD), ..self }
    }

    /// Read up to the mark that says that this element has ended, and no further.
    #[must_use]
    pub fn until_end_of(self, element: u32) -> Reader {
        Reader { element: Some(element), ..self }
    }

    /// Whether that mark was met.
    pub fn is_over(&self) -> bool {
        self.is_over
    }

    /// Where the next record begins or will begin.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The next whole record of output or the next part of it, or none yet. After an error about corruption the reader stays where it is.
    pub fn next_record(&mut self) -> Result<Option<Record>, Error> {
        loop {
            if self.is_over {
                return Ok(None);
            }
            if self.segment.is_none() && !self.open()? {
                return Ok(None);
            }
            match self.take()? {
                Some(Taken::Output(record)) => return Ok(Some(record)),
                Some(Taken::Mark) => continue,
                None => {}
            }
            // What was read of an unfinished record is forgotten, since its writer may still take it back.
            let at_boundary = self.window.len() == self.taken;
            self.clear_window();
            if !at_boundary || !self.advance()? {
                return Ok(None);
            }
        }
    }

    fn open(&mut self) -> Result<bool, Error> {
        let Some(start) = self.dir.start_for(self.offset)? else { return Ok(false) };
        let Some(file) = self.dir.read_segment(start)? else { return Ok(false) };
        self.offset = self.offset.max(start);
        self.segment = Some(Segment { start, file });
        self.clear_window();
        Ok(true)
    }

    fn take(&mut self) -> Result<Option<Taken>, Error> {
        if !self.fill(Header::BYTES)? {
            return Ok(None);
        }
        let Some(bytes) = self.window[self.taken..].first_chunk() else { return Ok(None) };
        let Some(header) = Header::decode(bytes) else {
            self.clear_window();
            return Err(Error::Corrupt { offset: self.offset });
        };
        let (at, before, length) = (self.offset, self.given, header.length as usize);
        let Some(bytes) = self.take_body(length)? else { return Ok(None) };
        let after = length - before - bytes.len();
        self.given = 0;
        if after > 0 {
            self.given = before + bytes.len();
        } else {
            self.offset += header.record_bytes();
        }
        if header.is_mark {
            let is_end = |element| matches!(serde_json::from_slice(&bytes), Ok(Mark::Ended { element: ended, .. }) if ended == element);
            self.is_over = self.element.is_some_and(is_end);
            return Ok(Some(Taken::Mark));
        }
        let Header { stream, time_micros, process, .. } = header;
        Ok(Some(Taken::Output(Record { offset: at, stream, time_micros, process, bytes, before, after })))
    }

    /// Gives out what follows the header at `offset`, or the next part of it, if the segment has all of it.
    fn take_body(&mut self, length: usize) -> Result<Option<Vec<u8>>, Error> {
        let whole = Header::BYTES + length;
        if whole <= Reader::READ_AHEAD {
            if !self.fill(whole)? {
                return Ok(None);
            }
            let from = self.taken + Header::BYTES;
            self.taken += whole;
            return Ok(Some(self.window[from..self.taken].to_vec()));
        }
        // A long one is read to where it stays. Through the window, a reader that waits would keep room for two of them.
        let Some(segment) = &self.segment else { return Ok(None) };
        let path = self.dir.segment_path(segment.start);
        let io_error = Error::io(&path);
        let body = self.offset - segment.start + Header::BYTES as u64;
        // Its writer may still take back a record that is not whole, of which nothing is given out therefore.
        if self.given == 0 {
            match segment.file.metadata() {
                Ok(file) if file.len() < body + length as u64 => return Ok(None),
                Ok(_) => {}
                Err(error) => return Err(io_error(error)),
            }
        }
        let rest = length - self.given;
        let mut bytes = vec![0; rest.min(self.longest_part)];
        match read_full(&segment.file, &mut bytes, body + self.given as u64) {
            Ok(read) if read < bytes.len() => return Ok(None),
            Ok(_) => {}
            Err(error) => return Err(io_error(error)),
        }
        if bytes.len() < rest {
            bytes.truncate(part_length(&bytes));
        } else {
            self.clear_window();
        }
        Ok(Some(bytes))
    }

    /// Have at least `count` bytes from `offset` on in the window, if the segment has them.
    fn fill(&mut self, count: usize) -> Result<bool, Error> {
        if self.window.len() - self.taken >= count {
            return Ok(true);
        }
        let Some(segment) = &self.segment else { return Ok(false) };
        self.window.drain(..self.taken);
        self.taken = 0;
        let have = self.window.len();
        let at = self.offset - segment.start + have as u64;
        self.window.resize(count.max(Reader::READ_AHEAD), 0);
        let read = read_full(&segment.file, &mut self.window[have..], at);
        let read = read.map_err(Error::io(&self.dir.segment_path(segment.start)))?;
        self.window.truncate(have + read);
        Ok(self.window.len() >= count)
    }

    /// Go on to the next segment, if this one is complete.
    fn advance(&mut self) -> Result<bool, Error> {
        let Some(segment) = &self.segment else { return Ok(false) };
        if segment.start != self.offset
            && let Some(file) = self.dir.read_segment(self.offset)?
        {
            self.segment = Some(Segment { start: self.offset, file });
            return Ok(true);
        }
        // The segments after this one may have been removed as well: look for the oldest that is left.
        let removed = segment.file.metadata().is_ok_and(|metadata| metadata.nlink() == 0);
        let moved = removed && self.dir.start_for(self.offset)?.is_some_and(|start| start > self.offset);
        if moved { self.open() } else { Ok(false) }
    }

    fn clear_window(&mut self) {
        self.window.clear();
        // A reader that waits at the end of a quiet log should not hold the buffer of its longest record.
        self.window.shrink_to(Reader::READ_AHEAD);
        self.taken = 0;
    }
}

/// How much of these bytes ends with a line, or else with a whole character.
fn part_length(bytes: &[u8]) -> usize {
    if let Some(end) = bytes.iter().rposition(|byte| *byte == b'\n') {
        return end + 1;
    }
    let is_inside_character = |byte: &u8| byte & 0xc0 == 0x80;
    // A character has at most four bytes. What is not text is cut anywhere.
    let last = bytes.iter().rev().take(4).position(|byte| !is_inside_character(byte));
    let Some(last) = last.map(|back| bytes.len() - 1 - back) else { return bytes.len() };
    let is_whole = std::str::from_utf8(&bytes[last..]).is_ok();
    if is_whole || last == 0 { bytes.len() } else { last }
}
