//! The number of the last commit, in a small file beside the database.
//!
//! SQLite takes a write-ahead log up to its first damaged frame and drops the rest without a word, and makes an empty database where
//! there is none. Either way jobs that were acknowledged are gone, and nothing says so. So each commit carries a number, in the database and here.
//!
//! The mark is written after the commit is on disk and before anyone hears of it, without a sync. So a kill or a power cut may
//! leave it behind the database, and never ahead: a database behind its mark has lost commits.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// What is before the number, with the version of the form.
const FORM: &str = "muster-commit 1 ";
/// Hexadecimal digits of the checksum at the end.
const SUM: usize = 16;

/// The file, open for the life of the writer.
#[derive(Debug)]
pub(crate) struct CommitMark {
    path: PathBuf,
    file: Option<File>,
}

impl CommitMark {
    /// The number in a directory's mark. One that cannot be read, or is damaged, says nothing: it must not stop a server whose database is whole.
    pub fn read(path: &Path) -> Option<i32> {
        match fs::read_to_string(path) {
            Ok(text) => {
                let number = parse(&text);
                if number.is_none() {
                    tracing::warn!(path = %path.display(), "the mark of the last commit is damaged; replaced it");
                }
                number
            }
            Err(error) if error.kind() == io::ErrorKind::NotFound => None,
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "the mark of the last commit cannot be read");
                None
            }
        }
    }

    /// Begins to mark commits, from the number of the last one.
    pub fn begin(path: PathBuf, number: i32) -> Self {
        let mut mark = Self { path, file: None };
        mark.put(number);
        mark
    }

    /// Marks a commit that is on disk. A mark that cannot be written stays behind, which costs a warning only.
    pub fn put(&mut self, number: i32) {
        if let Err(error) = self.write(number) {
            tracing::warn!(path = %self.path.display(), %error, "the mark of the last commit cannot be written");
        }
    }

    fn write(&mut self, number: i32) -> io::Result<()> {
        let file = match &mut self.file {
            Some(file) => file,
            none => {
                let mut options = OpenOptions::new();
                none.insert(options.create(true).truncate(false).write(true).mode(0o600).open(&self.path)?)
            }
        };
        // All forms are of one length, so that one write replaces another.
        file.write_all_at(form(number).as_bytes(), 0)
    }
}

/// One line: the form, the number, its checksum.
fn form(number: i32) -> String {
    let text = format!("{FORM}{number:+011}");
    let sum = blake3::hash(text.as_bytes()).to_hex();
    format!("{text} {}\n", &sum[..SUM])
}

fn parse(text: &str) -> Option<i32> {
    let number = text.strip_prefix(FORM)?.split(' ').next()?.parse().ok()?;
    (form(number) == text).then_some(number)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mark_is_one_line_of_one_length_and_damage_in_it_says_nothing() {
        for number in [0, 1, -1, i32::MIN, i32::MAX] {
            let text = form(number);
            assert_eq!(text.len(), form(0).len());
            assert_eq!(parse(&text), Some(number));
            for place in 0..text.len() {
                let mut bytes = text.clone().into_bytes();
                bytes[place] ^= 1;
                assert_eq!(parse(&String::from_utf8_lossy(&bytes)), None, "{place}");
                assert_eq!(parse(&text[..place]), None, "{place}");
            }
        }
    }

    #[test]
    fn a_mark_is_written_over_the_last_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("mark");
        assert_eq!(CommitMark::read(&path), None);
        let mut mark = CommitMark::begin(path.clone(), 7);
        assert_eq!(CommitMark::read(&path), Some(7));
        mark.put(-8);
        assert_eq!(CommitMark::read(&path), Some(-8));
    }
}
