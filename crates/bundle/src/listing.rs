//! What is in a tree: every directory, file and symbolic link, in the order of [`compare`].
//!
//! A listing that can be read is harmless: no name leads outside, none comes twice, and what lies in a directory comes
//! after that directory, which is listed. Owners are left out, and so are the times of directories: they differ
//! between two copies of the same code.
//!
//! Each path is written as the length it shares with the one before it and the rest. Numbers are LEB128.

use std::borrow::Borrow;
use std::cmp::Ordering;

use muster_model::Timestamp;
use muster_model::file::{FileEntry, FileKind};

/// As long as a path may be for the kernel.
pub const MAX_PATH: usize = 4096;
/// Deeper than anyone's code, and shallow enough that a removal, which holds one descriptor for each level, succeeds.
pub const MAX_DEPTH: usize = 256;
/// The longest listing that is read into memory: millions of files.
pub const MAX_BYTES: usize = 256 << 20;

/// How many entries a listing has at most.
pub const MAX_ENTRIES: usize = 2 << 20;
/// How many bytes the paths and the targets of its links have at most, once they are read.
pub const MAX_NAMES: usize = 256 << 20;

const DIRECTORY: u8 = b'd';
const FILE: u8 = b'f';
const LINK: u8 = b'l';

/// Something in a tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// Below the root, in the bytes of the file system, components separated by `/`.
    pub path: Vec<u8>,
    /// What it is.
    pub kind: Kind,
    /// The nine bits of its rights; 0 for a link.
    pub mode: u32,
    /// When it was last written; of a file only.
    pub mtime: Time,
}

/// What an entry is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A directory.
    Directory,
    /// A file, whose bytes are in the content.
    File {
        /// How many.
        size: u64,
    },
    /// A symbolic link.
    Link {
        /// Where to, as it is.
        target: Vec<u8>,
    },
}

/// A time of the file system.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub struct Time {
    /// Since 1970.
    pub seconds: i64,
    /// Below 1,000,000,000.
    pub nanos: u32,
}

impl Entry {
    /// The length of its content.
    pub fn size(&self) -> u64 {
        match self.kind {
            Kind::File { size } => size,
            Kind::Directory | Kind::Link { .. } => 0,
        }
    }

    /// Where a link leads to.
    fn target(&self) -> Option<&[u8]> {
        match &self.kind {
            Kind::Link { target } => Some(target),
            Kind::Directory | Kind::File { .. } => None,
        }
    }

    /// As people see it.
    pub fn shown(&self) -> FileEntry {
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let (kind, target) = match &self.kind {
            Kind::Directory => (FileKind::Directory, None),
            Kind::File { .. } => (FileKind::File, None),
            Kind::Link { target } => (FileKind::Link, Some(text(target))),
        };
        let modified_at = Timestamp::new(self.mtime.seconds, self.mtime.nanos.cast_signed());
        FileEntry {
            path: text(&self.path),
            kind,
            bytes: self.size(),
            mode: self.mode,
            // A time beyond the calendar is as good as none.
            modified_at: modified_at.unwrap_or_default(),
            target,
        }
    }
}

/// Why bytes are not a listing.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// Not written by [`encode`].
    #[error("the listing cannot be read at byte {at}")]
    Malformed {
        /// Where.
        at: usize,
    },
    /// Absolute, with `..`, empty, too long or too deep.
    #[error("the listing has the name `{name}`, which leads outside, is too long or is too deep")]
    BadName {
        /// The name, readable.
        name: String,
    },
    /// More entries, or longer names in all, than are read.
    #[error("the listing has more than {MAX_ENTRIES} entries, or more than {} MB of names", MAX_NAMES >> 20)]
    TooLong,
    /// Out of order, twice, or in something that is not a listed directory.
    #[error("the listing has `{name}` twice, out of order, or in something that is not a directory")]
    Misplaced {
        /// The name, readable.
        name: String,
    },
}

/// Writes a listing. The entries must be in the order of [`compare`].
pub fn encode<E: Borrow<Entry>>(entries: impl IntoIterator<Item = E>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut previous: Vec<u8> = Vec::new();
    for entry in entries {
        let entry = entry.borrow();
        let shared = previous.iter().zip(&entry.path).take_while(|(a, b)| a == b).count();
        put(&mut bytes, shared as u64);
        put_bytes(&mut bytes, &entry.path[shared..]);
        match &entry.kind {
            Kind::Directory => {
                bytes.push(DIRECTORY);
                put(&mut bytes, u64::from(entry.mode));
            }
            Kind::File { size } => {
                bytes.push(FILE);
                put(&mut bytes, u64::from(entry.mode));
                // Zigzag, for the files older than 1970.
                put(&mut bytes, (entry.mtime.seconds << 1 ^ entry.mtime.seconds >> 63) as u64);
                put(&mut bytes, u64::from(entry.mtime.nanos));
                put(&mut bytes, *size);
            }
            Kind::Link { target } => {
                bytes.push(LINK);
                put_bytes(&mut bytes, target);
            }
        }
        previous.clone_from(&entry.path);
    }
    bytes
}

