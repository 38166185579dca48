use std::fs;
use std::os::unix::ffi::OsStringExt;

use clap::Parser;
use muster_api::model::{CommandOn, Framework};
use muster_api::view::LaunchView;
use serde_json::json;

use super::*;

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    flags: Flags,
    #[arg(short, long)]
    file: Option<PathBuf>,
}

fn line(words: &[&str]) -> Line {
    Line::try_parse_from(std::iter::once("run").chain(words.iter().copied())).unwrap()
}

struct Scene {
    folder: tempfile::TempDir,
    here: Here,
}

impl Scene {
    fn new() -> Self {
        let folder = tempfile::tempdir().unwrap();
        let environment =
            [("HOME", "/home/me"), ("TOKEN", "secret")].map(|(k, v)| (k.into(), v.into())).into();
        let here = Here { directory: folder.path().canonicalize().unwrap(), environment };
        Self { folder, here }
    }

    fn file(self, text: &str) -> Self {
        fs::write(self.folder.path().join("job.yaml"), text).unwrap();
        self
    }

    fn assemble(&self, words: &[&str]) -> Result<Request, Error> {
        let line = line(words);
        assemble(&line.flags, Base::read(line.file.as_deref(), &line.flags, &self.here)?, &self.here)
    }

    /// The fields that are sent, without the directory, which is another one each time.
    fn fields(&self, words: &[&str]) -> Value {
        let mut value = self.assemble(words).unwrap().value;
        value.as_object_mut().unwrap().remove("workdir");
        value
    }

    fn error(&self, words: &[&str]) -> String {
        let error = self.assemble(words).unwrap_err();
        format!("{error:?}")
    }
}

#[test]
fn flags_are_fields() {
    let scene = Scene::new();
    let words = [
        "-N",
        "2",
        "--gpus",
        "H100:8",
        "--memory",
        "16GB",
        "--env",
        "A=1=2",
        "-e",
        "TOKEN",
        "--retries",
        "3",
        "--preemptible",
        "--",
        "python",
        "train.py",
        "--lr",
        "1",
    ];
    assert_eq!(
        scene.fields(&words),
        json!({
            "nodes": "2", "resources": {"gpus": "H100:8", "memory": "16GB"}, "env": {"A": "1=2", "TOKEN": "secret"},
            "retries": {"max": "3"}, "preemptible": true, "command": ["python", "train.py", "--lr", "1"],
        })
    );
    let spec = scene.assemble(&words).unwrap().spec;
    assert_eq!((spec.nodes, spec.retries.max, spec.resources.device_count()), (2, 3, 8));
}

#[test]
fn the_command_needs_no_dashes_before_it() {
    assert_eq!(Scene::new().fields(&["python", "-u", "x.py"]), json!({"command": ["python", "-u", "x.py"]}));
}

#[test]
fn one_word_with_spaces_is_for_the_shell_unless_it_is_a_program() {
    let scene = Scene::new();
    assert_eq!(scene.fields(&["echo a | wc"]), json!({"command": "echo a | wc"}));
    assert_eq!(scene.fields(&["echo"]), json!({"command": ["echo"]}));
    fs::write(scene.folder.path().join("my program"), "").unwrap();
    assert_eq!(scene.fields(&["./my program"]), json!({"command": ["./my program"]}));
}

#[test]
fn flags_go_on_top_of_the_file() {
    let scene = Scene::new().file(
        "nodes: 4\nresources: {gpus: 2, cpus: 1}\nenv: {A: x, B: y}\nretries: {max: 1, backoff: 5s}\ncommand: a b\n",
    );
    let words = ["-f", "job.yaml", "--gpus", "8", "-e", "B=z", "--retries", "2", "-N", "1"];
    assert_eq!(
        scene.fields(&words),
        json!({
            "nodes": "1", "resources": {"gpus": "8", "cpus": 1}, "env": {"A": "x", "B": "z"},
            "retries": {"max": "2", "backoff": "5s"}, "command": "a b",
        })
    );
}

