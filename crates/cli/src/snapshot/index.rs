//! What is remembered of a code directory between two commands, so that an unchanged file is not read again.
//!
//! One file for each code directory. It is a cache: one that is missing, damaged, of another version or of another
//! directory counts as none, and is replaced. It is written beside its place and renamed, so two commands at once
//! leave one of their two, whole. The number and size of all of them is bounded.

use std::env;
use std::ffi::OsString;
use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

use muster_api::model::ChunkId;
use muster_api::model::bundle::{Chunk, Manifest};
use muster_bundle::chunk::DIGEST;
use muster_bundle::listing::Time;
use muster_bundle::pack::{Known, KnownFile, Stamp};

/// Changes with the format.
const HEADING: &[u8] = b"muster index 1\n";
/// Directories that are remembered, and how much of the disk for all of them.
const MAX_FILES: usize = 64;
const MAX_BYTES: u64 = 512 << 20;
/// Servers that are remembered to have a bundle.
const MAX_SERVERS: usize = 8;
/// What a command that was killed left half written is removed after this.
const STALE: Duration = Duration::from_secs(3600);

/// A code directory as it was sent last.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(super) struct Index {
    pub manifest: Manifest,
    pub files: Vec<KnownFile>,
    /// Who has it.
    pub servers: Vec<Server>,
}

/// A server that had the bundle.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Server {
    pub endpoint: String,
    /// The diff it was sent last.
    pub diff: Option<ChunkId>,
}

impl Index {
    /// What a packer can use of it.
    pub fn known(&self) -> Known<'_> {
        Known { files: &self.files, content: &self.manifest.content }
    }

    pub fn server(&self, endpoint: &str) -> Option<&Server> {
        self.servers.iter().find(|server| server.endpoint == endpoint)
    }

    /// Notes that a server has it, as the latest.
    pub fn add_server(&mut self, server: Server) {
        self.servers.retain(|other| other.endpoint != server.endpoint);
        self.servers.insert(0, server);
        self.servers.truncate(MAX_SERVERS);
    }
}

/// The folder of all indices.
#[derive(Debug, Clone)]
pub(super) struct Shelf {
    folder: PathBuf,
}

impl Shelf {
    /// The folder this user's environment names; none if it names none, and then nothing is remembered.
    pub fn from_environment() -> Option<Self> {
        Self::find(|name| env::var_os(name).filter(|value| !value.is_empty()))
    }

    fn find(variable: impl Fn(&str) -> Option<OsString>) -> Option<Self> {
        let folder = match (variable("MUSTER_HOME"), variable("XDG_CACHE_HOME"), variable("HOME")) {
            (Some(home), _, _) => env::current_dir().ok()?.join(home).join("snapshots"),
            (None, Some(cache), _) if Path::new(&cache).is_absolute() => {
                Path::new(&cache).join("muster/snapshots")
            }
            (None, _, Some(home)) => Path::new(&home).join(".cache/muster/snapshots"),
            (None, _, None) => return None,
        };
        Some(Self { folder })
    }

    #[cfg(test)]
    pub fn at(folder: &Path) -> Self {
        Self { folder: folder.to_owned() }
    }

    pub fn folder(&self) -> &Path {
        &self.folder
    }

    fn path(&self, root: &Path) -> PathBuf {
        self.folder.join(blake3::hash(root.as_os_str().as_bytes()).to_hex().as_str())
    }

    /// What is remembered of a directory.
    pub fn load(&self, root: &Path) -> Option<Index> {
        let path = self.path(root);
        let index = decode(root, &fs::read(&path).ok()?)?;
        // The one that was used longest ago goes first. That it cannot be noted changes little.
        let _ = File::open(&path).and_then(|file| file.set_modified(SystemTime::now()));
        Some(index)
    }

    /// Remembers a directory.
    pub fn save(&self, root: &Path, index: &Index) -> io::Result<()> {
        DirBuilder::new().recursive(true).mode(0o700).create(&self.folder)?;
        let path = self.path(root);
        let new = path.with_extension(format!("{}.tmp", std::process::id()));
        let mut file = OpenOptions::new().create(true).write(true).truncate(true).mode(0o600).open(&new)?;
        // No sync: what a power cut damages is not used.
        let written = file.write_all(&encode(root, index)).and_then(|()| fs::rename(&new, &path));
        if written.is_err() {
            let _ = fs::remove_file(&new);
        }
        self.tidy();
        written
    }

