//! What faces add to tasks, written out; and what holds for all of them.

mod program;

use std::collections::BTreeMap;
use std::fmt::Write as _;

use muster_model::Face;
use muster_model::launch::Work;
use muster_model::node::Account;
use muster_model::spec::JobSpec;
use proptest::prelude::*;
use serde_json::json;

use crate::tests::{ascend_gang, gang, spec};
use crate::{Gang, Part, names, parts};

fn job(face: Face, nodes: u32, gpus: &str) -> JobSpec {
    spec(json!({
        "nodes": nodes,
        "resources": {"gpus": gpus},
        "faces": [face.word()],
        "framework": "plain",
        "command": ["python", "train.py"],
    }))
}

/// What tasks have, line by line, by what the line is about.
fn lines(part: &Part) -> BTreeMap<String, String> {
    let around = &part.surroundings;
    let mut lines = BTreeMap::new();
    let env = part.env.iter().filter(|(name, _)| !name.starts_with("DLTS_"));
    lines.extend(env.map(|(name, value)| (format!("1 {name}"), format!("{name}={value}"))));
    lines.extend(part.defaults.iter().map(|(name, value)| (format!("2 {name}"), format!("{name}?={value}"))));
    lines.extend(part.paths.iter().map(|(name, path)| (format!("3 {name}"), format!("{name}=@{path}"))));
    lines.extend(
        around
            .front
            .iter()
            .map(|(name, front)| (format!("4 {name}"), format!("{name}={}:…", front.join(":")))),
    );
    lines.extend(
        around.workdir.iter().map(|path| (format!("5 {path}"), format!("{path} -> working directory"))),
    );
    lines.extend(around.directories.iter().map(|path| (format!("5 {path}"), format!("{path}/"))));
    lines.extend(
        around.environment.iter().map(|path| (format!("5 {path}"), format!("{path} <- environment"))),
    );
    for host in &around.hosts {
        let names = host.names.join(" ");
        lines.insert(format!("6 {names}"), format!("{}\t{names}", host.ip));
    }
    for file in &part.files {
        let program = file.executable || [".sh", ".py"].iter().any(|end| file.path.ends_with(end));
        let content = if program { "  (program)\n".into() } else { indented(&file.content) };
        lines.insert(format!("7 {}", file.path), format!("{}:\n{content}", file.path).trim_end().into());
    }
    if part.peers {
        lines.insert("8".into(), "members reach each other by ssh".into());
    }
    lines
}

fn indented(text: &str) -> String {
    text.lines().map(|line| format!("  {line}\n")).collect()
}

/// What the faces of a gang add: for task 0 all of it, for the others where they differ from task 0.
fn added(gang: &Gang) -> String {
    let plain = without_faces(gang);
    let with = parts(gang);
    let mut text = String::new();
    let first = lines(&with[0]);
    for (rank, (part, plain)) in with.iter().zip(&plain).enumerate() {
        let base = if rank == 0 { lines(plain) } else { first.clone() };
        writeln!(text, "== task {rank}").unwrap();
        for (about, line) in lines(part) {
            let common = lines(plain).get(&about) == Some(&line);
            if !common && base.get(&about) != Some(&line) {
                writeln!(text, "{line}").unwrap();
            }
        }
    }
    text
}

fn without_faces(gang: &Gang) -> Vec<Part> {
    let spec = JobSpec { faces: Some(Vec::new()), ..gang.spec.clone() };
    parts(&Gang { spec: &spec, ..gang.clone() })
}

#[test]
fn what_each_face_gives() {
    for face in Face::ALL {
        for (nodes, gpus) in [(1, 1), (1, 8), (2, 8), (3, 4)] {
            let spec = job(*face, nodes, &gpus.to_string());
            insta::assert_snapshot!(format!("{face}_{nodes}x{gpus}"), added(&gang(&spec)));
        }
        let spec = job(*face, 2, "ascend:8");
        insta::assert_snapshot!(format!("{face}_2x8_ascend"), added(&ascend_gang(&spec)));
    }
}

#[test]
fn outputs_of_a_batch_script_go_to_its_folder_only_where_the_cluster_has_it() {
    let run = |on: &str, shares_directories| {
        let spec = spec(json!({"on": on, "workdir": "/home/ann/code", "command": ["job.sh"],
            "batch": {"script": "#!/bin/sh\n", "output": "out/%j.txt"}}));
        let gang = Gang { shares_directories, ..gang(&spec) };
        let Work::Run(processes) = parts(&gang).remove(0).work else { panic!("it is run") };
        processes[0].argv.join(" ")
    };
    assert_eq!(
        run("slurm/gpu", true),
        "muster-batch --output=out/%j.txt --folder=/home/ann/code -- /muster/slurm_script"
    );
    let elsewhere = "muster-batch --output=out/%j.txt -- /muster/slurm_script";
    assert_eq!(run("slurm/gpu", false), elsewhere, "the login node is reached over SSH");
    assert_eq!(run("local", true), elsewhere);
}