#[test]
fn a_flag_with_a_name_in_another_script_replaces_the_display_name_of_the_file() {
    let names = |file: &str, words: &[&str]| -> (Option<String>, Option<String>, Vec<String>) {
        let scene = Scene::new().file(&format!("command: [python, train.py]\n{file}\n"));
        let request = scene.assemble(&[&["--file", "job.yaml"], words].concat()).unwrap();
        let notes = request.reasons.lines(&request.spec, None).into_iter();
        let notes = notes.filter(|line| line.contains("display name")).collect();
        (request.spec.name, request.spec.display_name, notes)
    };
    let note = |shown: &str| vec![format!("`{shown}` is the display name of the job; its name is `train`")];
    let shown = |name: &str| Some(name.to_owned());
    assert_eq!(names("name: 训练", &[]), (None, shown("训练"), note("训练")));
    assert_eq!(names("display_name: 训练", &[]), (None, shown("训练"), vec![]));
    for file in ["name: bert", "name: 旧", "display_name: 旧", "name: bert\ndisplay_name: 旧"] {
        assert_eq!(names(file, &["--name", "训练"]), (None, shown("训练"), note("训练")), "{file}");
    }
    assert_eq!(names("name: 旧", &["--display-name", "训练"]), (None, shown("训练"), vec![]));
    assert_eq!(names("name: bert", &["--display-name", "训练"]), (shown("bert"), shown("训练"), vec![]));
    assert_eq!(names("display_name: 旧", &["--name", "bert"]), (shown("bert"), shown("旧"), vec![]));
}

#[test]
fn short_and_empty_forms_in_the_file_are_replaced() {
    let scene = Scene::new().file("resources:\nenv:\nretries: 1\ncommand: a\n");
    let words = ["-f", "job.yaml", "--gpus", "1", "-e", "A=1", "--retries", "2"];
    assert_eq!(
        scene.fields(&words),
        json!({"resources": {"gpus": "1"}, "env": {"A": "1"}, "retries": "2", "command": "a"})
    );
}

#[test]
fn every_problem_is_named_once_as_the_user_wrote_it() {
    let scene = Scene::new().file("nodes: many\nresources: {memory: lots}\nnmae: x\ncommand: a\n");
    let error = scene.error(&["-f", "job.yaml", "--gpus", "a b", "--env", "NOT_SET", "--workdir", "gone"]);
    for part in [
        "6 fields are wrong",
        "nodes: must be",
        "resources.memory: ",
        "nmae: there is no field",
        "--gpus: `a b` is not a device request",
        "--env: `NOT_SET` is not set here; write NOT_SET=VALUE",
        "--workdir: there is no directory",
        "those of job.yaml",
    ] {
        assert!(error.contains(part), "{part}\n{error}");
    }
}

#[test]
fn a_field_that_should_be_a_map_and_is_not_is_left_for_the_model() {
    let scene = Scene::new().file("resources: 8\nenv: [A]\ncommand: a\n");
    let error = scene.error(&["-f", "job.yaml", "--gpus", "1", "-e", "B=1"]);
    assert!(error.contains("resources: must be a map") && error.contains("env: must be a map"), "{error}");
}

#[test]
fn a_missing_command_is_asked_for_with_an_example() {
    let scene = Scene::new();
    assert!(scene.error(&[]).contains("muster run -- python train.py"));
    fs::write(scene.folder.path().join(JOB_FILE), "command: a\n").unwrap();
    assert!(scene.error(&[]).contains("muster run muster.yaml"));
}

#[test]
fn words_that_are_not_utf8_are_refused_by_name() {
    let mut given = line(&["echo"]).flags;
    given.command.push(OsString::from_vec(b"caf\xe9".to_vec()));
    let here = Scene::new().here;
    let error = assemble(&given, Base::nothing(&here), &here).unwrap_err().to_string();
    assert_eq!(error, "word 2 of the command, `caf\u{fffd}`, is not valid UTF-8");
}

