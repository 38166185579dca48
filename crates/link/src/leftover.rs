//! What an agent could not tell its server, as lines of text.
//!
//! A place whose files go with it has one thing that outlives it: what was printed there. So what is owed is packed into
//! parcels, and each parcel into lines that are told from everything else by how they begin. Whoever keeps the text may lose
//! its beginning, cut a line, or mix it with others' lines: a parcel is whole or it is not there.
//!
//! A line is `muster-left 1 KIND PART/PARTS HASH BASE64`; the hash is that of the whole parcel, compressed. The last parcel is
//! [`RECORD`]: it names the others, and has for some of its files what they would be without them.

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::path::{Component, Path};

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;

/// How every line begins.
pub const MARK: &str = "muster-left ";
/// The parcel that says what else there is.
pub const RECORD: &str = "record";
/// The file of it that names the kinds of all others, in one line.
pub const KINDS: &str = "parcels";
/// How the files of it end that stand for others where a parcel is missing.
pub const WITHOUT: &str = ".without";
/// Raised when older readers must not try.
const FORMAT: &str = "1";
/// Bytes of a parcel in one line: with its beginning and in base64 below the 16 KiB at which container runtimes cut.
const PIECE: usize = 9 << 10;
/// More than any parcel: what claims to be longer was not made by an agent.
const MOST: usize = 256 << 20;
/// Fast, and most of what can be had.
const LEVEL: i32 = 3;

/// A file or directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Below the agent's directory.
    pub path: String,
    pub kind: Kind,
    /// Of a link: where it leads.
    pub content: Vec<u8>,
}

/// What an entry is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    File,
    /// A file that may be run.
    Program,
    Directory,
    Link,
}

impl Kind {
    const ALL: [Kind; 4] = [Kind::File, Kind::Program, Kind::Directory, Kind::Link];
}

impl Entry {
    pub fn new(path: impl Into<String>, kind: Kind, content: impl Into<Vec<u8>>) -> Entry {
        Entry { path: path.into(), kind, content: content.into() }
    }

    pub fn file(path: impl Into<String>, content: impl Into<Vec<u8>>) -> Entry {
        Entry::new(path, Kind::File, content)
    }

    pub fn directory(path: impl Into<String>) -> Entry {
        Entry::new(path, Kind::Directory, "")
    }
}

/// Files that come together, compressed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Parcel {
    kind: String,
    packed: Vec<u8>,
}

impl Parcel {
    /// `kind` is one word.
    pub fn pack(kind: &str, entries: &[Entry]) -> io::Result<Parcel> {
        let mut plain = Vec::new();
        for entry in entries {
            plain.push(entry.kind as u8);
            for bytes in [entry.path.as_bytes(), &entry.content] {
                plain.extend((bytes.len() as u64).to_le_bytes());
                plain.extend(bytes);
            }
        }
        Ok(Parcel { kind: kind.to_owned(), packed: zstd::bulk::compress(&plain, LEVEL)? })
    }

    /// How much it takes.
    pub fn bytes(&self) -> usize {
        self.packed.len()
    }

    /// The lines that carry it, each with its end.
    pub fn lines(&self) -> impl Iterator<Item = String> {
        let (parts, hash) = (self.packed.len().div_ceil(PIECE), hash(&self.packed));
        self.packed.chunks(PIECE).enumerate().map(move |(at, piece)| {
            format!("{MARK}{FORMAT} {} {}/{parts} {hash} {}\n", self.kind, at + 1, STANDARD.encode(piece))
        })
    }

    fn unpack(packed: &[u8]) -> io::Result<Vec<Entry>> {
        let plain = zstd::bulk::decompress(packed, MOST)?;
        let mut rest = &plain[..];
        let mut entries = Vec::new();
        while let Some((kind, after)) = rest.split_first() {
            rest = after;
            let kind = *Kind::ALL.get(usize::from(*kind)).ok_or(ErrorKind::InvalidData)?;
            let path = String::from_utf8(take(&mut rest)?.to_vec()).map_err(io::Error::other)?;
            let content = take(&mut rest)?.to_vec();
            entries.push(Entry { path: checked(path)?, kind, content });
        }
        Ok(entries)
    }
}

fn hash(bytes: &[u8]) -> String {
    blake3::hash(bytes).to_hex()[..32].to_owned()
}

