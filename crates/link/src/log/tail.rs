//! Where the last lines of a log begin, without reading the log from its start.
//!
//! A line belongs to one stream, and its pieces may have records of the other stream between them. The last N lines are
//! those that end last, where a line that is still open ends with what there is of it. So the answer is one offset to
//! read from, and for each stream how many bytes to drop there: that is exact, and a reader needs no knowledge of lines.

use super::segment::Headers;
use super::{Error, Header, SegmentDir, Stream};

/// Where to begin reading to see the last lines.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Tail {
    /// Where the first record begins that has a part of them.
    pub offset: u64,
    /// How many bytes of each stream to drop from there on.
    pub skip: [u64; 2],
    /// Whether what comes first of each stream is only the end of a line.
    pub is_cut: [bool; 2],
}

impl Tail {
    /// What of a record's bytes is within the tail. To be asked about every record from `offset` on, in order.
    pub fn trim<'a>(&mut self, stream: Stream, bytes: &'a [u8]) -> &'a [u8] {
        let skip = &mut self.skip[stream.index()];
        let dropped = bytes.len().min(usize::try_from(*skip).unwrap_or(usize::MAX));
        *skip -= dropped as u64;
        &bytes[dropped..]
    }
}

impl SegmentDir {
    // A log without line ends must not make `--tail 10` read all of it. What is further back than this is not looked at.
    const TAIL_REACH: u64 = 64 << 20;
    /// How much of one line the last lines may contain. No line that people read is longer, and a terminal that is sent more
    /// is lost for minutes.
    pub const TAIL_LINE: u64 = 1 << 20;

    /// Where the last `lines` lines begin. A last line that is not ended yet counts as one.
    pub fn tail(&self, lines: usize) -> Result<Tail, Error> {
        self.tail_before(lines, self.whole_end()?)
    }

    /// The same for the part of the log before `end`, where a record must begin or the log end.
    pub fn tail_before(&self, lines: usize, end: u64) -> Result<Tail, Error> {
        self.tail_of(lines, end, |_| true)
    }

    /// The same for what is wanted of the log, as if there were nothing else in it.
    pub fn tail_of(&self, lines: usize, end: u64, wants: impl Fn(&Header) -> bool) -> Result<Tail, Error> {
        let mut walk = Walk::new(lines, end);
        for start in self.starts()?.into_iter().rev().filter(|start| *start < end) {
            let Some(mut headers) = self.headers(start, start)? else { break };
            let mut records = Vec::new();
            while let Some(record) = headers.next_header()? {
                // What was written since, or is of no interest, has no place in an answer that counts from the end.
                if record.0 < walk.end && !record.1.is_mark && wants(&record.1) {
                    records.push(record);
                }
            }
            for (offset, header) in records.into_iter().rev() {
                if walk.is_done() || walk.end - offset > SegmentDir::TAIL_REACH {
                    return Ok(walk.tail());
                }
                walk.step(&headers, offset, header)?;
            }
        }
        Ok(walk.tail())
    }
}

/// A walk from the end of the log towards its start.
struct Walk {
    end: u64,
    /// How many lines may still be taken.
    wanted: usize,
    streams: [Seen; 2],
    /// The first record with a part of a taken line, and how much each stream has from there to the end.
    offset: u64,
    total: [u64; 2],
    buffer: Vec<u8>,
}

/// What the walk knows of one stream.
#[derive(Default)]
struct Seen {
    /// Bytes from here to the end of the log.
    bytes: u64,
    /// Bytes from the start of the first taken line to the end of the log.
    taken: u64,
    line: Line,
    /// How long the line is so far.
    length: u64,
    /// The first taken line is too long, and only its end is taken.
    is_cut: bool,
}

/// The line of a stream that the walk is in.
#[derive(Clone, Copy, Default, PartialEq, Eq)]
enum Line {
    #[default]
    NotYet,
    Taken,
    /// This line and all before it are not wanted.
    Refused,
}

impl Walk {
    const BLOCK: usize = 64 << 10;

    fn new(wanted: usize, end: u64) -> Walk {
        Walk {
            end,
            wanted,
            streams: [Seen::default(), Seen::default()],
            offset: end,
            total: [0; 2],
            buffer: vec![],
        }
    }

    fn is_done(&self) -> bool {
        self.wanted == 0 && self.streams.iter().all(|seen| seen.line != Line::Taken)
    }

    fn tail(self) -> Tail {
        let skip = [0, 1].map(|stream| self.total[stream] - self.streams[stream].taken);
        let is_cut = [0, 1].map(|stream| self.streams[stream].is_cut);
        Tail { offset: self.offset, skip, is_cut }
    }

    fn step(&mut self, headers: &Headers, offset: u64, header: Header) -> Result<(), Error> {
        let index = header.stream.index();
        let taken = self.streams[index].taken;
        let mut rest = header.length as usize;
        while rest > 0 {
            let block = rest.min(Walk::BLOCK);
            rest -= block;
            self.buffer.resize(block, 0);
            headers.read_exact(&mut self.buffer, offset + (Header::BYTES + rest) as u64)?;
            self.streams[index].step(&self.buffer, &mut self.wanted);
        }
        if self.streams[index].taken > taken {
            self.offset = offset;
        }
        if self.offset == offset {
            self.total = [self.streams[0].bytes, self.streams[1].bytes];
        }
        Ok(())
    }
}

impl Seen {
    fn step(&mut self, block: &[u8], wanted: &mut usize) {
        for byte in block.iter().rev() {
            if *byte == b'\n' || self.line == Line::NotYet {
                self.line = if *wanted > 0 && !self.is_cut { Line::Taken } else { Line::Refused };
                *wanted = wanted.saturating_sub(1);
                self.length = 0;
            }
            if self.line == Line::Taken && self.length == SegmentDir::TAIL_LINE {
                // Nothing before it is taken either: what is shown is the end of the log, without a hole.
                self.line = Line::Refused;
                self.is_cut = true;
                *wanted = 0;
            }
            self.length += 1;
            self.bytes += 1;
            if self.line == Line::Taken {
                self.taken = self.bytes;
            }
        }
    }
}