fn put(bytes: &mut Vec<u8>, mut number: u64) {
    while number >= 0x80 {
        bytes.push(number as u8 | 0x80);
        number >>= 7;
    }
    bytes.push(number as u8);
}

fn put_bytes(bytes: &mut Vec<u8>, content: &[u8]) {
    put(bytes, content.len() as u64);
    bytes.extend_from_slice(content);
}

/// Reads a listing, and makes sure that it is harmless.
pub fn decode(bytes: &[u8]) -> Result<Vec<Entry>, Error> {
    let mut reader = Reader { bytes, at: 0 };
    let mut entries: Vec<Entry> = Vec::new();
    // The directories that the last entry lies in, or is: where the next may be.
    let mut open: Vec<usize> = Vec::new();
    let (mut total, mut names) = (0_u64, 0_usize);
    while reader.at < bytes.len() {
        let at = reader.at;
        let previous = entries.last().map_or(&[][..], |entry| &entry.path);
        let entry = reader.entry(previous).ok_or(Error::Malformed { at })?;
        check_name(&entry.path)?;
        // A path is written as what differs from the last one: a few bytes may stand for 4 KB.
        names += entry.path.len() + entry.target().map_or(0, <[u8]>::len);
        if entries.len() >= MAX_ENTRIES || names > MAX_NAMES {
            return Err(Error::TooLong);
        }
        let misplaced = || Error::Misplaced { name: shown(&entry.path) };
        if !entries.is_empty() && compare(&entry.path, previous).is_le() {
            return Err(misplaced());
        }
        let parent = parent(&entry.path);
        while open.last().is_some_and(|index| entries[*index].path != parent) {
            open.pop();
        }
        if open.is_empty() && !parent.is_empty() {
            return Err(misplaced());
        }
        total = total.checked_add(entry.size()).ok_or(Error::Malformed { at })?;
        if entry.kind == Kind::Directory {
            open.push(entries.len());
        }
        entries.push(entry);
    }
    Ok(entries)
}

/// The order of a listing: by the bytes of the paths, but what lies in a directory comes right after it (`a/x` before
/// `a-b`), so that files that belong together share chunks.
pub fn compare(one: &[u8], other: &[u8]) -> Ordering {
    let at = one.iter().zip(other).position(|(a, b)| a != b);
    let Some(at) = at else { return one.len().cmp(&other.len()) };
    match (one[at], other[at]) {
        (b'/', _) => Ordering::Less,
        (_, b'/') => Ordering::Greater,
        (a, b) => a.cmp(&b),
    }
}

/// The path of the directory that something lies in; empty for the root.
pub fn parent(path: &[u8]) -> &[u8] {
    path.iter().rposition(|byte| *byte == b'/').map_or(&[], |slash| &path[..slash])
}

fn check_name(path: &[u8]) -> Result<(), Error> {
    let good = |component: &[u8]| !matches!(component, b"" | b"." | b"..") && !component.contains(&0);
    if path.len() >= MAX_PATH
        || path.iter().filter(|byte| **byte == b'/').count() >= MAX_DEPTH
        || !path.split(|byte| *byte == b'/').all(good)
    {
        return Err(Error::BadName { name: shown(path) });
    }
    Ok(())
}

