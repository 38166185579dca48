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
//! `accelerate launch` takes the place of a task and the size of the gang by flags alone.

use super::command::{Launch, python, typed};
use super::process::Place;
use crate::detect::Launcher;
use crate::{Gang, Part, Plan};

pub(super) fn words(plan: &Plan, argv: Vec<String>, place: &Place) -> Vec<String> {
    match plan.launcher {
        Some(Launcher::Accelerate) => accelerate(plan, &argv, place),
        Some(_) => argv,
        None if plan.processes > 1 => torchrun(&argv).unwrap_or(argv),
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
            super::process::host_port(gang.members[0].ip(), gang.members[0].port(crate::Port::Master)),
        );
    }
    if plan.processes > 1 {
        part.advice("OMP_NUM_THREADS", 1);
    }
}

/// Several processes of a Python program, started by torchrun. It runs what it starts unbuffered and passes no other
/// flags on, so with others it is given Python as any other program.
fn torchrun(argv: &[String]) -> Option<Vec<String>> {
    let python = python(argv)?;
    let simple = python.how != Some("-c") && python.flags.iter().all(|flag| flag == "-u");
    let mut words = vec![python.interpreter];
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
    launch
        .add("--num_machines", &[], plan.nodes)
        .add("--machine_rank", &[], &place.rank)
        .add("--main_process_ip", &[], &place.address)
        .add("--main_process_port", &[], &place.port)
        .add("--num_processes", &[], plan.world());
    // It finds out by itself that there are several processes only where there are several devices on this host. A
    // configuration file, and any other kind of training, says it otherwise.
    let kinds = ["multi_gpu", "cpu", "tpu", "use_deepspeed", "use_fsdp", "use_megatron_lm", "config_file"];
    if plan.nvidia && plan.world() > 1 && !launch.gives(&kinds) {
        launch.switch("--multi_gpu");
    }
    launch.words()
}
