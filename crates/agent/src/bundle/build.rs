//! Making a tree: what another tree has already is linked or copied from there, and the rest is written as it comes.

use std::collections::HashMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use muster_bundle::chunk;
use muster_bundle::listing::{Entry, Kind};
use muster_bundle::unpack::{Error, HardLinkError, Walk, Writer, seal};
use muster_model::bundle::Chunk;
use rustix::io::Errno;

use super::copy::copy_content;
use super::fetch::Sink;
use super::layout::{Layout, Piece};
use crate::disk;

/// A tree that is being made.
pub(super) struct Build {
    layout: Layout,
    writer: Writer,
    /// The chunks that are needed, each once, and which of them come next.
    wanted: Vec<Chunk>,
    taken: usize,
    /// Where their bytes go, in the order of the chunks.
    targets: Vec<Target>,
    written: usize,
    /// How much is still to come of each entry.
    left: Vec<u64>,
    /// The file that was written to last and is not whole.
    open: Option<(usize, File)>,
    room: Room,
}

/// Measures free disk space while a tree is written, so that it stops at the floor and not at a full disk.
struct Room {
    root: PathBuf,
    floor: Option<u64>,
    unmeasured_bytes: u64,
}

impl Room {
    /// How much is written between two measurements.
    const STEP: u64 = 16 << 20;

    fn take(&mut self, entry: &Entry, bytes: u64) -> Result<(), Error> {
        self.unmeasured_bytes += bytes;
        if self.unmeasured_bytes < Room::STEP {
            return Ok(());
        }
        let room = disk::check_free(&self.root, self.floor, self.unmeasured_bytes);
        self.unmeasured_bytes = 0;
        room.map_err(|source| Error::Write { name: muster_bundle::listing::shown(&entry.path), source })
    }
}

/// A part of a chunk that is a part of a file.
struct Target {
    chunk: u32,
    within: u32,
    length: u32,
    entry: usize,
    at: u64,
}

/// Another tree, and what is in it.
pub(super) struct Base<'a> {
    pub(super) tree: &'a Path,
    pub(super) layout: &'a Layout,
}

impl Build {
    /// Begins in an empty directory: makes all that needs no chunk.
    pub(super) fn begin(
        layout: Layout,
        root: &Path,
        base: Option<Base<'_>>,
        floor: Option<u64>,
    ) -> Result<Build, Error> {
        let mut room = Room { root: root.to_owned(), floor, unmeasured_bytes: 0 };
        let mut writer = Writer::open(root)?;
        let mut donor = base.and_then(Donor::new);
        let mut left: Vec<u64> = layout.entries.iter().map(Entry::size).collect();
        for (index, entry) in layout.entries.iter().enumerate() {
            match &entry.kind {
                Kind::Directory => writer.directory(&entry.path)?,
                Kind::Link { target } => writer.link(&entry.path, target)?,
                Kind::File { size: 0 } => seal(&writer.file(&entry.path)?, entry)?,
                Kind::File { .. } => {
                    if let Some(donor) = &mut donor
                        && donor.give(&layout, index, &mut writer, &mut room)?
                    {
                        left[index] = 0;
                    }
                }
            }
        }
        let (wanted, targets) = plan(&layout, &left);
        Ok(Build { layout, writer, wanted, taken: 0, targets, written: 0, left, open: None, room })
    }

    /// How much is to come.
    pub(super) fn bytes(&self) -> u64 {
        self.left.iter().sum()
    }

    /// Gives the directories their modes, when all files are there.
    pub(super) fn finish(self) -> Result<Layout, Error> {
        self.writer.seal_directories(&self.layout.entries)?;
        Ok(self.layout)
    }

    fn write(&mut self, target: usize, content: &[u8]) -> Result<(), Error> {
        let Target { within, length, entry: index, at, .. } = self.targets[target];
        let entry = &self.layout.entries[index];
        let file = match self.open.take() {
            Some((open, file)) if open == index => file,
            _ if self.left[index] == entry.size() => self.writer.file(&entry.path)?,
            _ => self.writer.again(&entry.path)?,
        };
        self.room.take(entry, u64::from(length))?;
        let part = &content[within as usize..(within + length) as usize];
        let name = || muster_bundle::listing::shown(&entry.path);
        file.write_all_at(part, at).map_err(|source| Error::Write { name: name(), source })?;
        self.left[index] -= u64::from(length);
        if self.left[index] == 0 {
            return seal(&file, entry);
        }
        self.open = Some((index, file));
        Ok(())
    }
}

impl Sink for Build {
    type Error = super::Error;

    fn missing(&self) -> &[Chunk] {
        &self.wanted[self.taken..]
    }

