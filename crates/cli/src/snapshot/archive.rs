//! A tar archive that exists only as a function: which bytes are at which offset.
//!
//! It depends on the tree alone: entries in the order of their names' bytes, no owner, and no time for directories,
//! which changes with files that are not part of the tree. The same tree gives the same bytes on every machine.

use std::fs::{File, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;

use rustix::fs::OFlags;
use tar::{Builder, EntryType, Header};

use super::Error;
use super::walk::{self, Entry, Kind};

/// The size of a chunk: small enough that an edited line costs little, large enough that a data set is not millions.
const CHUNK: u64 = 1 << 20;
/// The unit of tar.
const BLOCK: u64 = 512;
/// Two empty blocks end an archive.
const END: u64 = 2 * BLOCK;
/// The longest name a header itself can hold; longer ones get a record of their own.
const SHORT_NAME: usize = 100;

pub(super) struct Archive {
    root: PathBuf,
    entries: Vec<Entry>,
    /// Where each entry begins.
    offsets: Vec<u64>,
    bytes: u64,
}

impl Archive {
    pub fn new(root: PathBuf, entries: Vec<Entry>) -> Result<Self, Error> {
        let mut offsets = Vec::with_capacity(entries.len());
        let mut offset = 0;
        for entry in &entries {
            offsets.push(offset);
            offset += header(entry)?.len() as u64 + entry.file_size().unwrap_or(0).next_multiple_of(BLOCK);
        }
        Ok(Self { root, entries, offsets, bytes: offset + END })
    }

    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn chunk_count(&self) -> usize {
        self.bytes.div_ceil(CHUNK) as usize
    }

    /// The bounds of a chunk. Only this function knows how an archive is cut.
    fn bounds(&self, index: usize) -> Range<u64> {
        let start = index as u64 * CHUNK;
        start..(start + CHUNK).min(self.bytes)
    }

    /// The content of a chunk, read from the files it covers.
    pub fn chunk(&self, index: usize) -> Result<Vec<u8>, Error> {
        let bounds = self.bounds(index);
        let mut content = Vec::with_capacity((bounds.end - bounds.start) as usize);
        for i in self.first_entry_in(&bounds)..self.entries.len() {
            if self.offsets[i] >= bounds.end {
                break;
            }
            self.append_entry(i, &bounds, &mut content)?;
        }
        content.resize((bounds.end - bounds.start) as usize, 0);
        Ok(content)
    }

    /// A file of a chunk, to name in an error.
    pub fn first_file_in(&self, index: usize) -> PathBuf {
        let first = self.first_entry_in(&self.bounds(index));
        let file = self.entries[first..].iter().find(|entry| entry.file_size().is_some());
        file.map_or_else(|| self.root.clone(), |entry| entry.path.clone())
    }

    fn first_entry_in(&self, bounds: &Range<u64>) -> usize {
        self.offsets.partition_point(|offset| *offset <= bounds.start).saturating_sub(1)
    }

    /// Appends what an entry has within the bounds: parts of its header, its content, its padding.
    fn append_entry(&self, i: usize, bounds: &Range<u64>, content: &mut Vec<u8>) -> Result<(), Error> {
        let entry = &self.entries[i];
        let header = header(entry)?;
        let header_start = self.offsets[i];
        let data_start = header_start + header.len() as u64;
        let part = within(bounds, header_start, header.len() as u64);
        content.extend_from_slice(&header[part.start as usize..part.end as usize]);
        if let Kind::File { size } = entry.kind {
            let part = within(bounds, data_start, size);
            if !part.is_empty() {
                self.append_data(entry, size, part, content)?;
            }
            let padding = within(bounds, data_start + size, size.next_multiple_of(BLOCK) - size);
            content.resize(content.len() + (padding.end - padding.start) as usize, 0);
        }
        Ok(())
    }

    /// Appends a part of a file, if the file is still what it was when its size was noted. One that has only grown is
    /// taken as it was: somebody's log.
    fn append_data(
        &self,
        entry: &Entry,
        size: u64,
        part: Range<u64>,
        content: &mut Vec<u8>,
    ) -> Result<(), Error> {
        let changed = || Error::Changed { path: entry.path.clone() };
        let failed = |source: io::Error| match source.kind() {
            io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof => changed(),
            _ => Error::Read { path: entry.path.clone(), source },
        };
        let file = self.open(entry).map_err(failed)?;
        let start = content.len();
        content.resize(start + (part.end - part.start) as usize, 0);
        file.read_exact_at(&mut content[start..], part.start).map_err(failed)?;
        let now = file.metadata().map_err(failed)?;
        let is_rewritten = now.len() == size && walk::mtime(&now) != entry.mtime;
        if !now.is_file() || now.len() < size || is_rewritten { Err(changed()) } else { Ok(()) }
    }

    /// What was a file may be a link or a pipe by now: neither is followed, nor waited for.
    fn open(&self, entry: &Entry) -> io::Result<File> {
        let flags = OFlags::NOFOLLOW | OFlags::NONBLOCK;
        OpenOptions::new().read(true).custom_flags(flags.bits() as i32).open(self.root.join(&entry.path))
    }
}

/// The part of `[start, start + length)` that lies within the bounds, counted from `start`.
fn within(bounds: &Range<u64>, start: u64, length: u64) -> Range<u64> {
    let from = bounds.start.clamp(start, start + length);
    let to = bounds.end.clamp(start, start + length);
    from - start..to - start
}

/// An entry's header, with the records for long names before it.
fn header(entry: &Entry) -> Result<Vec<u8>, Error> {
    let failed = |source| Error::Name { path: entry.path.clone(), source };
    let mut header = Header::new_gnu();
    header.set_mode(entry.mode);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(entry.file_size().unwrap_or(0));
    header.set_mtime(u64::try_from(entry.mtime.0).unwrap_or(0));
    let mut builder = Builder::new(Vec::new());
    match &entry.kind {
        Kind::Directory => {
            header.set_entry_type(EntryType::Directory);
            header.set_mtime(0);
            builder.append_data(&mut header, &entry.path, io::empty()).map_err(failed)?;
        }
        Kind::File { .. } => {
            header.set_entry_type(EntryType::Regular);
            builder.append_data(&mut header, &entry.path, io::empty()).map_err(failed)?;
        }
        Kind::Link { target } => {
            header.set_entry_type(EntryType::Symlink);
            // Literally, where it fits: `append_link` would tidy `a//b` up.
            if target.as_os_str().len() <= SHORT_NAME {
                header.set_link_name_literal(target.as_os_str().as_bytes()).map_err(failed)?;
                builder.append_data(&mut header, &entry.path, io::empty()).map_err(failed)?;
            } else {
                builder.append_link(&mut header, &entry.path, target).map_err(failed)?;
            }
        }
    }
    // Not `into_inner`, which would end the archive here.
    Ok(std::mem::take(builder.get_mut()))
}