#[test]
fn the_workdir_is_the_flags_then_the_files_then_the_current_one() {
    let scene = Scene::new().file("workdir: sub\ncommand: a\n");
    for folder in ["sub", "other", "jobs/sub"] {
        fs::create_dir_all(scene.folder.path().join(folder)).unwrap();
    }
    fs::copy(scene.folder.path().join("job.yaml"), scene.folder.path().join("jobs/job.yaml")).unwrap();
    let workdir = |words: &[&str]| {
        let request = scene.assemble(words).unwrap();
        let path = request.workdir.unwrap().path;
        assert_eq!(request.value["workdir"].as_str(), path.to_str());
        path.strip_prefix(&scene.here.directory).unwrap().to_owned()
    };
    assert_eq!(workdir(&["true"]), Path::new(""));
    assert_eq!(workdir(&["-f", "job.yaml"]), Path::new("sub"));
    assert_eq!(workdir(&["-f", "jobs/job.yaml"]), Path::new("jobs/sub"));
    assert_eq!(workdir(&["-f", "jobs/job.yaml", "--workdir", "other"]), Path::new("other"));
}

#[test]
fn home_is_copied_only_when_it_is_meant() {
    let mut scene = Scene::new();
    let home = scene.here.directory.clone();
    scene.here.environment.insert("HOME".into(), home.into());
    assert!(scene.error(&["true"]).contains("is your home directory"));
    assert!(scene.assemble(&["--workdir", ".", "true"]).is_ok());
    assert!(scene.assemble(&["--in-place", "true"]).is_ok());
    scene.here.directory = "/".into();
    assert!(scene.error(&["true"]).contains("is the root directory"));
}

#[test]
fn a_workdir_that_is_no_directory_is_refused() {
    let scene = Scene::new().file("x");
    assert!(scene.error(&["--workdir", "job.yaml", "true"]).contains("is not a directory"));
}

#[test]
fn flags_go_on_top_of_another_jobs_spec_without_a_look_at_its_directory() {
    let scene = Scene::new();
    let old = json!({"command": ["a"], "workdir": "/gone", "env": {"A": "1", "B.C": "2"}, "timeout": "1h", "nodes": 2,
        "resources": {"gpus": "H100:8", "memory": "16GB", "cpus": 0.5}, "retries": {"max": 2, "backoff": "5s"}});
    let old = JobSpec::from_value(old).unwrap();
    let mut base = Base::of_job(&old, &scene.here).unwrap();
    let same =
        assemble_without_code(&Flags::default(), Base::of_job(&old, &scene.here).unwrap(), &old, &scene.here);
    assert_eq!(same.unwrap().spec, old);
    assert!(base.unset("timeout") && base.unset("env.B.C") && base.unset("resources.cpus"));
    assert!(!base.unset("timeout") && !base.unset("env.Z") && !base.unset("nodes.x"));
    let given = line(&["--gpus", "4", "-e", "A=3", "--", "b"]).flags;
    let spec = assemble_without_code(&given, base, &old, &scene.here).unwrap().spec;
    assert_eq!(
        (spec.env.len(), spec.env["A"].as_str(), spec.timeout, spec.resources.cpus),
        (1, "3", None, None)
    );
    assert_eq!((spec.nodes, spec.resources.device_count(), spec.command.to_string()), (2, 4, "b".into()));
    assert_eq!((spec.workdir.as_deref(), spec.resources.memory), (Some("/gone"), old.resources.memory));
}

/// What is sent about how a job is started, without the command where it is as it was given.
fn launch(scene: &Scene, words: &[&str]) -> Value {
    let mut fields = scene.fields(words);
    let fields = fields.as_object_mut().unwrap();
    fields.retain(|name, _| {
        ["framework", "faces", "command_on", "processes", "peers"].contains(&name.as_str())
    });
    Value::Object(fields.clone())
}

