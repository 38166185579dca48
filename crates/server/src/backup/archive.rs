//! What a backup is as one stream of bytes: a tar archive, compressed.
//!
//! It begins with what it is (`muster-backup.json`), so that a reader knows at once whether it can use it, and ends with the number and
//! the digest of all that came between (`muster-backup.end.json`), so that a reader knows whether that was everything. Anybody can
//! look into it with `tar --zstd -t`.

use std::fs::{self, File};
use std::io::{self, Read, Write};
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use muster_bundle::listing::{Entry, Kind, Time};
use muster_bundle::tar::Writer;
use muster_model::Timestamp;
use muster_store::Store;
use serde::{Deserialize, Serialize};

/// The form of the archive; one that an older muster cannot read has another number.
pub(super) const FORMAT: u32 = 1;
pub(super) const HEAD: &str = "muster-backup.json";
pub(super) const END: &str = "muster-backup.end.json";
/// Chunks are compressed already, and text becomes a fraction of itself at any level.
const LEVEL: i32 = 3;

/// How an archive begins.
#[derive(Debug, Clone, Serialize, Deserialize)]
pub(super) struct Head {
    pub format: u32,
    /// The muster that wrote it, for people.
    pub version: String,
    /// The newest shape of the database in it.
    pub shape: u32,
    pub taken_at: Timestamp,
    /// How many tasks that are over had not sent all of their log or outputs.
    pub unsettled: u64,
}

impl Head {
    pub fn new(version: &str, taken_at: Timestamp) -> Self {
        let (version, shape) = (version.to_owned(), Store::newest_shape());
        Self { format: FORMAT, version, shape, taken_at, unsettled: 0 }
    }
}

/// How it ends.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(super) struct End {
    pub files: u64,
    pub bytes: u64,
    pub digest: String,
}

/// Adds up what is in an archive: every name, length and byte, in order.
#[derive(Default)]
pub(super) struct Sum {
    files: u64,
    bytes: u64,
    hasher: blake3::Hasher,
}

impl Sum {
    pub fn begin(&mut self, path: &[u8], bytes: u64) {
        self.files += 1;
        self.bytes += bytes;
        self.hasher.update(&(path.len() as u64).to_le_bytes());
        self.hasher.update(path);
        self.hasher.update(&bytes.to_le_bytes());
    }

    pub fn finish(self) -> End {
        End { files: self.files, bytes: self.bytes, digest: self.hasher.finalize().to_hex().to_string() }
    }
}

/// Reads what is added up.
pub(super) struct Summed<'a, R> {
    pub from: R,
    pub sum: &'a mut Sum,
}

impl<R: Read> Read for Summed<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let length = self.from.read(buffer)?;
        self.sum.hasher.update(&buffer[..length]);
        Ok(length)
    }
}

/// Writes all that is below a directory.
pub(super) fn write(from: &Path, head: &Head, to: impl Write) -> io::Result<()> {
    let mut packed = zstd::Encoder::new(to, LEVEL)?;
    packed.include_checksum(true)?;
    let mut archive = Writer::new(packed);
    let seconds = head.taken_at.as_second();
    note(&mut archive, HEAD, head, seconds)?;
    let mut sum = Sum::default();
    add_all(&mut archive, from, &mut Vec::new(), seconds, &mut sum)?;
    note(&mut archive, END, &sum.finish(), seconds)?;
    archive.finish()?.finish()?.flush()
}

fn note<W: Write>(
    archive: &mut Writer<W>,
    name: &str,
    note: &impl Serialize,
    seconds: i64,
) -> io::Result<()> {
    let text = serde_json::to_vec(note)?;
    archive.entry(&entry(name.as_bytes(), text.len() as u64, seconds), &mut text.as_slice())
}

fn entry(path: &[u8], size: u64, seconds: i64) -> Entry {
    Entry { path: path.to_vec(), kind: Kind::File { size }, mode: 0o600, mtime: Time { seconds, nanos: 0 } }
}

fn add_all<W: Write>(
    archive: &mut Writer<W>,
    directory: &Path,
    path: &mut Vec<u8>,
    seconds: i64,
    sum: &mut Sum,
) -> io::Result<()> {
    for found in fs::read_dir(directory)? {
        let found = found?;
        let before = path.len();
        if before > 0 {
            path.push(b'/');
        }
        path.extend_from_slice(found.file_name().as_bytes());
        if found.file_type()?.is_dir() {
            add_all(archive, &found.path(), path, seconds, sum)?;
        } else {
            let file = File::open(found.path())?;
            // A log that is being written is taken as it is now.
            let size = file.metadata()?.len();
            sum.begin(path, size);
            archive.entry(&entry(path, size, seconds), &mut Summed { from: file.take(size), sum })?;
        }
        path.truncate(before);
    }
    Ok(())
}
