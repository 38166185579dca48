//! `muster server check`: reads everything in a data directory and compares it with what it should be.
//!
//! It changes nothing, so that it may run beside the server, and then must not take what the server is just doing for damage: the mark
//! of the last commit is read before the database, a log's checksums before the log, what bundles need before the chunks, and
//! what is gone by then is looked for once more.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use muster_api::doctor::Check;
use muster_bundle::chunk::Verifier;
use muster_link::log::SegmentDir;
use muster_model::ChunkId;
use muster_store::{Readers, Store};

use crate::chunk_store::ChunkStore;

/// So many damaged things of a kind are named.
const NAMED: usize = 8;

/// Looks through a data directory. `progress` is told how many more bytes are to be read, and how many more were.
pub fn check(home: &Path, progress: &mut dyn FnMut(u64, u64)) -> Vec<Check> {
    let (logs, chunks) = (home.join("logs"), home.join("chunks"));
    progress(bytes(&logs) + bytes(&chunks), 0);
    let (database, readers) = database(home);
    let code = readers.map(|readers| code(&chunks, &readers, progress));
    let mut checks = vec![database, log_check(&logs, progress)];
    checks.extend(code);
    checks
}

const RESTORE: &str = "stop the server and restore a backup into an empty directory with `muster server restore`; check the disk";

fn database(home: &Path) -> (Check, Option<Readers>) {
    let broken = |detail: String| Check::broken("database", detail, RESTORE);
    match Store::check(home, NAMED as u32) {
        Ok((readers, found)) if found.is_empty() => (Check::ok("database", "is whole"), Some(readers)),
        // What else is damaged is worth knowing.
        Ok((readers, found)) => (broken(found.join("; ")), Some(readers)),
        Err(error) => (broken(error.to_string()), None),
    }
}

/// What was found of one kind.
#[derive(Default)]
struct Tally {
    whole: u64,
    /// Without a checksum.
    unknown: u64,
    damaged: Vec<String>,
}

impl Tally {
    fn broken(&self, name: &str, what: &str, remedy: &str) -> Check {
        let named = self.damaged.iter().take(NAMED).cloned().collect::<Vec<_>>().join(", ");
        let more = self.damaged.len().saturating_sub(NAMED);
        let more = if more > 0 { format!(" and {more} more") } else { String::new() };
        Check::broken(
            name,
            format!("{} {what} are damaged or missing: {named}{more}", self.damaged.len()),
            remedy,
        )
    }
}

fn log_check(logs: &Path, progress: &mut dyn FnMut(u64, u64)) -> Check {
    let mut tally = Tally::default();
    for path in directories(logs) {
        if let Err(error) = check_log(logs, &path, &mut tally, progress) {
            tally.damaged.push(format!("{} ({error})", shown(logs, &path)));
        }
    }
    if !tally.damaged.is_empty() {
        let remedy = "`muster logs` shows what is left of them; a backup may have them whole; check the disk";
        return tally.broken("logs", "segments", remedy);
    }
    let unknown = match tally.unknown {
        0 => String::new(),
        unknown => format!("; {unknown} are being written or have no checksum"),
    };
    Check::ok("logs", format!("{} segments are whole{unknown}", tally.whole))
}

/// Compares one task's log with its checksums. A log that was removed meanwhile is not damaged.
fn check_log(
    logs: &Path,
    path: &Path,
    tally: &mut Tally,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<(), muster_link::log::Error> {
    let log = SegmentDir::new(path);
    let sums = log.sums()?;
    for (start, sum) in &sums {
        let is_whole = log.matches(*start, sum)?;
        progress(0, sum.length);
        if is_whole || !path.exists() {
            tally.whole += 1;
        } else {
            tally.damaged.push(shown(logs, &log.segment_path(*start)));
        }
    }
    tally.unknown += log.starts()?.iter().filter(|start| !sums.contains_key(start)).count() as u64;
    Ok(())
}

fn code(chunks: &Path, readers: &Readers, progress: &mut dyn FnMut(u64, u64)) -> Check {
    let remedy =
        "submit a job from the same code directory: what is damaged or missing is sent again; check the disk";
    match check_code(chunks, readers, progress) {
        Ok(tally) if tally.damaged.is_empty() => {
            Check::ok("code", format!("{} chunks are whole", tally.whole))
        }
        Ok(tally) => tally.broken("code", "chunks", remedy),
        Err(error) => Check::broken("code", format!("cannot be read: {error}"), "check the disk"),
    }
}

fn check_code(chunks: &Path, readers: &Readers, progress: &mut dyn FnMut(u64, u64)) -> io::Result<Tally> {
    let mut missing = named(readers)?;
    let (mut tally, mut verifier) = (Tally::default(), Verifier::default());
    ChunkStore::each(chunks, |id, path| {
        missing.remove(id.as_str());
        let stored = match fs::read(path) {
            // It was removed since the directory was read.
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
            Err(error) => {
                tally.damaged.push(format!("{id} ({error})"));
                return Ok(());
            }
            Ok(stored) => stored,
        };
        progress(0, stored.len() as u64);
        match verifier.verify(&id, &stored) {
            Ok(()) => tally.whole += 1,
            Err(_) => tally.damaged.push(id.to_string()),
        }
        Ok(())
    })?;
    if !missing.is_empty() {
        // Bundles may have been removed meanwhile, and their chunks with them.
        let still_named = named(readers)?;
        tally.damaged.extend(missing.intersection(&still_named).map(|id| format!("{id} (missing)")));
    }
    Ok(tally)
}

/// The chunks that bundles and jobs have.
fn named(readers: &Readers) -> io::Result<BTreeSet<String>> {
    let chunks = std::cell::RefCell::new(BTreeSet::new());
    let manifest = |text: &str| {
        // The heading has no chunk.
        let ids = text.lines().filter_map(|line| line.split(' ').nth(1));
        let ids = ids.filter(|id| id.starts_with(ChunkId::PREFIX)).map(str::to_owned);
        chunks.borrow_mut().extend(ids);
    };
    let one = |id: &str| {
        chunks.borrow_mut().insert(id.to_owned());
    };
    readers.each_manifest(None, manifest, one).map_err(io::Error::other)?;
    Ok(chunks.into_inner())
}

/// The directories that hold a task's log: of a job, an attempt and a rank.
fn directories(logs: &Path) -> Vec<PathBuf> {
    let inner = |paths: Vec<PathBuf>| paths.iter().flat_map(|path| entries(path)).collect::<Vec<_>>();
    let mut found = inner(inner(entries(logs)));
    found.retain(|path| path.is_dir());
    found.sort();
    found
}

/// What goes while it is looked at is not there.
fn entries(path: &Path) -> Vec<PathBuf> {
    fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path()).collect()
}

fn bytes(path: &Path) -> u64 {
    let size = |path: &PathBuf| match fs::symlink_metadata(path) {
        Ok(file) if file.is_dir() => bytes(path),
        Ok(file) => file.len(),
        Err(_) => 0,
    };
    entries(path).iter().map(size).sum()
}

fn shown(root: &Path, path: &Path) -> String {
    path.strip_prefix(root).unwrap_or(path).display().to_string()
}
