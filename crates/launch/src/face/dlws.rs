//! dlws.

use crate::{Gang, Part};

pub(super) fn add(_gang: &Gang, _rank: u32, _part: &mut Part) {}
