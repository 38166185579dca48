//! PyTorch: `env://` and torchrun.
//!
//! `init_process_group` with `env://` reads MASTER_ADDR, MASTER_PORT, WORLD_SIZE and RANK, which count processes; every
//! task has them, and they are right where it is one process. torchrun and `torch.distributed.launch` take none of
//! those: each of their flags has a twin `PET_<FLAG>`, which a flag on the command line overrides. So does
//! `--standalone`, which sets backend, endpoint and id anew. With the static backend the endpoint is that of the master
//! unless one is given; another backend without an endpoint means port 29400 of this host, which never gathers several
//! hosts, so that one is given the endpoint, too. torchrun sets OMP_NUM_THREADS to 1 for several processes, with a
//! warning, if it is not set.
//!
//! `accelerate launch`, `fabric run` and `composer` take the place of a task and the size of the gang by flags.

use std::collections::BTreeMap;

use muster_model::spec::Command;

use super::command::{Launch, interpreted, python, typed};
use super::process::{self, Place};
use crate::detect::{Launcher, program_at};
use crate::{Gang, Part, Plan, shim};

pub(super) fn words(plan: &Plan, argv: Vec<String>, place: &Place) -> Vec<String> {
    match plan.launcher {
        Some(Launcher::Accelerate) => accelerate(plan, &argv, place),
        Some(Launcher::Fabric) => fabric(plan, &argv, place),
        Some(Launcher::Tune) => tune(plan, &argv),
        Some(Launcher::Composer) => composer(plan, &argv, place),
        Some(_) => argv,
        None if plan.single && plan.processes > 1 && !plan.each => torchrun(&argv).unwrap_or(argv),
        None => argv,
    }
}

pub(super) fn add(gang: &Gang, plan: &Plan, rank: u32, part: &mut Part) {
    let place = Place::of(gang, rank);
    part.fact("PET_NNODES", gang.members.len());
    part.fact("PET_NPROC_PER_NODE", plan.processes);
    part.fact("PET_NODE_RANK", rank);
    part.fact("PET_MASTER_ADDR", &place.address);
    part.fact("PET_MASTER_PORT", &place.port);
    part.fact("PET_RDZV_BACKEND", "static");
    part.fact("PET_RDZV_ID", &gang.attempt.job);
    let argv = typed(&gang.spec.command);
    if plan.launcher == Some(Launcher::Torchrun)
        && Launch::of(&argv, Launcher::Torchrun).gives(&["rdzv_backend"])
    {
        part.fact(
            "PET_RDZV_ENDPOINT",
            process::host_port(gang.members[0].ip(), gang.members[0].port(crate::Port::Master)),
        );
    }
    if plan.processes > 1 {
        part.advice("OMP_NUM_THREADS", 1);
    }
    // Scripts write `--nproc_per_node=$NPROC_PER_NODE`, and LLaMA-Factory calls torchrun with it; for one process in each of
    // several tasks only when it is told to.
    part.advice("NPROC_PER_NODE", plan.processes);
    if plan.world() > 1 {
        part.advice("FORCE_TORCHRUN", 1);
    }
    accelerate_in_shell(gang, plan, &place, part);
    let is_torchruns =
        matches!(&gang.spec.command, Command::Argv(argv) if torchrun(&interpreted(argv)).is_some());
    if plan.launcher.is_none() && plan.single && (plan.each || !is_torchruns) {
        process::spread(gang, plan.processes, rank, part, |_| BTreeMap::new());
    }
}

/// Several processes of a Python program, started by torchrun, behind the programs that run it: `nice python train.py`. It
/// runs what it starts unbuffered and passes no other flags on, so with others it is given Python as any other program.
/// None where Python is not among the words, as in a line for the shell: muster then starts the processes itself, and they
/// find the same variables.
fn torchrun(argv: &[String]) -> Option<Vec<String>> {
    let (wrappers, argv) = argv.split_at(program_at(argv)?);
    let python = python(argv)?;
    let simple = python.how != Some("-c") && python.flags.iter().all(|flag| flag == "-u");
    let mut words: Vec<&str> = wrappers.iter().map(String::as_str).collect();
    words.push(python.interpreter);
    if simple {
        words.extend(python.flags.iter().map(String::as_str));
        words.extend(["-m", "torch.distributed.run"]);
        words.extend(python.how);
        words.extend(python.program.iter().map(String::as_str));
    } else {
        words.extend(["-m", "torch.distributed.run", "--no-python"]);
        words.extend(argv.iter().map(String::as_str));
    }
    Some(words.into_iter().map(str::to_owned).collect())
}