fn take<'a>(rest: &mut &'a [u8]) -> io::Result<&'a [u8]> {
    let (length, after) = rest.split_first_chunk::<8>().ok_or(ErrorKind::UnexpectedEof)?;
    let length = usize::try_from(u64::from_le_bytes(*length)).map_err(io::Error::other)?;
    let (bytes, after) = after.split_at_checked(length).ok_or(ErrorKind::UnexpectedEof)?;
    *rest = after;
    Ok(bytes)
}

/// A path that stays below where it is put.
fn checked(path: String) -> io::Result<String> {
    let is_below = Path::new(&path).components().all(|part| matches!(part, Component::Normal(_)));
    match is_below && !path.is_empty() {
        true => Ok(path),
        false => Err(io::Error::new(ErrorKind::InvalidData, format!("`{path}` is no file of a parcel"))),
    }
}

/// What was found among lines of text.
#[derive(Debug, Default)]
pub struct Found {
    parcels: BTreeMap<String, Coming>,
}

/// A parcel of which parts were found.
#[derive(Debug)]
struct Coming {
    hash: String,
    parts: BTreeMap<usize, Vec<u8>>,
    count: usize,
}

impl Found {
    /// Takes note of a line, whoever wrote it.
    pub fn line(&mut self, line: &str) {
        if let Some((kind, hash, part, count, piece)) = read(line) {
            let coming = self.parcels.entry(kind.to_owned()).or_insert_with(|| Coming::new(hash, count));
            // What was written last is what counts.
            if coming.hash != hash || coming.count != count {
                *coming = Coming::new(hash, count);
            }
            coming.parts.insert(part, piece);
        }
    }

    /// Whether there is anything.
    pub fn is_empty(&self) -> bool {
        self.parcels.is_empty()
    }

    /// All that can be put back: the record, and the rest if nothing of it is missing. None without the record.
    pub fn files(&self) -> Option<Vec<Entry>> {
        let mut files = self.parcel(RECORD)?;
        let kinds = files.iter().find(|entry| entry.path == KINDS)?;
        let kinds = String::from_utf8_lossy(&kinds.content).into_owned();
        let rest: Option<Vec<_>> = kinds.split_whitespace().map(|kind| self.parcel(kind)).collect();
        let is_without = |entry: &Entry| entry.path.ends_with(WITHOUT);
        let (without, mut kept): (Vec<_>, Vec<_>) = files.drain(..).partition(is_without);
        kept.retain(|entry| entry.path != KINDS);
        match rest {
            Some(rest) => kept.extend(rest.into_iter().flatten()),
            None => {
                for mut entry in without {
                    entry.path.truncate(entry.path.len() - WITHOUT.len());
                    kept.retain(|other| other.path != entry.path);
                    kept.push(entry);
                }
            }
        }
        Some(kept)
    }

    /// The files of a parcel, if all of it was found.
    pub fn parcel(&self, kind: &str) -> Option<Vec<Entry>> {
        let coming = self.parcels.get(kind).filter(|coming| coming.parts.len() == coming.count)?;
        let packed: Vec<u8> = coming.parts.values().flatten().copied().collect();
        if hash(&packed) != coming.hash {
            return None;
        }
        Parcel::unpack(&packed).ok()
    }
}

impl Coming {
    fn new(hash: &str, count: usize) -> Coming {
        Coming { hash: hash.to_owned(), parts: BTreeMap::new(), count }
    }
}