    fn take(&mut self, content: &[u8]) -> Result<(), Self::Error> {
        while self.targets.get(self.written).is_some_and(|target| target.chunk as usize == self.taken) {
            self.write(self.written, content)?;
            self.written += 1;
        }
        self.taken += 1;
        Ok(())
    }
}

/// Which chunks are needed for what is still to come, and where their bytes go.
fn plan(layout: &Layout, left: &[u64]) -> (Vec<Chunk>, Vec<Target>) {
    let mut numbers: HashMap<Piece, u32> = HashMap::new();
    let (mut wanted, mut targets) = (Vec::new(), Vec::new());
    for entry in (0..left.len()).filter(|entry| left[*entry] > 0) {
        let mut at = 0;
        for (piece, within, length) in layout.span(entry).parts() {
            let number = *numbers.entry(*piece).or_insert_with(|| {
                wanted.push(Chunk { id: chunk::from_digest(&piece.digest), bytes: u64::from(piece.bytes) });
                (wanted.len() - 1) as u32
            });
            targets.push(Target { chunk: number, within, length, entry, at });
            at += u64::from(length);
        }
    }
    // A chunk that comes twice in the content is fetched once, for both places.
    targets.sort_by_key(|target| target.chunk);
    (wanted, targets)
}

/// A tree that gives its files to another.
struct Donor<'a> {
    walk: Walk,
    layout: &'a Layout,
    by_span: HashMap<super::layout::Span<'a>, usize>,
    /// Each file gets one further name at most in a tree, lest two files of that tree look like one.
    given: Vec<bool>,
    can_link: bool,
}

impl<'a> Donor<'a> {
    fn new(base: Base<'a>) -> Option<Donor<'a>> {
        Some(Donor {
            walk: Walk::open(base.tree).ok()?,
            layout: base.layout,
            by_span: base.layout.by_span(),
            given: vec![false; base.layout.entries.len()],
            can_link: true,
        })
    }

    /// Makes a file from one with the same bytes; false if there is none.
    fn give(
        &mut self,
        layout: &Layout,
        index: usize,
        writer: &mut Writer,
        room: &mut Room,
    ) -> Result<bool, Error> {
        let (entry, span) = (&layout.entries[index], layout.span(index));
        let beside = self.layout.find(&entry.path).filter(|found| self.layout.span(*found) == span);
        let Some(found) = beside.or_else(|| self.by_span.get(&span).copied()) else { return Ok(false) };
        let source = &self.layout.entries[found];
        let is_same = source.mode == entry.mode && source.mtime == entry.mtime;
        if self.can_link && is_same && !std::mem::replace(&mut self.given[found], true) {
            match writer.hard_link(&mut self.walk, &source.path, &entry.path) {
                Ok(()) => return Ok(true),
                // Other file systems and their rules: all further files are copied as well.
                Err(HardLinkError::Refused(Errno::XDEV | Errno::PERM | Errno::OPNOTSUPP)) => {
                    self.can_link = false;
                }
                Err(HardLinkError::Refused(Errno::MLINK)) => {}
                // A tree that lost a file gives none, and the bytes come from the server.
                Err(HardLinkError::Refused(Errno::NOENT)) => return Ok(false),
                Err(HardLinkError::Refused(errno)) => return Err(Error::of(&entry.path, errno)),
                Err(HardLinkError::Name(error)) => return Err(error),
            }
        }
        let Ok(mut from) = self.walk.read(&source.path) else { return Ok(false) };
        room.take(entry, entry.size())?;
        let mut to = writer.file(&entry.path)?;
        let name = || muster_bundle::listing::shown(&entry.path);
        let copied =
            copy_content(&mut from, &mut to).map_err(|source| Error::Write { name: name(), source })?;
        if copied != entry.size() {
            writer.remove(&entry.path)?;
            return Ok(false);
        }
        seal(&to, entry).map(|()| true)
    }
}

impl From<Error> for super::Error {
    fn from(error: Error) -> Self {
        super::Error::Unpack(error)
    }
}

impl From<super::fetch::Error> for super::Error {
    fn from(error: super::fetch::Error) -> Self {
        super::Error::Fetch(error)
    }
}

impl From<super::layout::Error> for super::Error {
    fn from(error: super::layout::Error) -> Self {
        super::Error::Layout(error)
    }
}

impl From<muster_bundle::listing::Error> for super::Error {
    fn from(error: muster_bundle::listing::Error) -> Self {
        super::Error::Listing(error)
    }
}

impl std::fmt::Debug for Build {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("Build").field("wanted", &self.wanted.len()).finish_non_exhaustive()
    }
}
