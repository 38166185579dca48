//! DeepSpeed and its own launcher.
//!
//! `deepspeed` runs on one node and starts the others by ssh. It reads `--hostfile`, by default `/job/hostfile`: lines `host
//! slots=N`; without one it knows this host alone. The slots are numbers of devices, which it makes the visible ones of
//! the processes whatever the task's are, so where a task has other devices than the first it is told which with
//! `--include`. What it starts reads MASTER_ADDR, MASTER_PORT, RANK, WORLD_SIZE, LOCAL_RANK, LOCAL_SIZE, CROSS_RANK and
//! CROSS_SIZE; `init_distributed` in a program that muster starts reads the same. The launcher puts `--local_rank=N` in
//! front of a program's arguments, and so does muster for a program that takes it.

use muster_model::launch::Work;

use super::command::Launch;
use super::hostfile::{self, JOB};
use super::process::{self, Place, variables};
use crate::detect::Launcher;
use crate::{Gang, Part, Plan, shim};

/// With the numbers of all devices up to the last that a task has.
const NUMBERED: &str = "/job/hostfile-devices";

pub(super) fn words(plan: &Plan, argv: Vec<String>, place: &Place) -> Vec<String> {
    if plan.launcher != Some(Launcher::Deepspeed) {
        return argv;
    }
    let mut launch = Launch::of(&argv, Launcher::Deepspeed);
    launch
        .add("--hostfile", &["H"], JOB)
        .add("--master_addr", &[], &place.address)
        .add("--master_port", &[], &place.port)
        .add("--ssh_port", &[], &place.ssh_port);
    launch.words()
}

pub(super) fn add(gang: &Gang, plan: &Plan, rank: u32, part: &mut Part) {
    if plan.launcher != Some(Launcher::Deepspeed) {
        // It gives a program its `--local_rank` where DeepSpeed's launcher does not.
        shim::sitecustomize(part);
    }
    part.file(JOB, hostfile::slots(gang, plan));
    part.peers = plan.launcher == Some(Launcher::Deepspeed) || !plan.single;
    if let (Some(Launcher::Deepspeed), Work::Run(processes)) = (plan.launcher, &mut part.work)
        && let Some(process) = processes.first_mut()
        && let Some(devices) = odd_devices(gang)
        && let Some(words) = including(&process.argv, gang, &devices)
    {
        process.argv = words;
        part.file(NUMBERED, numbered(gang, &devices));
    }
    if !plan.single {
        return;
    }
    let nodes = gang.members.len();
    process::spread(gang, plan.processes, rank, part, |slot| {
        variables([
            ("LOCAL_SIZE", slot.locals.to_string()),
            ("CROSS_RANK", rank.to_string()),
            ("CROSS_SIZE", nodes.to_string()),
        ])
    });
}

/// The numbers of every member's devices, if they are not the first ones everywhere.
fn odd_devices(gang: &Gang) -> Option<Vec<Vec<u32>>> {
    let numbers =
        |member: &crate::Member| member.devices.iter().map(|(number, _)| *number).collect::<Vec<_>>();
    let all: Vec<Vec<u32>> = gang.members.iter().map(numbers).collect();
    let odd = all.iter().any(|numbers| numbers.iter().copied().ne(0..numbers.len() as u32));
    (odd && all.iter().all(|numbers| !numbers.is_empty())).then_some(all)
}

/// The words with the devices named, unless the user chose hosts or devices.
fn including(argv: &[String], gang: &Gang, devices: &[Vec<u32>]) -> Option<Vec<String>> {
    let mut launch = Launch::of(argv, Launcher::Deepspeed);
    if launch.gives(&["include", "i", "exclude", "e", "num_gpus", "num_nodes"]) {
        return None;
    }
    let list = |numbers: &[u32]| numbers.iter().map(u32::to_string).collect::<Vec<_>>().join(",");
    let hosts =
        (0..).zip(devices).map(|(rank, numbers)| format!("{}:{}", hostfile::host(gang, rank), list(numbers)));
    launch.add("--include", &[], hosts.collect::<Vec<_>>().join("@"));
    let swap = |word: String| if word == JOB { NUMBERED.to_owned() } else { word };
    Some(launch.words().into_iter().map(swap).collect())
}

fn numbered(gang: &Gang, devices: &[Vec<u32>]) -> String {
    let count = |numbers: &Vec<u32>| numbers.last().map_or(0, |last| last + 1);
    let line = |(rank, numbers)| format!("{} slots={}\n", hostfile::host(gang, rank), count(numbers));
    (0..).zip(devices).map(line).collect()
}
