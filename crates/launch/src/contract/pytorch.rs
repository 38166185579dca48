//! PyTorch.

use crate::{Gang, Part, Plan};

pub(super) fn add(_gang: &Gang, _plan: &Plan, _rank: u32, _part: &mut Part) {}

pub(super) fn argv(_plan: &Plan, command: &muster_model::spec::Command) -> Vec<String> {
    command.argv()
}
