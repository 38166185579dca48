//! The interface on which members reach each other, for the libraries that otherwise guess: NCCL, Gloo, HCCL, MPI.

use crate::{Gang, Part};

/// Set unless the user has: whoever chose an interface knows why.
pub(crate) fn add(gang: &Gang, rank: u32, part: &mut Part) {
    let Some(interface) = &gang.members[rank as usize].address.interface else { return };
    for name in ["NCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME", "TP_SOCKET_IFNAME", "HCCL_SOCKET_IFNAME"] {
        part.advice(name, interface);
    }
}
