//! Outputs that came home, read from their bundle.

use std::io::{self, Read, Write};
use std::sync::Arc;

use axum::body::{Body, Bytes};
use muster_api::problem::{Code, Problem};
use muster_api::view::FileList;
use muster_bundle::listing::{self, Entry, Kind};
use muster_bundle::{chunk, tar};
use muster_model::BundleId;
use muster_model::bundle::{Chunk, Manifest, ParseError};
use tokio::sync::mpsc;

use crate::core::internal;
use crate::state::Shared;

/// Pieces that may wait for a slow reader.
const AHEAD: usize = 4;
const PIECE: usize = 256 * 1024;

/// A file, or a directory as an archive.
pub(crate) struct Opened {
    shared: Arc<Shared>,
    content: Vec<Chunk>,
    /// What of the content, by where it begins; more than one, or a directory, becomes an archive.
    entries: Vec<(u64, Entry)>,
    /// The length, of a single file.
    pub bytes: Option<u64>,
}

/// What lies at a path.
pub(crate) fn list(
    shared: &Shared,
    bundle: &BundleId,
    path: &str,
    recursive: bool,
    limit: usize,
) -> Result<FileList, Problem> {
    let (_, entries) = read(shared, bundle)?;
    let found = below(&entries, path, recursive).ok_or_else(|| absent(path))?;
    let truncated = found.len() > limit;
    let items = found.into_iter().take(limit).map(Entry::shown).collect();
    Ok(FileList { on: "server".into(), items, truncated })
}

/// Opens what lies at a path, to be sent.
pub(crate) fn open(shared: &Arc<Shared>, bundle: &BundleId, path: &str) -> Result<Opened, Problem> {
    let (manifest, entries) = read(shared, bundle)?;
    let mut at = 0;
    let mut found = Vec::new();
    let inside = format!("{path}/");
    for entry in entries {
        let begin = at;
        at += entry.size();
        if entry.path == path.as_bytes() || path.is_empty() || entry.path.starts_with(inside.as_bytes()) {
            found.push((begin, entry));
        }
    }
    let bytes = match found.first() {
        None if !path.is_empty() => return Err(absent(path)),
        Some((_, entry)) if entry.path == path.as_bytes() && entry.kind != Kind::Directory => {
            Some(entry.size())
        }
        _ => None,
    };
    if bytes.is_none() && !path.is_empty() {
        // An archive of a directory has the names that they have in it.
        found.retain(|(_, entry)| entry.path != path.as_bytes());
        found.iter_mut().for_each(|(_, entry)| drop(entry.path.drain(..inside.len())));
    }
    Ok(Opened { shared: shared.clone(), content: manifest.content, entries: found, bytes })
}

impl Opened {
    /// The reply. Whoever stops reading ends the work with it.
    pub fn into_body(self) -> Body {
        stream("outputs could not be sent", move |to| self.write(to))
    }

    fn write(&self, mut to: Pieces<'_>) -> io::Result<()> {
        if self.bytes.is_some()
            && let Some((begin, entry)) = self.entries.first()
        {
            io::copy(&mut self.content(*begin, entry.size()), &mut to)?;
            return to.flush();
        }
        let mut archive = tar::Writer::new(to);
        for (begin, entry) in &self.entries {
            archive.entry(entry, &mut self.content(*begin, entry.size()))?;
        }
        archive.finish().map(drop)
    }

    fn content(&self, begin: u64, size: u64) -> Content<'_> {
        let mut skip = begin;
        let index = self.content.iter().position(|chunk| {
            let within = skip < chunk.bytes;
            skip -= if within { 0 } else { chunk.bytes };
            within
        });
        Content {
            opened: self,
            next: index.unwrap_or(self.content.len()),
            skip,
            left: size,
            chunk: Vec::new(),
            at: 0,
        }
    }
}

/// A part of the content, chunk by chunk.
struct Content<'a> {
    opened: &'a Opened,
    next: usize,
    /// Of the first chunk.
    skip: u64,
    left: u64,
    chunk: Vec<u8>,
    at: usize,
}

