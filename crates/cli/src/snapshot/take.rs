//! Reading a tree: the thread's side. What is new leaves in batches while the rest is still being read.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use bytes::Bytes;
use muster_api::model::ChunkId;
use muster_api::model::bundle::Manifest;
use muster_bundle::listing;
use muster_bundle::pack::{Folder, Found, KnownFile, Packer};
use tokio::sync::mpsc;

use super::index::{Index, Shelf};
use super::walk::{self, Tree};
use super::{Error, Trust, remark};

/// A batch leaves when it has so many bytes: several are in memory at a time, and less would cost more requests.
const BATCH: usize = 8 << 20;
/// A batch leaves when it spans so many bytes of the tree, however few of them are in it: each chunk keeps the block in
/// memory that it was read into.
const SPAN: usize = 4 * BATCH;

/// What to read, and how.
pub(super) struct Order {
    root: PathBuf,
    leave_out: Vec<PathBuf>,
    shelf: Option<Shelf>,
    trust: Trust,
    /// It is not the first look at this tree; what there was to say of it was said.
    is_repeated: bool,
}

/// What the reading thread tells.
#[derive(Debug)]
pub(super) enum Message {
    /// So many bytes will be read.
    Begin(u64),
    Batch(Batch),
}

/// Chunks that the server may lack.
#[derive(Debug, Default)]
pub(super) struct Batch {
    pub chunks: Vec<(ChunkId, Bytes)>,
    pub bytes: usize,
}

impl Batch {
    pub fn push(&mut self, id: ChunkId, content: Bytes) {
        self.bytes += content.len();
        self.chunks.push((id, content));
    }
}

/// A tree that was read.
pub(super) struct Taken {
    pub manifest: Manifest,
    /// What to know its files by.
    pub files: Vec<KnownFile>,
    /// What was remembered before; empty if nothing was.
    pub index: Index,
    /// What has not left yet.
    pub rest: Batch,
    /// Something has.
    pub is_under_way: bool,
    pub skipped: Vec<PathBuf>,
    #[cfg(test)]
    pub bytes_read: u64,
}

impl Order {
    pub fn new(root: &Path, leave_out: Vec<PathBuf>, shelf: Option<Shelf>, trust: Trust) -> Self {
        Self { root: root.to_owned(), leave_out, shelf, trust, is_repeated: false }
    }

    /// The same, once more.
    #[must_use]
    pub fn repeated(self, is_repeated: bool) -> Self {
        Self { is_repeated, ..self }
    }

    fn remembered(&self) -> Option<Index> {
        self.shelf.as_ref().filter(|_| self.trust == Trust::Memory)?.load(&self.root)
    }
}

/// Reads a tree.
pub(super) fn take(order: &Order, out: &mpsc::Sender<Message>) -> Result<Taken, Error> {
    let remembered = order.remembered();
    // The first time it may be anything, and what two threads cost is paid once.
    let expected = remembered.as_ref().map_or(usize::MAX, |index| index.files.len());
    let index = remembered.unwrap_or_default();
    let Tree { found, skipped } = walk::walk(&order.root, &order.leave_out, expected)?;
    let changed = changed(&found, &index);
    if changed.files && !order.is_repeated {
        remark::on_size(&found);
    }
    let send = |message| out.blocking_send(message).map_err(|_| Error::Abandoned);
    send(Message::Begin(changed.bytes))?;
    let folder =
        Folder::open(&order.root).map_err(|source| Error::Read { path: order.root.clone(), source })?;
    let mut packer = Packer::new(folder, found, index.known());
    let mut batches = Batches {
        seen: index.manifest.chunks().map(|chunk| chunk.id.clone()).collect(),
        ..Batches::default()
    };
    while let Some(packed) = packer.next().map_err(Error::Pack)? {
        if let Some(full) = packed.content.and_then(|content| batches.add(packed.chunk.id, content)) {
            send(Message::Batch(full))?;
        }
    }
    #[cfg(test)]
    let bytes_read = packer.bytes_read();
    let tree = packer.finish().map_err(Error::Pack)?;
    let mut rest = Bytes::from(tree.listing);
    for chunk in &tree.manifest.listing {
        let content = rest.split_to(chunk.bytes as usize);
        if let Some(full) = batches.add(chunk.id.clone(), content) {
            send(Message::Batch(full))?;
        }
    }
    Ok(Taken {
        manifest: tree.manifest,
        files: tree.found.into_iter().filter(|found| found.entry.size() > 0).map(known).collect(),
        index,
        is_under_way: batches.is_under_way,
        rest: batches.open,
        skipped,
        #[cfg(test)]
        bytes_read,
    })
}

fn known(found: Found) -> KnownFile {
    KnownFile { path: found.entry.path, stamp: found.stamp, is_settled: found.is_settled }
}

#[derive(Default)]
struct Batches {
    open: Batch,
    /// How much of the tree was read since it began.
    span: usize,
    /// What needs no sending: remembered, or sent already.
    seen: HashSet<ChunkId>,
    is_under_way: bool,
}

impl Batches {
    /// Adds a chunk; the batch before it, if that is full.
    fn add(&mut self, id: ChunkId, content: Bytes) -> Option<Batch> {
        self.span += content.len();
        if !self.seen.insert(id.clone()) {
            return None;
        }
        let is_full =
            !self.open.chunks.is_empty() && (self.open.bytes + content.len() > BATCH || self.span > SPAN);
        let full = is_full.then(|| std::mem::take(&mut self.open));
        if is_full || self.open.chunks.is_empty() {
            self.span = content.len();
        }
        self.is_under_way |= is_full;
        self.open.push(id, content);
        full
    }
}

/// How a tree differs from what is remembered, as far as the file system tells.
struct Changed {
    files: bool,
    /// The length of all files that are not as they were.
    bytes: u64,
}

fn changed(found: &[Found], index: &Index) -> Changed {
    let mut known = index.files.iter().peekable();
    let mut changed = Changed { files: false, bytes: 0 };
    for found in found.iter().filter(|found| found.entry.size() > 0) {
        let path = &found.entry.path;
        while known.next_if(|file| listing::compare(&file.path, path).is_lt()).is_some() {
            changed.files = true;
        }
        let same = known.next_if(|file| file.path == *path && file.stamp == found.stamp);
        changed.files |= same.is_none();
        if same.is_none_or(|file| !file.is_settled) {
            changed.bytes += found.entry.size();
        }
    }
    changed.files |= known.next().is_some();
    changed
}
