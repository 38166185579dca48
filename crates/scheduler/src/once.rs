//! A plan from a snapshot, made once and forgotten: what is free and who waits in, who starts out.
//!
//! It knows priority, age and room, and nothing of quotas or shares: for those see [`crate::Scheduler`], which remembers.

use muster_model::task::Placement;
use muster_model::{JobId, NodeId};

use crate::fit::{self, Free, Need, fits_ever};

/// A gang that waits.
#[derive(Debug, Clone, PartialEq)]
pub struct Waiting {
    /// The job.
    pub job: JobId,
    /// How many tasks.
    pub nodes: u32,
    /// What each of them needs.
    pub need: Need,
    /// Nodes it would rather have than others, by rank; none, for most.
    pub prefer: Vec<NodeId>,
}

/// A gang that can start.
#[derive(Debug, Clone, PartialEq)]
pub struct Admission {
    /// The job.
    pub job: JobId,
    /// A place for each rank.
    pub placements: Vec<Placement>,
}

/// Takes what the plan admits out of `free`. `queue` is in order, most deserving first, and is read only as far as
/// anything can still start.
pub fn plan<'a>(free: &mut [Free], queue: impl Iterator<Item = &'a Waiting>) -> Vec<Admission> {
    // Reservations are made on a copy: they bind this plan only.
    let mut left: Vec<Free> = free.to_vec();
    let mut admitted = Vec::new();
    // What did not fit will not fit further down, where there is only less: a long queue of alike jobs costs one look.
    let mut blocked: Vec<&Waiting> = Vec::new();
    for waiting in queue {
        if left.iter().all(|node| !node.has_room()) {
            break;
        }
        if blocked.iter().any(|other| other.nodes <= waiting.nodes && other.need == waiting.need) {
            continue;
        }
        match fit::place(&left, waiting) {
            Some(placements) => {
                for placement in &placements {
                    fit::claim(&mut left, placement, &waiting.need);
                    fit::claim(free, placement, &waiting.need);
                }
                admitted.push(Admission { job: waiting.job.clone(), placements });
            }
            None => {
                if fits_ever(&left, waiting.nodes, &waiting.need) {
                    fit::reserve(&mut left, waiting);
                }
                blocked.push(waiting);
            }
        }
    }
    admitted
}

#[cfg(test)]
mod tests;
