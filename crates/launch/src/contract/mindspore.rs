//! MindSpore: rank tables on Ascend devices, and its dynamic cluster everywhere else.
//!
//! With a rank table, every process reads the table's path (RANK_TABLE_FILE, the form since 1.0;
//! MINDSPORE_HCCL_CONFIG_PATH, the form before), its RANK_ID in the whole gang, RANK_SIZE and DEVICE_ID, and writes graphs
//! and logs to its working directory, so each has one of its own. DEVICE_ID is the driver's number, as the table has it;
//! runtimes that know ASCEND_RT_VISIBLE_DEVICES count among the visible devices instead, so a process is shown all devices
//! up to its own, where both are the same.
//!
//! In a dynamic cluster the workers find each other through a scheduler, at MS_SCHED_HOST and MS_SCHED_PORT: the same
//! program once more with MS_ROLE=MS_SCHED, which serves until all workers have gone. MS_NODE_ID is a worker's rank.
//!
//! `msrun` starts workers and scheduler of a dynamic cluster, the scheduler where the master's address is that of an interface.
//! That never holds for the loopback addresses of members that share a machine: there the scheduler is started for it. It reads
//! flags alone; in a script, a program of that name in front of it adds them.

use std::collections::BTreeMap;
use std::net::{IpAddr, Ipv4Addr};

use muster_model::launch::{Process, Work};
use muster_model::node::Vendor;

use super::command::{Launch, interpreted};
use super::process::{self, Place, Slot, variables};
use crate::detect::Launcher;
use crate::rank_table::Form;
use crate::{Gang, Part, Plan, rank_table, shim};

const TABLE_A: &str = "/job/hccl_ms.json";
const TABLE_B: &str = "/job/hccl_tf.json";
/// Variables of a worker that a scheduler does not have.
const WORKERS: [&str; 4] = ["MS_ROLE", "MS_NODE_ID", "RANK_ID", "DEVICE_ID"];
/// Where MindX mounts it.
const TABLE_C: &str = "/user/serverid/devindex/config/hccl.json";
const TABLE_D: &str = "/job/hccl_v1_2.json";

pub(super) fn words(plan: &Plan, argv: Vec<String>, place: &Place) -> Vec<String> {
    if plan.launcher != Some(Launcher::Msrun) {
        return argv;
    }
    let mut launch = Launch::of(&argv, Launcher::Msrun);
    launch
        .add("--worker_num", &[], plan.world())
        .add("--local_worker_num", &[], plan.processes)
        .add("--master_addr", &[], &place.address)
        .add("--master_port", &[], &place.port)
        .add("--node_rank", &[], &place.rank)
        // Without it, the task would end while its workers run on.
        .add("--join", &[], "True");
    launch.words()
}

pub(super) fn add(gang: &Gang, plan: &Plan, rank: u32, part: &mut Part) {
    shim::sitecustomize(part);
    let tables = rank_table::applies(gang);
    if tables {
        part.table(TABLE_A, Form::A);
        part.table(TABLE_B, Form::B);
        part.table(TABLE_C, Form::C);
        part.table(TABLE_D, Form::D);
    }
    if plan.launcher == Some(Launcher::Msrun) {
        return msrun(gang, plan, rank, part);
    }
    part.fact("RANK_SIZE", plan.world());
    if tables {
        part.path("MINDSPORE_HCCL_CONFIG_PATH", TABLE_A);
        part.path("RANK_TABLE_FILE", TABLE_C);
        by_table(gang, plan, rank, part);
    } else {
        by_scheduler(gang, plan, rank, part);
    }
}

fn by_table(gang: &Gang, plan: &Plan, task: u32, part: &mut Part) {
    let locals = plan.copies();
    if locals != plan.processes {
        // A script that starts a process for each device numbers them itself.
        return;
    }
    let member = &gang.members[task as usize];
    let ranks = rank_table::ranks(gang, task as usize);
    let numbers: Vec<u32> = member
        .devices
        .iter()
        .filter(|(_, device)| device.vendor == Vendor::Ascend)
        .map(|(number, _)| *number)
        .collect();
    process::spread(gang, locals, task, part, |slot| {
        let at = slot.local as usize % numbers.len();
        let rank = if plan.processes as usize == numbers.len() { ranks[at] } else { slot.rank };
        device(rank, slot, numbers[at])
    });
    let Work::Run(processes) = &mut part.work else { return };
    for (process, number) in processes.iter_mut().zip(numbers) {
        let visible: Vec<String> = (0..=number).map(|number| number.to_string()).collect();
        process.env.insert("ASCEND_RT_VISIBLE_DEVICES".into(), visible.join(","));
        if locals > 1 {
            process.dir = Some(format!("device{number}"));
        }
    }
}

