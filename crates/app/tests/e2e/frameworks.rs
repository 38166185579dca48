//! The examples: every framework trains on two tasks without being told how, and all ranks end with the same parameters.
//! So do scripts that were written for other platforms, as they were published.
//!
//! Their Python environments are large, so they are made once: `scripts/test.sh` does it and says where they are.

mod table;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

use muster_testkit::{DEADLINE, Finished, Home, Running, Slurm};

use crate::home;
use crate::slurm::Site;

/// Each of them keeps a small machine busy by itself: two at once only wait for each other.
pub(crate) fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The Python environment of an example.
pub(crate) fn environment(example: &str) -> PathBuf {
    let variable = format!("MUSTER_EXAMPLE_{}", example.to_uppercase());
    let folder = std::env::var_os(&variable).map(PathBuf::from);
    let folder = folder.filter(|folder| folder.join("bin/python").exists());
    folder.unwrap_or_else(|| {
        panic!(
            "{variable} names no Python environment; make those of the examples with `eval \"$(scripts/examples.sh)\"`"
        )
    })
}

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).expect("a directory of the example");
    for entry in std::fs::read_dir(from).expect("an example") {
        let path = entry.expect("an entry").path();
        let target = to.join(path.file_name().expect("a name"));
        if path.is_dir() {
            copy(&path, &target);
        } else {
            std::fs::copy(&path, &target).expect("a file of the example");
        }
    }
}

/// Runs the job file of an example on this machine, with these folders in front of PATH.
fn run(home: &Home, example: &str, in_front: &[PathBuf], variables: &[(&str, PathBuf)]) -> Finished {
    run_on("local", home, example, in_front, variables)
}

fn run_on(
    place: &str,
    home: &Home,
    example: &str,
    in_front: &[PathBuf],
    variables: &[(&str, PathBuf)],
) -> Finished {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples");
    copy(&examples.join(example), &home.work());
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = in_front.iter().cloned().chain(std::env::split_paths(&path));
    let mut command = home.command(["run", "-f", "job.yaml", "--on", place, "--env", "PATH"]);
    command.env("PATH", std::env::join_paths(folders).expect("a PATH"));
    // What the shell of whoever runs the tests has would be taken for the user's wish.
    command.env("PYTHONPATH", OsString::new());
    for (name, value) in variables {
        command.env(name, value);
    }
    let finished = Running::start(command).finish_within(4 * DEADLINE);
    assert_eq!(finished.code(), 0, "{}\n{}", finished.out(), finished.err());
    finished
}

/// What follows `start` in every line that has it.
fn lines_with<'a>(text: &'a str, start: &'a str) -> impl Iterator<Item = &'a str> {
    text.lines().filter_map(move |line| line.split_once(start).map(|(_, rest)| rest))
}

/// Runs an example, whose loss must fall and whose ranks must agree.
fn trains(example: &str) {
    let _alone = alone();
    check_training(&run(&home(), example, &[environment(example).join("bin")], &[]).out());
}

/// The same on Slurm, as an ordinary account, on nodes that see the example's environment and its interpreter.
fn trains_on_slurm(example: &str) {
    let _alone = alone();
    let environment = environment(example);
    let python = environment.join("bin/python").canonicalize().expect("an interpreter");
    let prefix = python.ancestors().nth(2).expect("it is in a bin").to_owned();
    let site = Site::on(Slurm::start_showing(&[environment.clone(), prefix], &[]));
    check_training(&run_on("slurm/main", &site.home, example, &[environment.join("bin")], &[]).out());
}

/// That the loss falls and that the ranks agree.
fn check_training(output: &str) {
    let losses: Vec<f64> = lines_with(output, "epoch ")
        .map(|line| line.rsplit(' ').next().and_then(|loss| loss.parse().ok()).expect("a loss"))
        .collect();
    assert_eq!(losses.len(), 5, "five epochs, told by one rank: {output}");
    assert!(losses[4] < losses[0] / 2.0, "the loss falls: {losses:?}");
    let ends: BTreeMap<&str, &str> = lines_with(output, "rank ")
        .filter_map(|line| line.split_once(" of 2: final loss "))
        .map(|(rank, rest)| (rank, rest.rsplit(' ').next().expect("a checksum")))
        .collect();
    assert_eq!(ends.keys().copied().collect::<Vec<_>>(), ["0", "1"], "every rank ends: {output}");
    assert_eq!(ends["0"], ends["1"], "the ranks agree: {output}");
    assert_eq!(ends["0"].len(), 8, "a checksum: {output}");
}

#[test]
fn pytorch_trains_on_two_tasks() {
    trains("pytorch");
}

#[test]
fn jax_trains_on_two_tasks() {
    trains("jax");
}

#[test]
fn tensorflow_trains_on_two_tasks() {
    trains("tensorflow");
}

