//! The other side of shipping: a copy of a log, byte for byte, that has every byte once.

use std::fs::{self, File};
use std::io::ErrorKind;
use std::os::unix::fs::FileExt;

use super::sum::{SegmentHasher, Sum};
use super::{Error, Header, SEGMENT_BYTES, SegmentDir};

/// No supervisor makes a segment longer: the next one begins with the first record after [`SEGMENT_BYTES`].
const MAX_SEGMENT_BYTES: u64 = SEGMENT_BYTES + 2 * Header::MAX_LENGTH as u64;

/// The only writer of a copy of a log.
#[derive(Debug)]
pub struct Appender {
    pub(super) dir: SegmentDir,
    last: Option<Last>,
    /// Segments that were completed since the last `sync`.
    unsynced: Vec<u64>,
}

#[derive(Debug)]
struct Last {
    start: u64,
    length: u64,
    file: File,
    hasher: SegmentHasher,
    /// What is on disk is not what its checksum says, so that it gets no other.
    is_damaged: bool,
    /// How much of it the checksum on disk is of.
    noted: Option<u64>,
}

impl Last {
    fn begin(start: u64, file: File) -> Last {
        Last { start, length: 0, file, hasher: SegmentHasher::default(), is_damaged: false, noted: None }
    }

    /// Goes on with a segment that an earlier life has left.
    fn resume(dir: &SegmentDir, start: u64) -> Result<Last, Error> {
        let path = dir.segment_path(start);
        let file = dir.open_segment(start)?;
        let length = file.metadata().map_err(Error::io(&path))?.len();
        let is_damaged = match dir.sums()?.get(&start) {
            Some(sum) => !dir.matches(start, sum)?,
            None => false,
        };
        let mut last = Last { length, is_damaged, ..Last::begin(start, file) };
        let copy = last.file.try_clone().map_err(Error::io(&path))?;
        last.hasher.read(copy, length).map_err(Error::io(&path))?;
        Ok(last)
    }

    /// Its checksum, unless it would make damage good.
    fn sum(&self) -> Option<Sum> {
        (!self.is_damaged).then(|| self.hasher.sum())
    }
}

impl Appender {
    /// Open a copy, or begin one.
    pub fn open(dir: SegmentDir) -> Result<Appender, Error> {
        fs::create_dir_all(dir.path()).map_err(Error::io(dir.path()))?;
        let last = match dir.starts()?.last() {
            Some(&start) => Some(Last::resume(&dir, start)?),
            None => None,
        };
        Ok(Appender { dir, last, unsynced: Vec::new() })
    }

    /// How much of the log is here: what the sender should go on from.
    pub fn end(&self) -> u64 {
        self.last.as_ref().map_or(0, |last| last.start + last.length)
    }

    /// Store bytes that the sender has at `offset` in the segment that starts at `segment`. What is here already is
    /// skipped, so a chunk may be sent any number of times; what would leave a hole is refused, and changes nothing.
    /// Returns how much of the log is here now.
    pub fn append_at(&mut self, segment: u64, offset: u64, bytes: &[u8]) -> Result<u64, Error> {
        let end = self.end();
        let gap = Error::Gap { offset, end };
        let Some(have) = end.checked_sub(offset) else { return Err(gap) };
        let Some(new) = usize::try_from(have).ok().and_then(|have| bytes.get(have..)) else { return Ok(end) };
        if new.is_empty() {
            return Ok(end);
        }
        if end - segment.min(end) + new.len() as u64 > MAX_SEGMENT_BYTES {
            return Err(gap);
        }
        if self.last.as_ref().is_none_or(|last| last.start != segment) {
            // New bytes in a segment that is not the last can only begin the next one.
            if segment != end || offset != segment {
                return Err(gap);
            }
            let file = self.dir.create_segment(segment)?;
            if let Some(last) = self.last.replace(Last::begin(segment, file)) {
                self.unsynced.push(last.start);
                note_sum(&self.dir, &last)?;
            }
        }
        let Some(last) = &mut self.last else { return Err(gap) };
        let written = last.file.write_all_at(new, last.length);
        written.map_err(Error::io(&self.dir.segment_path(last.start)))?;
        last.length += new.len() as u64;
        last.hasher.update(new);
        Ok(self.end())
    }

    /// Make what was appended so far survive a power cut of this machine. Needed before telling a sender on another
    /// machine that it may delete its own.
    pub fn sync(&mut self) -> Result<(), Error> {
        let starts = self.unsynced.iter().copied().chain(self.last.as_ref().map(|last| last.start));
        for path in starts.map(|start| self.dir.segment_path(start)) {
            match File::open(&path).and_then(|file| file.sync_data()) {
                // It was removed meanwhile, so nobody wants it any more.
                Err(error) if error.kind() == ErrorKind::NotFound => {}
                synced => synced.map_err(Error::io(&path))?,
            }
        }
        self.unsynced.clear();
        if let Some(last) = &mut self.last {
            note_sum(&self.dir, last)?;
            last.noted = Some(last.length);
        }
        let directory = File::open(self.dir.path()).and_then(|directory| directory.sync_all());
        directory.map_err(Error::io(self.dir.path()))
    }
}

/// Notes the checksum of a segment as it is now.
fn note_sum(dir: &SegmentDir, last: &Last) -> Result<(), Error> {
    let sum = last.sum().filter(|_| last.noted != Some(last.length));
    sum.map_or(Ok(()), |sum| dir.add_sum(last.start, &sum))
}
