//! Lists of hosts, for launchers that start processes on others by ssh.
//!
//! Members go by the names that ssh between them knows. Horovod takes the first word of every line and what follows the first
//! `=`, so there is never a blank line, a comment, or anything after the number.

use crate::{Gang, Plan};

/// Where DLWorkspace has it, and DeepSpeed looks first.
pub(super) const JOB: &str = "/job/hostfile";

/// Open MPI's, Horovod's and DeepSpeed's form: `worker-0 slots=8`.
pub(super) fn slots(gang: &Gang, plan: &Plan) -> String {
    lines(gang, |host| format!("{host} slots={}", plan.processes))
}

/// Intel MPI's and MPICH's form: `worker-0:8`.
pub(super) fn colon(gang: &Gang, plan: &Plan) -> String {
    lines(gang, |host| format!("{host}:{}", plan.processes))
}

/// A line for every member.
pub(super) fn lines(gang: &Gang, line: impl Fn(&str) -> String) -> String {
    (0..gang.members.len() as u32).map(|rank| line(&host(gang, rank)) + "\n").collect()
}

/// The name by which the others reach a member.
pub(super) fn host(gang: &Gang, rank: u32) -> String {
    crate::names(gang, rank)
        .into_iter()
        .next()
        .unwrap_or_else(|| gang.members[rank as usize].ip().to_string())
}
