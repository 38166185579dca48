//! Apulis and DLWorkspace: every pod of a job knows all others by number, reaches them by ssh under short names, and finds lists of
//! them in files.
//!
//! There, a job of one node is a `master`, and a larger one has workers and a parameter server `ps-0` that in the beginning ran the
//! command alone. Here tasks are the workers, all of them, because each has devices and its number tells it which it is;
//! `ps0` is another name of task 0, which is also the one that runs a launcher for all. A job of one node may have been
//! either, so it has the names and files of both.
//!
//! Variables come twice, as `DLWS_` and as `DLTS_`: the first platform wrote both, the second mostly the first. Not given are the
//! platform's tokens and the address of its own API: there is none behind them.

use std::net::IpAddr;

use muster_model::Framework;
use muster_model::launch::Host;
use muster_model::node::Vendor;

use crate::rank_table::Form;
use crate::{Gang, Member, Part, Port, rank_table, shim};

const TRAIN: &str = include_str!("dlws/train.sh");

pub(super) fn add(gang: &Gang, rank: u32, part: &mut Part) {
    job(gang, rank, part);
    for (member, name) in members(gang) {
        discovered(&name, member, part);
    }
    discovered("SELF", &gang.members[rank as usize], part);
    lists(gang, rank, part);
    devices(gang, rank, part);
    part.program("/pod/job_command.sh", format!("#!/bin/bash\n{}\n", gang.spec.command));
    // The platform's users may do anything by sudo, and its examples begin with it.
    shim::sudo(part);
    // Its scripts for NPUs count ranks from 0 on every node.
    shim::sitecustomize(part);
    part.surroundings.environment.push("/pod.env".into());
    part.surroundings.hosts.extend(hosts(gang));
    // Also alone: a launcher takes a name it cannot resolve for another machine, and goes there by ssh.
    part.peers = true;
}

/// What a member is called by ssh, beside `worker-<i>`.
pub(super) fn names(rank: u32) -> Vec<String> {
    let mut names = vec![format!("ib-worker-{rank}")];
    if rank == 0 {
        names.extend(["ps-0".into(), "master".into()]);
    }
    names
}

/// A variable in both spellings.
fn both(part: &mut Part, name: &str, value: impl ToString) {
    let value = value.to_string();
    part.fact(format!("DLTS_{name}"), &value);
    part.fact(format!("DLWS_{name}"), value);
}

fn job(gang: &Gang, rank: u32, part: &mut Part) {
    let account = &gang.members[rank as usize].account;
    let nodes = gang.members.len();
    let alone = nodes == 1;
    both(part, "JOB_ID", &gang.attempt.job);
    both(part, "USER_NAME", &account.name);
    both(part, "USER_EMAIL", &account.name);
    both(part, "UID", account.uid);
    both(part, "GID", account.gid);
    both(part, "VC_NAME", &gang.workspace);
    both(part, "ROLE_NAME", if alone { "master" } else { "worker" });
    both(part, "ROLE_IDX", rank);
    both(part, "NUM_PS", u8::from(!alone));
    both(part, "NUM_WORKER", nodes);
    both(part, "WORKER_NUM", nodes);
    both(part, "NUM_GPU_PER_WORKER", gang.spec.resources.device_count());
    both(part, "LAUNCH_CMD", &gang.spec.command);
    both(part, "HOST_NETWORK", "enable");
    both(part, "IS_NPU_JOB", rank_table::applies(gang));
    if let Some(kind) = device_type(&gang.members[rank as usize]) {
        both(part, "GPU_TYPE", kind);
    }
    if let Some(framework @ (Framework::Tensorflow | Framework::Mindspore)) = gang.spec.framework {
        part.fact("aiframework", framework);
    }
    let role = if alone { "master" } else { "worker" };
    part.fact("POD_NAME", format!("{}-{role}-{rank}", gang.attempt.job));
    part.fact("POD_IP", gang.members[rank as usize].ip());
}

/// The kind of a member's devices, as the platform labels nodes.
fn device_type(member: &Member) -> Option<String> {
    let (_, device) = member.devices.first()?;
    Some(match device.vendor {
        Vendor::Ascend => "huawei_npu_arm64".into(),
        Vendor::Nvidia => format!("nvidia_gpu_amd64_{}", device.model.to_lowercase().replace(' ', "_")),
    })
}

