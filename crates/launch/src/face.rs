//! What each platform gives its tasks, so that what was written for it runs here.

mod dlc;
mod dlws;
mod modelarts;
pub(crate) mod slurm;
#[cfg(test)]
mod tests;

use muster_model::Face;

use crate::{Gang, Part};

/// Adds what a platform gives to a task's part.
pub(crate) fn add(face: Face, gang: &Gang, rank: u32, part: &mut Part) {
    match face {
        Face::Dlws => dlws::add(gang, rank, part),
        Face::Dlc => dlc::add(gang, rank, part),
        Face::Modelarts => modelarts::add(gang, rank, part),
        Face::Slurm => slurm::add(gang, rank, part),
    }
}

/// What a platform calls a member of a gang.
pub(crate) fn names(face: Face, gang: &Gang, rank: u32) -> Vec<String> {
    match face {
        Face::Dlws => dlws::names(rank),
        Face::Dlc => dlc::names(gang, rank),
        Face::Modelarts => modelarts::names(gang, rank),
        Face::Slurm => slurm::names(gang, rank),
    }
}
