//! TensorFlow.
//!
//! `MultiWorkerMirroredStrategy` reads TF_CONFIG: the address of every process by its role, which of them this one is, and
//! the environment. Every process listens on its own address with gRPC, on all interfaces, so no two processes of a host
//! may have the same port. All are workers; worker 0 is the chief where there is no other.
//!
//! TensorFlow has no launcher, so muster starts one process per device, and each sees its own device alone: a process of
//! TensorFlow takes the memory of every device that it sees.

use serde_json::json;

use super::process::{self, variables};
use crate::{Gang, Part, Plan};

pub(super) fn add(gang: &Gang, plan: &Plan, rank: u32, part: &mut Part) {
    let locals = plan.copies();
    let workers = process::endpoints(gang, locals);
    let member = &gang.members[rank as usize];
    process::spread(gang, locals, rank, part, |slot| {
        let config = json!({
            "cluster": {"worker": workers},
            "task": {"type": "worker", "index": slot.rank},
            "environment": "cloud",
        });
        let mut env = variables([("TF_CONFIG", config.to_string())]);
        env.extend(super::own_device(member, slot));
        env
    });
}