#[test]
fn what_the_code_says_is_filled_in_and_what_the_user_says_is_kept() {
    let scene = Scene::new();
    let write = |name: &str, text: &str| fs::write(scene.folder.path().join(name), text).unwrap();
    write("train.py", "import torch.distributed\n");
    write("run.sh", "deepspeed --num_gpus $DLWS_NUM_GPU_PER_WORKER train.py\n");
    assert_eq!(launch(&scene, &["python", "train.py"]), json!({"framework": "pytorch"}));
    assert_eq!(
        launch(&scene, &["bash", "run.sh"]),
        json!({"framework": "deepspeed", "faces": ["dlws"], "command_on": "first"})
    );
    let words = [
        "--framework",
        "mpi",
        "--faces",
        "none",
        "--command-on",
        "all",
        "--processes",
        "4",
        "bash",
        "run.sh",
    ];
    assert_eq!(
        launch(&scene, &words),
        json!({"framework": "mpi", "faces": "none", "command_on": "all", "processes": "4"})
    );
    assert_eq!(launch(&scene, &["echo", "train.py"]), json!({}));
    write("visit.sh", "ssh worker-1 hostname\n");
    assert_eq!(launch(&scene, &["bash", "visit.sh"]), json!({"peers": true}));
    assert_eq!(launch(&scene, &["--peers", "echo"]), json!({"peers": true}));
    let error = scene.error(&["--framework", "pytorhc", "x"]);
    assert!(error.contains("--framework") && error.contains("pytorch"), "{error}");
}

#[test]
fn a_script_that_starts_one_program_is_the_command_of_every_process() {
    let scene = Scene::new();
    let write = |name: &str, text: &str| fs::write(scene.folder.path().join(name), text).unwrap();
    write("train.py", "import torch.distributed\n");
    write("one.sh", "set -e\npython train.py\n");
    write("two.sh", "pip install x\npython train.py\n");
    write("launch.sh", "torchrun train.py\n");
    let sent = |words: &[&str]| launch(&scene, words)["command_on"].clone();
    assert_eq!(sent(&["--processes", "2", "bash", "one.sh"]), json!("processes"));
    assert_eq!(sent(&["--gpus", "8", "bash", "one.sh"]), json!("processes"));
    // The server sees these for itself.
    assert_eq!(sent(&["--processes", "2", "env", "A=1", "python", "train.py"]), Value::Null);
    assert_eq!(sent(&["--processes", "2", "bash", "-c", "python train.py"]), Value::Null);
    for words in [["bash", "two.sh"], ["bash", "launch.sh"], ["make", "train"]] {
        assert_eq!(sent(&[["--processes", "2"], words].concat()), Value::Null, "{words:?}");
    }
    assert_eq!(sent(&["bash", "one.sh"]), Value::Null, "there is one process anyway");
    assert_eq!(sent(&["--processes", "2", "--command-on", "all", "bash", "one.sh"]), json!("all"));
    assert_eq!(sent(&["--processes", "2", "--framework", "mpi", "bash", "one.sh"]), Value::Null);
    let old = json!({
        "command": ["bash", "one.sh"], "framework": "pytorch", "command_on": "processes", "processes": 2, "faces": [],
    });
    let old = JobSpec::from_value(old).unwrap();
    let clone = |words: &[&str]| {
        let base = Base::of_job(&old, &scene.here).unwrap();
        assemble_without_code(&line(words).flags, base, &old, &scene.here).unwrap().spec.command_on
    };
    assert_eq!(clone(&[]).map(|on| on.word()), Some("processes"));
    assert_eq!(clone(&["bash", "two.sh"]), None);
}

#[test]
fn what_is_not_known_and_what_may_not_fit_is_said() {
    let scene = Scene::new();
    let said = |words: &[&str]| {
        let Request { spec, reasons, .. } = scene.assemble(words).unwrap();
        let framework = spec.framework.unwrap_or(Framework::Plain);
        let launch =
            LaunchView { framework, argv: spec.command.argv(), command_on: CommandOn::All, processes: 1 };
        reasons.lines(&spec, Some(&launch))
    };
    let idle = said(&["--gpus", "8", "make", "train"]);
    let once = "the command starts make: each task runs the command once, and it is not known whether that uses all 8 devices";
    assert!(idle.len() == 1 && idle[0].starts_with(once), "{idle:?}");
    for words in [
        &["--gpus", "8", "./solve"][..],
        &["--gpus", "8", "--framework", "plain", "make", "train"],
        &["make", "train"],
    ] {
        assert_eq!(said(words), [""; 0], "{words:?}");
    }
    let fewer = said(&["--gpus", "2", "torchrun", "--nproc_per_node", "4", "t.py"]);
    assert!(
        fewer[0].starts_with("the command: `--nproc_per_node 4` of torchrun: a task has 2 devices"),
        "{fewer:?}"
    );
    let condition = said(&["-N", "2", "[ -e x ] && torchrun --standalone t.py"]);
    assert!(
        condition[0].starts_with("the command: `--standalone` keeps torchrun to one task"),
        "{condition:?}"
    );
}

