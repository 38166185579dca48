//! What was copied, what was not and why, and how far it is.

use std::collections::HashSet;
use std::hash::{BuildHasher, RandomState};
use std::time::Duration;

use muster_api::model::printable;
use muster_api::model::quantity::format_bytes;
use muster_bundle::copy::Watch;
use serde_json::json;

use crate::error::{Code, Error};
use crate::progress::Bar;
use crate::terminal;

/// Problems that are told one by one.
const TOLD: usize = 10;

pub(super) struct Tally {
    bar: Bar,
    files: u64,
    bytes: u64,
    skipped: u64,
    /// What was skipped over this connection: of these, some may have been copied over an earlier one.
    skipped_now: u64,
    /// Files that earlier connections to this task copied.
    earlier: u64,
    files_now: u64,
    failed: u64,
    failures: Vec<String>,
    noted: u64,
    notes: Vec<String>,
    /// Bytes that moved since the last connection.
    moved: u64,
    /// The files that were copied, when files are copied that are the same: so that a new connection is not a new beginning.
    done: Option<(RandomState, HashSet<u64>)>,
}

impl Tally {
    pub fn new(is_up: bool, force: bool) -> Self {
        Tally {
            bar: Bar::new(if is_up { "sending" } else { "receiving" }, 0),
            files: 0,
            bytes: 0,
            skipped: 0,
            skipped_now: 0,
            earlier: 0,
            files_now: 0,
            failed: 0,
            failures: Vec::new(),
            noted: 0,
            notes: Vec::new(),
            moved: 0,
            done: force.then(Default::default),
        }
    }

    /// Another task: nothing of it is there yet.
    pub fn begin_task(&mut self) {
        self.settle();
        self.earlier = 0;
        self.files_now = 0;
        if let Some((_, done)) = &mut self.done {
            done.clear();
        }
    }

    /// The connection broke, and there is to be another; whether this one got anything done.
    pub fn restart(&mut self) -> bool {
        self.earlier += std::mem::take(&mut self.files_now);
        // They will be found again.
        self.skipped_now = 0;
        self.failed = 0;
        self.failures.clear();
        self.noted = 0;
        self.notes.clear();
        self.bar.restart();
        std::mem::take(&mut self.moved) > 0
    }

    fn settle(&mut self) {
        self.skipped += std::mem::take(&mut self.skipped_now).saturating_sub(self.earlier);
    }

    /// Says what was copied; gives what was not, if anything.
    pub fn report(mut self, is_json: bool, took: Duration) -> Result<Option<Error>, Error> {
        self.settle();
        // What it shows goes before anything else is written.
        drop(std::mem::replace(&mut self.bar, Bar::new("", 0)));
        for note in &self.notes {
            terminal::note(note);
        }
        if self.noted > self.notes.len() as u64 {
            terminal::note(&format!("and {} more of the kind", self.noted - self.notes.len() as u64));
        }
        if is_json {
            let seconds = (took.as_secs_f64() * 1000.0).round() / 1000.0;
            terminal::say_json(&json!({
                "files": self.files, "bytes": self.bytes, "skipped": self.skipped, "failed": self.failed,
                "seconds": seconds,
            }))?;
        } else if self.files + self.skipped > 0 || self.failed == 0 {
            terminal::say(&self.words())?;
        }
        Ok((self.failed > 0).then(|| {
            let message = format!("{} not copied", counted(self.failed, "was", "were"));
            if self.failed > self.failures.len() as u64 {
                self.failures.push(format!("and {} more", self.failed - self.failures.len() as u64));
            }
            Error::new(Code::CopyIncomplete, message).details(self.failures)
        }))
    }

    fn words(&self) -> String {
        let copied = match self.files {
            1 => "1 file".to_owned(),
            files => format!("{files} files"),
        };
        let skipped = match self.skipped {
            0 => String::new(),
            1 => "; 1 was the same already".to_owned(),
            skipped => format!("; {skipped} were the same already"),
        };
        format!("copied {copied} ({}){skipped}", format_bytes(self.bytes))
    }
}

fn counted(number: u64, one: &str, many: &str) -> String {
    if number == 1 { format!("1 file {one}") } else { format!("{number} files {many}") }
}

impl Watch for Tally {
    fn found(&mut self, _files: u64, bytes: u64) {
        self.bar.grow(bytes);
    }

    fn moved(&mut self, bytes: u64) {
        self.moved += bytes;
        self.bar.add(bytes);
    }

    fn done(&mut self, path: &[u8], bytes: u64) {
        self.files += 1;
        self.files_now += 1;
        self.bytes += bytes;
        if let Some((hasher, done)) = &mut self.done {
            done.insert(hasher.hash_one(path));
        }
    }

    fn skipped(&mut self, _path: &[u8], _bytes: u64) {
        self.skipped_now += 1;
    }

    fn problem(&mut self, path: &[u8], reason: &str, is_failure: bool) {
        let (count, told) = if is_failure {
            (&mut self.failed, &mut self.failures)
        } else {
            (&mut self.noted, &mut self.notes)
        };
        *count += 1;
        if told.len() < TOLD {
            let path = if path.is_empty() { ".".to_owned() } else { readable(path) };
            let reason = if reason.is_empty() { "it could not be written" } else { reason };
            told.push(format!("{path}: {}", printable::inline(reason)));
        }
    }

    fn is_done(&self, path: &[u8]) -> bool {
        self.done.as_ref().is_some_and(|(hasher, done)| done.contains(&hasher.hash_one(path)))
    }
}

/// A name on one line.
fn readable(path: &[u8]) -> String {
    printable::inline(&String::from_utf8_lossy(path)).into_owned()
}
