//! One task's log being read: from where, up to when, and what of it.

use std::collections::BTreeMap;
use std::io;
use std::sync::Arc;

use memchr::memchr2;
use muster_link::log::{self, Header, Reader, Record, SegmentDir, Stream, Sum, Tail};
use muster_model::TaskId;
use tokio::sync::watch;

use super::cursor::Mark;
use super::lines::{Grep, Lines};
use crate::log_store::{Log, LogStore};

/// Bytes looked at before a follower is asked again whether it is still there; bounds what it holds, too.
const STEP: usize = 256 * 1024;
/// The same where most of it is thrown away.
const SCAN: usize = 4 << 20;

/// The longest piece of output. A task may write it in one record of a megabyte.
const PART: usize = 64 << 10;

/// What of each log is wanted.
#[derive(Debug, Clone, Default)]
pub(super) struct Selection {
    /// Microseconds since the Unix epoch, as in the records.
    pub since: Option<u64>,
    pub until: Option<u64>,
    pub grep: Option<Grep>,
    /// Whole lines, even if all of them.
    pub by_line: bool,
    /// Only so many of the last lines.
    pub tail: Option<u32>,
    /// From here to the end of this element.
    pub element: Option<(u64, u32)>,
    /// Only what this process of the task wrote.
    pub process: Option<u8>,
}

/// Something to show.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Piece {
    pub rank: u32,
    /// The number of the process in the task, where it is known.
    pub process: Option<u8>,
    pub stream: Stream,
    pub time_micros: u64,
    pub bytes: Vec<u8>,
    pub next: u64,
    pub skip: Option<[u64; 2]>,
    /// It begins in the middle of a line that is too long to be shown.
    pub is_cut: bool,
}

/// One task's log being read.
pub(super) struct Source {
    pub rank: u32,
    /// Keeps the log shared with its writer, who announces growth through it.
    _log: Arc<Log>,
    pub grown: watch::Receiver<u64>,
    reader: Reader,
    pending: Option<Record>,
    selection: Selection,
    tail: Option<Tail>,
    /// Whether the first of each stream that is shown is the end of a line only.
    begins_in_line: [bool; 2],
    lines: Option<Lines>,
    /// The last record of a stream that was too early ended in the middle of a line.
    is_cut: [bool; 2],
    /// What comes now is too late.
    pub is_past: bool,
    /// The task is over: what is not here any more, or not what it was, is damaged and not on its way.
    pub is_over: bool,
    /// The rest of the log was here, and is damaged.
    pub is_cut_off: bool,
    /// Nobody has the rest of the log, unless it came since.
    pub is_doubted: bool,
    checked: Checked,
    /// Where the log is damaged, from and to, in order.
    pub damage: Vec<(u64, u64)>,
    /// Matches that were not counted yet, where only the last of them are wanted.
    count: Option<Count>,
}

/// How far a log was compared with its checksums.
#[derive(Default)]
struct Checked {
    sums: Option<BTreeMap<u64, Sum>>,
    until: u64,
    /// Bytes that were read for it since the last step was told.
    read: usize,
}

/// A first reading of a log, to know how many lines match.
struct Count {
    source: Box<Source>,
    end: u64,
}

impl Source {
    pub fn open(logs: &LogStore, task: &TaskId, selection: &Selection, mark: Option<&Mark>) -> Self {
        let log = logs.open(task);
        let grown = log.watch();
        let begin = begin(&log.dir, selection, mark);
        let lines = (selection.grep.is_some() || selection.by_line)
            .then(|| Lines::new(task.rank, selection.grep.clone()));
        let mut source = Self {
            rank: task.rank,
            reader: reader(&log.dir, begin.offset, selection),
            grown,
            pending: None,
            selection: selection.clone(),
            tail: Some(begin).filter(|tail| tail.skip != [0; 2]),
            begins_in_line: begin.is_cut,
            lines,
            is_cut: [false; 2],
            is_past: false,
            is_over: false,
            is_cut_off: false,
            is_doubted: false,
            checked: Checked::default(),
            damage: Vec::new(),
            count: None,
            _log: log,
        };
        if mark.is_none() && selection.tail.is_some() && selection.grep.is_some() {
            let whole = Selection { tail: None, ..selection.clone() };
            let mut counted = Self::open(logs, task, &whole, None);
            if let Some(lines) = &mut counted.lines {
                lines.hidden = u64::MAX;
            }
            let end = counted._log.dir.whole_end().unwrap_or(0);
            source.count = Some(Count { source: Box::new(counted), end });
        }
        source
    }

    /// Where the next record begins or will begin.
    pub fn offset(&self) -> u64 {
        self.reader.offset()
    }

