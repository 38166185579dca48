//! The directory of a log's segments: names, ends, and removal of what is no longer needed.
//!
//! A new segment begins only between two records. So every segment but the last holds whole records only, and any scan
//! of headers may begin at a segment's start.

use std::fs::{self, File, OpenOptions};
use std::io::ErrorKind;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use super::{Error, Header};

/// A segment that has reached this length gets no further record. It is what a scan of headers may cost at most, and
/// what stays on disk after its log was shipped.
pub const SEGMENT_BYTES: u64 = 8 << 20;

const EXTENSION: &str = "seg";

/// A directory of segments. It need not exist: then the log is empty.
#[derive(Clone, Debug)]
pub struct SegmentDir {
    path: PathBuf,
}

impl SegmentDir {
    pub fn new(path: impl Into<PathBuf>) -> SegmentDir {
        SegmentDir { path: path.into() }
    }

    pub fn path(&self) -> &Path {
        &self.path
    }

    pub fn segment_path(&self, start: u64) -> PathBuf {
        self.path.join(format!("{start:020}.{EXTENSION}"))
    }

    /// Where each segment starts, in order. Other files are none of our business.
    pub fn starts(&self) -> Result<Vec<u64>, Error> {
        let entries = match fs::read_dir(&self.path) {
            Ok(entries) => entries,
            Err(error) if error.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(error) => return Err(Error::io(&self.path)(error)),
        };
        let mut starts = Vec::new();
        for entry in entries {
            let name = entry.map_err(Error::io(&self.path))?.file_name();
            starts.extend(start_of(Path::new(&name)));
        }
        starts.sort_unstable();
        Ok(starts)
    }

    /// Where the segment starts that holds `offset` or, if the log ends there, would be continued at it. An offset
    /// below the first segment is answered by the first: what was before is gone.
    pub fn start_for(&self, offset: u64) -> Result<Option<u64>, Error> {
        let starts = self.starts()?;
        Ok(starts.iter().rev().find(|start| **start <= offset).or(starts.first()).copied())
    }

    /// How many bytes the log has, an unfinished record included.
    pub fn end(&self) -> Result<u64, Error> {
        match self.starts()?.last() {
            Some(&start) => Ok(start + self.length(start)?.unwrap_or(0)),
            None => Ok(0),
        }
    }

    /// Where the last whole record ends. Nothing beyond may be shown or shipped. Garbage after it, as a power cut
    /// leaves, is not an error: it just is not a record.
    pub fn whole_end(&self) -> Result<u64, Error> {
        self.whole_end_after(0)
    }

    /// The same, for a caller that already knows a place `known` where a record begins: it looks only at what is new.
    pub fn whole_end_after(&self, known: u64) -> Result<u64, Error> {
        let Some(&start) = self.starts()?.last() else { return Ok(known) };
        let Some(mut headers) = self.headers(start, known.max(start))? else { return Ok(known) };
        while headers.next_header()?.is_some() {}
        Ok(headers.offset)
    }

    /// Where the record begins that holds `offset`: for offsets that came from outside and may point anywhere.
    pub fn align(&self, offset: u64) -> Result<u64, Error> {
        let Some(start) = self.start_for(offset)? else { return Ok(0) };
        let Some(mut headers) = self.headers(start, start)? else { return Ok(start) };
        while let Some((at, header)) = headers.next_header()? {
            if at + header.record_bytes() > offset {
                return Ok(at);
            }
        }
        Ok(headers.offset)
    }

    /// Delete the segments that lie wholly below `offset`. The last one always stays: its name is what says how long
    /// the log is.
    pub fn remove_before(&self, offset: u64) -> Result<(), Error> {
        for pair in self.starts()?.windows(2) {
            if pair[1] <= offset {
                remove(&self.segment_path(pair[0]))?;
            }
        }
        Ok(())
    }

