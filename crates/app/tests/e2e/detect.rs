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

/// Stands in for PyTorch, whose launcher starts as many processes as its variables say.
const TORCHRUN: &str = "
import os, subprocess, sys
def number(name):
    return int(os.environ['PET_' + name])
count = number('NPROC_PER_NODE')
def worker(local):
    rank = number('NODE_RANK') * count + local
    world = number('NNODES') * count
    return dict(os.environ, RANK=str(rank), LOCAL_RANK=str(local), WORLD_SIZE=str(world))
workers = [subprocess.Popen([sys.executable] + sys.argv[1:], env=worker(local)) for local in range(count)]
sys.exit(max(worker.wait() for worker in workers))
";

#[test]
fn as_many_processes_run_as_are_said_whatever_stands_before_the_program() {
    let home = home();
    home.write("torch/__init__.py", "");
    home.write("torch/distributed/__init__.py", "");
    home.write("torch/distributed/run.py", TORCHRUN);
    home.write(
        "t.py",
        "import os\nimport torch.distributed\n\
         names = ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MUSTER_RANK')\n\
         print('process ' + ' '.join(os.environ[name] for name in names) + '\\n', end='', flush=True)\n",
    );
    home.write("run.sh", "#!/bin/bash\nset -e\nexport A=1\npython3 t.py\n");
    home.write("two.sh", "tar --version > /dev/null\npython3 t.py\n");
    home.write("launch.sh", "tar --version > /dev/null\npython3 -m torch.distributed.run t.py\n");
    home.write("Makefile", "train:\n\t@python3 t.py\n");
    let ranks = |words: &[&str]| {
        let done = home.run(["run", "-N", "2", "--processes", "2"].iter().chain(words));
        assert_eq!(done.code(), 0, "{words:?}: {}", done.err());
        let mut ranks: Vec<String> = done
            .out()
            .lines()
            .filter_map(|line| line.split_once("process ").map(|(_, rank)| rank.to_owned()))
            .collect();
        ranks.sort();
        (ranks, done.err())
    };
    let every = ["0 4 0 0", "1 4 1 0", "2 4 0 1", "3 4 1 1"];
    for words in [
        &["--", "python3", "t.py"][..],
        &["--", "env", "A=1", "python3", "t.py"],
        &["--", "nice", "-n", "1", "python3", "t.py"],
        &["--", "bash", "-c", "python3 t.py"],
        &["cd . && exec python3 t.py"],
        &["--", "bash", "run.sh"],
        &["--", "bash", "launch.sh"],
        &["--command-on", "processes", "--", "bash", "two.sh"],
    ] {
        let (ranks, said) = ranks(words);
        assert_eq!(ranks, every, "{words:?}: {said}");
        assert!(said.contains("2 tasks × 2 processes"), "{words:?}: {said}");
    }
    for (words, why) in [
        (&["--", "bash", "two.sh"][..], "two.sh starts tar and t.py"),
        (&["--framework", "pytorch", "--", "make", "-s", "train"], "the command starts make"),
    ] {
        let (ranks, said) = ranks(words);
        assert_eq!(ranks, ["0 2 0 0", "1 2 0 1"], "{words:?}: {said}");
        assert!(said.contains("2 tasks × 1 process\n"), "{words:?}: {said}");
        let note = format!(
            "{why}: each task runs the command once, not 2 times; put `python -m torch.distributed.run`"
        );
        assert!(said.contains(&note) && said.contains("--command-on processes"), "{words:?}: {said}");
        assert!(home.ok(["show", "last"]).contains("1 in each task, and those that the command starts\n"));
    }
}

