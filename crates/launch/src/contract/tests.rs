//! Every contract in full on gangs of four shapes, and what holds for all contracts on any gang.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use muster_model::launch::{Process, Work};
use muster_model::{Framework, JobSpec};
use proptest::prelude::*;
use serde_json::{Value, json};

use crate::detect::Launcher;
use crate::tests::{ascend_gang, gang, spec};
use crate::{Gang, Part, Parts, Plan};

const SHAPES: [(u32, u32); 4] = [(1, 1), (1, 8), (2, 8), (3, 4)];

/// What the members are given. Of all but the first, only what differs from the first.
fn text(parts: &[Part]) -> String {
    let mut text = String::new();
    let first: BTreeSet<String> = lines(&parts[0]).into_iter().collect();
    for (rank, part) in parts.iter().enumerate() {
        let more = if rank == 0 { "" } else { ", where it differs from task 0" };
        writeln!(text, "# task {rank}{more}").unwrap();
        for line in lines(part).iter().filter(|line| rank == 0 || !first.contains(*line)) {
            writeln!(text, "{line}").unwrap();
        }
    }
    text
}

fn lines(part: &Part) -> Vec<String> {
    let mut lines = Vec::new();
    lines.extend(part.env.iter().map(|(name, value)| format!("{name}={value}")));
    lines.extend(part.defaults.iter().map(|(name, value)| format!("advice {name}={value}")));
    lines.extend(part.paths.iter().map(|(name, path)| format!("path {name}={path}")));
    lines.extend(
        part.surroundings.front.iter().map(|(name, front)| format!("front {name}={}", front.join(":"))),
    );
    for file in &part.files {
        let kind = if file.executable { "program" } else { "file" };
        let content = file.content.trim_end().replace('\n', "\n    ");
        let content = if file.path.starts_with("/muster/") { "(muster's)" } else { &content };
        lines.push(format!("{kind} {}\n    {content}", file.path));
    }
    lines.push(format!("peers {}", part.peers));
    match &part.work {
        Work::Wait => lines.push("waits".into()),
        Work::Run(processes) => lines.extend(processes.iter().map(line)),
    }
    lines
}

fn line(process: &Process) -> String {
    let mut line = format!("runs {}", process.argv.join(" "));
    if let Some(dir) = &process.dir {
        write!(line, "\n    in {dir}").unwrap();
    }
    for (name, value) in &process.env {
        write!(line, "\n    {name}={value}").unwrap();
    }
    line
}

/// The parts of a gang whose command starts this launcher.
fn parts(gang: &Gang, launcher: Option<Launcher>) -> Vec<Part> {
    let mut plan = Plan { launcher, ..Plan::of(gang.spec) };
    plan.leader = super::leads(&plan);
    let parts = Parts::with(gang, plan);
    (0..gang.members.len() as u32).map(|rank| parts.part(rank)).collect()
}

fn golden(name: &str, fields: &Value, launcher: Option<Launcher>) {
    for (nodes, devices) in SHAPES {
        let mut fields = fields.clone();
        fields["nodes"] = json!(nodes);
        fields["resources"] = json!({"gpus": devices});
        let spec = spec(fields);
        insta::assert_snapshot!(format!("{name}_{nodes}x{devices}"), text(&parts(&gang(&spec), launcher)));
    }
}

#[test]
fn every_framework_is_given_what_it_reads() {
    for (framework, word) in Framework::WORDS.iter().map(|(word, framework)| (framework, word)) {
        if *framework != Framework::Plain {
            golden(word, &json!({"framework": word}), None);
        }
    }
}

#[test]
fn every_launcher_is_given_what_it_reads() {
    for (name, framework, launcher, command) in [
        ("torchrun", "pytorch", Launcher::Torchrun, "torchrun train.py"),
        ("accelerate", "pytorch", Launcher::Accelerate, "accelerate launch train.py"),
        ("deepspeed_launcher", "deepspeed", Launcher::Deepspeed, "deepspeed train.py --deepspeed"),
        ("horovodrun", "horovod", Launcher::Horovodrun, "horovodrun python train.py"),
        ("mpirun", "mpi", Launcher::Mpirun, "mpirun ./solve"),
        ("paddle_launcher", "paddle", Launcher::Paddle, "python -m paddle.distributed.launch train.py"),
        ("msrun", "mindspore", Launcher::Msrun, "msrun train.py"),
    ] {
        let words: Vec<&str> = command.split(' ').collect();
        golden(name, &json!({"framework": framework, "command": words}), Some(launcher));
    }
}

