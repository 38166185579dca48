//! What every task is given: who it is, and where rank 0 listens.

use std::collections::BTreeMap;

use muster_model::spec::Kind;

use crate::{Gang, Part, Port};

/// A process of a gang, in the numbers that programs started by torchrun read.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Slot {
    /// The task's rank.
    pub task: u32,
    /// Tasks of the gang.
    pub tasks: u32,
    /// Its number in its task.
    pub local: u32,
    /// How many its task has.
    pub locals: u32,
    /// Its number in the gang.
    pub rank: u32,
    /// How many the gang has.
    pub world: u32,
}

impl Slot {
    /// A process of a task in which so many are started, as in every other task.
    pub fn new(task: u32, tasks: u32, local: u32, locals: u32) -> Self {
        Self { task, tasks, local, locals, rank: task * locals + local, world: tasks * locals }
    }
}

/// The variables of a process, which are those that torchrun sets for its workers, and `NODE_RANK`, which Lightning reads
/// before `GROUP_RANK`.
///
/// The counts of restarts and the id of the run, `TORCHELASTIC_…`, are left out. They say that an agent of torchrun is
/// above the process: `torch.distributed.is_torchelastic_launched` takes TORCHELASTIC_RUN_ID for that, and libraries then expect
/// its restarts; and with TORCHELASTIC_USE_AGENT_STORE `env://` starts no store on rank 0, so that every rank would wait
/// for one. A torchrun that runs in a task sets all of these again for its workers.
pub(crate) fn process_variables(slot: Slot) -> BTreeMap<String, String> {
    let mut variables: BTreeMap<String, String> = [
        ("RANK", slot.rank),
        ("WORLD_SIZE", slot.world),
        ("LOCAL_RANK", slot.local),
        ("LOCAL_WORLD_SIZE", slot.locals),
        ("NODE_RANK", slot.task),
        ("GROUP_RANK", slot.task),
        ("GROUP_WORLD_SIZE", slot.tasks),
        // All processes have one role, so their numbers in it are those in the gang.
        ("ROLE_RANK", slot.rank),
        ("ROLE_WORLD_SIZE", slot.world),
    ]
    .map(|(name, value)| (name.to_owned(), value.to_string()))
    .into();
    variables.insert("ROLE_NAME".into(), "default".into());
    variables
}

/// Takes the variables of a process back, where what the task starts has its numbers from somewhere else, and libraries
/// that look for these first would take the task's for the process's.
pub(crate) fn remove_process_variables(part: &mut Part) {
    for name in process_variables(Slot::new(0, 1, 0, 1)).keys() {
        part.env.remove(name);
    }
}

pub(crate) fn add(gang: &Gang, rank: u32, part: &mut Part) {
    let nodes = gang.members.len();
    let hosts: Vec<String> = gang.members.iter().map(|member| member.ip().to_string()).collect();
    part.fact("MUSTER_JOB_ID", &gang.attempt.job);
    part.fact("MUSTER_JOB_NAME", &gang.job_name);
    if let Some(name) = &gang.spec.display_name {
        part.fact("MUSTER_JOB_DISPLAY_NAME", name);
    }
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
    part.env.extend(process_variables(Slot::new(rank, nodes as u32, 0, 1)));
    // Advice, because NNODES is no fact of torchrun's but what launch scripts go by: `--nnodes=$NNODES --node_rank=$NODE_RANK`.
    // With the second alone they would be wrong.
    part.advice("NNODES", nodes);
}
