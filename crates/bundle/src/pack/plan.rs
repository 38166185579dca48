//! What of a stream is known from before: which files are as they were, and which old chunks therefore still hold.

use std::cmp::Ordering;

use muster_model::bundle::Chunk;

use super::{Found, Known, KnownFile};
use crate::listing::compare;

/// A file's part of the stream. Empty files have none.
#[derive(Debug, Clone, Copy)]
pub(super) struct Piece {
    /// Which of the found.
    pub entry: usize,
    pub size: u64,
    /// Where its bytes were in the old stream, if they are the same.
    pub old: Option<u64>,
    /// How often it was read in vain.
    pub tries: u32,
    /// Where, in the old stream, the bytes end that follow each other there as they do here.
    run_end: u64,
    /// The streams are the same from here to their ends.
    is_tail: bool,
}

/// A point of the stream: an offset in a piece, never at its end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(super) struct Place {
    pub piece: usize,
    pub offset: u64,
}

pub(super) struct Plan {
    pub pieces: Vec<Piece>,
    /// The old chunks, and where each began.
    chunks: Vec<Chunk>,
    starts: Vec<u64>,
}

impl Plan {
    pub fn new(found: &[Found], known: Known<'_>) -> Self {
        let sizes = known.files.iter().map(|file| u128::from(file.stamp.size)).sum::<u128>();
        let chunks = known.content.iter().map(|chunk| u128::from(chunk.bytes)).sum::<u128>();
        let known = if sizes == chunks { known } else { Known::default() };
        let mut pieces = pieces(found, known.files);
        let mut total = 0;
        let starts = known.content.iter().map(|chunk| {
            total += chunk.bytes;
            total - chunk.bytes
        });
        let starts = starts.collect();
        join_runs(&mut pieces, total);
        Self { pieces, chunks: known.content.to_vec(), starts }
    }

    /// The old chunk that begins at this point and is certain to be cut here again.
    ///
    /// A cut rests on the bytes of its chunk and on one more, and on there being two: the cutter looks at pairs. The
    /// last chunk ends because the stream does.
    pub fn reusable(&self, at: Place) -> Option<Chunk> {
        let piece = self.pieces.get(at.piece)?;
        let old = piece.old? + at.offset;
        let index = self.starts.binary_search(&old).ok()?;
        let chunk = &self.chunks[index];
        (piece.is_tail || old + chunk.bytes + 2 <= piece.run_end).then(|| chunk.clone())
    }

    /// The point so many bytes further on.
    pub fn advanced(&self, at: Place, bytes: u64) -> Place {
        let Place { mut piece, mut offset } = at;
        offset += bytes;
        while let Some(size) = self.pieces.get(piece).map(|piece| piece.size).filter(|size| *size <= offset) {
            offset -= size;
            piece += 1;
        }
        Place { piece, offset }
    }
}

/// The pieces of the new stream, each with its place in the old one. Both lists are in the same order.
fn pieces(found: &[Found], known: &[KnownFile]) -> Vec<Piece> {
    let mut known = known.iter();
    let mut candidate = known.next();
    let mut offset = 0;
    let mut pieces = Vec::new();
    for (entry, found) in found.iter().enumerate().filter(|(_, found)| found.entry.size() > 0) {
        let mut old = None;
        while let Some(file) = candidate {
            let order = compare(&file.path, &found.entry.path);
            if order == Ordering::Greater {
                break;
            }
            if order == Ordering::Equal && file.is_settled && file.stamp == found.stamp {
                old = Some(offset);
            }
            offset += file.stamp.size;
            candidate = known.next();
        }
        pieces.push(Piece { entry, size: found.entry.size(), old, tries: 0, run_end: 0, is_tail: false });
    }
    pieces
}

/// Finds out how far each piece and those behind it are as they were.
fn join_runs(pieces: &mut [Piece], old_total: u64) {
    let mut next: Option<Piece> = None;
    for piece in pieces.iter_mut().rev() {
        let Some(old) = piece.old else {
            next = Some(*piece);
            continue;
        };
        let end = old + piece.size;
        match &next {
            None => (piece.run_end, piece.is_tail) = (end, end == old_total),
            Some(next) if next.old == Some(end) => {
                (piece.run_end, piece.is_tail) = (next.run_end, next.is_tail);
            }
            Some(_) => piece.run_end = end,
        }
        next = Some(*piece);
    }
}