fn accelerate(plan: &Plan, argv: &[String], place: &Place) -> Vec<String> {
    let mut launch = Launch::of(argv, Launcher::Accelerate);
    for (flag, value) in accelerate_flags(plan, place) {
        launch.add(flag, &[], value);
    }
    if is_multi_gpu(plan) && !launch.gives(&KINDS) {
        launch.switch(MULTI_GPU);
    }
    launch.words()
}

/// Lightning's launcher, which knows one machine and one device unless told.
fn fabric(plan: &Plan, argv: &[String], place: &Place) -> Vec<String> {
    let mut launch = Launch::of(argv, Launcher::Fabric);
    launch
        .add("--devices", &[], plan.processes)
        .add("--num-nodes", &[], plan.nodes)
        .add("--node-rank", &[], &place.rank)
        .add("--main-address", &[], &place.address)
        .add("--main-port", &[], &place.port);
    launch.words()
}

/// torchtune's, which finds torchrun's variables, but calls torchrun only where it is given one of its flags. Recipes for a single
/// device refuse them.
fn tune(plan: &Plan, argv: &[String]) -> Vec<String> {
    let mut launch = Launch::of(argv, Launcher::Tune);
    if plan.world() > 1 && !argv.iter().any(|word| word.ends_with("_single_device")) {
        launch.add("--nproc_per_node", &[], plan.processes);
    }
    launch.words()
}

/// MosaicML's, which finds the number of its node and the master in the task's variables; but it takes WORLD_SIZE for
/// the number of processes and LOCAL_WORLD_SIZE for those on its node.
fn composer(plan: &Plan, argv: &[String], place: &Place) -> Vec<String> {
    let mut launch = Launch::of(argv, Launcher::Composer);
    if !launch.gives(&["n", "nproc"]) {
        launch.add("--nproc", &[], plan.processes);
    }
    launch
        .add("--world_size", &[], u64::from(plan.nodes) * u64::from(plan.launched))
        .add("--node_rank", &[], &place.rank)
        .add("--master_addr", &[], &place.address)
        .add("--master_port", &[], &place.port);
    launch.words()
}

/// The place of a task and the size of the gang.
fn accelerate_flags(plan: &Plan, place: &Place) -> [(&'static str, String); 5] {
    [
        ("--num_machines", plan.nodes.to_string()),
        ("--machine_rank", place.rank.clone()),
        ("--main_process_ip", place.address.clone()),
        ("--main_process_port", place.port.clone()),
        ("--num_processes", plan.world().to_string()),
    ]
}

/// Kinds of training, of which the user names one. A configuration file says it otherwise.
const KINDS: [&str; 7] =
    ["multi_gpu", "cpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "config_file"];
const MULTI_GPU: &str = "--multi_gpu";

/// Accelerate finds out by itself that there are several processes only where there are several devices on this host.
fn is_multi_gpu(plan: &Plan) -> bool {
    plan.nvidia && plan.world() > 1
}

/// Tells `accelerate launch` the same where it is in a line for the shell, or may be in a script: Python adds the flags to
/// its arguments when it is started.
fn accelerate_in_shell(gang: &Gang, plan: &Plan, place: &Place, part: &mut Part) {
    let is_hidden = match (&gang.spec.command, plan.launcher) {
        (Command::Argv(argv), Some(Launcher::Accelerate)) => accelerate(plan, argv, place) == *argv,
        (Command::Shell(_), Some(Launcher::Accelerate)) => true,
        (_, None) => !plan.single,
        _ => false,
    };
    if !is_hidden {
        return;
    }
    let mut flags: Vec<String> =
        accelerate_flags(plan, place).iter().map(|(flag, value)| format!("{flag}={value}")).collect();
    flags.extend(is_multi_gpu(plan).then(|| MULTI_GPU.to_owned()));
    shim::sitecustomize(part);
    part.fact("MUSTER_ACCELERATE_FLAGS", flags.join(" "));
}
