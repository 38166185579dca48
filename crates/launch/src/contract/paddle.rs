//! PaddlePaddle, in the spellings of all its versions at once.
//!
//! Since 2.3, `paddle.distributed.launch` takes its flags from `PADDLE_<FLAG>`, too, and these *override* what is on the
//! command line; PADDLE_TRAINER_ID overrides `--rank`. So a variable whose flag the user gave is left out. With a master
//! it gathers the nodes there and ignores flags it does not know, among them those of 1.x; without one it falls back to what
//! 2.0 did. From 2.0 to 2.2, PADDLE_TRAINERS, POD_IP and PADDLE_TRAINER_ID together with a PADDLE_TRAINERS_NUM other than 1 mean
//! that the platform knows the nodes; the ports are then DISTRIBUTED_TRAINER_ENDPOINTS, TRAINER_PORTS_NUM for each node, or
//! follow PADDLE_PORT; otherwise FLAGS_START_PORT. 1.x does so with `--use_paddlecloud`. In all of these the outer
//! PADDLE_TRAINER_ID and PADDLE_TRAINERS_NUM count nodes.
//!
//! What the launcher starts reads the same two as counts of processes, with PADDLE_CURRENT_ENDPOINT and
//! PADDLE_TRAINER_ENDPOINTS, and since 2.3 PADDLE_GLOBAL_RANK and the like. A Python program without launcher is started once
//! per device with those. Without devices PADDLE_DISTRI_BACKEND has to say gloo; with them, FLAGS_selected_… is the
//! device, counted among the visible ones.

use muster_model::node::Vendor;

use super::command::{Launch, typed};
use super::process::{self, Slot, host_port, variables};
use crate::detect::Launcher;
use crate::{Gang, Member, Part, Plan, Port, shim};

pub(super) fn add(gang: &Gang, plan: &Plan, rank: u32, part: &mut Part) {
    shim::sitecustomize(part);
    let first = &gang.members[0];
    let member = &gang.members[rank as usize];
    part.fact("POD_IP", member.ip());
    part.fact("PADDLE_JOB_ID", &gang.attempt.job);
    part.fact("PADDLE_MASTER", host_port(first.ip(), first.port(Port::Master)));
    part.fact("PADDLE_NNODES", gang.members.len());
    if member.devices.is_empty() {
        part.fact("PADDLE_DISTRI_BACKEND", "gloo");
    }
    if plan.single {
        let endpoints = process::endpoints(gang, plan.processes);
        process::spread(gang, plan.processes, rank, part, |slot| worker(&endpoints, member, slot));
    } else {
        nodes(gang, plan, rank, part);
        given_by_flag(gang, plan, part);
    }
}

/// What a launcher reads of its outer environment, and what a script that starts one may.
fn nodes(gang: &Gang, plan: &Plan, rank: u32, part: &mut Part) {
    let ips: Vec<String> = gang.members.iter().map(|member| member.ip().to_string()).collect();
    // Every node has to take the same, so it is rank 0's.
    let port = gang.members[0].port(Port::Process(0));
    part.fact("PADDLE_RANK", rank);
    part.fact("PADDLE_TRAINER_ID", rank);
    part.fact("PADDLE_TRAINERS_NUM", gang.members.len());
    part.fact("PADDLE_NPROC_PER_NODE", plan.processes);
    part.fact("PADDLE_IPS", ips.join(","));
    part.fact("PADDLE_TRAINERS", ips.join(","));
    part.fact("PADDLE_START_PORT", port);
    part.fact("PADDLE_PORT", port);
    part.fact("FLAGS_START_PORT", port);
    part.fact("TRAINER_PORTS_NUM", plan.processes);
    part.fact("DISTRIBUTED_TRAINER_ENDPOINTS", process::endpoints(gang, plan.processes).join(","));
    if plan.processes == 1 {
        let endpoints = process::endpoints(gang, 1);
        part.fact("PADDLE_CURRENT_ENDPOINT", &endpoints[rank as usize]);
        part.fact("PADDLE_TRAINER_ENDPOINTS", endpoints.join(","));
    }
}

/// Takes the variables back that would override what the user said.
fn given_by_flag(gang: &Gang, plan: &Plan, part: &mut Part) {
    let argv = typed(&gang.spec.command);
    if plan.launcher != Some(Launcher::Paddle) {
        return;
    }
    let launch = Launch::of(&argv, Launcher::Paddle);
    for (flags, variables) in [
        (&["master"][..], &["PADDLE_MASTER"][..]),
        (&["nnodes"], &["PADDLE_NNODES"]),
        (&["rank"], &["PADDLE_RANK", "PADDLE_TRAINER_ID"]),
        (&["nproc_per_node", "devices", "gpus", "npus", "xpus", "selected_gpus"], &["PADDLE_NPROC_PER_NODE"]),
        (&["ips", "cluster_node_ips"], &["PADDLE_IPS"]),
        (&["start_port", "started_port"], &["PADDLE_START_PORT", "FLAGS_START_PORT", "PADDLE_PORT"]),
        (&["host", "node_ip"], &["POD_IP"]),
        (&["job_id"], &["PADDLE_JOB_ID"]),
    ] {
        if launch.gives(flags) {
            for variable in variables {
                part.env.remove(*variable);
            }
        }
    }
}

/// What a process of its own reads.
fn worker(endpoints: &[String], member: &Member, slot: Slot) -> std::collections::BTreeMap<String, String> {
    let mut env = variables([
        ("PADDLE_TRAINER_ID", slot.rank.to_string()),
        ("PADDLE_TRAINERS_NUM", slot.world.to_string()),
        ("PADDLE_CURRENT_ENDPOINT", endpoints[slot.rank as usize].clone()),
        ("PADDLE_TRAINER_ENDPOINTS", endpoints.join(",")),
        ("PADDLE_GLOBAL_RANK", slot.rank.to_string()),
        ("PADDLE_GLOBAL_SIZE", slot.world.to_string()),
        ("PADDLE_LOCAL_RANK", slot.local.to_string()),
        ("PADDLE_LOCAL_SIZE", slot.locals.to_string()),
        ("PADDLE_RANK_IN_NODE", slot.local.to_string()),
    ]);
    let devices = member.devices.len() as u32;
    let own = match (slot.locals, devices) {
        (_, 0) => return env,
        (1, _) => (0..devices).map(|device| device.to_string()).collect::<Vec<_>>().join(","),
        _ => (slot.local % devices).to_string(),
    };
    for (vendor, name) in [(Vendor::Nvidia, "FLAGS_selected_gpus"), (Vendor::Ascend, "FLAGS_selected_npus")] {
        if super::has(member, vendor) {
            env.insert(name.into(), own.clone());
        }
    }
    env
}
