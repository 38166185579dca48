//! The line in which a failed program names its error, such as `ValueError: bad sample 42`.
//!
//! It comes from a task's output, so it is bounded and has one line whoever made it, also when it is read from the wire or from
//! disk. It may hold any character: what prints it makes it printable, as every text of other people (see `printable`).

use std::fmt;

use serde::{Deserialize, Serialize};

/// One line that names an error, of at most [`ErrorLine::MAX_CHARS`] characters.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(from = "String", into = "String")]
pub struct ErrorLine(Box<str>);

impl ErrorLine {
    /// Enough for the message of an exception and the path in it; more belongs to the log.
    pub const MAX_CHARS: usize = 300;

    /// The first line of a text, cut where it is too long; none if it is blank.
    pub fn new(text: &str) -> Option<Self> {
        let line = text.trim().lines().next()?.trim_end();
        Some(Self(cut(line).into()))
    }

    /// The line.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// The text with three dots in place of what is over the bound.
fn cut(line: &str) -> String {
    if line.chars().count() <= ErrorLine::MAX_CHARS {
        return line.to_owned();
    }
    line.chars().take(ErrorLine::MAX_CHARS - 1).chain(['…']).collect()
}

impl fmt::Display for ErrorLine {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&self.0)
    }
}

/// A text from elsewhere is held to the same bounds.
impl From<String> for ErrorLine {
    fn from(text: String) -> Self {
        Self::new(&text).unwrap_or_else(|| Self("".into()))
    }
}

impl From<ErrorLine> for String {
    fn from(line: ErrorLine) -> Self {
        line.0.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_from_elsewhere_is_bounded_too() {
        let long = serde_json::to_string(&format!("  {}\nmore", "é".repeat(400))).unwrap();
        let line: ErrorLine = serde_json::from_str(&long).unwrap();
        assert_eq!(line.as_str().chars().count(), ErrorLine::MAX_CHARS);
        assert!(line.as_str().ends_with("é…"));
    }

    #[test]
    fn blank_text_names_no_error() {
        assert_eq!(ErrorLine::new(" \n "), None);
        assert_eq!(ErrorLine::new("\nKeyError: 'x'\nat 3").unwrap().as_str(), "KeyError: 'x'");
    }
}
