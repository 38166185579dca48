//! Checksums of a copy's segments, so that damage is said and not shown as output.
//!
//! They are lines in one file beside the segments: the start of a segment, how much of it the checksum covers, the checksum. Of several
//! lines about one segment the last counts. A line that was not written to its end says nothing, and a segment without one has no verdict.

use std::collections::BTreeMap;
use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;

use super::{Error, SegmentDir};

/// The file's name. It is none of a segment.
const FILE: &str = "sums";
/// Hexadecimal digits of a checksum: against damage, not against forgers.
const DIGITS: usize = 16;

/// What a segment began with when it was written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Sum {
    /// How many of its bytes are covered.
    pub length: u64,
    digest: String,
}

impl SegmentDir {
    fn sums_path(&self) -> PathBuf {
        self.path().join(FILE)
    }

    /// The checksums that there are, by the start of their segments.
    pub fn sums(&self) -> Result<BTreeMap<u64, Sum>, Error> {
        let path = self.sums_path();
        match fs::read(&path) {
            Ok(bytes) => Ok(String::from_utf8_lossy(&bytes).lines().filter_map(parse).collect()),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(BTreeMap::new()),
            Err(error) => Err(Error::io(&path)(error)),
        }
    }

    /// Whether a segment still is what its checksum says.
    pub fn matches(&self, start: u64, sum: &Sum) -> Result<bool, Error> {
        let path = self.segment_path(start);
        let Some(file) = self.read_segment(start)? else { return Ok(false) };
        let mut hasher = SegmentHasher::default();
        hasher.read(file, sum.length).map_err(Error::io(&path))?;
        Ok(hasher.sum() == *sum)
    }

    pub(super) fn add_sum(&self, start: u64, sum: &Sum) -> Result<(), Error> {
        let path = self.sums_path();
        let mut options = OpenOptions::new();
        let opened = options.create(true).append(true).mode(0o600).open(&path);
        // A line before it that was cut off stays alone.
        let line = format!("\n{start} {} {}", sum.length, sum.digest);
        opened.and_then(|mut file| file.write_all(line.as_bytes())).map_err(Error::io(&path))
    }
}

fn parse(line: &str) -> Option<(u64, Sum)> {
    let mut words = line.split(' ');
    let (start, length) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
    let digest = words.next().filter(|digest| digest.len() == DIGITS && words.next().is_none())?;
    Some((start, Sum { length, digest: digest.to_owned() }))
}

/// Reckons the checksum of a segment as it grows.
#[derive(Clone, Debug, Default)]
pub(super) struct SegmentHasher {
    hasher: blake3::Hasher,
}

impl SegmentHasher {
    pub(super) fn update(&mut self, bytes: &[u8]) {
        self.hasher.update(bytes);
    }

    /// Takes so much of a file, or all of a shorter one.
    pub(super) fn read(&mut self, file: File, length: u64) -> std::io::Result<()> {
        self.hasher.update_reader(file.take(length))?;
        Ok(())
    }

    pub(super) fn sum(&self) -> Sum {
        let digest = self.hasher.finalize().to_hex();
        Sum { length: self.hasher.count(), digest: digest[..DIGITS].to_owned() }
    }
}
