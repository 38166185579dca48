//! Slurm: a batch script on the first node of a job, the variables that tell it where it is, and programs by which it starts
//! processes on all of them.
//!
//! On a real Slurm the job has its number and its nodes' names from there: the node's agent, which knows them, puts them in the
//! place of these.
//!
//! Nodes go by the names of their hosts. Where several tasks share a host, as on one machine, they go by the names that
//! members of a gang have for each other.

use std::collections::BTreeSet;

use muster_model::launch::{Host, Process, Work};
use muster_model::spec::{Batch, Notice, Target};
use muster_model::{CommandOn, JobId, hostlist, slurm};

use crate::contract::mpi;
use crate::{Gang, Part, base};

const SCRIPT: &str = "/muster/slurm_script";
/// What starts processes; what knows the names of nodes; what starts them on a node; what keeps a script's files.
const PROGRAMS: [&str; 4] = ["srun", "scontrol", "muster-step", "muster-batch"];
/// A megabyte, as Slurm counts.
const MEGABYTE: u64 = 1 << 20;
/// Numbers of jobs have seven or eight digits, and fit into those of a real Slurm.
const FIRST_NUMBER: u64 = 1_000_000;
const NUMBERS: u64 = 60_000_000;

pub(super) fn add(gang: &Gang, rank: u32, part: &mut Part) {
    layout(gang, part);
    place(rank, part);
    job(gang, rank, part);
    devices(gang, rank, part);
    if matches!(gang.spec.on, Target::Slurm(_)) {
        // Elsewhere in such a place an MPI is kept from Slurm; here it is to find these variables, and the task's own `srun`.
        for name in
            ["OMPI_MCA_plm", "OMPI_MCA_ras", "PRTE_MCA_plm", "PRTE_MCA_ras", "HYDRA_LAUNCHER", "HYDRA_RMK"]
        {
            part.advice(name, "slurm");
        }
    } else {
        let host = |(rank, member): (u32, &crate::Member)| Host { ip: member.ip(), names: names(gang, rank) };
        part.surroundings.hosts.extend((0..).zip(&gang.members).map(host));
        // Who wants to know whether it is the first node compares its own host's addresses with that one's: torchrun does.
        let own = &gang.members[rank as usize];
        if !names(gang, rank).contains(&own.host) {
            part.surroundings.hosts.push(Host { ip: own.ip(), names: vec![own.host.clone()] });
        }
    }
    part.surroundings.programs.extend(PROGRAMS.map(str::to_owned));
    part.surroundings.workdir_in.push("SLURM_SUBMIT_DIR".into());
    // Open MPI finds the nodes in these variables and starts its daemons with `srun`; these remain to be said.
    mpi::machine(gang, part);
    if gang.spec.command_on == Some(CommandOn::First) {
        // Nobody has them in a script of Slurm's, and programs that look for them first would take them for their own.
        base::remove_process_variables(part);
    }
    if let Some(batch) = &gang.spec.batch {
        part.program(SCRIPT, &batch.script);
        part.work = Work::Run(vec![Process::new(words(gang, batch))]);
    }
}

/// What a node is called.
pub(super) fn names(gang: &Gang, rank: u32) -> Vec<String> {
    let hosts: BTreeSet<&str> = gang.members.iter().map(|member| member.host.as_str()).collect();
    let is_name =
        |host: &str| !host.is_empty() && host.chars().all(|c| c.is_ascii_alphanumeric() || "-._".contains(c));
    let own = &gang.members[rank as usize].host;
    if hosts.len() == gang.members.len() && hosts.iter().all(|host| is_name(host)) {
        vec![own.clone()]
    } else {
        vec![format!("worker-{rank}")]
    }
}

/// The number of a job: always the same, since scripts name files after it and find them again in the next attempt.
pub fn number(job: &JobId) -> u64 {
    FIRST_NUMBER + crate::plan::hash(job.as_str()) % NUMBERS
}

fn tasks(gang: &Gang) -> u32 {
    let nodes = gang.members.len() as u32;
    match &gang.spec.batch {
        Some(batch) => batch.tasks(nodes),
        None => nodes.saturating_mul(gang.spec.processes.unwrap_or(1)),
    }
}

fn layout(gang: &Gang, part: &mut Part) {
    let nodes = gang.members.len() as u32;
    let tasks = tasks(gang);
    let spread = slurm::spread(tasks, nodes);
    let batch = gang.spec.batch.as_ref();
    for name in ["SLURM_NNODES", "SLURM_JOB_NUM_NODES"] {
        part.fact(name, nodes);
    }
    for name in ["SLURM_NTASKS", "SLURM_NPROCS"] {
        part.fact(name, tasks);
    }
    part.fact("SLURM_TASKS_PER_NODE", slurm::counts(&spread));
    if let Some(per_node) = batch.map_or(gang.spec.processes, |batch| batch.ntasks_per_node) {
        part.fact("SLURM_NTASKS_PER_NODE", per_node);
    }
    if let Some(cpus) = batch.and_then(|batch| batch.cpus_per_task) {
        part.fact("SLURM_CPUS_PER_TASK", cpus);
    }
    if let Some(gpus) = batch.and_then(|batch| batch.gpus_per_task) {
        part.fact("SLURM_GPUS_PER_TASK", gpus);
    }
}

