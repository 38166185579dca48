//! A tree of files as a stream of chunks, in one pass.
//!
//! Each file is read once: what is sent is what was hashed. With a [`Known`] of an earlier time, only what changed is
//! read: cutting begins at the last old cut before a change and goes on until a cut falls on an old one behind it; from
//! there on the old chunks are taken as they are. The same tree gives the same chunks with and without it.
//!
//! A file that changes while it is read is read again a few times, and then the error names it. Nothing here follows a
//! link or waits for a pipe.

use std::io;
use std::time::{SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use muster_model::bundle::{Chunk, Manifest};
use rustix::io::Errno;

use crate::cut;
use crate::listing::{self, Entry, Kind, Time};

mod block;
mod folder;
mod plan;
#[cfg(test)]
mod tests;

use block::{Block, Blocks};
pub use folder::Folder;
use plan::{Piece, Place, Plan};

/// How often a file is read before it is said that it changes all the time.
const TRIES: u32 = 4;
/// How much is read at once where everything is: little is moved, and memory stays small.
pub const MOST_AHEAD: usize = 4 * cut::MAX;
/// A file that was written so shortly before it was read may be written again without a newer time: clocks of file
/// systems are coarse.
const YOUNG: i128 = 2_000_000_000;

/// What the system says of a file; the same again means the same content, unless the file is young.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Stamp {
    /// Its length.
    pub size: u64,
    /// When its content was last written, as far as anyone may set that.
    pub mtime: Time,
    /// When it was last changed in any way; nobody can set that.
    pub ctime: Time,
    /// Its number on its device.
    pub inode: u64,
    /// Its device.
    pub device: u64,
    /// The nine bits of its rights.
    pub mode: u32,
}

/// Something that was found in a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// As it will be listed.
    pub entry: Entry,
    /// As the system described it.
    pub stamp: Stamp,
    /// The stamp can be trusted later to tell whether the file changed.
    pub is_settled: bool,
}

/// A file of an earlier time.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KnownFile {
    /// Its path.
    pub path: Vec<u8>,
    /// What the system said of it then.
    pub stamp: Stamp,
    /// Whether the stamp may be trusted.
    pub is_settled: bool,
}

/// A tree of an earlier time.
#[derive(Debug, Clone, Copy, Default)]
pub struct Known<'a> {
    /// Its files, in the order of their content.
    pub files: &'a [KnownFile],
    /// The chunks of their content.
    pub content: &'a [Chunk],
}

/// Where files are read from.
pub trait Source {
    /// An open file.
    type File;

    /// Opens a file of the tree, following no link and waiting for nobody.
    fn open(&self, path: &[u8]) -> io::Result<Self::File>;

    /// What the system says of it now; none if it is no ordinary file.
    fn stamp(&self, file: &Self::File) -> io::Result<Option<Stamp>>;

    /// Reads from an offset; 0 at the end.
    fn read_at(&self, file: &Self::File, into: &mut [u8], offset: u64) -> io::Result<usize>;
}

/// Why a tree could not be packed.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A file that cannot be read.
    #[error("cannot read `{}`", listing::shown(path))]
    Read {
        /// Which.
        path: Vec<u8>,
        /// The system's words.
        #[source]
        source: io::Error,
    },
    /// Each time it was read, it had changed before its end was reached; or it was found changed when that could no
    /// longer be taken into account. To look at the tree again may help.
    #[error("`{}` changes while it is read", listing::shown(path))]
    Changed {
        /// Which.
        path: Vec<u8>,
    },
    /// More names than a node would read.
    #[error("the names of {entries} files are too much for one listing")]
    TooMany {
        /// How many.
        entries: usize,
    },
}

/// A chunk of the stream, in order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Packed {
    /// Its name and length.
    pub chunk: Chunk,
    /// Its content; none where it is known from before and nothing was read.
    ///
    /// It shares a block of up to [`MOST_AHEAD`] bytes with its neighbours, which is used again once all are dropped.
    pub content: Option<Bytes>,
}

/// Everything about a tree that was packed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Tree {
    /// Its chunks.
    pub manifest: Manifest,
    /// Its listing, which the manifest's first list cuts.
    pub listing: Vec<u8>,
    /// What it is made of, as it was when it was read.
    pub found: Vec<Found>,
}

/// Packs a tree: [`Packer::next`] until there is no more, then [`Packer::finish`].
pub struct Packer<S: Source> {
    source: S,
    found: Vec<Found>,
    plan: Plan,
    /// Where the next chunk begins.
    at: Place,
    /// What was read and not yet cut; it ends at `ahead`, as does the block while it is being filled.
    uncut: Bytes,
    blocks: Blocks,
    ahead: Place,
    /// How much to read at once: little at first, because old chunks may follow soon.
    appetite: usize,
    open: Option<Open<S::File>>,
    content: Vec<Chunk>,
    bytes_read: u64,
}

