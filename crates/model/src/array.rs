//! What is said and kept of an array's elements.

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::ranges::Ranges;
use crate::reason::Reason;

/// How an element is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum ElementState {
    /// It has yet to run, or to run again.
    Waiting,
    /// It runs.
    Running,
    /// It ended with code 0.
    Succeeded,
    /// It failed, and is not tried again.
    Failed,
}

impl ElementState {
    /// As they are spelled everywhere.
    pub const WORDS: &[(&str, ElementState)] = &[
        ("waiting", Self::Waiting),
        ("running", Self::Running),
        ("succeeded", Self::Succeeded),
        ("failed", Self::Failed),
    ];

    /// The word for it.
    pub fn as_str(self) -> &'static str {
        Self::WORDS.iter().find(|(_, state)| *state == self).map_or("", |(word, _)| word)
    }
}

/// How many elements are how.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct ElementCounts {
    /// All of them.
    pub total: u32,
    /// Those that have yet to run, or to run again.
    pub waiting: u32,
    /// Those that run.
    pub running: u32,
    /// Those that ended with code 0.
    pub succeeded: u32,
    /// Those that failed, and are not tried again.
    pub failed: u32,
}

/// The last run of an element.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Element {
    /// Its index.
    pub index: u32,
    /// How it is now.
    pub state: ElementState,
    /// How often it has run.
    pub tries: u32,
    /// The attempt and the rank of the task that ran it.
    pub attempt: u32,
    /// See `attempt`.
    pub rank: u32,
    /// When it started.
    pub started_at: Timestamp,
    /// When it ended; absent while it runs.
    pub ended_at: Option<Timestamp>,
    /// Why it failed, if it did.
    pub failure: Option<Reason>,
    /// Where its output is in the log of that task: from here.
    pub log_from: u64,
    /// Up to here; absent while it runs, or where nobody lived to tell.
    pub log_to: Option<u64>,
}

/// What a supervisor writes into its task's log, between the output of one element and of the next.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// An element starts.
    Began {
        /// Its index.
        element: u32,
    },
    /// An element is over, with all that it had started.
    Ended {
        /// Its index.
        element: u32,
        /// Why it failed; absent when it ended with code 0.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        failure: Option<Reason>,
        /// Its task was told to end before it had.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        stopped: bool,
    },
}

/// A mark, and where and when it was made.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Marked {
    /// What it says.
    pub mark: Mark,
    /// When.
    pub at: Timestamp,
    /// Where it begins in the log.
    pub offset: u64,
    /// Where it ends.
    pub end: u64,
}

/// Elements that a lane is given, on top of those it has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Grant {
    /// The lane's grants are numbered from 1, so that one that is said twice is done once.
    pub number: u32,
    /// Their places in the array.
    pub places: Ranges,
    /// Nothing comes after this one: once all is done, the lane ends.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub last: bool,
}
