//! Huawei ModelArts, custom images: version 1 with its start script in `/home/work`, version 2 with its directories in
//! `/home/ma-user`, and the rank table of both.
//!
//! The code directory is the task's working directory, under the platform's names for it. The platform copies it below a
//! directory of its own name; here it is that directory, which is what the examples expect. Members are given by address and
//! port, which is what the platform's `host:port` is good for and does not depend on names; the names are known as well, where they
//! can be. The port is the first of the task's processes', and as many as it has follow.
//!
//! The platform's rank table may be incomplete when a task starts, and its readers wait until its status is `completed`. Tasks
//! here start when every address is known, so it is complete from the beginning.

use muster_model::launch::{Host, Work};
use muster_model::node::Vendor;

use crate::rank_table::Form;
use crate::{Gang, Member, Part, Port, rank_table, shim};

const RUN_TRAIN: &str = include_str!("modelarts/run_train.sh");
const UTILS: &str = include_str!("modelarts/utils.sh");
const RANK_TABLE_DIR: &str = "/user/config";

pub(super) fn add(gang: &Gang, rank: u32, part: &mut Part) {
    version_1(gang, rank, part);
    version_2(gang, rank, part);
    devices(gang, rank, part);
    // The platform's examples run shell scripts with `python`, and launchers with arguments that are gone.
    shim::python(part);
    shim::sitecustomize(part);
    // A disk of the node's own, where code puts its data first.
    part.surroundings.directories.push("/cache".into());
    part.surroundings.hosts.extend(
        (0..).zip(&gang.members).map(|(rank, member)| Host { ip: member.ip(), names: names(gang, rank) }),
    );
}

/// The names of a member: `<job>-worker-<i>.<job>`, and without the domain.
pub(super) fn names(gang: &Gang, rank: u32) -> Vec<String> {
    let pod = rank_table::pod(gang, rank as usize);
    vec![format!("{pod}.{}", gang.job_name), pod]
}

fn version_1(gang: &Gang, rank: u32, part: &mut Part) {
    let own = &gang.members[rank as usize];
    part.fact("DLS_JOB_ID", &gang.attempt.job);
    part.fact("DLS_TASK_INDEX", rank);
    part.fact("DLS_TASK_NUMBER", gang.members.len());
    part.fact("BATCH_JOB_ID", &gang.attempt.job);
    part.fact("BATCH_TASK_CURRENT_HOST_IP", own.ip());
    part.fact("BATCH_TASK_CURRENT_INSTANCE", &own.host);
    part.fact("BATCH_CURRENT_HOST", own.ip());
    part.fact("BATCH_CURRENT_PORT", own.port(Port::Process(0)));
    for (index, member) in gang.members.iter().enumerate() {
        part.fact(format!("BATCH_CUSTOM{index}_HOSTS"), endpoint(member));
    }
    if gang.members.len() == 1 {
        part.fact(format!("BATCH_{}.0_HOSTS", gang.job_name), endpoint(own));
    }
    part.program("/home/work/run_train.sh", RUN_TRAIN);
    part.file("/home/work/utils.sh", UTILS);
    part.surroundings.workdir.push("/home/work/user-job-dir".into());
}

fn endpoint(member: &Member) -> String {
    format!("{}:{}", member.ip(), member.port(Port::Process(0)))
}

fn version_2(gang: &Gang, rank: u32, part: &mut Part) {
    let own = &gang.members[rank as usize];
    let hosts: Vec<String> = gang.members.iter().map(|member| member.ip().to_string()).collect();
    part.fact("MA_VJ_NAME", &gang.job_name);
    part.fact("MA_TASK_NAME", "worker");
    part.fact("MA_CURRENT_IP", own.ip());
    part.fact("MA_CURRENT_INSTANCE_NAME", rank_table::pod(gang, rank as usize));
    part.fact("MA_NUM_HOSTS", gang.members.len());
    part.fact("MA_NUM_GPUS", own.devices.len());
    part.fact("MA_SCRIPT_INTERPRETER", "python");
    part.fact("VC_TASK_INDEX", rank);
    part.fact("VC_WORKER_NUM", gang.members.len());
    part.fact("VC_WORKER_HOSTS", hosts.join(","));
    part.path("MA_HOME", "/home/ma-user");
    part.path("MA_MOUNT_PATH", "/home/ma-user/modelarts");
    part.path("MA_LOG_DIR", "/home/ma-user/modelarts/log");
    part.path("MA_JOB_DIR", "/home/ma-user/modelarts/user-job-dir");
    part.path("WORKSPACE", "/home/ma-user/modelarts/user-job-dir");
    part.surroundings.workdir.push("/home/ma-user/modelarts/user-job-dir".into());
    part.surroundings.directories.push("/home/ma-user/modelarts/log".into());
}

/// Whether the task's processes are told their ranks, and so read the table themselves.
fn reads_table(part: &Part) -> bool {
    let of_a_process = match &part.work {
        Work::Run(processes) => processes.iter().any(|process| process.env.contains_key("RANK_ID")),
        Work::Wait => false,
    };
    of_a_process || part.env.contains_key("RANK_ID")
}

/// What a gang of NPUs has beside.
fn devices(gang: &Gang, rank: u32, part: &mut Part) {
    if !rank_table::applies(gang) {
        return;
    }
    let npus =
        gang.members[rank as usize].devices.iter().filter(|(_, device)| device.vendor == Vendor::Ascend);
    let seats: Vec<String> = npus
        .zip(rank_table::ranks(gang, rank as usize))
        .map(|((number, _), rank)| format!("{number}:{rank}"))
        .collect();
    part.table(format!("{RANK_TABLE_DIR}/jobstart_hccl.json"), Form::B);
    // For the start script, which makes a process of each device: the table that they read, and the ranks here.
    part.table(format!("{RANK_TABLE_DIR}/rank_table.json"), Form::C);
    part.file(format!("{RANK_TABLE_DIR}/ranks"), format!("{} {}\n", rank_table::size(gang), seats.join(" ")));
    // The platform has a directory here, for a script that starts the processes; a process that muster starts reads a file.
    if !reads_table(part) {
        part.path("RANK_TABLE_FILE", RANK_TABLE_DIR);
    }
}