    /// The next record. Of a task that is over, damage is noted and passed over.
    fn next_record(&mut self) -> io::Result<Option<Record>> {
        let mut is_second_look = false;
        loop {
            if self.is_over {
                self.check_segment().map_err(io::Error::other)?;
            }
            let is_corrupt = match self.reader.next_record() {
                Ok(None) if self.is_over && !self.reader.is_over() => false,
                Err(log::Error::Corrupt { .. }) if self.is_over => true,
                read => return read.map_err(io::Error::other),
            };
            let offset = self.reader.offset();
            let later = self.next_segment(offset).map_err(io::Error::other)?;
            // The rest of this segment came before the next one was begun, and maybe after the first look.
            if later.is_some() && !is_corrupt && !std::mem::replace(&mut is_second_look, true) {
                continue;
            }
            is_second_look = false;
            let Some(next) = later else {
                let here = self._log.dir.end().map_err(io::Error::other)?;
                if is_corrupt || self.known_end() > here {
                    self.cut_off(self.known_end().max(here));
                }
                return Ok(None);
            };
            self.note_damage(offset, next);
            self.reader = reader(&self._log.dir, next, &self.selection);
        }
    }

    /// Compares a segment with its checksum before anything of it is read. One without a checksum has no verdict.
    fn check_segment(&mut self) -> Result<(), log::Error> {
        let (dir, offset) = (&self._log.dir, self.reader.offset());
        let sums = match &mut self.checked.sums {
            Some(sums) => sums,
            none => none.insert(dir.sums()?),
        };
        if offset < self.checked.until {
            return Ok(());
        }
        let Some((start, sum)) = sums.range(..=offset).next_back().map(|(start, sum)| (*start, sum.clone()))
        else {
            return Ok(());
        };
        let end = start + sum.length;
        self.checked.until = end.max(offset + 1);
        // A segment that is cut off is found where its end is missing.
        self.checked.read += usize::try_from(sum.length).unwrap_or(usize::MAX);
        let is_whole = || -> Result<bool, log::Error> {
            let is_cut_off = dir.length(start)?.is_none_or(|length| length < sum.length);
            Ok(is_cut_off || dir.matches(start, &sum)?)
        };
        if offset < end && !is_whole()? {
            self.note_damage(start, end);
        }
        Ok(())
    }

    /// Where the first segment after an offset starts.
    fn next_segment(&self, offset: u64) -> Result<Option<u64>, log::Error> {
        Ok(self._log.dir.starts()?.into_iter().find(|start| *start > offset))
    }

    /// How long the log was by its checksums.
    fn known_end(&self) -> u64 {
        let last = self.checked.sums.as_ref().and_then(BTreeMap::last_key_value);
        last.map_or(0, |(start, sum)| start + sum.length)
    }

    /// What is not here was here, and is on no node any more.
    pub fn cut_off(&mut self, end: u64) {
        self.is_cut_off = true;
        self.note_damage(self.offset(), end);
    }

    /// Damage within damage is not said twice.
    fn note_damage(&mut self, from: u64, to: u64) {
        match self.damage.last_mut() {
            Some((_, end)) if from <= *end => *end = to.max(*end),
            _ => self.damage.push((from, to)),
        }
    }

    /// Goes on counting; true when that is done.
    fn is_counted(&mut self) -> io::Result<bool> {
        let Some(mut count) = self.count.take() else { return Ok(true) };
        count.source.is_over = self.is_over;
        let (mut read, mut none) = (0, Vec::new());
        while read < SCAN {
            if count.source.offset() < count.end
                && !count.source.is_past
                && let Some(record) = count.source.next_record()?
            {
                read += record.bytes.len() + std::mem::take(&mut count.source.checked.read);
                count.source.take(record, &mut none);
                continue;
            }
            count.source.finish(&mut none);
            let matched = count.source.lines.as_ref().map_or(0, |lines| u64::MAX - lines.hidden);
            if let Some(lines) = &mut self.lines {
                lines.hidden = matched.saturating_sub(u64::from(self.selection.tail.unwrap_or(u32::MAX)));
            }
            return Ok(true);
        }
        self.count = Some(count);
        Ok(false)
    }

    fn take(&mut self, record: Record, out: &mut Vec<Piece>) {
        let (stream, length) = (record.stream, record.bytes.len());
        if self.selection.until.is_some_and(|until| record.time_micros > until) {
            self.is_past = true;
            return;
        }
        if self.selection.process.is_some() && self.selection.process != record.process {
            return;
        }
        let shown = out.len();
        let kept = self.tail.as_mut().map_or(length, |tail| tail.trim(stream, &record.bytes).len());
        let dropped = self.too_early(&record, length - kept);
        match &mut self.lines {
            Some(lines) => lines.push(&record, dropped, out),
            None => out.extend(piece(self.rank, record, dropped)),
        }
        if let Some(first) =
            out.get_mut(shown..).and_then(|new| new.iter_mut().find(|it| it.stream == stream))
        {
            first.is_cut = std::mem::take(&mut self.begins_in_line[stream.index()]);
        }
    }

