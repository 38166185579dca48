//! What each platform gives its tasks, so that what was written for it runs here.

mod dlc;
mod dlws;
mod modelarts;

use muster_model::Face;

use crate::{Gang, Part};

/// Adds what a platform gives to a task's part.
pub(crate) fn add(face: Face, gang: &Gang, rank: u32, part: &mut Part) {
    match face {
        Face::Dlws => dlws::add(gang, rank, part),
        Face::Dlc => dlc::add(gang, rank, part),
        Face::Modelarts => modelarts::add(gang, rank, part),
    }
}