#[test]
fn paddle_trains_on_two_tasks() {
    trains("paddle");
}

#[test]
fn mindspore_trains_on_two_tasks() {
    trains("mindspore");
}

#[test]
fn mpirun_trains_on_two_tasks() {
    trains("mpi4py");
}

#[test]
fn pytorch_trains_on_slurm() {
    trains_on_slurm("pytorch");
}

#[test]
fn jax_trains_on_slurm() {
    trains_on_slurm("jax");
}

#[test]
fn mpirun_trains_on_slurm() {
    trains_on_slurm("mpi4py");
}

/// Every file below a directory with this name.
fn find(folder: &Path, name: &str) -> Vec<PathBuf> {
    let entries = std::fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .flat_map(|entry| match entry.file_type() {
            Ok(kind) if kind.is_dir() => find(&entry.path(), name),
            _ if entry.file_name() == name => vec![entry.path()],
            _ => Vec::new(),
        })
        .collect()
}

#[test]
fn a_script_for_modelarts_trains_as_it_was_published() {
    let _alone = alone();
    let home = home();
    // The script is for Paddle 2.0 with GPUs; what it uses of that is stood in for.
    let stand_in = home.work().join("stand-in");
    let output = run(
        &home,
        "compat/modelarts-paddle",
        &[environment("paddle").join("bin")],
        &[("PYTHONPATH", stand_in), ("OMP_NUM_THREADS", "1".into())],
    );
    let steps = lines_with(&output.out(), "step99 cost=").count();
    assert_eq!(steps, 2, "both ranks make all steps: {}\n{}", output.out(), output.err());
    let saved = |rank: u32| -> Vec<u8> {
        let found = find(&home.path(), &format!("layers.1.weight.{rank}"));
        let [path] = found.as_slice() else { panic!("rank {rank} saves its parameters once: {found:?}") };
        std::fs::read(path).expect("parameters")
    };
    assert_eq!(saved(0).len(), 1280 * 1280 * 4);
    assert!(saved(0) == saved(1), "the ranks agree");
}

#[test]
fn a_script_for_apulis_gives_every_process_its_rank_in_the_table() {
    let _alone = alone();
    let home = home();
    let recording = home.work().join("recording");
    let output = run(&home, "compat/apulis-mindspore", &[recording], &[]).out();
    let told: Vec<BTreeMap<&str, &str>> = lines_with(&output, "recorded ")
        .map(|line| line.split(' ').filter_map(|word| word.split_once('=')).collect())
        .collect();
    assert_eq!(told.len(), 16, "eight processes on each of two tasks: {output}");
    let number = |process: &BTreeMap<&str, &str>, name: &str| -> u32 {
        process[name].parse().unwrap_or_else(|_| panic!("{name} in {process:?}"))
    };
    let ranks: BTreeSet<u32> = told.iter().map(|process| number(process, "RANK_ID")).collect();
    assert_eq!(ranks, (0..16).collect(), "the table's ranks, each once");
    for process in &told {
        assert_eq!(number(process, "DEVICE_ID"), number(process, "RANK_ID") % 8);
        assert_eq!(process["RANK_SIZE"], "16");
        assert!(process["MINDSPORE_HCCL_CONFIG_PATH"].ends_with("/hccl.json"), "{process:?}");
    }
}

/// Runs a job with these words and these folders in front of PATH.
fn run_words(home: &Home, in_front: &Path, words: &[&str]) -> Finished {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let folders = std::iter::once(in_front.to_owned()).chain(std::env::split_paths(&path));
    let tasks: &[&str] = if words.contains(&"-N") { &["run"] } else { &["run", "-N", "2"] };
    let mut command = home.command(tasks.iter().chain(words));
    command.env("PATH", std::env::join_paths(folders).expect("a PATH")).env("PYTHONPATH", OsString::new());
    let finished = Running::start(command).finish_within(4 * DEADLINE);
    assert_eq!(finished.code(), 0, "{}\n{}", finished.out(), finished.err());
    finished
}

/// Writes each line in two halves, each of which reaches the pipe by itself.
const IN_HALVES: &str = r#"
import os, sys
rank = os.environ.get("OMPI_COMM_WORLD_RANK", os.environ.get("LOCAL_RANK"))
for line in range(3000):
    sys.stdout.write("rank %s " % rank)
    sys.stdout.write("line %d\n" % line)
"#;

fn check_whole_lines(output: &str) {
    for rank in 0..4 {
        let start = format!("rank {rank} line ");
        let lines: Vec<&str> = lines_with(output, &start).collect();
        let expected: Vec<String> = (0..3000).map(|line| line.to_string()).collect();
        assert!(lines == expected, "rank {rank}: {} lines", lines.len());
    }
    assert_eq!(output.lines().count(), 12_000);
}