    /// How many bytes of a record are not wanted because of when they were written: the rest of a line that began too
    /// early is no line. A progress bar, which redraws its line for hours, is shown from its next state on.
    fn too_early(&mut self, record: &Record, dropped: usize) -> usize {
        let Some(since) = self.selection.since else { return dropped };
        let is_cut = &mut self.is_cut[record.stream.index()];
        if record.time_micros < since {
            if let Some(last) = record.bytes.last() {
                *is_cut = !b"\r\n".contains(last);
            }
            return record.bytes.len();
        }
        if !*is_cut {
            return dropped;
        }
        let end = memchr2(b'\n', b'\r', &record.bytes[dropped..]);
        *is_cut = end.is_none();
        end.map_or(record.bytes.len(), |end| dropped + end + 1)
    }

    /// What is there is all there is.
    pub fn finish(&mut self, out: &mut Vec<Piece>) {
        let end = self.offset();
        if let Some(lines) = &mut self.lines {
            lines.finish(end, out);
        }
    }
}

/// What of a record is shown. A reader goes on from any piece, also within a record.
fn piece(rank: u32, record: Record, dropped: usize) -> Option<Piece> {
    let Record { offset, stream, time_micros, process, before, after, .. } = record;
    let mut skip = [0; 2];
    skip[stream.index()] = (before + record.bytes.len()) as u64;
    let (next, skip) = if after == 0 { (record.end(), None) } else { (offset, Some(skip)) };
    let mut bytes = record.bytes;
    bytes.drain(..dropped);
    let piece = Piece { rank, process, stream, time_micros, bytes, next, skip, is_cut: false };
    (!piece.bytes.is_empty()).then_some(piece)
}

fn reader(dir: &SegmentDir, offset: u64, selection: &Selection) -> Reader {
    // Each is held in a few copies for a reader who does not read.
    let reader = Reader::new(dir.clone(), offset).in_parts(PART);
    match selection.element {
        Some((_, index)) => reader.until_end_of(index),
        None => reader,
    }
}

/// Where to begin, and what to drop there.
fn begin(dir: &SegmentDir, selection: &Selection, mark: Option<&Mark>) -> Tail {
    let at = |offset| Tail { offset, skip: [0; 2], is_cut: [false; 2] };
    if let Some(mark) = mark {
        let offset = dir.align(mark.offset).unwrap_or(0);
        // Where the place itself is gone, there is nothing to count from.
        let skip = mark.skip.filter(|_| offset == mark.offset).unwrap_or_default();
        return Tail { skip, ..at(offset) };
    }
    if let Some(lines) = selection.tail.filter(|_| selection.grep.is_none()) {
        let end = match selection.until {
            Some(until) => dir.offset_after(until),
            None => dir.whole_end(),
        };
        let wants = |header: &Header| selection.process.is_none() || selection.process == header.process;
        let tail = end.and_then(|end| dir.tail_of(lines as usize, end, wants));
        return tail.unwrap_or(at(0));
    }
    if let Some((from, _)) = selection.element {
        return at(from);
    }
    at(selection.since.and_then(|since| dir.segment_at(since).ok()).unwrap_or(0))
}

/// What a step through some logs has found.
pub(super) struct Step {
    pub pieces: Vec<Piece>,
    /// Whether there was anything at all.
    pub is_news: bool,
}

/// Reads on, oldest first across tasks, up to a bound.
pub(super) fn read_on(sources: &mut [Source]) -> io::Result<Step> {
    let mut step = Step { pieces: Vec::new(), is_news: false };
    for source in sources.iter_mut() {
        if !source.is_counted()? {
            step.is_news = true;
            return Ok(step);
        }
    }
    let (mut read, mut shown) = (0, 0);
    while read < SCAN && shown < STEP {
        for source in sources.iter_mut().filter(|source| source.pending.is_none() && !source.is_past) {
            source.pending = source.next_record()?;
            source.is_past |= source.pending.is_none() && source.reader.is_over();
            read += std::mem::take(&mut source.checked.read);
            if read >= SCAN {
                step.is_news = true;
                return Ok(step);
            }
        }
        let oldest = sources
            .iter_mut()
            .filter(|source| source.pending.is_some())
            .min_by_key(|source| source.pending.as_ref().map(|record| record.time_micros));
        let Some(source) = oldest else { break };
        let Some(record) = source.pending.take() else { break };
        let before = step.pieces.len();
        read += record.bytes.len();
        source.take(record, &mut step.pieces);
        shown += step.pieces[before..].iter().map(|piece| piece.bytes.len()).sum::<usize>();
        step.is_news = true;
    }
    Ok(step)
}
