//! Which framework a job is started with: found from its command and its code, said, and overridden.

use serde_json::json;

use crate::{home, home_with};

#[test]
fn the_framework_and_the_command_that_runs_are_said_before_anything_runs() {
    let home = home_with("[local]\ndevices = [\"H100:4\"]\n");
    home.write("train.py", "from model import net\n");
    home.write("model.py", "import torch.distributed as dist\n");
    home.write("run.sh", "mpirun -n 4 python train.py\n");
    home.write("old.sh", "echo $DLWS_ROLE_NAME\n");
    for (words, expected) in [
        (
            vec!["-N", "2", "--gpus", "2", "--", "python", "train.py"],
            "pytorch (model.py imports torch.distributed): python -m torch.distributed.run train.py, 2 tasks × 2 processes\n",
        ),
        (
            vec!["-N", "2", "bash", "run.sh"],
            "mpi (run.sh starts mpirun): bash run.sh on task0, 2 tasks × 1 process\n",
        ),
        (vec!["bash", "old.sh"], "dlws (old.sh uses DLWS_ROLE_NAME): its variables and files are there\n"),
        (vec!["--framework", "jax", "--", "true"], "jax: true, 1 task × 1 process\n"),
    ] {
        let done = home.run(["run", "--dry-run"].into_iter().chain(words.iter().copied()));
        assert_eq!(done.code(), 0, "{}", done.err());
        assert!(done.err().contains(expected), "{words:?}: {}", done.err());
    }
    let done = home.run(["run", "--dry-run", "--", "true"]);
    assert_eq!(done.err().lines().filter(|line| line.contains("plain") || line.contains('×')).count(), 0);
}

#[test]
fn two_frameworks_are_refused_by_name_where_it_matters() {
    let home = home();
    home.write("both.py", "import jax\nimport torch\n");
    let done = home.run(["run", "-N", "2", "--", "python3", "both.py"]);
    assert_eq!(done.code(), 2);
    assert!(
        done.err().starts_with(
            "error[several_found]: framework: it may be jax (both.py imports jax) or pytorch (both.py imports torch); \
             say which: --framework jax\n"
        ),
        "{}",
        done.err()
    );
    home.write("both.py", "if 0:\n    import jax\n    import torch\nprint('ran')\n");
    let done = home.run(["run", "--", "python3", "both.py"]);
    assert_eq!((done.code(), done.out().as_str()), (0, "ran\n"), "{}", done.err());
    assert!(done.err().contains("plain: it may be jax (both.py imports jax) or pytorch"), "{}", done.err());
}

#[test]
fn a_script_alone_and_a_json_file_are_what_they_look_like() {
    let home = home();
    home.write("train.py", "import sys\nprint('trained', sys.argv[1:])\n");
    let done = home.run(["run", "train.py", "--lr", "1"]);
    assert_eq!((done.code(), done.out().as_str()), (0, "trained ['--lr', '1']\n"), "{}", done.err());
    home.write("job.json", r#"{"command": ["echo", "from json"], "framework": "pytorch"}"#);
    let done = home.run(["run", "job.json", "-N", "1"]);
    assert_eq!((done.code(), done.out().as_str()), (0, "from json\n"), "{}", done.err());
    assert!(done.err().contains("pytorch: echo 'from json', 1 task × 1 process\n"), "{}", done.err());
}

#[test]
fn show_json_and_clone_know_how_a_job_is_started() {
    let home = home();
    home.write("job.yaml", "command: [echo, hello]\nframework: jax\nprocesses: 1\n");
    let id = home.ok(["run", "-d", "job.yaml"]).trim().to_owned();
    let job = home.wait_for_state(&id, "succeeded");
    assert_eq!(job["launch"]["framework"], json!("jax"));
    assert_eq!(job["launch"]["argv"], json!(["echo", "hello"]));
    let shown = home.ok(["show", id.as_str()]);
    assert!(shown.contains("framework:  jax\n") && shown.contains("processes:  1 in each task\n"), "{shown}");
    let words =
        ["clone", id.as_str(), "--dry-run", "--framework", "plain", "--processes", "2", "--faces", "dlc"];
    let changes = home.ok(words);
    for change in ["framework: jax -> plain", "processes: 1 -> 2", "faces:     none -> dlc"] {
        assert!(changes.contains(change), "{changes}");
    }
    let preview = home.json(["run", "--dry-run", "--json", "--", "torchrun", "x.py"]);
    assert_eq!(preview["found"], json!([{"what": "pytorch", "why": "the command starts torchrun"}]));
    assert_eq!(preview["launch"]["argv"], json!(["torchrun", "x.py"]));
}