/// The file that is being read.
struct Open<F> {
    piece: usize,
    file: F,
    stamp: Stamp,
    /// Where to go on, and after how many chunks, if it turns out to have changed.
    mark: (Place, usize),
}

impl<S: Source> Packer<S> {
    /// Begins with what was found, in the order of [`listing::compare`], and with what is known, which may be nothing.
    pub fn new(source: S, mut found: Vec<Found>, known: Known<'_>) -> Self {
        let plan = Plan::new(&found, known);
        for piece in plan.pieces.iter().filter(|piece| piece.old.is_some()) {
            found[piece.entry].is_settled = true;
        }
        Self {
            source,
            found,
            plan,
            at: Place::default(),
            uncut: Bytes::new(),
            blocks: Blocks::default(),
            ahead: Place::default(),
            appetite: cut::MAX,
            open: None,
            content: Vec::new(),
            bytes_read: 0,
        }
    }

    /// How many bytes were read from files so far.
    pub fn bytes_read(&self) -> u64 {
        self.bytes_read
    }

    /// The next chunk of the content. Where a file had to be read again, chunks come that are not part of the tree.
    #[expect(clippy::should_implement_trait, reason = "an iterator of results would go on after an error")]
    pub fn next(&mut self) -> Result<Option<Packed>, Error> {
        if let Some(chunk) = self.plan.reusable(self.at) {
            self.leave()?;
            self.uncut.clear();
            self.at = self.plan.advanced(self.at, chunk.bytes);
            self.ahead = self.at;
            self.appetite = cut::MAX;
            self.content.push(chunk.clone());
            return Ok(Some(Packed { chunk, content: None }));
        }
        self.fill()?;
        let is_end = self.ahead.piece == self.plan.pieces.len();
        let Some(length) = cut::next(&self.uncut, is_end) else { return Ok(None) };
        let content = self.uncut.split_to(length);
        self.at = self.plan.advanced(self.at, length as u64);
        self.appetite = (2 * self.appetite).min(MOST_AHEAD);
        let chunk = Chunk { id: crate::chunk::id(&content), bytes: length as u64 };
        self.content.push(chunk.clone());
        Ok(Some(Packed { chunk, content: Some(content) }))
    }

    /// What it all was. Only after [`Packer::next`] had no more.
    pub fn finish(self) -> Result<Tree, Error> {
        let listing = listing::encode(self.found.iter().map(|found| &found.entry));
        if listing.len() > listing::MAX_BYTES {
            return Err(Error::TooMany { entries: self.found.len() });
        }
        let manifest = Manifest { listing: cut_whole(&listing), content: self.content };
        Ok(Tree { manifest, listing, found: self.found })
    }

    /// Reads until a cut is certain.
    fn fill(&mut self) -> Result<(), Error> {
        if self.uncut.len() >= cut::MAX || self.ahead.piece == self.plan.pieces.len() {
            return Ok(());
        }
        let mut block = self.blocks.take(self.appetite);
        block.push(&std::mem::take(&mut self.uncut));
        while !block.room().is_empty() && self.ahead.piece < self.plan.pieces.len() {
            self.read_piece(&mut block)?;
        }
        self.uncut = block.freeze();
        Ok(())
    }

    /// Reads on in one file: to its end, or as far as there is room.
    fn read_piece(&mut self, block: &mut Block) -> Result<(), Error> {
        let index = self.ahead.piece;
        if self.open.as_ref().is_none_or(|open| open.piece != index) {
            self.open_piece(index)?;
        }
        let piece = self.plan.pieces[index];
        let wanted = (piece.size - self.ahead.offset).min(block.room().len() as u64) as usize;
        let Some(open) = &self.open else { return Ok(()) };
        let mut done = 0;
        while done < wanted {
            let offset = self.ahead.offset + done as u64;
            match self.source.read_at(&open.file, &mut block.room()[..wanted - done], offset) {
                Ok(0) => break,
                Ok(length) => {
                    block.add(length);
                    done += length;
                }
                Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(Error::Read { path: self.path(index), source }),
            }
        }
        self.bytes_read += done as u64;
        let is_whole = self.ahead.offset + wanted as u64 == piece.size;
        if done < wanted || is_whole && !self.is_unchanged(index)? {
            block.clear();
            return self.read_again(index);
        }
        self.ahead.offset += wanted as u64;
        if is_whole {
            self.settle(index);
            self.open = None;
            self.ahead = Place { piece: index + 1, offset: 0 };
        }
        Ok(())
    }