#[test]
fn mindspore_on_ascend_is_given_rank_tables_and_a_process_for_each_device() {
    for (nodes, devices) in SHAPES {
        let spec = spec(json!({"framework": "mindspore", "nodes": nodes, "resources": {"gpus": devices}}));
        insta::assert_snapshot!(
            format!("mindspore_ascend_{nodes}x{devices}"),
            text(&parts(&ascend_gang(&spec), None))
        );
    }
}

/// The words that task 0 runs.
fn words(fields: Value, launcher: Option<Launcher>) -> String {
    let spec = spec(fields);
    let parts = parts(&gang(&spec), launcher);
    match &parts[0].work {
        Work::Run(processes) => processes[processes.len() - 1].argv.join(" "),
        Work::Wait => "waits".into(),
    }
}

#[test]
fn several_processes_of_a_python_program_are_torchruns() {
    for (command, runs) in [
        (json!(["train.py", "--lr", "1"]), "python -m torch.distributed.run train.py --lr 1"),
        (json!(["python3.11", "-u", "train.py"]), "python3.11 -u -m torch.distributed.run train.py"),
        (json!(["python", "-m", "pkg.train"]), "python -m torch.distributed.run -m pkg.train"),
        (
            json!(["python", "-O", "train.py"]),
            "python -m torch.distributed.run --no-python python -O train.py",
        ),
        (json!(["python", "-c", "pass"]), "python -m torch.distributed.run --no-python python -c pass"),
        (
            json!(["env", "A=1", "nice", "-n", "5", "python", "train.py"]),
            "env A=1 nice -n 5 python -m torch.distributed.run train.py",
        ),
        (
            json!(["conda", "run", "-n", "x", "python", "-u", "train.py"]),
            "conda run -n x python -u -m torch.distributed.run train.py",
        ),
        (json!(["uv", "run", "train.py"]), "uv run train.py"),
        (json!(["sudo", "python", "train.py"]), "sudo python train.py"),
        (json!(["bash", "run.sh"]), "bash run.sh"),
        (json!("python train.py"), "/bin/sh -c python train.py"),
    ] {
        let fields = json!({"framework": "pytorch", "resources": {"gpus": 2}, "command": command});
        assert_eq!(words(fields, None), runs);
    }
    let one = json!({"framework": "pytorch", "command": ["src/train.py"], "nodes": 2});
    assert_eq!(words(one, None), "python src/train.py");
}

/// How many processes a task has, and whether the last knows that it is the last of the gang.
fn counted(fields: Value) -> (u32, usize, bool) {
    let spec = spec(fields);
    let started = Plan::of(&spec).started();
    let all = crate::parts(&gang(&spec));
    let part = all.last().unwrap();
    let Work::Run(processes) = &part.work else { panic!("the last task runs nothing") };
    let last = processes[processes.len() - 1].env.get("RANK").or(part.env.get("RANK"));
    let count = processes.len();
    (started, count, last == Some(&(all.len() * count - 1).to_string()))
}

#[test]
fn a_program_behind_a_shell_is_started_for_each_process() {
    let commands = [
        json!("python train.py"),
        json!(["bash", "-c", "cd src && exec python train.py"]),
        json!(["uv", "run", "train.py"]),
        json!(["./train"]),
    ];
    for framework in ["pytorch", "deepspeed", "jax", "tensorflow", "paddle"] {
        for command in &commands {
            let fields = json!({"framework": framework, "nodes": 2, "processes": 2, "command": command});
            assert_eq!(counted(fields), (2, 2, true), "{framework}: {command}");
        }
    }
    let fields = json!({"framework": "mpi", "nodes": 2, "processes": 2, "command": "./train --lr 1"});
    assert_eq!(words(fields, None), "mpirun -np 4 /bin/sh -c ./train --lr 1");
}

#[test]
fn a_command_that_may_start_anything_is_started_once_and_counted_so() {
    for command in [json!(["make", "train"]), json!(["bash", "run.sh"]), json!("pip install x; python t.py")]
    {
        for framework in ["pytorch", "deepspeed", "paddle", "plain"] {
            let fields = json!({"framework": framework, "nodes": 2, "processes": 2, "command": command});
            assert_eq!(counted(fields), (1, 1, true), "{framework}: {command}");
        }
    }
}

