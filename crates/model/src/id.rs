//! Identifiers: one newtype for each kind of thing, alphabetical, with a prefixed text form.
//!
//! Random ids are made from bytes the caller supplies, so that nothing here needs a source of randomness.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// A text that is not an identifier of the expected kind.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{text}` is not {expected}")]
pub struct ParseError {
    /// What was given.
    pub text: String,
    /// What was expected, in words.
    pub expected: &'static str,
}

/// Letters and digits without those that are mistaken for each other when read aloud or copied.
const ALPHABET: &[u8; 32] = b"0123456789abcdefghjkmnpqrstvwxyz";
/// 10 letters are 50 bits: collisions stay improbable at a hundred million jobs, and an id still fits a table.
const RANDOM_LETTERS: usize = 10;

fn letters(random: u64) -> String {
    (0..RANDOM_LETTERS).map(|i| ALPHABET[(random >> (5 * i) & 31) as usize] as char).collect()
}

macro_rules! ids {
    ($($(#[$doc:meta])* $name:ident = $prefix:literal, $pattern:literal, $expected:literal, $valid:expr;)*) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema), schema(value_type = String, pattern = $pattern))]
        pub struct $name(String);

        impl $name {
            /// The fixed beginning of the text form.
            pub const PREFIX: &'static str = $prefix;

            /// The text form.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl FromStr for $name {
            type Err = ParseError;

            fn from_str(text: &str) -> Result<Self, ParseError> {
                let valid: fn(&str) -> bool = $valid;
                match text.strip_prefix($prefix) {
                    Some(rest) if valid(rest) => Ok(Self(text.to_owned())),
                    _ => Err(ParseError { text: text.chars().take(80).collect(), expected: $expected }),
                }
            }
        }

        impl TryFrom<String> for $name {
            type Error = ParseError;

            fn try_from(text: String) -> Result<Self, ParseError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }
    )*};
}

fn is_random(rest: &str) -> bool {
    rest.len() == RANDOM_LETTERS && rest.bytes().all(|b| ALPHABET.contains(&b))
}

/// A blake3 digest in hexadecimal.
fn is_digest(rest: &str) -> bool {
    rest.len() == 64 && rest.bytes().all(|b| matches!(b, b'0'..=b'9' | b'a'..=b'f'))
}

/// A node's id ends in the name its engine gave it.
fn is_slug(rest: &str) -> bool {
    (1..=100).contains(&rest.len())
        && rest.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.'))
}

ids! {
    /// A snapshot of a code directory, named by its content.
    BundleId = "bundle_", "^bundle_[0-9a-f]{64}$", "a bundle id (bundle_ and 64 hexadecimal digits)", is_digest;
    /// A piece of a bundle, named by its content.
    ChunkId = "chunk_", "^chunk_[0-9a-f]{64}$", "a chunk id (chunk_ and 64 hexadecimal digits)", is_digest;
    /// What a user asked to run.
    JobId = "job_", "^job_[0-9a-hjkmnp-tv-z]{10}$", "a job id (job_ and 10 letters or digits)", is_random;
    /// A machine an engine offers.
    NodeId = "node_", "^node_[0-9A-Za-z._-]{1,100}$", "a node id (node_ and a name)", is_slug;
}

impl JobId {
    /// An id from random bits.
    pub fn from_random(random: u64) -> Self {
        Self(format!("{}{}", Self::PREFIX, letters(random)))
    }
}

impl BundleId {
    /// The id of content with this digest in hexadecimal.
    pub fn from_digest(hex: &str) -> Result<Self, ParseError> {
        format!("{}{hex}", Self::PREFIX).parse()
    }
}

impl ChunkId {
    /// The id of content with this digest in hexadecimal.
    pub fn from_digest(hex: &str) -> Result<Self, ParseError> {
        format!("{}{hex}", Self::PREFIX).parse()
    }
}

/// One try at running a job. Written `job_x.2`; the first attempt is 1.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AttemptId {
    /// The job that is tried.
    pub job: JobId,
    /// Which try this is, from 1.
    pub number: u32,
}

impl AttemptId {
    /// The task of this attempt with the given rank.
    pub fn task(&self, rank: u32) -> TaskId {
        TaskId { attempt: self.clone(), rank }
    }
}

/// One member of an attempt's gang. Written `task0.job_x.2`: unique for ever, so it also fences every message.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct TaskId {
    /// The attempt it belongs to.
    pub attempt: AttemptId,
    /// Its place in the gang, from 0.
    pub rank: u32,
}

impl fmt::Display for AttemptId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.job, self.number)
    }
}

impl fmt::Display for TaskId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "task{}.{}", self.rank, self.attempt)
    }
}

impl FromStr for AttemptId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let parsed = text.rsplit_once('.').and_then(|(job, number)| {
            Some(Self { job: job.parse().ok()?, number: number.parse().ok().filter(|n| *n > 0)? })
        });
        parsed.ok_or_else(|| ParseError {
            text: text.chars().take(80).collect(),
            expected: "an attempt id (job_….N)",
        })
    }
}

impl FromStr for TaskId {
    type Err = ParseError;

    fn from_str(text: &str) -> Result<Self, ParseError> {
        let parsed =
            text.strip_prefix("task").and_then(|rest| rest.split_once('.')).and_then(|(rank, attempt)| {
                Some(Self { rank: rank.parse().ok()?, attempt: attempt.parse().ok()? })
            });
        parsed.ok_or_else(|| ParseError {
            text: text.chars().take(80).collect(),
            expected: "a task id (taskR.job_….N)",
        })
    }
}

macro_rules! text_conversions {
    ($($name:ident)*) => {$(
        impl TryFrom<String> for $name {
            type Error = ParseError;

            fn try_from(text: String) -> Result<Self, ParseError> {
                text.parse()
            }
        }

        impl From<$name> for String {
            fn from(id: $name) -> String {
                id.to_string()
            }
        }
    )*};
}

text_conversions! { AttemptId TaskId }

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_read_back_what_they_print() {
        let job = JobId::from_random(0x1234_5678_9abc_def0);
        assert_eq!(job.as_str().parse::<JobId>().unwrap(), job);
        let task = AttemptId { job, number: 3 }.task(17);
        assert_eq!(task.to_string().parse::<TaskId>().unwrap(), task);
    }

    #[test]
    fn other_texts_are_refused() {
        for bad in [
            "",
            "job_",
            "job_UPPERCASE0",
            "job_short",
            "task_0123456789",
            "job_012345678/",
            "job_0123456789x",
        ] {
            assert!(bad.parse::<JobId>().is_err(), "{bad}");
        }
        for bad in [
            "task.job_0123456789.1",
            "task0.job_0123456789",
            "task0.job_0123456789.0",
            "task-1.job_0123456789.1",
        ] {
            assert!(bad.parse::<TaskId>().is_err(), "{bad}");
        }
    }

    #[test]
    fn a_node_id_can_be_a_file_name() {
        assert!("node_local".parse::<NodeId>().is_ok());
        assert!("node_../x".parse::<NodeId>().is_err());
    }
}
