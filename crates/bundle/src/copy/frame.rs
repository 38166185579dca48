//! What the two ends say: frames of a kind (1 byte), a length (4 bytes, little endian) and that many bytes.
//!
//! Numbers are little endian, texts have their length before them. A frame never makes its reader hold more than
//! [`MAX_FRAME`], and contents are handed on as they come.

use crate::listing::{Entry, Kind, MAX_PATH, Time};

/// The longest frame: a plan in which every entry is refused.
pub(super) const MAX_FRAME: usize = 1 << 20;
/// The unit of contents: large enough that nobody on the way notices the frames.
pub(super) const PIECE: usize = 256 << 10;
/// The most entries of a batch, and about the longest one.
pub(super) const BATCH_ENTRIES: usize = 4096;
pub(super) const BATCH_BYTES: usize = 128 << 10;
/// The longest reason that is told.
const MAX_REASON: usize = 200;
/// The most reasons in one frame; more are told without. So what the receiver says fits into any buffer on the way, and cannot
/// wait for a sender that waits for it.
const MAX_REASONS: usize = 64;
/// The most paths that are asked for at once.
const MAX_ASKED: usize = 1 << 16;
/// Raised when the other end must know the difference.
const VERSION: u8 = 1;
/// What the caller wants of the task.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Ask {
    /// The caller sends.
    Put {
        /// Where to, as the task names it.
        to: Vec<u8>,
        /// Also what is the same.
        force: bool,
        /// The task passes on to all of its peers what it got, so that it comes this way once.
        pass_on: bool,
    },
    /// The task sends.
    Get {
        /// What, as the task names it. Patterns are expanded there.
        paths: Vec<Vec<u8>>,
    },
}

/// What becomes of an entry.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Choice {
    /// The same is there.
    Same,
    /// A directory or a link, which is there now.
    Made,
    /// All of its content is wanted.
    Whole,
    /// The end of its content is wanted, if it begins with so many bytes of this digest.
    From { offset: u64, digest: [u8; 32] },
    /// It cannot be written.
    Refused(String),
}

/// How the content of a file ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Done {
    /// It is whole, as it was at that time.
    Whole { mode: u32, mtime: Time },
    /// It cannot be read.
    Failed(String),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Message {
    Ask(Ask),
    /// The first word of the sender. `base` is what the only source is called, if it is to be called otherwise here.
    Begin {
        is_several: bool,
        base: Option<Vec<u8>>,
    },
    Batch(Vec<Entry>),
    Plan(Vec<Choice>),
    /// Where the content of a file begins that is wanted from somewhere.
    Start(u64),
    /// So many bytes of content follow.
    Data(usize),
    Done(Done),
    /// Which entries of the batch could not be written after all.
    Report(Vec<(u32, String)>),
    Problem {
        path: Vec<u8>,
        reason: String,
        is_failure: bool,
    },
    End,
    /// So many bytes are passed on to peers, in all; said before the first of them.
    Passing(u64),
    /// So many more of these bytes are there.
    Passed(u64),
    Finished,
    Failed(String),
}

impl Message {
    pub(super) fn kind(&self) -> u8 {
        match self {
            Message::Ask(_) => 1,
            Message::Begin { .. } => 2,
            Message::Batch(_) => 3,
            Message::Plan(_) => 4,
            Message::Start(_) => 5,
            Message::Data(_) => DATA,
            Message::Done(_) => 7,
            Message::Report(_) => 8,
            Message::Problem { .. } => 9,
            Message::End => 10,
            Message::Finished => 11,
            Message::Failed(_) => 12,
            Message::Passing(_) => 13,
            Message::Passed(_) => 14,
        }
    }

