//! Launch contracts: from a gang's addresses to what every task is given.
//!
//! Pure: the same gang always gives the same answer, so it can be computed again after a crash. A framework's
//! contract gets its own module; `base` is what every task gets whatever it runs.

pub mod base;

use std::collections::BTreeMap;
use std::net::IpAddr;

use muster_model::AttemptId;

/// A gang that is whole: every member's address is known.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Gang {
    /// The attempt.
    pub attempt: AttemptId,
    /// The job's name.
    pub job_name: String,
    /// The members, by rank. Never empty.
    pub members: Vec<Member>,
}

/// One member of a gang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// Where its peers reach it.
    pub ip: IpAddr,
    /// Ports reserved for it.
    pub ports: Vec<u16>,
}

/// What one task is given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// Variables, on top of the user's: the platform's facts are not the user's to change.
    pub env: BTreeMap<String, String>,
}

/// How many ports each member needs.
pub const PORTS: u32 = 1;

/// Every member's part, by rank.
pub fn parts(gang: &Gang) -> Vec<Part> {
    (0..).zip(&gang.members).map(|(rank, _)| Part { env: base::environment(gang, rank) }).collect()
}
