//! Where the output of a step's tasks goes: whole lines, perhaps with the number of their task, or files.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::path::PathBuf;
use std::time::{Duration, Instant};

use super::super::pattern::Place;
use super::options::Options;

/// How long the rest of a line is waited for.
const PATIENCE: Duration = Duration::from_millis(100);
/// A line that is longer is passed on in pieces.
const LONGEST: usize = 256 << 10;

pub(super) struct Outputs {
    /// How many digits a task's number has, where it stands before its lines.
    label: Option<usize>,
    places: BTreeMap<u32, Place>,
    output: Sink,
    error: Sink,
    append: bool,
    files: BTreeMap<PathBuf, Option<File>>,
    lines: BTreeMap<(u32, bool), Line>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Sink {
    /// To where `srun` writes the same.
    Own,
    Nothing,
    Files(String),
}

#[derive(Default)]
struct Line {
    bytes: Vec<u8>,
    flush_at: Option<Instant>,
    /// Whether what comes next is the middle of a line.
    is_begun: bool,
}

impl Outputs {
    pub fn new(options: &Options, places: BTreeMap<u32, Place>) -> Outputs {
        let sink = |pattern: &Option<String>| match pattern.as_deref() {
            None | Some("all") => Sink::Own,
            Some("none") => Sink::Nothing,
            Some(pattern) => Sink::Files(pattern.to_owned()),
        };
        let output = sink(&options.output);
        let error = match &options.error {
            None => output.clone(),
            given => sink(given),
        };
        let last = places.keys().next_back().copied().unwrap_or(0);
        let label = options.label.then(|| last.to_string().len());
        Outputs {
            label,
            places,
            output,
            error,
            append: options.append,
            files: BTreeMap::new(),
            lines: BTreeMap::new(),
        }
    }

    /// What a task has written.
    pub fn take(&mut self, rank: u32, is_error: bool, bytes: &[u8]) {
        let line = self.lines.entry((rank, is_error)).or_default();
        line.bytes.extend_from_slice(bytes);
        let whole = match line.bytes.iter().rposition(|byte| matches!(byte, b'\n' | b'\r')) {
            Some(at) => at + 1,
            None if line.bytes.len() > LONGEST => line.bytes.len(),
            None => 0,
        };
        let ready: Vec<u8> = line.bytes.drain(..whole).collect();
        // With a number before it, a piece of a line would look like a line.
        let may_flush = self.label.is_none() && !line.bytes.is_empty();
        line.flush_at =
            may_flush.then(|| line.flush_at.filter(|_| whole == 0).unwrap_or(Instant::now() + PATIENCE));
        self.pass(rank, is_error, &ready);
    }

    /// When to pass on what is no whole line.
    pub fn flush_at(&self) -> Option<Instant> {
        self.lines.values().filter_map(|line| line.flush_at).min()
    }

    pub fn flush(&mut self) {
        let now = Instant::now();
        let due: Vec<_> = self
            .lines
            .iter()
            .filter(|(_, line)| line.flush_at.is_some_and(|at| at <= now))
            .map(|(key, _)| *key)
            .collect();
        for (rank, is_error) in due {
            self.flush_line(rank, is_error);
        }
    }

    /// A task has ended: its lines are as whole as they will be.
    pub fn end(&mut self, rank: u32) {
        for is_error in [false, true] {
            if let Some(line) = self.lines.get_mut(&(rank, is_error))
                && self.label.is_some()
                && !line.bytes.is_empty()
            {
                line.bytes.push(b'\n');
            }
            self.flush_line(rank, is_error);
        }
    }

    fn flush_line(&mut self, rank: u32, is_error: bool) {
        let Some(line) = self.lines.get_mut(&(rank, is_error)) else { return };
        line.flush_at = None;
        let bytes = std::mem::take(&mut line.bytes);
        self.pass(rank, is_error, &bytes);
    }

    fn pass(&mut self, rank: u32, is_error: bool, bytes: &[u8]) {
        if bytes.is_empty() {
            return;
        }
        let labelled;
        let bytes = match self.label {
            Some(width) => {
                let line = self.lines.entry((rank, is_error)).or_default();
                labelled = label(bytes, rank, width, &mut line.is_begun);
                &labelled
            }
            None => bytes,
        };
        let sink = if is_error { &self.error } else { &self.output };
        // Nobody reads any more: the tasks go on.
        let _ = match sink {
            Sink::Nothing => Ok(()),
            Sink::Own if is_error => io::stderr().write_all(bytes),
            Sink::Own => {
                let mut out = io::stdout().lock();
                out.write_all(bytes).and_then(|()| out.flush())
            }
            Sink::Files(pattern) => {
                let path = self.places.get(&rank).cloned().unwrap_or_default().name(pattern);
                let append = self.append;
                let file = self.files.entry(path.clone()).or_insert_with(|| open(&path, append));
                file.as_mut().map_or(Ok(()), |file| file.write_all(bytes))
            }
        };
    }
}

fn open(path: &PathBuf, append: bool) -> Option<File> {
    if let Some(folder) = path.parent().filter(|folder| !folder.as_os_str().is_empty()) {
        let _ = std::fs::create_dir_all(folder);
    }
    if !append {
        let _ = OpenOptions::new().write(true).truncate(true).open(path);
    }
    let opened = OpenOptions::new().append(true).create(true).open(path);
    opened.map_err(|error| super::super::say("srun", &format!("error: {}: {error}", path.display()))).ok()
}

fn label(bytes: &[u8], rank: u32, width: usize, is_begun: &mut bool) -> Vec<u8> {
    let mut labelled = Vec::with_capacity(bytes.len() + width + 2);
    for line in bytes.split_inclusive(|byte| *byte == b'\n') {
        if !*is_begun {
            labelled.extend(format!("{rank:>width$}: ").into_bytes());
        }
        labelled.extend_from_slice(line);
        *is_begun = !line.ends_with(b"\n");
    }
    labelled
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_stand_before_lines_and_not_within_them() {
        let mut is_begun = false;
        assert_eq!(label(b"a\nb", 3, 2, &mut is_begun), b" 3: a\n 3: b");
        assert_eq!(label(b"c\nd\n", 3, 2, &mut is_begun), b"c\n 3: d\n");
        assert!(!is_begun);
    }

    #[test]
    fn every_task_has_its_file_and_lines_come_in_whole() {
        let dir = tempfile::tempdir().unwrap();
        let pattern = dir.path().join("sub/out-%t").display().to_string();
        let words = ["-o", &pattern, "x"].map(str::to_owned);
        let options = Options::read(&words, &|_| None).unwrap();
        let places = (0..2).map(|task| (task, Place { task, ..Place::default() })).collect();
        let mut outputs = Outputs::new(&options, places);
        outputs.take(0, false, b"one ");
        assert!(outputs.flush_at().is_some());
        outputs.take(1, true, b"other\n");
        outputs.take(0, false, b"line\nrest");
        outputs.end(0);
        let read = |name: &str| std::fs::read_to_string(dir.path().join("sub").join(name)).unwrap();
        assert_eq!((read("out-0").as_str(), read("out-1").as_str()), ("one line\nrest", "other\n"));
    }
}
