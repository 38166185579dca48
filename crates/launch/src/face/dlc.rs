//! Alibaba PAI DLC: ranks and sizes count **nodes**, and the command is expected to start the processes of its node.
//!
//! `torchrun --nnodes=$WORLD_SIZE --node_rank=$RANK --nproc_per_node=$NPROC_PER_NODE` is the usual line. These are the task's
//! variables; a process that muster itself starts has its own rank and the number of processes on top. Addresses are numbers, which
//! are right with or without the platform's names; the names are known as well, where they can be.
//!
//! `TF_CONFIG` is the TensorFlow contract's where that is known. Where no framework is known the face sets it, because
//! a script may still come to use it and nothing else reads it.

use muster_model::Framework;
use muster_model::launch::Host;
use serde_json::json;

use crate::{Gang, Part, Port};

pub(super) fn add(gang: &Gang, rank: u32, part: &mut Part) {
    let own = &gang.members[rank as usize];
    let processes = gang.spec.processes_per_task();
    part.fact("JOB_NAME", &gang.attempt.job);
    part.fact("MASTER_ADDR", gang.members[0].ip());
    part.fact("MASTER_PORT", gang.members[0].port(Port::Master));
    part.fact("WORLD_SIZE", gang.members.len());
    part.fact("RANK", rank);
    part.fact("NPROC_PER_NODE", processes);
    let ports: Vec<String> =
        (0..processes).map(|process| own.port(Port::Process(process)).to_string()).collect();
    part.fact("CUSTOM_PORTS", ports.join(";"));
    let config = gang.spec.framework.is_none_or(|framework| framework == Framework::Plain);
    if config && gang.members.len() > 1 && !part.env.contains_key("TF_CONFIG") {
        part.fact("TF_CONFIG", tf_config(gang, rank));
    }
    part.surroundings.hosts.extend(
        (0..).zip(&gang.members).map(|(rank, member)| Host { ip: member.ip(), names: names(gang, rank) }),
    );
}

/// The names of a member's pod. The first worker is also the master that a job without one has.
pub(super) fn names(gang: &Gang, rank: u32) -> Vec<String> {
    let job = &gang.attempt.job;
    let mut names = vec![format!("{job}-worker-{rank}")];
    if rank == 0 {
        names.push(format!("{job}-master-0"));
    }
    names
}

fn tf_config(gang: &Gang, rank: u32) -> String {
    let worker: Vec<String> = gang
        .members
        .iter()
        .map(|member| format!("{}:{}", member.ip(), member.port(Port::Process(0))))
        .collect();
    json!({
        "cluster": {"worker": worker},
        "task": {"type": "worker", "index": rank},
        "environment": "cloud",
    })
    .to_string()
}