#[test]
fn a_command_that_may_leave_devices_idle_is_said_to() {
    let home = home_with("[local]\ndevices = [\"H100:8\"]\n");
    home.write("t.py", "import torch.distributed\n");
    home.write("run.sh", "set -e\nexec \"$@\"\n");
    let said = |words: &[&str]| {
        let done = home.run(["run", "--dry-run", "--gpus", "8", "--"].iter().chain(words));
        assert_eq!(done.code(), 0, "{words:?}: {}", done.err());
        done.err()
    };
    let once = ": each task runs the command once, and it is not known whether that uses all 8 devices; with \
                --framework pytorch, `torchrun train.py` there starts 8 processes";
    for (words, why) in [
        (&["make", "train"][..], "the command starts make"),
        (&["bash", "run.sh", "make", "train"], "run.sh starts make"),
        (&["bash", "-c", "$LAUNCH t"], "the command starts what a variable names"),
    ] {
        assert!(said(words).contains(&format!("{why}{once}")), "{words:?}: {}", said(words));
    }
    let launched = said(&["bash", "run.sh", "torchrun", "--nproc_per_node=4", "t.py"]);
    assert!(
        launched.contains("pytorch (run.sh starts torchrun): ") && launched.contains("1 task × 4 processes"),
        "{launched}"
    );
    let program = said(&["bash", "run.sh", "python", "t.py"]);
    assert!(program.contains("1 task × 8 processes\n"), "{program}");
    for words in [&["./solve"][..], &["nvidia-smi"]] {
        assert!(!said(words).contains("runs the command once"), "{words:?}: {}", said(words));
    }
}

#[test]
fn a_launchers_flags_are_compared_with_the_job_before_it_waits_for_ever() {
    let home = home_with("[local]\ndevices = [\"H100:2\"]\n");
    home.write("launch.sh", "torchrun --standalone t.py\n");
    for (words, expected) in [
        (vec!["--", "torchrun", "--standalone", "t.py"], "`--standalone` keeps torchrun to one task"),
        (vec!["cd . && torchrun --nnodes=4 t.py"], "`--nnodes 4` of torchrun: the job has 2 tasks"),
        (vec!["--", "torchrun", "--node_rank=0", "t.py"], "every task would be number 0"),
    ] {
        let done = home.run(["run", "-N", "2"].iter().chain(&words));
        assert_eq!(done.code(), 2, "{words:?}: {}", done.err());
        assert!(done.err().starts_with("error[invalid_value]: command: "), "{}", done.err());
        assert!(done.err().contains(expected), "{words:?}: {}", done.err());
    }
    // In a script it may stand behind a condition; and several processes may share a device.
    for (words, expected) in [
        (vec!["--", "bash", "launch.sh"], Some("launch.sh: `--standalone` keeps torchrun to one task")),
        (
            vec!["[ $RANK = 1 ] || torchrun --standalone t.py"],
            Some("the command: `--standalone` keeps torchrun to one task"),
        ),
        (
            vec!["--gpus", "1", "--", "torchrun", "--nproc_per_node=8", "t.py"],
            Some("the command: `--nproc_per_node 8` of torchrun: a task has 1 device; leave it out"),
        ),
        (vec!["--command-on", "first", "--", "torchrun", "--standalone", "t.py"], None),
    ] {
        let done = home.run(["run", "-N", "2", "--dry-run"].iter().chain(&words));
        assert_eq!(done.code(), 0, "{words:?}: {}", done.err());
        match expected {
            Some(expected) => assert!(done.err().contains(expected), "{words:?}: {}", done.err()),
            None => assert!(!done.err().contains("leave it out"), "{words:?}: {}", done.err()),
        }
    }
}