    /// Keeps the number and the size of all indices bounded.
    fn tidy(&self) {
        let Ok(entries) = fs::read_dir(&self.folder) else { return };
        let mut found: Vec<(SystemTime, u64, PathBuf)> = entries
            .filter_map(|entry| {
                let entry = entry.ok()?;
                let metadata = entry.metadata().ok()?;
                Some((metadata.modified().ok()?, metadata.len(), entry.path()))
            })
            .collect();
        found.sort_unstable_by(|a, b| b.cmp(a));
        let now = SystemTime::now();
        let (mut kept, mut bytes) = (0, 0);
        for (at, length, path) in found {
            let is_unfinished = path.extension().is_some();
            let is_stale = now.duration_since(at).is_ok_and(|age| age > STALE);
            if is_unfinished && !is_stale {
                continue;
            }
            (kept, bytes) = (kept + 1, bytes + length);
            if is_unfinished || kept > MAX_FILES || bytes > MAX_BYTES {
                // Another command may have been faster.
                let _ = fs::remove_file(path);
            }
        }
    }
}

fn encode(root: &Path, index: &Index) -> Vec<u8> {
    let mut writer = Writer(HEADING.to_vec());
    writer.text(root.as_os_str().as_bytes());
    writer.number(index.servers.len() as u64);
    for server in &index.servers {
        writer.text(server.endpoint.as_bytes());
        writer.text(server.diff.as_ref().map_or(&[][..], |id| id.as_str().as_bytes()));
    }
    for chunks in [&index.manifest.listing, &index.manifest.content] {
        writer.number(chunks.len() as u64);
        for chunk in chunks {
            writer.0.extend_from_slice(&muster_bundle::chunk::digest(&chunk.id));
            writer.number(chunk.bytes);
        }
    }
    writer.number(index.files.len() as u64);
    let mut previous: &[u8] = &[];
    for file in &index.files {
        let shared = previous.iter().zip(&file.path).take_while(|(a, b)| a == b).count();
        writer.number(shared as u64);
        writer.text(&file.path[shared..]);
        writer.stamp(&file.stamp);
        writer.0.push(u8::from(file.is_settled));
        previous = &file.path;
    }
    let checksum = blake3::hash(&writer.0);
    writer.0.extend_from_slice(checksum.as_bytes());
    writer.0
}

fn decode(root: &Path, bytes: &[u8]) -> Option<Index> {
    let (body, checksum) = bytes.split_at_checked(bytes.len().checked_sub(DIGEST)?)?;
    let body_without_heading = body.strip_prefix(HEADING)?;
    if blake3::hash(body).as_bytes() != checksum {
        return None;
    }
    let mut reader = Reader(body_without_heading);
    if reader.text()? != root.as_os_str().as_bytes() {
        return None;
    }
    let mut index = Index::default();
    for _ in 0..reader.number()? {
        let endpoint = String::from_utf8(reader.text()?.to_vec()).ok()?;
        let diff = std::str::from_utf8(reader.text()?).ok()?;
        let diff = if diff.is_empty() { None } else { Some(diff.parse().ok()?) };
        index.servers.push(Server { endpoint, diff });
    }
    index.manifest = Manifest { listing: reader.chunks()?, content: reader.chunks()? };
    let mut previous: Vec<u8> = Vec::new();
    for _ in 0..reader.number()? {
        let shared = usize::try_from(reader.number()?).ok()?;
        let rest = reader.text()?;
        previous.truncate(shared);
        previous.extend_from_slice(rest);
        let stamp = reader.stamp()?;
        let is_settled = reader.take(1)? == [1];
        index.files.push(KnownFile { path: previous.clone(), stamp, is_settled });
    }
    reader.0.is_empty().then_some(index)
}

struct Writer(Vec<u8>);

impl Writer {
    /// LEB128.
    fn number(&mut self, mut number: u64) {
        while number >= 0x80 {
            self.0.push(number as u8 | 0x80);
            number >>= 7;
        }
        self.0.push(number as u8);
    }

    fn text(&mut self, text: &[u8]) {
        self.number(text.len() as u64);
        self.0.extend_from_slice(text);
    }

    fn stamp(&mut self, stamp: &Stamp) {
        let Stamp { size, mtime, ctime, inode, device, mode } = stamp;
        for number in [*size, *inode, *device, u64::from(*mode)] {
            self.number(number);
        }
        for time in [mtime, ctime] {
            self.0.extend_from_slice(&time.seconds.to_le_bytes());
            self.0.extend_from_slice(&time.nanos.to_le_bytes());
        }
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn take(&mut self, length: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(length)?;
        self.0 = rest;
        Some(taken)
    }

    fn array<const N: usize>(&mut self) -> Option<[u8; N]> {
        self.take(N)?.try_into().ok()
    }

    fn number(&mut self) -> Option<u64> {
        let mut number = 0;
        for shift in (0..64).step_by(7) {
            let [byte] = self.array()?;
            number |= u64::from(byte & 0x7f) << shift;
            if byte & 0x80 == 0 {
                return Some(number);
            }
        }
        None
    }

    fn text(&mut self) -> Option<&'a [u8]> {
        let length = usize::try_from(self.number()?).ok()?;
        self.take(length)
    }

