//! Whole lines out of records, and which of them were asked for.
//!
//! A line's pieces may be spread over records, with records of the other stream between them. What is given out can be
//! gone on from exactly: a place in the log, and how many bytes of each stream after it were dealt with.

use memchr::{memchr, memchr_iter, memrchr};
use muster_link::log::{Record, Stream};
use muster_model::spec::{FieldCode, FieldError};
use regex::bytes::{Regex, RegexBuilder};

use super::source::Piece;

/// An open line that is longer is taken as it is; binary output may never have an end of line.
const MAX_LINE: usize = 64 << 10;
/// What a compiled pattern, and what its search, may take; far beyond what anyone writes by hand.
const MAX_PATTERN: usize = 1 << 20;
/// Lines are looked at one by one only in blocks of this size in which something matches.
const BLOCK: usize = 64 << 10;

/// Which lines are wanted.
#[derive(Debug, Clone)]
pub(super) struct Grep {
    regex: Regex,
    invert: bool,
    /// A block in which nothing matches has no line that does.
    by_block: bool,
}

impl Grep {
    pub fn new(pattern: &str, ignore_case: bool, invert: bool) -> Result<Self, FieldError> {
        let regex = RegexBuilder::new(pattern)
            .case_insensitive(ignore_case)
            // In a block, `^` and `$` mean the line's; in a line of its own they mean the same.
            .multi_line(true)
            .size_limit(MAX_PATTERN)
            .dfa_size_limit(2 * MAX_PATTERN)
            .build()
            .map_err(|error| FieldError::new("grep", FieldCode::InvalidValue, explain(&error)))?;
        let by_block = !invert && !has_text_anchors(pattern);
        Ok(Self { regex, invert, by_block })
    }

    fn wants(&self, line: &[u8]) -> bool {
        self.regex.is_match(line.strip_suffix(b"\n").unwrap_or(line)) != self.invert
    }

    fn may_want_some_of(&self, block: &[u8]) -> bool {
        !self.by_block || self.regex.is_match(block)
    }
}

fn explain(error: &regex::Error) -> String {
    match error {
        regex::Error::CompiledTooBig(_) => "is too large a regular expression; write a simpler one".into(),
        other => {
            // The library's words are a heading, the pattern with a mark below it, and `error: …`.
            let text = other.to_string();
            let (shown, reason) = text.rsplit_once("\nerror: ").unwrap_or(("", &text));
            let shown = shown.strip_prefix("regex parse error:").unwrap_or(shown);
            format!("is not a regular expression: {}{shown}", reason.trim_end())
        }
    }
}

/// Whether a pattern speaks of the beginning or the end of the text, which in a block are not those of a line.
fn has_text_anchors(pattern: &str) -> bool {
    let flags_off = pattern
        .split("(?")
        .skip(1)
        .any(|rest| rest.chars().take_while(|c| !":)<".contains(*c)).any(|c| c == '-'));
    flags_off || pattern.contains("\\A") || pattern.contains("\\z")
}

/// A place in a log: a record, and how many bytes of each stream were seen before it.
#[derive(Debug, Clone, Copy, Default)]
struct Place {
    offset: u64,
    seen: [u64; 2],
}

/// A line that has not ended yet.
#[derive(Debug, Default)]
struct Open {
    bytes: Vec<u8>,
    /// The record in which it begins, and how many bytes of its stream come before it.
    place: Place,
    begins: u64,
    time_micros: u64,
    process: Option<u8>,
}

/// Puts the lines of one task together.
#[derive(Debug)]
pub(super) struct Lines {
    rank: u32,
    grep: Option<Grep>,
    seen: [u64; 2],
    open: [Open; 2],
    /// How many of the wanted lines that come are not shown.
    pub hidden: u64,
}

impl Lines {
    /// Lines that a pattern wants, or all of them.
    pub fn new(rank: u32, grep: Option<Grep>) -> Self {
        Self { rank, grep, seen: [0; 2], open: Default::default(), hidden: 0 }
    }