    pub(super) fn encode(&self) -> Vec<u8> {
        let mut bytes = Vec::new();
        match self {
            Message::Ask(ask) => put_ask(&mut bytes, ask),
            Message::Begin { is_several, base } => {
                bytes.push(u8::from(*is_several));
                put_text(&mut bytes, base.as_deref().unwrap_or_default());
            }
            Message::Batch(entries) => entries.iter().for_each(|entry| put_entry(&mut bytes, entry)),
            Message::Plan(choices) => put_choices(&mut bytes, choices),
            Message::Start(number) | Message::Passing(number) | Message::Passed(number) => {
                bytes.extend(number.to_le_bytes());
            }
            Message::Data(_) | Message::End | Message::Finished => {}
            Message::Done(Done::Whole { mode, mtime }) => {
                bytes.push(0);
                bytes.extend(mode.to_le_bytes());
                put_time(&mut bytes, *mtime);
            }
            Message::Done(Done::Failed(reason)) => {
                bytes.push(1);
                put_reason(&mut bytes, reason);
            }
            Message::Report(failed) => {
                for (number, (index, reason)) in failed.iter().enumerate() {
                    bytes.extend(index.to_le_bytes());
                    put_reason(&mut bytes, if number < MAX_REASONS { reason } else { "" });
                }
            }
            Message::Problem { path, reason, is_failure } => {
                bytes.push(u8::from(*is_failure));
                put_text(&mut bytes, path);
                put_reason(&mut bytes, reason);
            }
            Message::Failed(reason) => put_reason(&mut bytes, reason),
        }
        bytes
    }

    pub(super) fn decode(kind: u8, bytes: &[u8]) -> Option<Message> {
        let mut reader = Bytes(bytes);
        let message = match kind {
            1 => Message::Ask(reader.ask()?),
            2 => {
                let is_several = reader.byte()? != 0;
                let base = Some(reader.text(MAX_PATH)?.to_vec()).filter(|base| !base.is_empty());
                Message::Begin { is_several, base }
            }
            3 => Message::Batch(reader.all(BATCH_ENTRIES, Bytes::entry)?),
            4 => Message::Plan(reader.all(BATCH_ENTRIES, Bytes::choice)?),
            5 => Message::Start(reader.long()?),
            7 => Message::Done(reader.done()?),
            8 => {
                Message::Report(reader.all(BATCH_ENTRIES, |reader| Some((reader.word()?, reader.reason()?)))?)
            }
            9 => {
                let is_failure = reader.byte()? != 0;
                let path = reader.text(MAX_PATH)?.to_vec();
                Message::Problem { path, reason: reader.reason()?, is_failure }
            }
            10 => Message::End,
            11 => Message::Finished,
            12 => Message::Failed(reader.reason()?),
            13 => Message::Passing(reader.long()?),
            14 => Message::Passed(reader.long()?),
            _ => return None,
        };
        reader.0.is_empty().then_some(message)
    }
}

pub(super) const DATA: u8 = 6;

fn put_ask(bytes: &mut Vec<u8>, ask: &Ask) {
    bytes.push(VERSION);
    match ask {
        // Whoever does not know the second kind refuses it, and takes the first for what it is.
        Ask::Put { to, force, pass_on } => {
            bytes.extend([if *pass_on { 2 } else { 0 }, u8::from(*force)]);
            put_text(bytes, to);
        }
        Ask::Get { paths } => {
            bytes.push(1);
            paths.iter().for_each(|path| put_text(bytes, path));
        }
    }
}

fn put_entry(bytes: &mut Vec<u8>, entry: &Entry) {
    put_text(bytes, &entry.path);
    bytes.extend(entry.mode.to_le_bytes());
    put_time(bytes, entry.mtime);
    match &entry.kind {
        Kind::Directory => bytes.push(b'd'),
        Kind::File { size } => {
            bytes.push(b'f');
            bytes.extend(size.to_le_bytes());
        }
        Kind::Link { target } => {
            bytes.push(b'l');
            put_text(bytes, target);
        }
    }
}

fn put_choices(bytes: &mut Vec<u8>, choices: &[Choice]) {
    let mut reasons = 0;
    for choice in choices {
        match choice {
            Choice::Same => bytes.push(0),
            Choice::Made => bytes.push(1),
            Choice::Whole => bytes.push(2),
            Choice::From { offset, digest } => {
                bytes.push(3);
                bytes.extend(offset.to_le_bytes());
                bytes.extend(digest);
            }
            Choice::Refused(reason) => {
                bytes.push(4);
                put_reason(bytes, if reasons < MAX_REASONS { reason } else { "" });
                reasons += 1;
            }
        }
    }
}

