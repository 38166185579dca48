//! What every task is given: who it is, and where rank 0 listens.

use muster_model::spec::Kind;

use crate::{Gang, Part, Port};

pub(crate) fn add(gang: &Gang, rank: u32, part: &mut Part) {
    let nodes = gang.members.len();
    let hosts: Vec<String> = gang.members.iter().map(|member| member.ip().to_string()).collect();
    part.fact("MUSTER_JOB_ID", &gang.attempt.job);
    part.fact("MUSTER_JOB_NAME", &gang.job_name);
    part.fact("MUSTER_TASK_ID", gang.attempt.task(rank));
    part.fact("MUSTER_ATTEMPT", gang.attempt.number);
    part.fact("MUSTER_NODES", nodes);
    part.fact("MUSTER_HOSTS", hosts.join(","));
    part.fact("MUSTER_RANK", rank);
    part.fact("MUSTER_SSH_PORT", gang.members[0].port(Port::Ssh));
    if gang.spec.kind == Kind::Machine {
        // What people start there has ranks of its own, or none, and takes these for them.
        return;
    }
    part.fact("MASTER_ADDR", gang.members[0].ip());
    part.fact("MASTER_PORT", gang.members[0].port(Port::Master));
    part.fact("RANK", rank);
    part.fact("WORLD_SIZE", nodes);
    part.fact("LOCAL_RANK", 0);
}