    /// Takes a record or a part of one, of which the first bytes are none of our business.
    pub fn push(&mut self, record: &Record, dropped: usize, out: &mut Vec<Piece>) {
        let mut here = Place { offset: record.offset, seen: self.seen };
        let stream = record.stream.index();
        // A place is the beginning of a record.
        here.seen[stream] -= record.before as u64;
        let begins = self.seen[stream];
        self.seen[stream] += record.bytes.len() as u64;
        let mut from = dropped;
        if dropped > 0 {
            self.open[stream].bytes.clear();
        }
        if !self.open[stream].bytes.is_empty() {
            let Some(end) = memchr(b'\n', &record.bytes) else {
                return self.extend(record, from, here, begins, out);
            };
            let mut open = std::mem::take(&mut self.open[stream]);
            open.bytes.extend_from_slice(&record.bytes[..=end]);
            from = end + 1;
            if self.takes(&open.bytes) {
                let (next, skip) = self.progress(record, here, from);
                out.push(self.piece(record.stream, open.process, open.time_micros, open.bytes, next, skip));
            }
        }
        let whole = memrchr(b'\n', &record.bytes[from..]).map_or(from, |end| from + end + 1);
        let shown = self.select(&record.bytes[from..whole]);
        if !shown.is_empty() {
            let (next, skip) = self.progress(record, here, whole);
            out.push(self.piece(record.stream, record.process, record.time_micros, shown, next, skip));
        }
        self.extend(record, whole, here, begins, out);
    }

    /// Nothing more comes: what never ended is a line too.
    pub fn finish(&mut self, end: u64, out: &mut Vec<Piece>) {
        for stream in Stream::ALL {
            let open = std::mem::take(&mut self.open[stream.index()]);
            if !open.bytes.is_empty() && self.takes(&open.bytes) {
                out.push(self.piece(stream, open.process, open.time_micros, open.bytes, end, None));
            }
        }
    }

    fn takes(&mut self, line: &[u8]) -> bool {
        if !self.grep.as_ref().is_none_or(|grep| grep.wants(line)) {
            return false;
        }
        let is_shown = self.hidden == 0;
        self.hidden = self.hidden.saturating_sub(1);
        is_shown
    }

    /// The wanted ones of whole lines.
    fn select(&mut self, lines: &[u8]) -> Vec<u8> {
        if self.grep.is_none() && self.hidden == 0 {
            return lines.to_vec();
        }
        let mut shown = Vec::new();
        let mut rest = lines;
        while !rest.is_empty() {
            let block = memrchr(b'\n', &rest[..rest.len().min(BLOCK)])
                .or_else(|| memchr(b'\n', rest))
                .map_or(rest.len(), |end| end + 1);
            let (block, after) = rest.split_at(block);
            rest = after;
            if !self.grep.as_ref().is_none_or(|grep| grep.may_want_some_of(block)) {
                continue;
            }
            let mut from = 0;
            for end in memchr_iter(b'\n', block) {
                let line = &block[from..=end];
                from = end + 1;
                if self.takes(line) {
                    shown.extend_from_slice(line);
                }
            }
        }
        shown
    }

    /// Keeps the rest of a record, which has no end of line.
    fn extend(&mut self, record: &Record, from: usize, here: Place, begins: u64, out: &mut Vec<Piece>) {
        let rest = &record.bytes[from..];
        if rest.is_empty() {
            return;
        }
        let open = &mut self.open[record.stream.index()];
        if open.bytes.is_empty() {
            (open.place, open.begins) = (here, begins + from as u64);
            (open.time_micros, open.process) = (record.time_micros, record.process);
        }
        open.bytes.extend_from_slice(rest);
        // A record has the rest of its line, or has none.
        if open.bytes.len() >= MAX_LINE && record.after == 0 {
            let mut open = std::mem::take(open);
            if self.takes(&open.bytes) {
                let (next, skip) = self.progress(record, here, record.bytes.len());
                // What is picked out of a log stands on lines of its own.
                open.bytes.push(b'\n');
                out.push(self.piece(record.stream, open.process, open.time_micros, open.bytes, next, skip));
            }
        }
    }

    /// Where to go on from once the first `done` bytes of a record are dealt with: both streams' bytes that are not
    /// lie behind it, and those that are, are counted.
    fn progress(&self, record: &Record, here: Place, done: usize) -> (u64, Option<[u64; 2]>) {
        let (stream, other) = (record.stream.index(), 1 - record.stream.index());
        let waiting = Some(&self.open[other]).filter(|open| !open.bytes.is_empty());
        if waiting.is_none() && done == record.bytes.len() && record.after == 0 {
            return (record.end(), None);
        }
        let place = waiting.map_or(here, |open| open.place);
        let mut skip = [0; 2];
        skip[stream] = here.seen[stream] + (record.before + done) as u64 - place.seen[stream];
        skip[other] = waiting.map_or(here.seen[other], |open| open.begins) - place.seen[other];
        (place.offset, Some(skip))
    }

    fn piece(
        &self,
        stream: Stream,
        process: Option<u8>,
        time_micros: u64,
        bytes: Vec<u8>,
        next: u64,
        skip: Option<[u64; 2]>,
    ) -> Piece {
        Piece { rank: self.rank, process, stream, time_micros, bytes, next, skip, is_cut: false }
    }
}