fn put_text(bytes: &mut Vec<u8>, text: &[u8]) {
    bytes.extend((text.len() as u32).to_le_bytes());
    bytes.extend(text);
}

fn put_reason(bytes: &mut Vec<u8>, reason: &str) {
    let end = reason.char_indices().map(|(at, _)| at).take_while(|at| *at <= MAX_REASON).last().unwrap_or(0);
    put_text(bytes, if reason.len() <= MAX_REASON { reason.as_bytes() } else { &reason.as_bytes()[..end] });
}

fn put_time(bytes: &mut Vec<u8>, time: Time) {
    bytes.extend(time.seconds.to_le_bytes());
    bytes.extend(time.nanos.to_le_bytes());
}

/// What is left of a frame to be read.
struct Bytes<'a>(&'a [u8]);

impl<'a> Bytes<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|bytes| bytes[0])
    }

    fn word(&mut self) -> Option<u32> {
        Some(u32::from_le_bytes(self.take(4)?.try_into().ok()?))
    }

    fn long(&mut self) -> Option<u64> {
        Some(u64::from_le_bytes(self.take(8)?.try_into().ok()?))
    }

    fn text(&mut self, limit: usize) -> Option<&'a [u8]> {
        let length = self.word()? as usize;
        if length >= limit { None } else { self.take(length) }
    }

    fn reason(&mut self) -> Option<String> {
        // Whatever the other end says is shown to people: no escape sequences.
        let text = String::from_utf8_lossy(self.text(MAX_REASON + 8)?).into_owned();
        Some(text.chars().map(|letter| if letter.is_control() { ' ' } else { letter }).collect())
    }

    fn time(&mut self) -> Option<Time> {
        let seconds = self.long()?.cast_signed();
        Some(Time { seconds, nanos: self.word().filter(|nanos| *nanos < 1_000_000_000)? })
    }

    fn all<T>(&mut self, limit: usize, one: impl Fn(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        let mut found = Vec::new();
        while !self.0.is_empty() {
            if found.len() == limit {
                return None;
            }
            found.push(one(self)?);
        }
        Some(found)
    }

    fn ask(&mut self) -> Option<Ask> {
        if self.byte()? != VERSION {
            return None;
        }
        match self.byte()? {
            kind @ (0 | 2) => {
                let force = self.byte()? != 0;
                Some(Ask::Put { to: self.text(MAX_PATH)?.to_vec(), force, pass_on: kind == 2 })
            }
            1 => {
                let paths = self.all(MAX_ASKED, |reader| Some(reader.text(MAX_PATH)?.to_vec()))?;
                Some(Ask::Get { paths })
            }
            _ => None,
        }
    }

    fn entry(&mut self) -> Option<Entry> {
        let path = self.text(MAX_PATH)?.to_vec();
        let mode = self.word()? & 0o777;
        let mtime = self.time()?;
        let kind = match self.byte()? {
            b'd' => Kind::Directory,
            b'f' => Kind::File { size: self.long()? },
            b'l' => Kind::Link { target: self.text(MAX_PATH)?.to_vec() },
            _ => return None,
        };
        Some(Entry { path, kind, mode, mtime })
    }

    fn choice(&mut self) -> Option<Choice> {
        Some(match self.byte()? {
            0 => Choice::Same,
            1 => Choice::Made,
            2 => Choice::Whole,
            3 => Choice::From { offset: self.long()?, digest: self.take(32)?.try_into().ok()? },
            4 => Choice::Refused(self.reason()?),
            _ => return None,
        })
    }

    fn done(&mut self) -> Option<Done> {
        Some(match self.byte()? {
            0 => Done::Whole { mode: self.word()? & 0o777, mtime: self.time()? },
            1 => Done::Failed(self.reason()?),
            _ => return None,
        })
    }
}

/// About how long an entry is in a batch.
pub(super) fn length(entry: &Entry) -> usize {
    let target = if let Kind::Link { target } = &entry.kind { target.len() } else { 0 };
    entry.path.len() + target + 40
}