#[test]
fn a_command_of_every_process_is_started_as_it_stands() {
    for framework in Framework::WORDS.iter().map(|(word, _)| word) {
        for command in ["bash run.sh", "python train.py", "torchrun train.py"] {
            let argv: Vec<&str> = command.split(' ').collect();
            let fields = json!({
                "framework": framework, "nodes": 2, "processes": 2, "command": argv, "command_on": "processes",
            });
            assert_eq!(counted(fields.clone()), (2, 2, true), "{framework}: {command}");
            assert_eq!(words(fields, None), command, "{framework}");
        }
    }
}

#[test]
fn what_the_user_gave_a_launcher_stays() {
    let accelerate = json!({
        "framework": "pytorch", "nodes": 2, "resources": {"gpus": 2},
        "command": ["accelerate", "launch", "--num_machines=1", "--config_file", "a.yaml", "train.py"],
    });
    assert_eq!(
        words(accelerate, Some(Launcher::Accelerate)),
        "accelerate launch --machine_rank 0 --main_process_ip 10.0.0.1 --main_process_port 10000 --num_processes 4 \
         --num_machines=1 --config_file a.yaml train.py"
    );
    let mpirun =
        json!({"framework": "mpi", "nodes": 2, "command": ["mpirun", "-n", "2", "--host", "a,b", "./solve"]});
    assert_eq!(words(mpirun, Some(Launcher::Mpirun)), "mpirun -n 2 --host a,b ./solve");
    let horovodrun =
        json!({"framework": "horovod", "nodes": 2, "command": ["horovodrun", "-H", "a:1", "python", "x.py"]});
    assert_eq!(words(horovodrun, Some(Launcher::Horovodrun)), "horovodrun -np 2 -p 20022 -H a:1 python x.py");
    let paddle = spec(json!({
        "framework": "paddle", "nodes": 2, "resources": {"gpus": 2},
        "command": ["fleetrun", "--rank", "1", "--gpus=0", "--master", "a:1", "train.py"],
    }));
    let part = &parts(&gang(&paddle), Some(Launcher::Paddle))[0];
    for name in ["PADDLE_MASTER", "PADDLE_RANK", "PADDLE_TRAINER_ID", "PADDLE_NPROC_PER_NODE"] {
        assert_eq!(part.env.get(name), None, "{name}");
    }
    let torchrun = json!({
        "framework": "pytorch", "nodes": 2, "command": ["torchrun", "--rdzv-backend=c10d", "train.py"],
    });
    let torchrun = spec(torchrun);
    assert_eq!(
        parts(&gang(&torchrun), Some(Launcher::Torchrun))[1].env["PET_RDZV_ENDPOINT"],
        "10.0.0.1:10000"
    );
}

#[test]
fn launchers_that_call_torchrun_are_told_of_the_gang() {
    for (command, launcher, runs) in [
        (
            "fabric run --strategy ddp t.py --devices 9",
            Launcher::Fabric,
            "fabric run --devices 2 --num-nodes 2 --node-rank 0 --main-address 10.0.0.1 --main-port 10000 --strategy ddp \
             t.py --devices 9",
        ),
        (
            "tune run lora_finetune_distributed --config x",
            Launcher::Tune,
            "tune run --nproc_per_node 2 lora_finetune_distributed --config x",
        ),
        (
            "tune run lora_finetune_single_device --config x",
            Launcher::Tune,
            "tune run lora_finetune_single_device --config x",
        ),
        (
            "composer t.py --lr 1",
            Launcher::Composer,
            "composer --nproc 2 --world_size 4 --node_rank 0 --master_addr 10.0.0.1 --master_port 10000 t.py --lr 1",
        ),
        (
            "composer -n 1 t.py",
            Launcher::Composer,
            "composer --world_size 2 --node_rank 0 --master_addr 10.0.0.1 --master_port 10000 -n 1 t.py",
        ),
        (
            "composer -n 4000000000 t.py",
            Launcher::Composer,
            "composer --world_size 8000000000 --node_rank 0 --master_addr 10.0.0.1 --master_port 10000 -n 4000000000 t.py",
        ),
        ("axolotl train x.yml", Launcher::Accelerate, "axolotl train x.yml"),
        ("llamafactory-cli train x.yml", Launcher::Torchrun, "llamafactory-cli train x.yml"),
    ] {
        let argv: Vec<&str> = command.split(' ').collect();
        let fields = json!({"nodes": 2, "resources": {"gpus": 2}, "command": argv});
        assert_eq!(words(fields.clone(), Some(launcher)), runs);
        let spec = spec(fields);
        let part = &parts(&gang(&spec), Some(launcher))[1];
        let defaults =
            ["NPROC_PER_NODE", "FORCE_TORCHRUN", "NNODES"].map(|name| part.defaults[name].as_str());
        assert_eq!((defaults, part.env["NODE_RANK"].as_str()), (["2", "1", "2"], "1"));
        assert_eq!(
            part.env.contains_key("MUSTER_ACCELERATE_FLAGS"),
            command.starts_with("axolotl"),
            "{command}"
        );
    }
}

