//! What a person should know about the code that is sent.

use std::path::PathBuf;

use muster_api::model::printable;
use muster_api::model::quantity::format_bytes;
use muster_bundle::listing::shown;
use muster_bundle::pack::Found;

use crate::terminal;

/// From here on it is said what is being sent: people forget about data sets and checkpoints.
const LARGE: u64 = 100 << 20;
/// How many of the largest files are named.
const LARGEST: usize = 10;
/// How many names a remark lists.
const NAMED: usize = 5;

/// Says what was left out that no ignore file names.
pub(super) fn on_skipped(skipped: &[PathBuf]) {
    if !skipped.is_empty() {
        let names = listed(skipped.iter().map(|path| path.display().to_string()));
        terminal::note(&format!(
            "left out, because they are neither files nor directories nor links: {names}"
        ));
    }
}

/// Names the largest files of a large tree.
pub(super) fn on_size(found: &[Found]) {
    let total: u64 = found.iter().map(|found| found.entry.size()).sum();
    if total > LARGE {
        terminal::note(&about_size(found, total));
        terminal::hint("what the job does not need can be left out: write its name into .musterignore");
    }
}

fn about_size(found: &[Found], total: u64) -> String {
    let mut files: Vec<_> = found.iter().map(|found| (found.entry.size(), &found.entry.path)).collect();
    let count = files.iter().filter(|(size, _)| *size > 0).count();
    files.sort_unstable_by(|a, b| b.0.cmp(&a.0).then(a.1.cmp(b.1)));
    files.truncate(LARGEST.min(count));
    let sizes: Vec<String> = files.iter().map(|(size, _)| format_bytes(*size)).collect();
    let width = sizes.iter().map(String::len).max().unwrap_or(0);
    let mut text = format!("the code directory has {}; its largest files:", format_bytes(total));
    for ((_, path), size) in files.iter().zip(&sizes) {
        text.push_str(&format!("\n{size:>width$}  {}", readable(path)));
    }
    text
}

/// A name with its letters, and with control characters and broken bytes made visible.
fn readable(path: &[u8]) -> String {
    match std::str::from_utf8(path) {
        Ok(text) if text.chars().all(printable::is_printable) => text.to_owned(),
        _ => shown(path),
    }
}

/// The first few, and how many more there are.
fn listed(names: impl ExactSizeIterator<Item = String>) -> String {
    let more = names.len().saturating_sub(NAMED);
    let mut text = names.take(NAMED).collect::<Vec<_>>().join(", ");
    if more > 0 {
        text.push_str(&format!(" and {more} more"));
    }
    text
}