impl Read for Content<'_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        if self.left == 0 {
            return Ok(0);
        }
        if self.at == self.chunk.len() {
            let Some(chunk) = self.opened.content.get(self.next) else { return Ok(0) };
            let stored = stored(&self.opened.shared, chunk)?;
            self.chunk = chunk::decode(&chunk.id, &stored).map_err(io::Error::other)?;
            self.at =
                usize::try_from(std::mem::take(&mut self.skip)).unwrap_or(usize::MAX).min(self.chunk.len());
            self.next += 1;
        }
        let rest = &self.chunk[self.at..];
        let length = rest.len().min(buffer.len()).min(usize::try_from(self.left).unwrap_or(usize::MAX));
        buffer[..length].copy_from_slice(&rest[..length]);
        self.at += length;
        self.left -= length as u64;
        Ok(length)
    }
}

/// A reply that is written as it is read. One that cannot be finished is cut off, so that nobody takes a part for the whole.
pub(crate) fn stream(
    failed: &'static str,
    write: impl FnOnce(Pieces<'_>) -> io::Result<()> + Send + 'static,
) -> Body {
    let (sender, receiver) = mpsc::channel(AHEAD);
    tokio::task::spawn_blocking(move || {
        if let Err(error) = write(Pieces { sender: &sender, buffer: Vec::new() }) {
            tracing::warn!(%error, "{failed}");
            // The reader may have gone.
            let _ = sender.blocking_send(Err(error));
        }
    });
    Body::from_stream(futures::stream::unfold(receiver, async |mut receiver| {
        receiver.recv().await.map(|piece| (piece, receiver))
    }))
}

/// Collects what is written into pieces of a good size for the way.
pub(crate) struct Pieces<'a> {
    sender: &'a mpsc::Sender<io::Result<Bytes>>,
    buffer: Vec<u8>,
}

impl Write for Pieces<'_> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.buffer.extend_from_slice(bytes);
        if self.buffer.len() >= PIECE {
            self.flush()?;
        }
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        if self.buffer.is_empty() {
            return Ok(());
        }
        let piece = Bytes::from(std::mem::take(&mut self.buffer));
        self.sender.blocking_send(Ok(piece)).map_err(|_| io::ErrorKind::BrokenPipe.into())
    }
}

fn read(shared: &Shared, bundle: &BundleId) -> Result<(Manifest, Vec<Entry>), Problem> {
    let row = shared.readers.bundle(bundle).map_err(|error| internal(&error))?;
    let removed = || Problem::new(Code::NotFound, "the outputs are no longer kept");
    let text = row.ok_or_else(removed)?.manifest;
    let damaged = |error: &dyn std::fmt::Display| {
        tracing::error!(%bundle, %error, "outputs cannot be read");
        Problem::new(Code::Internal, "the outputs cannot be read")
    };
    let manifest: Manifest = text.parse().map_err(|error: ParseError| damaged(&error))?;
    let mut bytes = Vec::new();
    for piece in &manifest.listing {
        let stored = stored(shared, piece).map_err(|error| damaged(&error))?;
        bytes.extend(chunk::decode(&piece.id, &stored).map_err(|error| damaged(&error))?);
        if bytes.len() > listing::MAX_BYTES {
            return Err(damaged(&"the listing is too long"));
        }
    }
    let entries = listing::decode(&bytes).map_err(|error| damaged(&error))?;
    Ok((manifest, entries))
}

fn stored(shared: &Shared, chunk: &Chunk) -> io::Result<Vec<u8>> {
    shared
        .chunks
        .read(&chunk.id)?
        .ok_or_else(|| io::Error::new(io::ErrorKind::NotFound, "a chunk is missing"))
}

/// What is in a directory, or the file itself; `None` if there is nothing at the path.
fn below<'a>(entries: &'a [Entry], path: &str, recursive: bool) -> Option<Vec<&'a Entry>> {
    let path = path.as_bytes();
    let itself = entries.iter().find(|entry| entry.path == path);
    match itself {
        Some(entry) if entry.kind != Kind::Directory => return Some(vec![entry]),
        None if !path.is_empty() => return None,
        _ => {}
    }
    let inside = |entry: &&Entry| {
        let parent = listing::parent(&entry.path);
        parent == path || recursive && (path.is_empty() || is_below(parent, path))
    };
    Some(entries.iter().filter(inside).collect())
}

fn is_below(path: &[u8], directory: &[u8]) -> bool {
    path.strip_prefix(directory).is_some_and(|rest| rest.starts_with(b"/"))
}

fn absent(path: &str) -> Problem {
    let shown: String = path.chars().take(200).collect();
    Problem::new(Code::NotFound, format!("the outputs have no `{shown}`"))
        .hint("`muster files JOB` shows what there is")
}