#[test]
fn tasks_that_reach_each_other_have_the_hostfile_that_launchers_look_for() {
    for fields in [
        json!({"nodes": 2, "peers": true}),
        json!({"nodes": 2, "command": "mpirun a"}),
        json!({"nodes": 2, "command_on": "first", "framework": "pytorch"}),
    ] {
        let spec = spec(fields);
        for part in crate::parts(&gang(&spec)) {
            let file = part.files.iter().find(|file| file.path == "/job/hostfile").expect("a list of hosts");
            assert_eq!(file.content, "worker-0 slots=1\nworker-1 slots=1\n");
        }
    }
    for fields in [json!({"nodes": 2}), json!({"kind": "machine", "name": "v100", "nodes": 2})] {
        let spec = spec(fields);
        assert!(crate::parts(&gang(&spec)).iter().all(|part| !part.has("/job/hostfile")));
    }
}

#[test]
fn a_launcher_of_another_framework_finds_what_it_needs() {
    let spec = spec(json!({"framework": "jax", "nodes": 2, "command": ["mpirun", "python", "train.py"]}));
    let parts = parts(&gang(&spec), Some(Launcher::Mpirun));
    assert!(parts.iter().all(|part| part.peers && part.paths.contains_key("OMPI_MCA_orte_default_hostfile")));
    assert_eq!(parts[1].work, Work::Wait);
    assert_eq!(parts[1].env["JAX_COORDINATOR_ADDRESS"], "10.0.0.1:10000");
}

#[test]
fn deepspeed_is_told_which_devices_where_they_are_not_the_first() {
    let fields = json!({"framework": "deepspeed", "nodes": 2, "resources": {"gpus": 2}, "command": ["deepspeed", "x.py"]});
    let spec = spec(fields);
    let mut gang = gang(&spec);
    for (number, _) in &mut gang.members[1].devices {
        *number += 4;
    }
    let parts = parts(&gang, Some(Launcher::Deepspeed));
    let Work::Run(processes) = &parts[0].work else { panic!("{parts:?}") };
    let words = processes[0].argv.join(" ");
    assert!(words.contains("--include worker-0:0,1@worker-1:4,5"), "{words}");
    assert!(words.contains("--hostfile /job/hostfile-devices"), "{words}");
    let file = parts[0].files.iter().find(|file| file.path == "/job/hostfile-devices").unwrap();
    assert_eq!(file.content, "worker-0 slots=2\nworker-1 slots=6\n");
}

#[test]
fn msrun_has_its_scheduler_started_where_it_would_not_find_itself() {
    let spec =
        spec(json!({"framework": "mindspore", "nodes": 2, "command": ["msrun", "train.py", "--lr", "1"]}));
    let mut gang = gang(&spec);
    for (rank, member) in (0..).zip(&mut gang.members) {
        member.address.ip = std::net::Ipv4Addr::new(127, 64, 0, 5 + rank).into();
    }
    let parts = parts(&gang, Some(Launcher::Msrun));
    let count = |part: &Part| if let Work::Run(processes) = &part.work { processes.len() } else { 0 };
    assert_eq!((count(&parts[0]), count(&parts[1])), (2, 1));
    let Work::Run(processes) = &parts[0].work else { panic!("{parts:?}") };
    assert_eq!(processes[0].argv.join(" "), "python train.py --lr 1");
    assert_eq!(processes[0].env["MS_ROLE"], "MS_SCHED");
}

