//! One record: what a task wrote to one of its streams at one moment.
//!
//! A record is a piece of output as the pipe gave it, not a line: lines may be cut anywhere, bytes may be anything.

use muster_model::launch::MOST_LOGGED_PROCESSES;

/// Which stream of the task a record came from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Stream {
    Stdout,
    Stderr,
}

impl Stream {
    pub const ALL: [Stream; 2] = [Stream::Stdout, Stream::Stderr];

    /// A dense number, for arrays that have one slot per stream.
    pub fn index(self) -> usize {
        match self {
            Stream::Stdout => 0,
            Stream::Stderr => 1,
        }
    }

    // On disk a stream has the number of its file descriptor, so that zeroed blocks are never a record.
    fn code(self) -> u8 {
        match self {
            Stream::Stdout => 1,
            Stream::Stderr => 2,
        }
    }

    fn from_code(code: u8) -> Option<Stream> {
        match code {
            1 => Some(Stream::Stdout),
            2 => Some(Stream::Stderr),
            _ => None,
        }
    }
}

/// The fixed part before a record's bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Header {
    /// How many bytes of output follow.
    pub length: u32,
    pub stream: Stream,
    /// When the output was taken from the pipe, in microseconds since the Unix epoch.
    pub time_micros: u64,
    /// It is no output, but says something about it.
    pub is_mark: bool,
    /// The number in the task of the process that wrote it, where that is known.
    pub process: Option<u8>,
}

impl Header {
    pub const BYTES: usize = 16;
    /// The longest output of one record: the size of a full pipe, and a bound on what a reader must hold.
    pub const MAX_LENGTH: u32 = 1 << 20;
    const MAGIC: u16 = u16::from_le_bytes(*b"mu");
    const MARK: u8 = 1;
    /// How many processes of a task are told apart.
    pub const MOST_PROCESSES: u8 = MOST_LOGGED_PROCESSES;

    pub fn encode(&self) -> [u8; Header::BYTES] {
        let mut bytes = [0; Header::BYTES];
        bytes[0..4].copy_from_slice(&self.length.to_le_bytes());
        bytes[4] = self.stream.code();
        // The lowest bit of byte 5 says that it is a mark. The others are the number of the process, from 1.
        let process = self.process.filter(|process| *process < Header::MOST_PROCESSES);
        bytes[5] = u8::from(self.is_mark) | process.map_or(0, |process| (process + 1) << 1);
        bytes[6..8].copy_from_slice(&Header::MAGIC.to_le_bytes());
        bytes[8..16].copy_from_slice(&self.time_micros.to_le_bytes());
        bytes
    }

    /// The header in these bytes, unless they are not one.
    pub fn decode(bytes: &[u8; Header::BYTES]) -> Option<Header> {
        let [l0, l1, l2, l3, stream, flags, m0, m1, time @ ..] = *bytes;
        let length = u32::from_le_bytes([l0, l1, l2, l3]);
        if u16::from_le_bytes([m0, m1]) != Header::MAGIC || length > Header::MAX_LENGTH {
            return None;
        }
        Some(Header {
            length,
            stream: Stream::from_code(stream)?,
            time_micros: u64::from_le_bytes(time),
            is_mark: flags & Header::MARK != 0,
            process: (flags >> 1).checked_sub(1),
        })
    }

    /// The bytes of the record in its segment, this header included.
    pub fn record_bytes(&self) -> u64 {
        Header::BYTES as u64 + u64::from(self.length)
    }
}

/// A whole record, read back; or a part of one, if its reader gives parts.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Record {
    /// Where it begins.
    pub offset: u64,
    pub stream: Stream,
    pub time_micros: u64,
    /// The number in the task of the process that wrote it, where that is known.
    pub process: Option<u8>,
    pub bytes: Vec<u8>,
    /// How many bytes of the record come before these in earlier parts, and how many come after them in later ones.
    pub before: usize,
    pub after: usize,
}

impl Record {
    /// Where the next record begins: what a reader that resumes later starts from.
    pub fn end(&self) -> u64 {
        self.offset + (Header::BYTES + self.before + self.bytes.len() + self.after) as u64
    }
}
