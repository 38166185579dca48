//! Decides which waiting gang gets which nodes and devices.
//!
//! Pure and synchronous: it is given what is free and who waits, and answers with a plan. It never does I/O, never
//! reads a clock, and the same question always has the same answer, so the server and a simulator can share it.
//!
//! The order is priority, then age. A gang starts whole or not at all. One that does not fit yet *reserves* what it
//! could already have, so that smaller jobs behind it take only what it cannot use: nothing overtakes a large gang
//! for ever, and a job that competes with nobody is not kept waiting. One that can never fit reserves nothing.

mod explain;
mod fit;
#[cfg(test)]
mod tests;

pub use explain::{Obstacle, explain};
pub use fit::{Free, Need, Serves, fits_ever};

use muster_model::task::Placement;
use muster_model::{JobId, NodeId};

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