#[test]
fn msrun_in_a_script_is_told_of_the_gang() {
    for (command, launcher) in [
        (json!(["bash", "-c", "msrun train.py"]), Some(Launcher::Msrun)),
        (json!("cd . && msrun train.py"), Some(Launcher::Msrun)),
        (json!(["make", "train"]), None),
    ] {
        let spec = spec(json!({"framework": "mindspore", "nodes": 2, "processes": 3, "command": command}));
        let mut gang = gang(&spec);
        let parts = |gang: &Gang| parts(gang, launcher);
        let second = parts(&gang).remove(1);
        let flags = &second.env["MUSTER_MSRUN_FLAGS"];
        assert!(flags.starts_with("--worker_num=6 --local_worker_num=3 --master_addr="), "{flags}");
        assert!(flags.ends_with(" --node_rank=1 --join=True"), "{flags}");
        assert!(second.has("/muster/bin/msrun"), "{second:?}");
        let has_scheduler = |part: &Part| part.env.contains_key("MUSTER_MSRUN_SCHEDULER");
        assert!(!parts(&gang).iter().any(has_scheduler));
        for (rank, member) in (0..).zip(&mut gang.members) {
            member.address.ip = std::net::Ipv4Addr::new(127, 64, 0, 5 + rank).into();
        }
        let parts = parts(&gang);
        assert_eq!(parts.iter().map(has_scheduler).collect::<Vec<_>>(), [true, false]);
        assert_eq!(parts[0].env["MS_SCHED_HOST"], "127.64.0.5");
    }
}

#[test]
fn root_is_allowed_to_run_open_mpi() {
    let spec = spec(json!({"framework": "mpi"}));
    let mut gang = gang(&spec);
    assert_eq!(parts(&gang, None)[0].env.get("OMPI_ALLOW_RUN_AS_ROOT"), None);
    gang.members[0].account.uid = 0;
    assert_eq!(parts(&gang, None)[0].env["OMPI_ALLOW_RUN_AS_ROOT_CONFIRM"], "1");
}

#[test]
fn open_mpi_shares_no_memory_between_members_on_one_machine() {
    let spec = spec(json!({"framework": "mpi", "nodes": 2, "processes": 2}));
    let mut gang = gang(&spec);
    assert_eq!(parts(&gang, None)[0].defaults.get("OMPI_MCA_btl"), None);
    gang.members[1].host = gang.members[0].host.clone();
    assert_eq!(parts(&gang, None)[0].defaults["OMPI_MCA_btl"], "tcp,self");
}

/// Variables that are the gang's, not a member's.
const COMMON: [&str; 25] = [
    "MASTER_ADDR",
    "MASTER_PORT",
    "MUSTER_NODES",
    "MUSTER_HOSTS",
    "MUSTER_SSH_PORT",
    "PET_NNODES",
    "PET_NPROC_PER_NODE",
    "PET_MASTER_ADDR",
    "PET_MASTER_PORT",
    "PET_RDZV_ID",
    "JAX_COORDINATOR_ADDRESS",
    "COORDINATOR_ADDRESS",
    "COORDINATOR_PORT",
    "PADDLE_MASTER",
    "PADDLE_NNODES",
    "PADDLE_IPS",
    "PADDLE_TRAINERS",
    "PADDLE_START_PORT",
    "PADDLE_PORT",
    "FLAGS_START_PORT",
    "DISTRIBUTED_TRAINER_ENDPOINTS",
    "MS_WORKER_NUM",
    "MS_SCHED_HOST",
    "MS_SCHED_PORT",
    "RANK_SIZE",
];

/// Variables of a process that the whole world shares.
const WORLD: [&str; 6] = [
    "WORLD_SIZE",
    "JAX_NUM_PROCESSES",
    "NUM_PROCESSES",
    "PADDLE_TRAINERS_NUM",
    "PADDLE_GLOBAL_SIZE",
    "PADDLE_TRAINER_ENDPOINTS",
];

/// Variables that number the processes of the gang.
const NUMBERS: [&str; 7] = [
    "RANK",
    "JAX_PROCESS_ID",
    "PROCESS_ID",
    "PADDLE_TRAINER_ID",
    "PADDLE_GLOBAL_RANK",
    "MS_NODE_ID",
    "RANK_ID",
];

