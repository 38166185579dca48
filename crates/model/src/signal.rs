//! Signals, as people write them: `USR1`, `SIGTERM`, `15`.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// The largest number that Linux has, and the largest that has a name everywhere.
const LARGEST: i32 = 64;
const LARGEST_NAMED: i32 = 31;
/// Those that people send, with the numbers that they have on every machine that muster runs on.
const NAMES: [(&str, i32); 19] = [
    ("HUP", 1),
    ("INT", 2),
    ("QUIT", 3),
    ("ILL", 4),
    ("ABRT", 6),
    ("BUS", 7),
    ("FPE", 8),
    ("KILL", 9),
    ("USR1", 10),
    ("SEGV", 11),
    ("USR2", 12),
    ("PIPE", 13),
    ("ALRM", 14),
    ("TERM", 15),
    ("CONT", 18),
    ("STOP", 19),
    ("TSTP", 20),
    ("URG", 23),
    ("WINCH", 28),
];

/// A signal.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct Signal(i32);

impl Signal {
    /// What asks a process to end.
    pub const TERM: Self = Self(15);

    /// Its number.
    pub fn number(self) -> i32 {
        self.0
    }

    /// What people call it, if they do.
    pub fn name(self) -> Option<&'static str> {
        NAMES.iter().find(|(_, number)| *number == self.0).map(|(name, _)| *name)
    }

    /// Whether a process can be told something with it: it is one with a meaning, and can be heard.
    pub fn tells_something(self) -> bool {
        self.0 <= LARGEST_NAMED && !matches!(self.0, 9 | 19)
    }

    /// Whether it is the one that ends a process where nothing else is said.
    pub fn is_term(&self) -> bool {
        *self == Self::TERM
    }
}

impl Default for Signal {
    fn default() -> Self {
        Self::TERM
    }
}

impl FromStr for Signal {
    type Err = String;

    /// By its name, with or without `SIG`, or by its number.
    fn from_str(text: &str) -> Result<Self, String> {
        let upper = text.to_ascii_uppercase();
        let name = upper.strip_prefix("SIG").unwrap_or(&upper);
        let named = NAMES.iter().find(|(known, _)| *known == name).map(|(_, number)| *number);
        let number = named.or_else(|| text.parse().ok().filter(|number| (1..=LARGEST).contains(number)));
        number.map(Self).ok_or_else(|| format!("must be a signal such as TERM, INT or USR1, not `{text}`"))
    }
}

impl fmt::Display for Signal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.name() {
            Some(name) => f.write_str(name),
            None => write!(f, "{}", self.0),
        }
    }
}

impl TryFrom<String> for Signal {
    type Error = String;

    fn try_from(text: String) -> Result<Self, String> {
        text.parse()
    }
}

impl From<Signal> for String {
    fn from(signal: Signal) -> String {
        signal.to_string()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn signals_have_names_and_numbers() {
        for (text, number, name) in
            [("USR1", 10, "USR1"), ("sigterm", 15, "TERM"), ("12", 12, "USR2"), ("34", 34, "34")]
        {
            let signal: Signal = text.parse().unwrap();
            assert_eq!((signal.number(), signal.to_string()), (number, name.to_owned()));
        }
        for text in ["0", "65", "X", "", "SIG", "-1"] {
            assert!(text.parse::<Signal>().is_err(), "{text}");
        }
    }
}
