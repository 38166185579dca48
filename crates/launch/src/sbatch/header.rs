//! The `#SBATCH` lines of a script, as words.

use muster_model::slurm::option::{self, Given};
use muster_model::spec::FieldCode;

use super::Problem;
use super::known::{KNOWN, Meaning};

const MAGIC: &str = "#SBATCH";

/// A line with options.
pub(super) struct Line<'a> {
    /// From 1.
    pub number: usize,
    text: &'a str,
}

/// Whether there is such a line.
pub(super) fn has_options(text: &str) -> bool {
    lines(text).next().is_some()
}

/// Every such line up to the first command: those after it are comments.
pub(super) fn lines(text: &str) -> impl Iterator<Item = Line<'_>> {
    let head = text.lines().take_while(|line| {
        let line = line.trim_start();
        line.is_empty() || line.starts_with('#')
    });
    head.enumerate().filter_map(|(at, line)| {
        let rest = line.strip_prefix(MAGIC)?;
        let is_one = rest.is_empty() || rest.starts_with(char::is_whitespace);
        is_one.then_some(Line { number: at + 1, text: rest })
    })
}

impl Line<'_> {
    /// Its options.
    pub fn options(&self) -> Result<Vec<Given<Meaning>>, Problem> {
        let problem = |option: String, message: String| {
            let code = if message.starts_with("there is no such") {
                FieldCode::UnknownField
            } else {
                FieldCode::InvalidValue
            };
            Problem { line: self.number, option, code, message }
        };
        let words = words(self.text).map_err(|message| problem(String::new(), message))?;
        if let Some("hetjob" | "packjob") = words.first().map(String::as_str) {
            let message =
                "jobs of several parts cannot be run; submit each part as a job of its own".to_owned();
            return Err(problem(words[0].clone(), message));
        }
        let (given, at) =
            option::read(&words, KNOWN).map_err(|wrong| problem(wrong.written, wrong.message))?;
        match words.get(at) {
            Some(word) => Err(problem(format!("`{word}`"), "is not an option; options begin with -".into())),
            None => Ok(given),
        }
    }
}

/// The words of a line. Quotes hold words together, a backslash takes what follows as it is, and a `#` that begins a word
/// begins a comment.
fn words(text: &str) -> Result<Vec<String>, String> {
    let mut words = Vec::new();
    let mut word: Option<String> = None;
    let mut quote: Option<char> = None;
    let mut letters = text.chars();
    while let Some(letter) = letters.next() {
        match (quote, letter) {
            (Some(open), _) if letter == open => quote = None,
            (None | Some('"'), '\\') => word.get_or_insert_default().extend(letters.next()),
            (Some(_), _) => word.get_or_insert_default().push(letter),
            (None, '"' | '\'') => {
                quote = Some(letter);
                word.get_or_insert_default();
            }
            (None, '#') if word.is_none() => break,
            (None, _) if letter.is_whitespace() => words.extend(word.take()),
            (None, _) => word.get_or_insert_default().push(letter),
        }
    }
    if quote.is_some() {
        return Err("a quote is opened and not closed".to_owned());
    }
    words.extend(word);
    Ok(words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_taken_apart_as_sbatch_does() {
        for (text, expected) in [
            (" --nodes=2 -n 4", vec!["--nodes=2", "-n", "4"]),
            (" --job-name=\"a b\" # the name", vec!["--job-name=a b"]),
            ("\t-J 'it is'\t", vec!["-J", "it is"]),
            (" --comment=a\\ b#c", vec!["--comment=a b#c"]),
            (" --x=''", vec!["--x="]),
            (" # nothing", vec![]),
            ("\r", vec![]),
        ] {
            assert_eq!(words(text).unwrap(), expected, "{text}");
        }
        assert!(words(" --x='a").is_err());
    }

    #[test]
    fn lines_are_read_up_to_the_first_command() {
        let text = "#!/bin/bash -l\n#SBATCH -N 2\n##SBATCH -N 3\n#SBATCHX\n# SBATCH\n\n  # a comment\n#SBATCH\t-n 4\n#SBATCH\nmodule load x\n#SBATCH -N 9\n";
        let numbers: Vec<usize> = lines(text).map(|line| line.number).collect();
        assert_eq!(numbers, [2, 8, 9]);
        assert!(!has_options("#!/bin/sh\necho\n#SBATCH -N 2\n"));
    }
}