fn read(line: &str) -> Option<(&str, &str, usize, usize, Vec<u8>)> {
    // Something may have been left unfinished on the line.
    let at = line.find(MARK)?;
    let mut words = line[at + MARK.len()..].split_ascii_whitespace();
    words.next().filter(|format| *format == FORMAT)?;
    let kind = words.next()?;
    let (part, count) = words.next()?.split_once('/')?;
    let (part, count) = (part.parse().ok()?, count.parse().ok()?);
    let hash = words.next()?;
    let piece = STANDARD.decode(words.next()?).ok()?;
    let is_right = (1..=count).contains(&part) && count <= MOST / PIECE && piece.len() <= PIECE;
    is_right.then_some((kind, hash, part, count, piece))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Files that do not compress well, so that there are many lines.
    fn entries(seed: u32, bytes: usize) -> Vec<Entry> {
        let mut state = seed;
        let mut byte = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 24) as u8
        };
        let content: Vec<u8> = (0..bytes).map(|_| byte()).collect();
        let log = Entry::new("tasks/t/log/0.seg", Kind::Program, content);
        vec![Entry::file("agent.json", "{}"), log, Entry::directory("e")]
    }

    fn lines(parcels: &[Parcel]) -> Vec<String> {
        parcels.iter().flat_map(Parcel::lines).collect()
    }

    fn found<'a>(lines: impl IntoIterator<Item = &'a String>) -> Found {
        let mut found = Found::default();
        lines.into_iter().for_each(|line| found.line(line.trim_end()));
        found
    }

    #[test]
    fn what_was_packed_is_found_again() {
        for bytes in [0, 1, PIECE, 100_000] {
            let parcel = Parcel::pack("log", &entries(7, bytes)).unwrap();
            let found = found(&lines(std::slice::from_ref(&parcel)));
            assert_eq!(found.parcel("log").unwrap(), entries(7, bytes), "{bytes}");
            assert!(found.parcel("record").is_none());
        }
        assert!(found(&[]).is_empty());
        let longest = lines(&[Parcel::pack("outputs", &entries(1, 100_000)).unwrap()]);
        assert!(longest.iter().all(|line| line.len() < 16 << 10));
    }

    #[test]
    fn lines_of_others_do_not_matter_and_neither_does_the_order() {
        let parcel = Parcel::pack("log", &entries(3, 50_000)).unwrap();
        let mut lines = lines(&[parcel.clone(), parcel]);
        lines.reverse();
        lines.insert(2, "2026-11-16T03:00:00Z INFO muster-left is what I write\n".into());
        lines.insert(0, "muster-left 1 log 1/x 00 zz\n".into());
        lines[3] = format!("an unfinished line {}", lines[3]);
        assert_eq!(found(&lines).parcel("log").unwrap(), entries(3, 50_000));
    }

    #[test]
    fn a_parcel_whose_beginning_is_gone_is_not_there_and_the_next_one_is() {
        let parcels = ["log", "record"].map(|kind| Parcel::pack(kind, &entries(5, 40_000)).unwrap());
        let all = lines(&parcels);
        let found = found(&all[1..]);
        assert!(found.parcel("log").is_none());
        assert_eq!(found.parcel("record").unwrap(), entries(5, 40_000));
    }

    #[test]
    fn what_was_cut_or_changed_is_not_believed() {
        let parcel = Parcel::pack("log", &entries(9, 40_000)).unwrap();
        let all = lines(&[parcel]);
        assert!(found(&all[..all.len() - 1]).parcel("log").is_none());
        let mut cut = all.clone();
        let half = cut[1].len() / 2;
        cut[1].truncate(half);
        assert!(found(&cut).parcel("log").is_none());
        let mut changed = all;
        let at = changed[1].len() - 10;
        let other = if changed[1].as_bytes()[at] == b'A' { "B" } else { "A" };
        changed[1].replace_range(at..=at, other);
        assert!(found(&changed).parcel("log").is_none());
    }

    #[test]
    fn what_was_written_last_counts() {
        let first = lines(&[Parcel::pack("log", &entries(1, 40_000)).unwrap()]);
        let last = lines(&[Parcel::pack("log", &entries(2, 30_000)).unwrap()]);
        let all: Vec<String> = first[..3].iter().chain(&last).cloned().collect();
        assert_eq!(found(&all).parcel("log").unwrap(), entries(2, 30_000));
    }

    #[test]
    fn where_a_parcel_is_missing_the_record_is_another() {
        let record = [
            Entry::file("r", "with the log"),
            Entry::file("r.without", "without"),
            Entry::file(KINDS, "log outputs"),
        ];
        let log = Parcel::pack("log", &[Entry::file("l", "text")]).unwrap();
        let outputs = Parcel::pack("outputs", &[]).unwrap();
        let record = Parcel::pack(RECORD, &record).unwrap();
        let files = |parcels: &[&Parcel]| {
            let parcels: Vec<Parcel> = parcels.iter().map(|parcel| (*parcel).clone()).collect();
            found(&lines(&parcels)).files()
        };
        let whole = [Entry::file("r", "with the log"), Entry::file("l", "text")];
        assert_eq!(files(&[&outputs, &log, &record]).unwrap(), whole);
        assert_eq!(files(&[&log, &record]).unwrap(), [Entry::file("r", "without")]);
        assert_eq!(files(&[&outputs, &log]), None);
    }

    #[test]
    fn nothing_is_put_beside_where_it_belongs() {
        for path in ["../x", "/etc/passwd", "a/../../x", "", "."] {
            let parcel = Parcel::pack("log", &[Entry::file(path, "x")]).unwrap();
            assert!(found(&lines(&[parcel])).parcel("log").is_none(), "{path}");
        }
    }
}
