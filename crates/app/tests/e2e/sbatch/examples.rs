//! The scripts of `examples/slurm`, as they are.

use std::path::{Path, PathBuf};

use muster_testkit::{DEADLINE, Finished, Home, Running};

use super::{said, sorted};
use crate::frameworks::{alone, environment};
use crate::home;

fn run(home: &Home, script: &str, venv: Option<&str>) -> Finished {
    let examples = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../examples/slurm");
    for entry in std::fs::read_dir(examples).expect("the examples").flatten() {
        std::fs::copy(entry.path(), home.work().join(entry.file_name())).expect("a file of the example");
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    let front: Vec<PathBuf> = venv.map(|venv| environment(venv).join("bin")).into_iter().collect();
    let folders = front.into_iter().chain(std::env::split_paths(&path));
    let mut command = home.command(["run", script]);
    command.env("PATH", std::env::join_paths(folders).expect("a PATH")).env("PYTHONPATH", "");
    let done = Running::start(command).finish_within(4 * DEADLINE);
    assert_eq!(done.code(), 0, "{script}: {}{}", done.out(), done.err());
    done
}

#[test]
fn plain_scripts_run() {
    let home = home();
    let lines = said(&run(&home, "hostname.sbatch", None));
    assert!(lines[0].contains(" on worker-[0-1]: 4 tasks, 2(x2) on each node"), "{lines:?}");
    assert_eq!(sorted(lines[1..].to_vec())[3], "3: task 3 of 4 is number 1 on node 1, worker-1");
    let lines = sorted(said(&run(&home, "sweep.sbatch", None)));
    let rates: Vec<&str> = lines.iter().filter_map(|line| line.split(' ').nth(1)).collect();
    assert_eq!(rates, ["0.1", "0.2", "0.4", "0.8"]);
    let lines = said(&run(&home, "checkpoint.sbatch", None));
    assert!(lines.last().is_some_and(|line| line.ends_with("because of USR1")), "{lines:?}");
}

/// Every rank ends, and with the same parameters.
fn agree(lines: &[String], world: usize) {
    // Two processes of one torchrun may write at the same moment.
    let text = lines.join("\n");
    let ends: Vec<&str> = text.split(" parameters ").skip(1).map(|rest| &rest[..8]).collect();
    assert_eq!(ends.len(), world, "{text}");
    assert!(ends.iter().all(|end| *end == ends[0]), "{text}");
}

#[test]
fn pytorch_finds_its_ranks_and_its_master() {
    let _alone = alone();
    let home = home();
    agree(&said(&run(&home, "torchrun.sbatch", Some("pytorch"))), 4);
    agree(&said(&run(&home, "ddp.sbatch", Some("pytorch"))), 4);
}

#[test]
fn jax_finds_slurm() {
    let _alone = alone();
    let lines = sorted(said(&run(&home(), "jax.sbatch", Some("jax"))));
    let told: Vec<&String> = lines.iter().filter(|line| line.contains("add up")).collect();
    assert_eq!(
        told,
        ["0: process 0 of 2: the ranks add up to 1", "1: process 1 of 2: the ranks add up to 1"]
    );
}

#[test]
fn mpirun_finds_the_nodes() {
    let _alone = alone();
    let lines = said(&run(&home(), "mpi.sbatch", Some("mpi4py")));
    assert_eq!(lines, ["4 ranks on 4 places: pi is about 3.142"]);
}