#[test]
fn a_program_that_starts_its_processes_itself_runs_once_in_a_task() {
    let scene = Scene::new();
    let text = "import torch.distributed\nimport torch.multiprocessing as mp\nmp.spawn(main, nprocs=8)\n";
    fs::write(scene.folder.path().join("spawn.py"), text).unwrap();
    assert_eq!(
        launch(&scene, &["--gpus", "8", "python", "spawn.py"]),
        json!({"framework": "pytorch", "processes": 1})
    );
    assert_eq!(
        launch(&scene, &["--gpus", "8", "--processes", "2", "python", "spawn.py"]),
        json!({"framework": "pytorch", "processes": "2"})
    );
    assert_eq!(launch(&scene, &["--gpus", "8", "torchrun", "spawn.py"]), json!({"framework": "pytorch"}));
    assert_eq!(launch(&scene, &["python", "spawn.py"]), json!({"framework": "pytorch"}));
}

#[test]
fn two_frameworks_are_a_mistake_only_where_it_matters() {
    let scene = Scene::new();
    fs::write(scene.folder.path().join("both.py"), "import jax\nimport torch\n").unwrap();
    assert_eq!(launch(&scene, &["python", "both.py"]), json!({"framework": "plain"}));
    for words in [["-N", "2", "python", "both.py"], ["--gpus", "2", "python", "both.py"]] {
        let error = scene.error(&words);
        assert!(error.contains("framework: it may be jax (both.py imports jax) or pytorch (both.py imports torch); say which: --framework jax"), "{error}");
    }
    assert_eq!(
        launch(&scene, &["-N", "2", "--framework", "pytorch", "python", "both.py"]),
        json!({"framework": "pytorch"})
    );
}

#[test]
fn a_script_of_the_code_directory_is_read_by_its_interpreter() {
    let scene = Scene::new();
    for name in ["train.py", "run.sh"] {
        fs::write(scene.folder.path().join(name), "").unwrap();
    }
    let command = |words: &[&str]| scene.fields(words)["command"].clone();
    // There is no PATH in the scene.
    assert_eq!(command(&["train.py", "--lr", "1"]), json!(["python3", "train.py", "--lr", "1"]));
    assert_eq!(command(&["run.sh"]), json!(["bash", "run.sh"]));
    assert_eq!(command(&["./train.py"]), json!(["./train.py"]));
    assert_eq!(command(&["missing.py"]), json!(["missing.py"]));
}

#[test]
fn a_clone_with_another_launcher_is_started_by_that() {
    let scene = Scene::new();
    let old = json!({"command": ["deepspeed", "a.py"], "framework": "deepspeed", "command_on": "first", "faces": []});
    let old = JobSpec::from_value(old).unwrap();
    let clone = |words: &[&str]| {
        let base = Base::of_job(&old, &scene.here).unwrap();
        let spec = assemble_without_code(&line(words).flags, base, &old, &scene.here).unwrap().spec;
        (spec.framework.unwrap().word(), spec.command_on.map(|on| on.word()))
    };
    assert_eq!(clone(&[]), ("deepspeed", Some("first")));
    assert_eq!(clone(&["deepspeed", "b.py"]), ("deepspeed", Some("first")));
    assert_eq!(clone(&["torchrun", "b.py"]), ("pytorch", None));
    assert_eq!(clone(&["python", "b.py"]), ("deepspeed", None));
    assert_eq!(clone(&["--framework", "mpi", "torchrun", "b.py"]), ("mpi", None));
}
