//! Horovod.
//!
//! `horovodrun` runs on one node and starts the others by ssh: `-np`, `--hostfile` with lines `host slots=N`, and `-p`, one
//! port for all hosts. With Gloo, the processes meet at a server that lives in horovodrun (HOROVOD_GLOO_RENDEZVOUS_ADDR
//! and _PORT), which is Horovod's own code: a program that comes without horovodrun is therefore given it rather than
//! variables without a server behind them. On one node it starts everything here, and needs neither hosts nor ssh.
//! HOROVOD_START_TIMEOUT is 30 s by default, too short for hosts that are still getting their code into memory.

use super::command::Launch;
use super::hostfile::{self, JOB};
use super::process::Place;
use crate::detect::Launcher;
use crate::{Gang, Part, Plan};

pub(super) fn words(plan: &Plan, argv: Vec<String>, place: &Place) -> Vec<String> {
    let argv = match plan.launcher {
        Some(Launcher::Horovodrun) => argv,
        None if plan.single && !plan.each => std::iter::once("horovodrun".to_owned()).chain(argv).collect(),
        _ => return argv,
    };
    let mut launch = Launch::of(&argv, Launcher::Horovodrun);
    launch.add("-np", &["num_proc", "n"], plan.world());
    if plan.nodes > 1 {
        launch.add("--hostfile", &["H", "hosts", "host_discovery_script"], JOB).add(
            "-p",
            &["ssh_port"],
            &place.ssh_port,
        );
    }
    launch.words()
}

pub(super) fn add(gang: &Gang, plan: &Plan, rank: u32, part: &mut Part) {
    part.peers = true;
    part.file(JOB, hostfile::slots(gang, plan));
    part.path("HOROVOD_HOSTFILE", JOB);
    part.advice("HOROVOD_START_TIMEOUT", 600);
    if let Some(interface) = &gang.members[rank as usize].address.interface {
        part.advice("HOROVOD_GLOO_IFACE", interface);
    }
}