fn place(rank: u32, part: &mut Part) {
    part.fact("SLURM_NODEID", rank);
    for name in ["SLURM_PROCID", "SLURM_LOCALID", "SLURM_GTIDS"] {
        part.fact(name, 0);
    }
}

fn job(gang: &Gang, rank: u32, part: &mut Part) {
    let batch = gang.spec.batch.as_ref();
    let number = number(&gang.attempt.job);
    let account = &gang.members[rank as usize].account;
    let nodes: Vec<String> = (0..gang.members.len() as u32).flat_map(|rank| names(gang, rank)).collect();
    for name in ["SLURM_JOB_ID", "SLURM_JOBID"] {
        part.fact(name, number);
    }
    part.fact("SLURM_JOB_NAME", batch.and_then(|batch| batch.job_name.as_ref()).unwrap_or(&gang.job_name));
    for name in ["SLURM_JOB_NODELIST", "SLURM_NODELIST"] {
        part.fact(name, hostlist::print(&nodes));
    }
    part.fact("SLURMD_NODENAME", &nodes[rank as usize]);
    part.fact("SLURM_CLUSTER_NAME", "muster");
    part.fact("SLURM_JOB_PARTITION", partition(gang));
    part.fact("SLURM_JOB_USER", &account.name);
    part.fact("SLURM_JOB_UID", account.uid);
    part.fact("SLURM_JOB_GID", account.gid);
    part.fact("SLURM_JOB_ACCOUNT", batch.and_then(|batch| batch.account.as_ref()).unwrap_or(&gang.workspace));
    let submitted = batch.and_then(|batch| batch.submit_host.as_ref()).unwrap_or(&nodes[0]);
    part.fact("SLURM_SUBMIT_HOST", submitted);
    if gang.attempt.number > 1 {
        part.fact("SLURM_RESTART_COUNT", gang.attempt.number - 1);
    }
    let cpus = cpus(gang);
    part.fact("SLURM_CPUS_ON_NODE", cpus[rank as usize]);
    part.fact("SLURM_JOB_CPUS_PER_NODE", slurm::counts(&cpus));
    if let Some(memory) = gang.spec.resources.memory {
        part.fact("SLURM_MEM_PER_NODE", memory / MEGABYTE);
    }
    part.fact("ENVIRONMENT", "BATCH");
}

fn partition(gang: &Gang) -> String {
    let named = gang.spec.batch.as_ref().and_then(|batch| batch.partition.clone());
    named.unwrap_or_else(|| match &gang.spec.on {
        Target::Local => "local".into(),
        Target::Ssh(place) | Target::Slurm(place) | Target::Kubernetes(place) => place.clone(),
    })
}

/// The CPUs of each node: those it was asked for, else one for each task, as Slurm has it.
fn cpus(gang: &Gang) -> Vec<u32> {
    let nodes = gang.members.len() as u32;
    let of_task = gang.spec.batch.as_ref().and_then(|batch| batch.cpus_per_task).unwrap_or(1);
    let one = |tasks: u32| match gang.spec.resources.cpus {
        Some(cpus) => cpus.ceil() as u32,
        None => tasks.saturating_mul(of_task).max(1),
    };
    slurm::spread(tasks(gang), nodes).into_iter().map(one).collect()
}

fn devices(gang: &Gang, rank: u32, part: &mut Part) {
    let numbers: Vec<String> =
        gang.members[rank as usize].devices.iter().map(|(number, _)| number.to_string()).collect();
    if numbers.is_empty() {
        return;
    }
    part.fact("SLURM_GPUS_ON_NODE", numbers.len());
    part.fact("SLURM_GPUS_PER_NODE", gang.spec.resources.device_count());
    part.fact("SLURM_GPUS", gang.members.iter().map(|member| member.devices.len()).sum::<usize>());
    part.fact("SLURM_JOB_GPUS", numbers.join(","));
}

/// What runs the script, on the first node.
fn words(gang: &Gang, batch: &Batch) -> Vec<String> {
    let mut words = Vec::new();
    if let Some(output) = &batch.output {
        words.push(format!("--output={output}"));
    }
    if let Some(error) = &batch.error {
        words.push(format!("--error={error}"));
    }
    if batch.append {
        words.push("--append".into());
    }
    // As with `sbatch`, where the cluster has the directory that the script was submitted from. A directory of that name on a
    // cluster elsewhere is another one.
    let folder = gang.spec.workdir.as_ref().filter(|_| gang.shares_directories && !words.is_empty());
    if let (Target::Slurm(_), Some(folder)) = (&gang.spec.on, folder) {
        words.push(format!("--folder={folder}"));
    }
    if let (Some(notice), Some(timeout)) = (batch.signal.as_deref().and_then(Notice::read), gang.spec.timeout)
    {
        let whom = if notice.to_script { "script" } else { "steps" };
        let after = timeout.as_secs().saturating_sub(notice.seconds);
        words.push(format!("--notice={whom}:{}:{after}", notice.signal));
    }
    if !words.is_empty() {
        words.insert(0, "muster-batch".into());
        words.push("--".into());
    }
    words.push(SCRIPT.into());
    words.extend(gang.spec.command.argv().into_iter().skip(1));
    words
}
