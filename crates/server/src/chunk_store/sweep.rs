//! Removing chunks that nothing refers to.
//!
//! Mark: every manifest and every job's own chunks, read in one snapshot of the database taken after the moment `begun`.
//! Sweep: every file that is not marked and whose time is before `begun` less the grace.
//!
//! Why nothing that is needed goes, with no lock held across the two and uploads going on all the while. A chunk is needed
//! if a bundle has it that was committed before the snapshot (then it is marked) or after it. In the second case its bundle
//! was found complete less than half a grace before the commit, and finding it complete set the chunk's time to no
//! earlier than half a grace before that ([`ChunkStore::missing`]). Together: less than a grace before `begun`, so it stays. The
//! same holds for a chunk that was just sent. Killed at any moment, the sweep has removed some files of which all could
//! go: it only ever removes whole files, and no bundle names them.
//!
//! Memory: eight bytes for each different chunk, so a million take 8 MB. Two chunks whose digests begin alike are taken
//! for one, which at worst keeps a file that could go.

use std::fs;
use std::io;
use std::path::Path;
use std::sync::PoisonError;
use std::time::SystemTime;

use muster_model::ChunkId;

use super::{ChunkStore, DIRECTORIES};

/// Files looked at while uploads wait: a fraction of a millisecond each time.
const AT_ONCE: usize = 64;
/// Sorting begins to matter above this.
const FIRST_COMPACTION: usize = 1 << 16;

/// The chunks that something refers to, each by the beginning of its digest.
#[derive(Default)]
pub(crate) struct Marks {
    /// Sorted up to `sorted`.
    digests: Vec<u64>,
    sorted: usize,
}

impl Marks {
    /// Marks every chunk of a manifest's text.
    pub fn add_manifest(&mut self, text: &str) {
        for line in text.lines() {
            if let Some(id) = line.split(' ').nth(1) {
                self.add(id);
            }
        }
    }

    /// Marks a chunk.
    pub fn add(&mut self, id: &str) {
        self.digests.extend(beginning(id.trim_start_matches(ChunkId::PREFIX)));
        if self.digests.len() >= FIRST_COMPACTION.max(2 * self.sorted) {
            self.compact();
        }
    }

    fn compact(&mut self) {
        self.digests.sort_unstable();
        self.digests.dedup();
        self.sorted = self.digests.len();
    }

    /// Ready to be asked.
    pub fn finish(mut self) -> Self {
        self.compact();
        self
    }

    fn has(&self, digest: u64) -> bool {
        self.digests.binary_search(&digest).is_ok()
    }
}

/// The first eight bytes of a digest in hexadecimal.
fn beginning(digest: &str) -> Option<u64> {
    u64::from_str_radix(digest.get(..16)?, 16).ok()
}

/// What a sweep removed, or would.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Swept {
    pub chunks: u64,
    pub bytes: u64,
}

impl ChunkStore {
    /// Removes what is not marked and was not wanted since a grace before `begun`.
    pub fn sweep(&self, marks: &Marks, begun: SystemTime, dry_run: bool) -> io::Result<Swept> {
        let mut swept = Swept::default();
        let Some(before) = begun.checked_sub(self.grace) else { return Ok(swept) };
        for directory in DIRECTORIES {
            let directory = self.root.join(directory);
            let unmarked = match unmarked(&directory, marks) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                unmarked => unmarked?,
            };
            for some in unmarked.chunks(AT_ONCE) {
                self.remove_old(&directory, some, before, dry_run, &mut swept)?;
            }
        }
        Ok(swept)
    }

    /// Calls for every chunk that is marked, with its directory's name.
    pub fn each_marked(
        &self,
        marks: &Marks,
        mut each: impl FnMut(&str, &Path) -> io::Result<()>,
    ) -> io::Result<()> {
        for name in DIRECTORIES {
            let entries = match fs::read_dir(self.root.join(name)) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                entries => entries?,
            };
            for entry in entries {
                let entry = entry?;
                let digest = entry.file_name().to_str().and_then(beginning);
                if digest.is_some_and(|digest| marks.has(digest)) {
                    each(name, &entry.path())?;
                }
            }
        }
        Ok(())
    }

    fn remove_old(
        &self,
        directory: &Path,
        names: &[String],
        before: SystemTime,
        dry_run: bool,
        swept: &mut Swept,
    ) -> io::Result<()> {
        let _gate = self.gate.write().unwrap_or_else(PoisonError::into_inner);
        for name in names {
            let path = directory.join(name);
            // It may have gone since the directory was read.
            let Ok(metadata) = fs::metadata(&path) else { continue };
            if metadata.modified()? < before {
                if !dry_run {
                    fs::remove_file(&path)?;
                }
                swept.chunks += 1;
                swept.bytes += metadata.len();
            }
        }
        Ok(())
    }
}

fn unmarked(directory: &Path, marks: &Marks) -> io::Result<Vec<String>> {
    let mut unmarked = Vec::new();
    for entry in fs::read_dir(directory)? {
        let Ok(name) = entry?.file_name().into_string() else { continue };
        if beginning(&name).is_none_or(|digest| !marks.has(digest)) {
            unmarked.push(name);
        }
    }
    Ok(unmarked)
}
