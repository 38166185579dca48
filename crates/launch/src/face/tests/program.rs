//! The programs that faces give, run by a real shell as the platforms' users start them.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, symlink};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

use muster_model::Face;
use serde_json::json;
use tempfile::TempDir;

use super::job;
use crate::tests::{ascend_gang, gang};
use crate::{Gang, Part, parts};

/// The script of seed 004, which is also an example.
const RUN: &str = include_str!("../../../../../examples/compat/modelarts-paddle/run.sh");

/// A python that says how it was called.
const RECORDER: &str =
    "#!/bin/sh\necho \"python $*\"\nenv | grep -E '^(RANK|DEVICE|ASCEND)_' | sort\nexit \"${CODE:-0}\"\n";

/// A task's surroundings below a directory, as a node makes them where it cannot mount anything.
struct Place {
    root: TempDir,
    part: Part,
}

impl Place {
    fn of(gang: &Gang, rank: usize) -> Self {
        let part = parts(gang).remove(rank);
        let root = TempDir::new().unwrap();
        let place = Self { root, part };
        fs::create_dir(place.work()).unwrap();
        for path in &place.part.surroundings.workdir {
            fs::create_dir_all(place.at(path).parent().unwrap()).unwrap();
            symlink(place.work(), place.at(path)).unwrap();
        }
        for file in &place.part.files {
            put(&place.at(&file.path), &file.content, file.executable);
        }
        put(&place.at("/usr/bin/python"), RECORDER, true);
        place
    }

    fn at(&self, path: &str) -> PathBuf {
        self.root.path().join(path.trim_start_matches('/'))
    }

    fn work(&self) -> PathBuf {
        self.at("/code")
    }

    fn run(&self, command: &str, env: &[(&str, &str)]) -> (Option<i32>, String) {
        let root = self.root.path().display();
        let path = format!("{root}/muster/bin:{root}/usr/bin:/usr/bin:/bin");
        let Output { status, stdout, stderr } = Command::new("bash")
            .args(["-c", &command.replace(" /", &format!(" {root}/"))])
            .current_dir(self.work())
            .env_clear()
            .envs(&self.part.env)
            .envs(self.part.paths.iter().map(|(name, path)| (name, self.at(path))))
            .envs(env.iter().copied())
            .env("PATH", path)
            .env("TMPDIR", self.root.path())
            .output()
            .unwrap();
        let text = [stdout, stderr].concat();
        (status.code(), String::from_utf8(text).unwrap().replace(&root.to_string(), ""))
    }
}