#[test]
fn processes_are_counted_as_a_launcher_or_the_program_starts_them() {
    let home = home_with("[local]\ndevices = [\"H100:4\"]\n");
    let spawn = "import torch.distributed\nimport torch.multiprocessing as mp\nmp.spawn(main, nprocs=2)\n";
    home.write("spawn.py", spawn);
    home.write("launch.sh", "torchrun --nproc_per_node=1 t.py\n");
    for (words, expected) in [
        (vec!["--gpus", "2", "--", "python", "spawn.py"], "python spawn.py, 2 tasks × 1 process\n"),
        (
            vec!["--gpus", "2", "--", "python", "spawn.py"],
            "spawn.py calls mp.spawn, which starts the processes of a task: each task runs the command once",
        ),
        (vec!["--gpus", "2", "--", "bash", "launch.sh"], "bash launch.sh, 2 tasks × 1 process\n"),
        (vec!["--gpus", "2", "--", "torchrun", "--nproc_per_node", "1", "t.py"], "2 tasks × 1 process\n"),
        (vec!["--gpus", "2", "--", "accelerate", "launch", "t.py"], "2 tasks × 2 processes\n"),
        (vec!["--processes", "2", "--", "accelerate-launch", "t.py"], "2 tasks × 1 process\n"),
    ] {
        let done = home.run(["run", "--dry-run", "-N", "2"].iter().chain(&words));
        assert_eq!(done.code(), 0, "{words:?}: {}", done.err());
        assert!(done.err().contains(expected), "{words:?}: {}", done.err());
    }
}

/// Stands in for accelerate, which takes its gang by flags alone.
const ACCELERATE: &str = "
import argparse
names = ('num_machines', 'machine_rank', 'main_process_ip', 'num_processes')
parser = argparse.ArgumentParser()
for name in names:
    parser.add_argument('--' + name, '--' + name.replace('_', '-'))
parser.add_argument('--main_process_port')
parser.add_argument('rest', nargs=argparse.REMAINDER)
args = parser.parse_args()
print('told ' + ' '.join([name + '=' + str(getattr(args, name)) for name in names] + args.rest), flush=True)
";

#[test]
fn accelerate_finds_its_gang_in_words_lines_and_scripts() {
    let home = home();
    home.write("accelerate/__init__.py", "");
    home.write("accelerate/commands/__init__.py", "");
    home.write("accelerate/commands/launch.py", ACCELERATE);
    home.write(
        "run.sh",
        "tar --version > /dev/null\npython3 -m accelerate.commands.launch --num-processes=2 t.py --a\n",
    );
    home.write("t.py", "import accelerate\n");
    for words in [
        &["--", "python3", "-m", "accelerate.commands.launch", "--num-processes=2", "t.py", "--a"][..],
        &["cd . && python3 -m accelerate.commands.launch --num-processes=2 t.py --a"],
        &["--", "bash", "run.sh"],
    ] {
        let done = home.run(["run", "-N", "2"].iter().chain(words));
        assert_eq!(done.code(), 0, "{words:?}: {}", done.err());
        for rank in 0..2 {
            let told = format!("task{rank} | told num_machines=2 machine_rank={rank} main_process_ip=127.");
            let out = done.out();
            let line = out
                .lines()
                .find(|line| line.starts_with(&told))
                .unwrap_or_else(|| panic!("{words:?}: {out}"));
            assert!(line.ends_with(" num_processes=2 t.py --a"), "what the user gave stays: {out}");
        }
    }
}

#[test]
fn a_script_for_deepspeeds_launcher_is_given_its_argument() {
    let home = home();
    home.write("deepspeed/__init__.py", "");
    let parse = "import argparse\nimport deepspeed\nparser = argparse.ArgumentParser()\n";
    let print = "print('told', parser.parse_args(), flush=True)\n";
    home.write(
        "with.py",
        format!("{parse}parser.add_argument('--local_rank', type=int, default=-1)\n{print}"),
    );
    home.write("without.py", format!("{parse}{print}"));
    let told = |words: &[&str]| {
        let done = home.run(["run", "--processes", "2", "--"].iter().chain(words));
        assert_eq!(done.code(), 0, "{words:?}: {}", done.err());
        let without_rank = |line: &str| line.split_once(" | ").expect("a rank").1.to_owned();
        let mut told: Vec<String> = done.out().lines().map(without_rank).collect();
        told.sort();
        told
    };
    assert_eq!(
        told(&["python3", "with.py"]),
        ["told Namespace(local_rank=0)", "told Namespace(local_rank=1)"]
    );
    assert_eq!(told(&["python3", "with.py", "--local_rank=7"]), ["told Namespace(local_rank=7)"; 2]);
    assert_eq!(told(&["python3", "without.py"]), ["told Namespace()"; 2]);
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
