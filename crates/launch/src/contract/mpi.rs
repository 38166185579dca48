//! Open MPI, MPICH and Intel MPI.
//!
//! `mpirun` runs on one task and starts its processes on the others by ssh. Open MPI reads lines `host slots=N` and has a
//! variable for each of its parameters (`OMPI_MCA_…`; since 5 the starting is PRRTE's, `PRTE_MCA_…`); MPICH and Intel MPI
//! read `host:N` from the file that HYDRA_HOST_FILE and I_MPI_HYDRA_HOST_FILE name. The files are where Kubeflow's MPIJob
//! has them. Open MPI takes a name that is no address of an interface for another host, and calls ssh for it even if it
//! is this one; alone on its node it is therefore told `localhost`. It leaves out loopback by itself, on which members
//! that share a machine reach each other, so it is given the interface by name. It refuses to run as root unless two
//! variables say that this is meant.

use std::collections::BTreeSet;

use super::command::Launch;
use super::hostfile;
use crate::detect::Launcher;
use crate::{Gang, Part, Plan};

const SLOTS: &str = "/etc/mpi/hostfile";
const COLON: &str = "/etc/mpi/hostfile-colon";
const DISCOVER: &str = "/etc/mpi/discover_hosts.sh";

/// Flags of one or the other MPI that say how many processes there are.
const COUNTS: [&str; 9] = ["n", "c", "N", "npernode", "pernode", "ppn", "perhost", "map_by", "npersocket"];

pub(super) fn words(plan: &Plan, argv: Vec<String>) -> Vec<String> {
    let argv = match plan.launcher {
        Some(Launcher::Mpirun) => argv,
        None if plan.single && !plan.each => std::iter::once("mpirun".to_owned()).chain(argv).collect(),
        _ => return argv,
    };
    let mut launch = Launch::of(&argv, Launcher::Mpirun);
    launch.add("-np", &COUNTS, plan.world());
    launch.words()
}

pub(super) fn add(gang: &Gang, plan: &Plan, rank: u32, part: &mut Part) {
    part.peers = true;
    let alone = gang.members.len() == 1;
    let local =
        |text: String| if alone { text.replacen(&hostfile::host(gang, 0), "localhost", 1) } else { text };
    part.file(SLOTS, local(hostfile::slots(gang, plan)));
    part.file(COLON, local(hostfile::colon(gang, plan)));
    let echo = hostfile::lines(gang, |host| format!("echo {host}:{}", plan.processes));
    part.program(DISCOVER, format!("#!/bin/sh\n{echo}"));
    for name in ["OMPI_MCA_orte_default_hostfile", "PRTE_MCA_prte_default_hostfile"] {
        part.path(name, SLOTS);
    }
    for name in ["I_MPI_HYDRA_HOST_FILE", "HYDRA_HOST_FILE"] {
        part.path(name, COLON);
    }
    part.fact("OMPI_MCA_orte_keep_fqdn_hostnames", true);
    part.fact("K_MPI_JOB_ROLE", if rank == 0 { "launcher" } else { "worker" });
    part.advice("I_MPI_HYDRA_BOOTSTRAP", "ssh");
    machine(gang, part);
}

/// What depends on the machines alone, and not on who starts the processes.
pub(crate) fn machine(gang: &Gang, part: &mut Part) {
    interface(gang, part);
    if shares_a_machine(gang) {
        part.advice("OMPI_MCA_btl", "tcp,self");
    }
    if gang.members.iter().any(|member| member.account.uid == 0) {
        for name in ["OMPI_ALLOW_RUN_AS_ROOT", "PRTE_ALLOW_RUN_AS_ROOT"] {
            part.fact(name, 1);
            part.fact(format!("{name}_CONFIRM"), 1);
        }
    }
}

/// Whether two members are on one machine. To Open MPI they are two hosts, both of which number their processes from 0
/// and name the memory that these share after the machine, the job and that number: they would write into each other's.
fn shares_a_machine(gang: &Gang) -> bool {
    let hosts: BTreeSet<&str> = gang.members.iter().map(|member| member.host.as_str()).collect();
    hosts.len() < gang.members.len()
}

/// What rank 0 is told holds for all, so an interface is named only if it has the same name everywhere.
fn interface(gang: &Gang, part: &mut Part) {
    let Some(name) = &gang.members[0].address.interface else { return };
    if gang.members.iter().any(|member| member.address.interface.as_ref() != Some(name)) {
        return;
    }
    for variable in
        ["OMPI_MCA_btl_tcp_if_include", "OMPI_MCA_oob_tcp_if_include", "I_MPI_HYDRA_IFACE", "HYDRA_IFACE"]
    {
        part.advice(variable, name);
    }
}