/// A command of a seed runs on this gang: what it expects is there.
#[test]
fn the_horovod_line_of_seed_002_has_all_it_names() {
    let line = "cd ~ && mkdir -p ~/checkpoints && horovodrun -np 16 -hostfile /home/${DLWS_USER_NAME}/ib_config \
                -p $DLWS_SD_worker0_SSH_PORT --network-interface ib0 python /examples/tensorflow2_keras_mnist.py \
                ~/checkpoints/ ~/tensorboard/${DLWS_JOB_ID}/logs/ && sleep infinity";
    let spec = spec(json!({"nodes": 2, "resources": {"gpus": 8}, "command": line}));
    let mut gang = gang(&spec);
    gang.members[1].address.infiniband = Some([172, 16, 0, 2].into());
    let parts = parts(&gang);
    let user = &parts[0].env["DLWS_USER_NAME"];
    let hostfile = parts[0].files.iter().find(|file| file.path == format!("/home/{user}/ib_config")).unwrap();
    assert_eq!(hostfile.content, "ib-worker-0 slots=8\nib-worker-1 slots=8\n");
    assert_eq!(parts[0].env["DLWS_SD_worker0_SSH_PORT"], "20022");
    assert_eq!(parts[0].env["DLWS_SD_worker1_IB_IP"], "172.16.0.2");
    assert!(parts[0].env.contains_key("DLWS_JOB_ID"));
    assert!(names(&gang, 1).contains(&"ib-worker-1".to_owned()));
    assert!(parts.iter().all(|part| part.peers));
    assert_eq!(parts[1].work, Work::Wait);
}

#[test]
fn apulis_variables_are_there_in_both_spellings() {
    let spec = job(Face::Dlws, 2, "8");
    for part in parts(&gang(&spec)) {
        let of = |prefix: &str| -> BTreeMap<String, String> {
            let named = part.env.iter().filter_map(|(name, value)| Some((name.strip_prefix(prefix)?, value)));
            named.map(|(name, value)| (name.to_owned(), value.clone())).collect()
        };
        assert_eq!(of("DLWS_"), of("DLTS_"));
    }
}

/// On DLC a task counts nodes; a process that muster starts counts processes, in its own variables.
#[test]
fn dlc_counts_nodes() {
    for framework in ["plain", "pytorch"] {
        let spec = spec(json!({
            "nodes": 2, "resources": {"gpus": 8}, "faces": ["dlc"], "framework": framework, "command": "torchrun train.py",
        }));
        for (rank, part) in parts(&gang(&spec)).iter().enumerate() {
            assert_eq!((&*part.env["WORLD_SIZE"], &*part.env["NPROC_PER_NODE"]), ("2", "8"));
            assert_eq!(part.env["RANK"], rank.to_string());
        }
    }
}

#[test]
fn deepspeed_keeps_its_hostfile() {
    let spec =
        spec(json!({"nodes": 2, "resources": {"gpus": 8}, "faces": ["dlws"], "framework": "deepspeed"}));
    let files = parts(&gang(&spec)).remove(0).files;
    assert_eq!(files.iter().filter(|file| file.path == "/job/hostfile").count(), 1);
}

#[test]
fn faces_can_be_worn_together() {
    let spec = spec(json!({"nodes": 2, "faces": ["dlws", "dlc", "modelarts"]}));
    for part in parts(&gang(&spec)) {
        let mut paths: Vec<_> = part.files.iter().map(|file| &file.path).collect();
        paths.sort_unstable();
        paths.dedup();
        assert_eq!(paths.len(), part.files.len(), "a file is there twice");
        assert_eq!(part.surroundings.front["PATH"], ["/muster/bin"]);
    }
}

#[test]
fn each_task_is_told_of_the_account_it_runs_under() {
    let spec = job(Face::Dlws, 2, "1");
    let mut gang = gang(&spec);
    gang.members[1].account = Account { name: "bob".into(), uid: 7, gid: 8, home: "/srv/bob".into() };
    let parts = parts(&gang);
    assert_eq!((&*parts[1].env["DLWS_USER_NAME"], &*parts[1].env["DLWS_UID"]), ("bob", "7"));
    assert!(parts[1].has("/home/bob/ib_config"));
}

proptest! {
    /// Variables that tell of the whole are the same everywhere; those that tell of a task are its own.
    #[test]
    fn all_members_agree(nodes in 1u32..6, gpus in 0u32..9, ascend in any::<bool>()) {
        for face in Face::ALL {
            let spec = job(*face, nodes, &if ascend { format!("ascend:{gpus}") } else { gpus.to_string() });
            let gang = if ascend { ascend_gang(&spec) } else { gang(&spec) };
            let parts = parts(&gang);
            let own = |name: &str| {
                name.contains("_SELF_") || name.contains("CURRENT") || name.contains("INDEX")
                    || ["DLWS_ROLE_IDX", "DLTS_ROLE_IDX", "POD_NAME", "POD_IP", "TF_CONFIG", "CUSTOM_PORTS", "NPU_IPS",
                        "SLURM_NODEID", "SLURMD_NODENAME"]
                        .contains(&name)
            };
            let plain = without_faces(&gang);
            for part in &parts {
                for (name, value) in part.env.iter().filter(|(name, _)| !own(name) && !plain[0].env.contains_key(*name)) {
                    prop_assert_eq!(Some(value), parts[0].env.get(name), "{}", name);
                }
                prop_assert_eq!(&part.surroundings, &parts[0].surroundings);
                for file in part.files.iter().filter(|file| file.path.ends_with(".json")) {
                    prop_assert!(parts[0].files.contains(file));
                }
            }
        }
    }
}
