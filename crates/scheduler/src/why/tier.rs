//! The reasons, and their codes.

use serde::{Deserialize, Serialize};

/// What stands between a job and its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// Somebody holds it.
    Held,
    /// Other jobs come first.
    Dependency,
    /// It waits for a moment, after a failed attempt.
    Backoff,
    /// There is no node that takes anything.
    NoNode,
    /// No node runs tasks of its account, or has its volumes.
    NotServed,
    /// It asks for more than there is.
    NeverFits,
    /// It asks for more than its workspace may ever have.
    NeverAllowed,
    /// Its user runs as many as they may.
    UserLimit,
    /// Its workspace has as much as it may.
    OutOfQuota,
    /// Others have borrowed what is its workspace's own.
    QuotaLent,
    /// Others are about to make room for it.
    WaitingForPreemption,
    /// What is free is kept for a job before it.
    BehindOthers,
    /// There is not enough room.
    NoCapacity,
    /// Nothing: it starts with the next pass.
    StartsNow,
}

impl Tier {
    /// The stable code, as it stands in JSON.
    pub fn code(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Dependency => "dependency",
            Self::Backoff => "backoff",
            Self::NoNode => "no_node",
            Self::NotServed => "not_served",
            Self::NeverFits => "never_fits",
            Self::NeverAllowed => "never_allowed",
            Self::UserLimit => "user_limit",
            Self::OutOfQuota => "out_of_quota",
            Self::QuotaLent => "quota_lent",
            Self::WaitingForPreemption => "waiting_for_preemption",
            Self::BehindOthers => "behind_others",
            Self::NoCapacity => "no_capacity",
            Self::StartsNow => "starts_now",
        }
    }
}