    /// Opens a file. One that changed since it was found is taken as it is now, unless chunks were made already that
    /// rest on what it was.
    fn open_piece(&mut self, index: usize) -> Result<(), Error> {
        let read = |source| Error::Read { path: self.path(index), source };
        let changed = || Error::Changed { path: self.path(index) };
        let file =
            self.source.open(&self.path(index)).map_err(|source| match Errno::from_io_error(&source) {
                // Gone; or it, or what it lies in, is a link, a file or a socket by now.
                Some(Errno::NOENT | Errno::LOOP | Errno::NOTDIR | Errno::NXIO) => changed(),
                _ => read(source),
            })?;
        let stamp = self.source.stamp(&file).map_err(read)?.ok_or_else(changed)?;
        let piece = self.plan.pieces[index];
        if stamp != self.found[piece.entry].stamp {
            if piece.old.is_some() || self.ahead.offset > 0 {
                return Err(changed());
            }
            self.take_as_it_is(piece, index, stamp);
        }
        self.open = Some(Open { piece: index, file, stamp, mark: (self.at, self.content.len()) });
        Ok(())
    }

    fn take_as_it_is(&mut self, piece: Piece, index: usize, stamp: Stamp) {
        let found = &mut self.found[piece.entry];
        found.stamp = stamp;
        found.entry.kind = Kind::File { size: stamp.size };
        found.entry.mtime = stamp.mtime;
        found.entry.mode = stamp.mode;
        self.plan.pieces[index].size = stamp.size;
    }

    /// Whether the file is still what it was when it was opened. One that has only grown counts as such once it was
    /// tried often enough: somebody's log, of which we have the beginning.
    fn is_unchanged(&self, index: usize) -> Result<bool, Error> {
        let Some(open) = &self.open else { return Ok(false) };
        let now = self.source.stamp(&open.file);
        let now = now.map_err(|source| Error::Read { path: self.path(index), source })?;
        let has_grown = now.is_some_and(|now| now.size > open.stamp.size && now.inode == open.stamp.inode);
        let is_last_try = self.plan.pieces[index].tries + 1 >= TRIES;
        Ok(now == Some(open.stamp) || has_grown && is_last_try)
    }

    /// Leaves a file in the middle, because what follows is known.
    fn leave(&mut self) -> Result<(), Error> {
        if let Some(index) = self.open.as_ref().map(|open| open.piece)
            && !self.is_unchanged(index)?
        {
            return Err(Error::Changed { path: self.path(index) });
        }
        self.open = None;
        Ok(())
    }

    /// Goes back to the cut before the file.
    fn read_again(&mut self, index: usize) -> Result<(), Error> {
        let changed = Error::Changed { path: self.path(index) };
        let Some(open) = self.open.take() else { return Err(changed) };
        let piece = &mut self.plan.pieces[index];
        piece.tries += 1;
        if piece.tries >= TRIES || piece.old.is_some() {
            return Err(changed);
        }
        let (at, chunks) = open.mark;
        self.content.truncate(chunks);
        self.uncut.clear();
        self.at = at;
        self.ahead = at;
        Ok(())
    }

    /// Notes whether the file can be known again by its stamp.
    fn settle(&mut self, index: usize) {
        let found = &mut self.found[self.plan.pieces[index].entry];
        found.is_settled = is_settled(&found.stamp, now());
    }

    fn path(&self, index: usize) -> Vec<u8> {
        self.found[self.plan.pieces[index].entry].entry.path.clone()
    }
}

/// The chunks of bytes that are all there.
pub fn cut_whole(bytes: &[u8]) -> Vec<Chunk> {
    let (mut chunks, mut at) = (Vec::new(), 0);
    while let Some(length) = cut::next(&bytes[at..], true) {
        let content = &bytes[at..at + length];
        chunks.push(Chunk { id: crate::chunk::id(content), bytes: length as u64 });
        at += length;
    }
    chunks
}

/// Whether a file that is read now will have a newer stamp after whatever is done to it.
fn is_settled(stamp: &Stamp, now: i128) -> bool {
    // A time of writing far in the future was set by someone, and says nothing.
    let is_written_now = (now - stamp.mtime.nanoseconds()).abs() < YOUNG;
    stamp.ctime.nanoseconds() < now - YOUNG && !is_written_now
}

fn now() -> i128 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_nanos() as i128)
}

impl Time {
    fn nanoseconds(self) -> i128 {
        i128::from(self.seconds) * 1_000_000_000 + i128::from(self.nanos)
    }
}