    /// Begin a segment. The caller must be the log's only writer.
    pub fn create_segment(&self, start: u64) -> Result<File, Error> {
        let path = self.segment_path(start);
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true).mode(0o600);
        options.open(&path).map_err(Error::io(&path))
    }

    /// Open a segment to continue it. Never with `O_APPEND`: `splice` refuses such files.
    pub fn open_segment(&self, start: u64) -> Result<File, Error> {
        let path = self.segment_path(start);
        OpenOptions::new().read(true).write(true).open(&path).map_err(Error::io(&path))
    }

    pub(super) fn read_segment(&self, start: u64) -> Result<Option<File>, Error> {
        let path = self.segment_path(start);
        match File::open(&path) {
            Ok(file) => Ok(Some(file)),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(&path)(error)),
        }
    }

    /// The headers of the segment at `start`, from the record that begins at `from`. None if it was just removed.
    pub(super) fn headers(&self, start: u64, from: u64) -> Result<Option<Headers>, Error> {
        let path = self.segment_path(start);
        let Some(file) = self.read_segment(start)? else { return Ok(None) };
        let end = start + file.metadata().map_err(Error::io(&path))?.len();
        Ok(Some(Headers { path, file, start, end, offset: from, window: Vec::new(), window_at: from }))
    }

    /// How long a segment is; none if it is not there.
    pub fn length(&self, start: u64) -> Result<Option<u64>, Error> {
        let path = self.segment_path(start);
        match fs::metadata(&path) {
            Ok(file) => Ok(Some(file.len())),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
            Err(error) => Err(Error::io(&path)(error)),
        }
    }
}

fn start_of(path: &Path) -> Option<u64> {
    let digits = path.file_stem()?.to_str()?;
    let named = path.extension()?.to_str()? == EXTENSION && digits.len() == 20;
    if named && digits.bytes().all(|byte| byte.is_ascii_digit()) { digits.parse().ok() } else { None }
}

// Two removers may meet; that the file is gone is all either wants.
fn remove(path: &Path) -> Result<(), Error> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != ErrorKind::NotFound => Err(Error::io(path)(error)),
        _ => Ok(()),
    }
}

/// Steps from header to header through one segment, as long as it was when the walk began.
pub(super) struct Headers {
    path: PathBuf,
    file: File,
    start: u64,
    end: u64,
    /// Where the next header is expected: at the end of the walk, where the last whole record ends.
    pub(super) offset: u64,
    window: Vec<u8>,
    window_at: u64,
}

impl Headers {
    // Small records share a read; large ones are jumped over.
    const WINDOW: usize = 16 << 10;

    /// The next whole record's offset and header. None at the end, at an unfinished record and at garbage.
    pub(super) fn next_header(&mut self) -> Result<Option<(u64, Header)>, Error> {
        let at = self.offset;
        if at + Header::BYTES as u64 > self.end {
            return Ok(None);
        }
        let Some(bytes) = self.header_bytes(at)? else { return Ok(None) };
        let Some(header) = Header::decode(&bytes) else { return Ok(None) };
        if at + header.record_bytes() > self.end {
            return Ok(None);
        }
        self.offset += header.record_bytes();
        Ok(Some((at, header)))
    }

    fn header_bytes(&mut self, at: u64) -> Result<Option<[u8; Header::BYTES]>, Error> {
        if at < self.window_at || at + Header::BYTES as u64 > self.window_at + self.window.len() as u64 {
            self.window.resize(Headers::WINDOW, 0);
            let read = read_full(&self.file, &mut self.window, at - self.start);
            self.window.truncate(read.map_err(Error::io(&self.path))?);
            self.window_at = at;
        }
        let from = (at - self.window_at) as usize;
        Ok(self.window.get(from..).and_then(|rest| rest.first_chunk()).copied())
    }

    /// Bytes that were most likely read with a header.
    pub(super) fn bytes(&self, at: u64, length: usize) -> Result<Vec<u8>, Error> {
        let near = at.checked_sub(self.window_at).and_then(|from| self.window.get(from as usize..));
        if let Some(found) = near.and_then(|near| near.get(..length)) {
            return Ok(found.to_vec());
        }
        let mut bytes = vec![0; length];
        self.read_exact(&mut bytes, at)?;
        Ok(bytes)
    }

    /// Part of a record's output, for a walk that must look at it.
    pub(super) fn read_exact(&self, buffer: &mut [u8], offset: u64) -> Result<(), Error> {
        self.file.read_exact_at(buffer, offset - self.start).map_err(Error::io(&self.path))
    }
}

/// Read until `buffer` is full or the file ends.
pub(super) fn read_full(file: &File, buffer: &mut [u8], at: u64) -> std::io::Result<usize> {
    let mut read = 0;
    while read < buffer.len() {
        match file.read_at(&mut buffer[read..], at + read as u64) {
            Ok(0) => break,
            Ok(count) => read += count,
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(read)
}
