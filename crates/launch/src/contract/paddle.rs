//! PaddlePaddle.

use crate::{Gang, Part, Plan};

pub(super) fn add(_gang: &Gang, _plan: &Plan, _rank: u32, _part: &mut Part) {}