/// Every member by the names that variables have for it: without a separator.
fn members<'a>(gang: &'a Gang) -> impl Iterator<Item = (&'a Member, String)> {
    let workers = gang.members.iter().enumerate().map(|(rank, member)| (member, format!("worker{rank}")));
    let others: &[&str] = if gang.members.len() == 1 { &["ps0", "master0"] } else { &["ps0"] };
    workers.chain(others.iter().map(|name| (&gang.members[0], (*name).to_owned())))
}

fn discovered(name: &str, member: &Member, part: &mut Part) {
    let mut fact = |what: &str, value: String| both(part, &format!("SD_{name}_{what}"), value);
    fact("IP", member.ip().to_string());
    fact("HOST_IP", member.ip().to_string());
    fact("IB_IP", infiniband(member).to_string());
    fact("SSH_PORT", member.port(Port::Ssh).to_string());
    if let Some(addresses) = npu_addresses(member) {
        fact("NPU_IP_LIST", addresses);
    }
}

fn infiniband(member: &Member) -> IpAddr {
    member.address.infiniband.unwrap_or(member.ip())
}

/// The hostfiles. Lines only: Horovod falls over blank ones and comments.
fn lists(gang: &Gang, rank: u32, part: &mut Part) {
    let slots = gang.spec.processes_per_task();
    let lines = |prefix: &str| -> String {
        (0..gang.members.len()).map(|rank| format!("{prefix}worker-{rank} slots={slots}\n")).collect()
    };
    // A framework that has this file as its own, as DeepSpeed does, knows best what is in it.
    if !part.has("/job/hostfile") {
        let alone = gang.members.len() == 1;
        part.file("/job/hostfile", if alone { format!("master slots={slots}\n") } else { lines("") });
    }
    let user = &gang.members[rank as usize].account.name;
    let ib_config = lines("ib-");
    part.file(format!("/home/{user}/ib_config"), &ib_config);
    part.file("/job/ib_config", &ib_config);
    part.file("/job/ib_config-worker-0", &ib_config);
    if rank > 0 {
        part.file(format!("/job/ib_config-worker-{rank}"), &ib_config);
    }
}

/// What a gang of NPUs has beside.
fn devices(gang: &Gang, rank: u32, part: &mut Part) {
    if !rank_table::applies(gang) {
        return;
    }
    let own = &gang.members[rank as usize];
    let npus = own.devices.iter().filter(|(_, device)| device.vendor == Vendor::Ascend);
    let ids: Vec<String> = npus.map(|(number, _)| number.to_string()).collect();
    part.fact("VISIBLE_IDS", ids.join(","));
    part.fact("NPU_IPS", npu_addresses(own).unwrap_or_default());
    let dir = format!("/home/{}/.npu/{}", own.account.name, gang.attempt.job);
    for (rank, member) in gang.members.iter().enumerate() {
        let addresses = npu_addresses(member).unwrap_or_default();
        part.file(format!("{dir}/npu_{rank}.info"), format!("ip={addresses}\nhost={}\n", member.ip()));
    }
    let ranks: Vec<String> = rank_table::ranks(gang, rank as usize).iter().map(u32::to_string).collect();
    let size = rank_table::size(gang).to_string();
    let train = TRAIN.replace("@RANKS@", &ranks.join(" ")).replace("@RANK_SIZE@", &size);
    part.program(format!("{dir}/train.sh"), train);
    part.table(format!("{dir}/hccl_ms.json"), Form::A);
    part.table(format!("{dir}/hccl_tf.json"), Form::B);
    part.file(format!("{dir}/setup_environment_done"), "");
}

/// The NPUs of a member, each `number:address`.
fn npu_addresses(member: &Member) -> Option<String> {
    let npus = member.devices.iter().filter(|(_, device)| device.vendor == Vendor::Ascend);
    let addresses: Vec<String> =
        npus.filter_map(|(number, device)| Some(format!("{number}:{}", device.ip?))).collect();
    (!addresses.is_empty()).then(|| addresses.join(","))
}

fn hosts<'a>(gang: &'a Gang) -> impl Iterator<Item = Host> + 'a {
    (0..).zip(&gang.members).flat_map(|(rank, member)| {
        let (ib, mut names): (Vec<_>, Vec<_>) =
            names(rank).into_iter().partition(|name| name.starts_with("ib-"));
        names.insert(0, format!("worker-{rank}"));
        [Host { ip: member.ip(), names }, Host { ip: infiniband(member), names: ib }]
    })
}