    fn chunks(&mut self) -> Option<Vec<Chunk>> {
        let mut chunks = Vec::new();
        for _ in 0..self.number()? {
            let id = muster_bundle::chunk::from_digest(&self.array()?);
            chunks.push(Chunk { id, bytes: self.number()? });
        }
        Some(chunks)
    }

    fn stamp(&mut self) -> Option<Stamp> {
        let (size, inode, device) = (self.number()?, self.number()?, self.number()?);
        let mode = u32::try_from(self.number()?).ok()?;
        Some(Stamp { size, inode, device, mode, mtime: self.time()?, ctime: self.time()? })
    }

    fn time(&mut self) -> Option<Time> {
        Some(Time { seconds: i64::from_le_bytes(self.array()?), nanos: u32::from_le_bytes(self.array()?) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn chunk(text: &str) -> Chunk {
        Chunk { id: muster_bundle::chunk::id(text.as_bytes()), bytes: text.len() as u64 }
    }

    fn index(files: u64) -> Index {
        let time = |seconds| Time { seconds, nanos: 999_999_999 };
        let file = |number: u64| KnownFile {
            path: [
                format!("some/folder{}/\n", number / 100).as_bytes(),
                b"\xff",
                number.to_string().as_bytes(),
            ]
            .concat(),
            stamp: Stamp {
                size: number << 20,
                mtime: time(-5),
                ctime: time(1_800_000_000),
                inode: u64::MAX - number,
                device: 66_306,
                mode: 0o755,
            },
            is_settled: number.is_multiple_of(2),
        };
        Index {
            manifest: Manifest { listing: vec![chunk("l")], content: vec![chunk("content"), chunk("more")] },
            files: (0..files).map(file).collect(),
            servers: vec![
                Server { endpoint: "unix:/a".into(), diff: None },
                Server { endpoint: "http://b:1".into(), diff: Some(chunk("diff").id) },
            ],
        }
    }

    #[test]
    fn what_is_remembered_is_what_was_there() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::at(&folder.path().join("deep/er"));
        let root = Path::new("/some/where");
        assert_eq!(shelf.load(root), None);
        for files in [0, 1000] {
            shelf.save(root, &index(files)).unwrap();
            assert_eq!(shelf.load(root), Some(index(files)));
        }
        assert_eq!(shelf.load(Path::new("/else/where")), None);
        assert_eq!(fs::read_dir(shelf.folder()).unwrap().count(), 1, "nothing half written is left");
    }

    #[test]
    fn a_damaged_or_foreign_one_is_none() {
        let root = Path::new("/x");
        let good = encode(root, &index(3));
        assert!(decode(root, &good).is_some());
        assert!(decode(Path::new("/y"), &good).is_none());
        for at in 0..good.len() {
            let mut bad = good.clone();
            bad[at] ^= 1;
            assert!(decode(root, &bad).is_none(), "{at}");
            assert!(decode(root, &good[..at]).is_none(), "{at}");
        }
    }

    #[test]
    fn only_so_many_are_kept_and_the_one_used_last_is_among_them() {
        let folder = tempfile::tempdir().unwrap();
        let shelf = Shelf::at(folder.path());
        let root = |number: usize| PathBuf::from(format!("/root/{number}"));
        let old = SystemTime::now() - 10 * STALE;
        for number in 0..MAX_FILES {
            shelf.save(&root(number), &index(1)).unwrap();
            let age = Duration::from_secs(number as u64);
            File::open(shelf.path(&root(number))).unwrap().set_modified(old + age).unwrap();
        }
        fs::write(folder.path().join("left.1.tmp"), "half").unwrap();
        File::open(folder.path().join("left.1.tmp")).unwrap().set_modified(old).unwrap();
        assert!(shelf.load(&root(0)).is_some());
        shelf.save(&root(MAX_FILES), &index(1)).unwrap();
        assert_eq!(fs::read_dir(folder.path()).unwrap().count(), MAX_FILES);
        assert!(shelf.load(&root(0)).is_some() && shelf.load(&root(1)).is_none());
    }

    #[test]
    fn the_place_is_musters_own_or_the_users_cache() {
        let place = |variables: &[(&str, &str)]| {
            let of = |name: &str| {
                variables.iter().find(|(known, _)| *known == name).map(|(_, value)| value.into())
            };
            Shelf::find(of).map(|shelf| shelf.folder)
        };
        let all = [("MUSTER_HOME", "/m"), ("XDG_CACHE_HOME", "/cache"), ("HOME", "/home/me")];
        assert_eq!(place(&all).unwrap(), Path::new("/m/snapshots"));
        assert_eq!(place(&all[1..]).unwrap(), Path::new("/cache/muster/snapshots"));
        assert_eq!(place(&all[2..]).unwrap(), Path::new("/home/me/.cache/muster/snapshots"));
        assert_eq!(place(&[]), None);
    }
}