/// The variables of every process that trains.
fn environments(parts: &[Part]) -> Vec<BTreeMap<String, String>> {
    let of = |part: &Part| {
        let Work::Run(processes) = &part.work else { return Vec::new() };
        let whole = |process: &Process| {
            let mut whole = part.env.clone();
            whole.extend(process.env.clone());
            whole
        };
        processes
            .iter()
            .map(whole)
            .filter(|env| env.get("MS_ROLE").is_none_or(|role| role != "MS_SCHED"))
            .collect()
    };
    parts.iter().flat_map(of).collect()
}

fn same<'a>(name: &str, values: impl Iterator<Item = Option<&'a String>>) -> Result<(), TestCaseError> {
    let values: BTreeSet<_> = values.collect();
    prop_assert!(values.len() <= 1, "{name}: {values:?}");
    Ok(())
}

fn holds(parts: &[Part], gang: &Gang) -> Result<(), TestCaseError> {
    for name in COMMON {
        same(name, parts.iter().map(|part| part.env.get(name)))?;
    }
    for part in parts {
        prop_assert_eq!(&part.files, &parts[0].files);
        prop_assert_eq!(part.peers, parts[0].peers);
        let paths: BTreeSet<_> = part.files.iter().map(|file| &file.path).collect();
        prop_assert_eq!(paths.len(), part.files.len());
        prop_assert!(part.paths.values().all(|path| paths.contains(path)));
    }
    let processes = environments(parts);
    for name in WORLD {
        same(name, processes.iter().map(|env| env.get(name)))?;
    }
    for name in NUMBERS {
        let numbers: BTreeSet<u32> = processes.iter().filter_map(|env| env.get(name)?.parse().ok()).collect();
        let all = (0..processes.len() as u32).collect();
        prop_assert!(numbers.is_empty() || numbers == all, "{}: {:?}", name, numbers);
    }
    listening(&processes, gang)
}

/// Nobody listens where another does.
fn listening(processes: &[BTreeMap<String, String>], gang: &Gang) -> Result<(), TestCaseError> {
    let mut taken: Vec<String> = gang
        .members
        .iter()
        .map(|member| format!("{}:{}", member.ip(), member.port(crate::Port::Ssh)))
        .collect();
    taken.push(format!("{}:{}", processes[0]["MASTER_ADDR"], processes[0]["MASTER_PORT"]));
    let env = &processes[0];
    if let Some(config) = env.get("TF_CONFIG") {
        let config: Value = serde_json::from_str(config).unwrap();
        let workers = config["cluster"]["worker"].as_array().unwrap();
        prop_assert_eq!(workers.len(), processes.len());
        taken.extend(workers.iter().map(|worker| worker.as_str().unwrap().to_owned()));
    }
    if let Some(endpoints) = env.get("PADDLE_TRAINER_ENDPOINTS") {
        prop_assert_eq!(endpoints.split(',').count(), processes.len());
        for env in processes {
            let number: usize = env["PADDLE_TRAINER_ID"].parse().unwrap();
            prop_assert_eq!(endpoints.split(',').nth(number), Some(env["PADDLE_CURRENT_ENDPOINT"].as_str()));
        }
        taken.extend(endpoints.split(',').map(str::to_owned));
    }
    let distinct: BTreeSet<_> = taken.iter().collect();
    prop_assert_eq!(distinct.len(), taken.len(), "{:?}", taken);
    Ok(())
}

fn any_spec() -> impl Strategy<Value = JobSpec> {
    let command = prop_oneof![
        Just(json!(["train.py"])),
        Just(json!(["python", "-m", "pkg"])),
        Just(json!(["bash", "run.sh"])),
        Just(json!("python train.py")),
    ];
    let framework =
        proptest::sample::select(Framework::WORDS.iter().map(|(word, _)| *word).collect::<Vec<_>>());
    (1u32..6, 0u32..9, proptest::option::of(1u32..9), framework, command).prop_map(
        |(nodes, devices, processes, framework, command)| {
            let mut fields = json!({"nodes": nodes, "framework": framework, "command": command});
            if devices > 0 {
                fields["resources"] = json!({"gpus": devices});
            }
            if let Some(processes) = processes {
                fields["processes"] = json!(processes);
            }
            spec(fields)
        },
    )
}

proptest! {
    #[test]
    fn ranks_are_a_permutation_ports_are_distinct_and_all_agree(spec in any_spec(), ascend: bool) {
        let gang = if ascend { ascend_gang(&spec) } else { gang(&spec) };
        holds(&crate::parts(&gang), &gang)?;
    }
}