/// A name as a person can read it, in a message of bounded length.
pub fn shown(name: &[u8]) -> String {
    String::from_utf8_lossy(name).chars().take(200).flat_map(char::escape_default).collect()
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl<'a> Reader<'a> {
    fn entry(&mut self, previous: &[u8]) -> Option<Entry> {
        let shared = usize::try_from(self.number()?).ok()?;
        let mut path = previous.get(..shared)?.to_vec();
        path.extend_from_slice(self.text()?);
        let mut entry = Entry { path, kind: Kind::Directory, mode: 0, mtime: Time::default() };
        match self.byte()? {
            DIRECTORY => entry.mode = self.mode()?,
            FILE => {
                entry.mode = self.mode()?;
                let zigzag = self.number()?;
                let seconds = (zigzag >> 1) as i64 ^ -((zigzag & 1) as i64);
                let nanos = u32::try_from(self.number()?).ok().filter(|nanos| *nanos < 1_000_000_000)?;
                entry.mtime = Time { seconds, nanos };
                entry.kind = Kind::File { size: self.number()? };
            }
            LINK => {
                let target = self.text()?;
                if target.is_empty() || target.contains(&0) {
                    return None;
                }
                entry.kind = Kind::Link { target: target.to_vec() };
            }
            _ => return None,
        }
        Some(entry)
    }

    fn mode(&mut self) -> Option<u32> {
        u32::try_from(self.number()?).ok().filter(|mode| *mode <= 0o777)
    }

    /// A name or a link's target: bounded, whatever length is claimed.
    fn text(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok().filter(|length| *length < MAX_PATH)?;
        let text = self.bytes.get(self.at..self.at.checked_add(length)?)?;
        self.at += length;
        Some(text)
    }

    fn byte(&mut self) -> Option<u8> {
        let byte = *self.bytes.get(self.at)?;
        self.at += 1;
        Some(byte)
    }

    /// The shortest spelling only, so that a listing has one.
    fn number(&mut self) -> Option<u64> {
        let mut number = 0_u64;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let part = u64::from(byte & 0x7f);
            if shift == 63 && part > 1 || byte == 0 && shift > 0 {
                return None;
            }
            number |= part << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file(path: &str, size: u64) -> Entry {
        let mtime = Time { seconds: -7, nanos: 999_999_999 };
        Entry { path: path.into(), kind: Kind::File { size }, mode: 0o640, mtime }
    }

    fn directory(path: &str) -> Entry {
        Entry { path: path.into(), kind: Kind::Directory, mode: 0o755, mtime: Time::default() }
    }

    fn link(path: &str, target: &str) -> Entry {
        let kind = Kind::Link { target: target.into() };
        Entry { path: path.into(), kind, mode: 0, mtime: Time::default() }
    }

    /// A few bytes for each entry stand for its whole path: 70,000 of them for 280 MB.
    #[test]
    fn a_listing_with_too_many_names_is_refused() {
        let deep = vec!["d".repeat(250); 16].join("/");
        let levels = (1..=16).map(|level| directory(&deep[..level * 251 - 1]));
        let files = (0..70_000).map(|number| file(&format!("{deep}/{number:06}"), 0));
        let bytes = encode(levels.chain(files));
        assert!(bytes.len() < 2 << 20, "{}", bytes.len());
        assert_eq!(decode(&bytes).unwrap_err(), Error::TooLong);
    }

    #[test]
    fn a_listing_is_read_as_it_was_written() {
        let entries = [
            directory("a"),
            file("a/x", u64::MAX - 100),
            directory("a/y"),
            link("a/y/l", "../../../etc"),
            file("a-b", 1),
            directory("b"),
            file("b/größe\n训", 0),
        ];
        let bytes = encode(&entries);
        assert_eq!(decode(&bytes).unwrap(), entries);
        assert_eq!(decode(&[]), Ok(Vec::new()));
    }

    #[test]
    fn a_name_that_leads_outside_is_refused() {
        let deep = ["d"; MAX_DEPTH + 1].join("/");
        let long = "x".repeat(MAX_PATH);
        for name in ["", "/etc", "..", "../x", "a/..", "a/../b", "a//b", "a/", ".", "a\0b", &deep, &long] {
            let refused = decode(&encode([file(name, 0)]));
            assert!(matches!(refused, Err(Error::BadName { .. } | Error::Malformed { .. })), "{name:?}");
        }
    }

    #[test]
    fn an_entry_in_the_wrong_place_is_refused() {
        for entries in [
            vec![file("a", 1), file("a", 1)],
            vec![file("b", 1), file("a", 1)],
            vec![file("a", 1), file("a/b", 1)],
            vec![link("a", "/etc"), file("a/b", 1)],
            vec![file("a/b", 1)],
            vec![directory("a"), directory("b"), file("a/b", 1)],
            vec![directory("a"), file("a/b/c", 1)],
        ] {
            let refused = decode(&encode(&entries));
            assert!(matches!(refused, Err(Error::Misplaced { .. })), "{entries:?}: {refused:?}");
        }
    }

    #[test]
    fn sizes_that_cannot_be_added_are_refused() {
        assert!(decode(&encode([file("a", u64::MAX), file("b", 1)])).is_err());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_or_refused_and_what_is_read_has_one_spelling(
            bytes in prop::collection::vec(prop_oneof![any::<u8>(), 0..4_u8, Just(b'd'), Just(b'f'), Just(b'/')], 0..60)
        ) {
            if let Ok(entries) = decode(&bytes) {
                prop_assert_eq!(encode(&entries), bytes);
            }
        }

        #[test]
        fn a_damaged_listing_never_panics(at in 0..100_usize, byte in any::<u8>()) {
            let mut bytes = encode([directory("a"), file("a/b", 300), link("a/c", "x"), file("d", 5)]);
            let at = at % bytes.len();
            bytes[at] = byte;
            let _ = decode(&bytes);
        }
    }
}
