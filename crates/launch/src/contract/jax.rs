//! JAX.
//!
//! `jax.distributed.initialize` reads JAX_COORDINATOR_ADDRESS (`host:port`) and JAX_LOCAL_DEVICE_IDS; how many processes
//! there are and which one it is it only knows of Slurm, Open MPI and Kubernetes, and here of a shim. Most programs pass
//! them on themselves: they are there as JAX_NUM_PROCESSES and JAX_PROCESS_ID, and without the prefix under the names that
//! Kubeflow's JAXJob has.
//!
//! JAX has no launcher, so muster starts one process per device. All of them see all devices of the task, as NCCL is
//! fastest that way, and JAX_LOCAL_DEVICE_IDS gives each its own, counted among the visible ones.

use super::process::{self, host_port, variables};
use crate::{Gang, Part, Plan, Port, shim};

pub(super) fn add(gang: &Gang, plan: &Plan, rank: u32, part: &mut Part) {
    shim::sitecustomize(part);
    let first = &gang.members[0];
    let port = first.port(Port::Master);
    part.fact("JAX_COORDINATOR_ADDRESS", host_port(first.ip(), port));
    part.fact("COORDINATOR_ADDRESS", first.ip());
    part.fact("COORDINATOR_PORT", port);
    let locals = plan.copies();
    let devices = gang.members[rank as usize].devices.len() as u32;
    process::spread(gang, locals, rank, part, |slot| {
        let mut env = variables([
            ("JAX_NUM_PROCESSES", slot.world.to_string()),
            ("JAX_PROCESS_ID", slot.rank.to_string()),
            ("NUM_PROCESSES", slot.world.to_string()),
            ("PROCESS_ID", slot.rank.to_string()),
        ]);
        if slot.locals > 1 && devices == slot.locals {
            env.insert("JAX_LOCAL_DEVICE_IDS".into(), slot.local.to_string());
        }
        env
    });
}