#[test]
fn lines_of_processes_that_a_launcher_starts_stay_whole() {
    let _alone = alone();
    let home = home();
    home.write("train.py", IN_HALVES);
    let bin = environment("pytorch").join("bin");
    let one = ["-N", "1", "--processes", "4", "--"];
    for (tasks, command) in [
        (&one[..], &["torchrun", "train.py"][..]),
        (&one, &["mpirun", "python3", "train.py"]),
        (&["-N", "2", "--processes", "2", "--"], &["mpirun", "python3", "train.py"]),
    ] {
        let words: Vec<&str> = tasks.iter().chain(command).copied().collect();
        println!("{words:?}");
        let shown = run_words(&home, &bin, &words).out();
        check_whole_lines(&shown);
        for rank in 0..4 {
            let labelled = format!("rank{rank} | rank {rank} line ");
            assert_eq!(shown.lines().filter(|line| line.starts_with(&labelled)).count(), 3000, "{rank}");
        }
        let third: String = (0..3000).map(|line| format!("rank 3 line {line}\n")).collect();
        assert!(home.ok(["logs", "last", "--rank", "3"]) == third, "what rank 3 wrote, and nothing else");
        let last = home.ok(["logs", "last", "--rank", "1", "--tail", "2"]);
        assert_eq!(last, "rank 1 line 2998\nrank 1 line 2999\n");
        assert_eq!(home.ok(["logs", "last", "--rank", "0", "--grep", "line 7$"]), "rank 0 line 7\n");
        let refused = home.run(["logs", "last", "--rank", "4"]);
        assert_eq!(refused.code(), 2, "{}", refused.err());
    }
    // What is redirected stays redirected.
    for line in ["torchrun train.py >all; wc -l <all", "mpirun python3 train.py | wc -l"] {
        let words: Vec<&str> = one.iter().copied().chain(["sh", "-c", line]).collect();
        assert_eq!(run_words(&home, &bin, &words).out().trim(), "12000", "{line}");
    }
}

#[test]
fn deepspeeds_launcher_starts_every_rank_by_pdsh() {
    let _alone = alone();
    let home = home();
    home.write(
        "train.py",
        "import os\nprint(*(os.environ[name] for name in ('RANK', 'WORLD_SIZE', 'LOCAL_RANK', 'MUSTER_RANK')), flush=True)\n",
    );
    let words = ["--processes", "1", "--", "deepspeed", "--launcher", "pdsh", "train.py"];
    let output = run_words(&home, &environment("launchers").join("bin"), &words).out();
    for rank in 0..2 {
        assert!(output.contains(&format!("worker-{rank}: {rank} 2 0 {rank}\n")), "{output}");
    }
}

/// The line of the platform's own example, but for the program, the count of processes and the network; and it ends.
const HOROVOD: &str = "cd ~ && mkdir -p ~/checkpoints && horovodrun -np 2 -hostfile /home/${DLWS_USER_NAME}/ib_config \
                       -p $DLWS_SD_worker0_SSH_PORT --network-interface lo python $SHARED/train.py ~/checkpoints/ \
                       ~/tensorboard/${DLWS_JOB_ID}/logs/";

/// Only where Horovod is, which is compiled on request: `MUSTER_WITH_HOROVOD=1 scripts/test.sh`.
#[test]
fn horovod_reduces_over_two_tasks_by_the_line_of_apulis() {
    if std::env::var_os("MUSTER_EXAMPLE_HOROVOD").is_none() {
        return println!("not run: MUSTER_EXAMPLE_HOROVOD is not set; see CONTRIBUTING.md");
    }
    let _alone = alone();
    let home = home();
    // horovodrun gives every process the variables of its own task; the files around it are those of the task it is in.
    let program = "import re, sys, torch, horovod.torch as hvd\n\
                   hvd.init()\n\
                   task = re.search(r'DLWS_ROLE_IDX=\\W*(\\d+)', open('/pod.env').read())[1]\n\
                   whole = hvd.allreduce(torch.tensor([float(10 ** hvd.rank())]), op=hvd.Sum)\n\
                   print('rank', hvd.rank(), 'of', hvd.size(), 'in task', task, 'has', whole.item(), len(sys.argv), flush=True)\n";
    std::fs::write(home.shared().join("train.py"), program).expect("the program");
    std::fs::create_dir(home.shared().join("home")).expect("a home");
    let own_home = format!("HOME={}", home.shared().join("home").display());
    for words in [&[HOROVOD][..], &["sh", "-c", HOROVOD]] {
        let mut all = vec!["--env", &own_home, "--"];
        all.extend(words);
        let output = run_words(&home, &environment("horovod").join("bin"), &all).out();
        for rank in 0..2 {
            assert!(output.contains(&format!("rank {rank} of 2 in task {rank} has 11.0 3")), "{output}");
        }
    }
}