fn put(path: &Path, content: &str, executable: bool) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
    if executable {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn the_start_command_of_seed_004_runs_its_script() {
    let spec = job(Face::Modelarts, 2, "8");
    let place = Place::of(&gang(&spec), 1);
    put(&place.work().join("run.sh"), RUN, false);
    let command = "bash /home/work/run_train.sh python /home/work/user-job-dir/run.sh";
    let (code, text) = place.run(command, &[("CODE", "3")]);
    let launch = "python -m paddle.distributed.launch --cluster_node_ips=10.0.0.1:10002,10.0.0.2:10102 \
                  --node_ip=10.0.0.2 --started_port=10102 --selected_gpus=0,1,2,3,4,5,6,7 train_with_fleet.py";
    assert!(text.contains(launch), "{text}");
    assert_eq!(code, Some(3), "{text}");
}

#[test]
fn code_that_cannot_be_brought_ends_with_127() {
    let spec = job(Face::Modelarts, 1, "1");
    let place = Place::of(&gang(&spec), 0);
    let command = "bash /home/work/run_train.sh echo started";
    let (code, text) = place.run(command, &[("DLS_APP_URL", "/nowhere")]);
    assert_eq!(code, Some(127), "{text}");
    assert!(text.contains("App download error: ") && !text.contains("\nstarted"), "{text}");
}

#[test]
fn code_from_another_place_is_copied_below_its_name() {
    let spec = job(Face::Modelarts, 1, "1");
    let place = Place::of(&gang(&spec), 0);
    put(&place.at("/elsewhere/app/boot.sh"), "echo booted in \"${PWD##*/}\"\n", false);
    let url = place.at("/elsewhere/app").display().to_string();
    let command = "bash /home/work/run_train.sh bash /home/work/user-job-dir/app/boot.sh";
    let (code, text) = place.run(command, &[("DLS_APP_URL", &url)]);
    assert_eq!(code, Some(0), "{text}");
    assert!(text.contains("booted in user-job-dir"), "{text}");
}

#[test]
fn a_boot_file_runs_once_for_every_npu_with_ranks_of_the_whole_gang() {
    let spec = job(Face::Modelarts, 2, "ascend:2");
    let place = Place::of(&ascend_gang(&spec), 1);
    put(&place.work().join("boot.py"), "", false);
    let command =
        "bash /home/work/run_train.sh obs://bucket/code/ code/boot.py /tmp/log/train.log --epochs 1";
    let (code, text) = place.run(command, &[]);
    assert_eq!(code, Some(0), "{text}");
    for line in ["DEVICE_ID=0", "DEVICE_ID=1", "RANK_ID=2", "RANK_ID=3", "RANK_SIZE=4"] {
        assert!(text.lines().any(|said| said == line), "{line}: {text}");
    }
    assert!(text.contains("ASCEND_RT_VISIBLE_DEVICES=0,1\n"), "{text}");
    assert!(text.contains("RANK_TABLE_FILE=/user/config/rank_table.json"), "{text}");
    assert!(text.contains("python /home/work/user-job-dir/boot.py --epochs 1"), "{text}");
}

#[test]
fn rank_table_file_is_a_directory_for_scripts_and_a_file_for_processes() {
    let place = |command: &str| {
        let spec = crate::tests::spec(json!({
            "nodes": 2, "resources": {"gpus": "ascend:2"}, "faces": ["modelarts"], "framework": "mindspore",
            "command": command.split(' ').collect::<Vec<_>>(),
        }));
        parts(&ascend_gang(&spec)).remove(0).paths.remove("RANK_TABLE_FILE").unwrap()
    };
    assert_eq!(place("bash run.sh"), "/user/config");
    assert!(place("python train.py").ends_with("/hccl.json"));
}

#[test]
fn train_sh_runs_once_for_every_npu() {
    let spec = job(Face::Dlws, 2, "ascend:2");
    let gang = ascend_gang(&spec);
    let place = Place::of(&gang, 1);
    let dir = format!("/home/ann/.npu/{}", gang.attempt.job);
    let (code, text) = place.run(&format!("bash {dir}/train.sh python train.py"), &[("CODE", "5")]);
    assert_eq!(code, Some(5), "{text}");
    for line in ["RANK_ID=2", "RANK_ID=3", "RANK_SIZE=4", &format!("RANK_TABLE_FILE={dir}/hccl_tf.json")] {
        assert!(text.lines().any(|said| said == line), "{line}: {text}");
    }
    assert!(place.work().join("training/D3").is_dir());
}

#[test]
fn the_command_of_seed_002_does_not_need_a_sudo_of_the_host() {
    let spec = job(Face::Dlws, 1, "ascend:8");
    let place = Place::of(&ascend_gang(&spec), 0);
    // A sudo that would ask for a password, for whoever is not root.
    put(&place.at("/usr/bin/sudo"), "#!/bin/sh\nexit 1\n", true);
    let (code, text) = place.run("sudo -E bash -c 'echo $DLWS_IS_NPU_JOB && exit 4'", &[]);
    assert_eq!((code, text.as_str()), (Some(4), "true\n"));
    let (code, text) = place.run("sudo -u nobody-here NAME=value python -V", &[]);
    assert_eq!(code, Some(1), "{text}");
    assert!(text.contains("nobody-here"), "{text}");
}