/// The variables of a process that has a device and a place in the table.
fn device(rank: u32, slot: Slot, number: u32) -> BTreeMap<String, String> {
    variables([
        ("RANK_ID", rank.to_string()),
        ("DEVICE_ID", number.to_string()),
        ("DEVICE_INDEX", slot.local.to_string()),
    ])
}

fn by_scheduler(gang: &Gang, plan: &Plan, task: u32, part: &mut Part) {
    if !plan.single {
        // A script may start msrun, or scheduler and workers itself: it says who is which.
        cluster(gang, task, plan.world(), part);
        return msrun_in_script(gang, plan, task, part);
    }
    cluster(gang, task, plan.world(), part);
    process::spread(gang, plan.processes, task, part, |slot| {
        variables([
            ("MS_ROLE", "MS_WORKER".to_owned()),
            ("MS_NODE_ID", slot.rank.to_string()),
            ("RANK_ID", slot.rank.to_string()),
            ("DEVICE_ID", slot.local.to_string()),
        ])
    });
    if task == 0 {
        schedule(part, interpreted(&gang.spec.command.argv()));
    }
}

/// What all processes of a dynamic cluster have to agree on.
fn cluster(gang: &Gang, task: u32, workers: u32, part: &mut Part) {
    let place = Place::of(gang, task);
    part.fact("MS_WORKER_NUM", workers);
    part.fact("MS_SCHED_HOST", place.address);
    part.fact("MS_SCHED_PORT", place.port);
}

/// Starts the scheduler beside the task's other processes. What makes a worker a worker is then the worker's own.
fn schedule(part: &mut Part, argv: Vec<String>) {
    let Work::Run(processes) = &mut part.work else { return };
    for name in WORKERS {
        if let Some(value) = part.env.remove(name) {
            processes.iter_mut().for_each(|process| drop(process.env.insert(name.into(), value.clone())));
        }
    }
    let env = variables([("MS_ROLE", "MS_SCHED".to_owned())]);
    processes.insert(0, Process { env, ..Process::new(argv) });
}

fn msrun(gang: &Gang, plan: &Plan, task: u32, part: &mut Part) {
    let argv = gang.spec.command.argv();
    let launch = Launch::of(&argv, Launcher::Msrun);
    if !launch.is_found() {
        return msrun_in_script(gang, plan, task, part);
    }
    let is_started = has_scheduler_of_its_own(gang) || launch.gives(&["master_addr"]);
    if task > 0 || is_started || launch.program().is_empty() {
        return;
    }
    cluster(gang, task, plan.world(), part);
    schedule(part, interpreted(launch.program()));
}

/// Whether msrun finds that the master is its own machine, and starts the scheduler there.
fn has_scheduler_of_its_own(gang: &Gang) -> bool {
    let master = gang.members[0].ip();
    !master.is_loopback() || master == IpAddr::V4(Ipv4Addr::LOCALHOST)
}

fn msrun_in_script(gang: &Gang, plan: &Plan, task: u32, part: &mut Part) {
    let place = Place::of(gang, task);
    let flags = [
        ("worker_num", plan.world().to_string()),
        ("local_worker_num", plan.processes.to_string()),
        ("master_addr", place.address),
        ("master_port", place.port.to_string()),
        ("node_rank", place.rank.to_string()),
        ("join", "True".into()),
    ];
    let flags: Vec<String> = flags.iter().map(|(name, value)| format!("--{name}={value}")).collect();
    shim::msrun(part);
    part.fact("MUSTER_MSRUN_FLAGS", flags.join(" "));
    if task == 0 && !has_scheduler_of_its_own(gang) {
        cluster(gang, task, plan.world(), part);
        part.fact("MUSTER_MSRUN_SCHEDULER", 1);
    }
}
