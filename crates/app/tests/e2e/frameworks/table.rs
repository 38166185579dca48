//! Every launcher, started in every way: real frameworks on two tasks, and the table of the guide that says what came of it.
//!
//! The whole table takes ten minutes or more, so it runs only with `make test-full ONLY=frameworks`, which also writes it
//! into the guide. Every run compares the guide's table with the launchers and ways listed here.

use std::collections::BTreeSet;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::path::{Path, PathBuf};

use muster_testkit::{DEADLINE, Finished, Home, Running};

use super::{alone, environment, lines_with};
use crate::home;

const GUIDE: &str = "../../docs/guides/frameworks.md";
const BEGIN: &str = "<!-- table of launchers: begin -->\n";
const END: &str = "<!-- table of launchers: end -->\n";

/// Processes of each task that jobs ask for.
const PROCESSES: usize = 2;
const TASKS: usize = 2;

/// A command that starts a program of a framework.
struct LauncherCase {
    /// What people type, as the table shows it.
    command: &'static str,
    /// What is said in front of a command that cannot be looked into.
    behind_make: &'static [&'static str],
    /// The Python environments whose programs come first on PATH.
    environments: &'static [&'static str],
    file: &'static str,
    program: &'static str,
    /// Processes of each task: one where the launcher has a process for each device, and there is none.
    processes: usize,
}

const PYTORCH: &str = r#"
import torch, torch.distributed as dist
dist.init_process_group("gloo")
count = torch.ones(1)
dist.all_reduce(count)
print(f"rank {dist.get_rank()} of {int(count)}\n", end="", flush=True)
dist.destroy_process_group()
"#;

const ACCELERATE: &str = r#"
import torch
from accelerate import Accelerator
accelerator = Accelerator(cpu=True)
count = accelerator.reduce(torch.ones(1))
print(f"rank {accelerator.process_index} of {int(count)}\n", end="", flush=True)
accelerator.end_training()
"#;

const MPI: &str = r#"
from mpi4py import MPI
world = MPI.COMM_WORLD
print(f"rank {world.Get_rank()} of {world.allreduce(1)}\n", end="", flush=True)
"#;

const JAX: &str = r#"
import jax
jax.distributed.initialize()
import jax.numpy as jnp
from jax.experimental import multihost_utils
count = multihost_utils.process_allgather(jnp.ones(())).sum()
print(f"rank {jax.process_index()} of {int(count)}\n", end="", flush=True)
"#;

const TENSORFLOW: &str = r#"
import tensorflow as tf
strategy = tf.distribute.MultiWorkerMirroredStrategy()
one = strategy.run(lambda: tf.distribute.get_replica_context().all_reduce("SUM", tf.ones(())))
rank = strategy.cluster_resolver.task_id
print(f"rank {rank} of {int(one)}\n", end="", flush=True)
"#;

const PADDLE: &str = r#"
import paddle
import paddle.distributed as dist
paddle.set_device("cpu")
dist.init_parallel_env()
count = paddle.to_tensor(1.0)
dist.all_reduce(count)
print(f"rank {dist.get_rank()} of {int(count)}\n", end="", flush=True)
"#;

const MINDSPORE: &str = r#"
import mindspore as ms
from mindspore import communication, ops
ms.set_context(mode=ms.PYNATIVE_MODE)
ms.set_device("CPU")
communication.init()
count = ops.AllReduce()(ms.Tensor([1.0], ms.float32))
print(f"rank {communication.get_rank()} of {int(count.asnumpy()[0])}\n", end="", flush=True)
"#;

const LAUNCHERS: &[LauncherCase] = &[
    LauncherCase {
        command: "python pytorch.py",
        behind_make: &["--framework", "pytorch", "--command-on", "processes"],
        environments: &["pytorch"],
        file: "pytorch.py",
        program: PYTORCH,
        processes: PROCESSES,
    },
    LauncherCase {
        command: "torchrun pytorch.py",
        behind_make: &["--framework", "pytorch"],
        environments: &["pytorch"],
        file: "pytorch.py",
        program: PYTORCH,
        processes: PROCESSES,
    },
    LauncherCase {
        command: "accelerate launch --cpu accelerated.py",
        behind_make: &["--framework", "pytorch"],
        environments: &["launchers"],
        file: "accelerated.py",
        program: ACCELERATE,
        processes: 1,
    },
    LauncherCase {
        command: "deepspeed --launcher pdsh pytorch.py",
        behind_make: &["--framework", "deepspeed", "--command-on", "first"],
        environments: &["launchers"],
        file: "pytorch.py",
        program: PYTORCH,
        processes: 1,
    },
    LauncherCase {
        command: "mpirun python mpi.py",
        behind_make: &["--framework", "mpi"],
        environments: &["mpi4py"],
        file: "mpi.py",
        program: MPI,
        processes: PROCESSES,
    },
    LauncherCase {
        command: "python mpi.py",
        behind_make: &["--framework", "mpi"],
        environments: &["mpi4py"],
        file: "mpi.py",
        program: MPI,
        processes: PROCESSES,
    },
    LauncherCase {
        command: "python with_jax.py",
        behind_make: &["--framework", "jax", "--command-on", "processes"],
        environments: &["jax"],
        file: "with_jax.py",
        program: JAX,
        processes: PROCESSES,
    },
    LauncherCase {
        command: "python with_tensorflow.py",
        behind_make: &["--framework", "tensorflow", "--command-on", "processes"],
        environments: &["tensorflow"],
        file: "with_tensorflow.py",
        program: TENSORFLOW,
        processes: PROCESSES,
    },
    LauncherCase {
        command: "python with_paddle.py",
        behind_make: &["--framework", "paddle", "--command-on", "processes"],
        environments: &["paddle"],
        file: "with_paddle.py",
        program: PADDLE,
        processes: PROCESSES,
    },
    LauncherCase {
        command: "python -m paddle.distributed.launch with_paddle.py",
        behind_make: &["--framework", "paddle"],
        environments: &["paddle"],
        file: "with_paddle.py",
        program: PADDLE,
        processes: 1,
    },
    LauncherCase {
        command: "python with_mindspore.py",
        behind_make: &["--framework", "mindspore", "--command-on", "processes"],
        environments: &["mindspore"],
        file: "with_mindspore.py",
        program: MINDSPORE,
        processes: PROCESSES,
    },
    LauncherCase {
        command: "msrun with_mindspore.py",
        behind_make: &["--framework", "mindspore"],
        environments: &["mindspore"],
        file: "with_mindspore.py",
        program: MINDSPORE,
        processes: PROCESSES,
    },
];

/// A way in which people start a command.
struct StartWay {
    /// The column of the table.
    name: &'static str,
    /// Makes the words of `muster run`, and the files that they name.
    words: fn(&Home, &LauncherCase) -> Vec<String>,
}

const WAYS: &[StartWay] = &[
    StartWay { name: "as it is", words: |_, case| words("", case.command) },
    StartWay { name: "`env`", words: |_, case| words("env A=1", case.command) },
    StartWay { name: "`nice`", words: |_, case| words("nice -n 1", case.command) },
    StartWay { name: "`bash -c`", words: |_, case| vec!["bash".into(), "-c".into(), case.command.into()] },
    StartWay { name: "a line", words: |_, case| vec![format!("cd . && A=1 {}", case.command)] },
    StartWay {
        name: "a script",
        words: |home, case| {
            home.write("run.sh", format!("#!/bin/bash\nset -e\nexport A=1\n{}\n", case.command));
            words("bash run.sh", "")
        },
    },
    StartWay {
        name: "`make`",
        words: |home, case| {
            home.write("Makefile", format!("train:\n\t@{}\n", case.command));
            words("make -s train", "")
        },
    },
    StartWay { name: "`uv run`", words: |_, case| words("uv run --no-project", case.command) },
];

fn words(before: &str, command: &str) -> Vec<String> {
    before.split_whitespace().chain(command.split_whitespace()).map(str::to_owned).collect()
}

/// What came of a launcher that was started in one way.
#[derive(Debug, PartialEq)]
enum CaseOutcome {
    /// Every process ran, knew its rank, and reached all others.
    All,
    /// One process ran in each task, or one in all, as the submission had said.
    FewerAsSaid,
    Failed(String),
}

impl CaseOutcome {
    fn cell(&self) -> &'static str {
        match self {
            Self::All => "yes",
            Self::FewerAsSaid => "one process, as said",
            Self::Failed(_) => "**no**",
        }
    }
}

fn run_case(case: &LauncherCase, way: &StartWay) -> CaseOutcome {
    let home = home();
    home.write(case.file, case.program);
    let folders = case.environments.iter().map(|name| environment(name).join("bin"));
    // The environment of the launchers has uv; it comes last, since it has a Python of its own.
    let tools: Vec<PathBuf> = folders.chain([environment("launchers").join("bin")]).collect();
    let path = std::env::var_os("PATH").unwrap_or_default();
    let path = tools.into_iter().chain(std::env::split_paths(&path));
    let number = case.processes.to_string();
    let mut all = vec!["run", "-N", "2", "--processes", &number];
    if way.name == "`make`" {
        all.extend(case.behind_make);
    }
    let words = (way.words)(&home, case);
    if words.len() > 1 {
        all.push("--");
    }
    all.extend(words.iter().map(String::as_str));
    let mut command = home.command(all);
    command.env("PATH", std::env::join_paths(path).expect("a PATH"));
    // Processes that share two cores; and a uv that has no network.
    for (name, value) in [("PYTHONPATH", ""), ("OMP_NUM_THREADS", "1"), ("UV_OFFLINE", "1"), ("GLOG_v", "3")]
    {
        command.env(name, OsString::from(value));
    }
    outcome(&Running::start(command).finish_within(4 * DEADLINE), case.processes)
}

fn outcome(done: &Finished, processes: usize) -> CaseOutcome {
    let (output, said) = (done.out(), done.err());
    if done.code() != 0 {
        return CaseOutcome::Failed(format!("exit code {}\n{output}\n{said}", done.code()));
    }
    let ranks: Vec<(usize, usize)> = lines_with(&output, "rank ")
        .filter_map(|line| line.split_once(" of "))
        .filter_map(|(rank, world)| Some((rank.parse().ok()?, world.parse().ok()?)))
        .collect();
    let agrees = |world: usize| {
        ranks.len() == world
            && ranks.iter().all(|(_, count)| *count == world)
            && ranks.iter().map(|(rank, _)| *rank).collect::<BTreeSet<_>>() == (0..world).collect()
    };
    let each = format!("each task runs the command once, not {processes} times");
    let first = format!("task0 alone runs the command, once, not {} times", TASKS * processes);
    match () {
        () if agrees(TASKS * processes) => CaseOutcome::All,
        () if agrees(TASKS) && said.contains(&each) => CaseOutcome::FewerAsSaid,
        () if agrees(1) && said.contains(&first) => CaseOutcome::FewerAsSaid,
        () => CaseOutcome::Failed(format!("{ranks:?}\n{output}\n{said}")),
    }
}

fn guide() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join(GUIDE)
}

/// The guide around its table: what stands before, the table, what stands behind.
fn guide_parts(text: &str) -> (&str, &str, &str) {
    let (before, rest) = text.split_once(BEGIN).expect("the guide has a table of launchers");
    let (table, after) = rest.split_once(END).expect("the guide's table of launchers ends");
    (before, table, after)
}

fn header() -> String {
    let names: Vec<&str> = WAYS.iter().map(|way| way.name).collect();
    format!("| | {} |\n|{}\n", names.join(" | "), " --- |".repeat(names.len() + 1))
}

#[test]
fn the_guide_has_every_launcher_and_every_way_to_start_it() {
    let text = std::fs::read_to_string(guide()).expect("the guide");
    let (_, table, _) = guide_parts(&text);
    assert!(table.starts_with(&header()), "{table}");
    let rows: Vec<&str> = table.lines().skip(2).filter_map(|row| row.split(" | ").next()).collect();
    let expected: Vec<String> = LAUNCHERS.iter().map(|case| format!("| `{}`", case.command)).collect();
    assert_eq!(rows, expected, "write it with `make test-full ONLY=frameworks`");
    assert!(!table.contains("**no**"), "{table}");
}

#[test]
fn every_launcher_starts_its_processes_however_it_is_started() {
    if std::env::var("MUSTER_TEST_FULL").as_deref() != Ok("frameworks") {
        return println!("not run: it takes long; make test-full ONLY=frameworks");
    }
    let _alone = alone();
    let (mut table, mut failures) = (header(), Vec::new());
    for case in LAUNCHERS {
        write!(table, "| `{}`", case.command).expect("a string");
        for way in WAYS {
            let outcome = run_case(case, way);
            println!("{} behind {}: {}", case.command, way.name, outcome.cell());
            write!(table, " | {}", outcome.cell()).expect("a string");
            if let CaseOutcome::Failed(why) = &outcome {
                failures.push(format!("{} behind {}: {why}", case.command, way.name));
            }
        }
        table.push_str(" |\n");
    }
    let text = std::fs::read_to_string(guide()).expect("the guide");
    let (before, _, after) = guide_parts(&text);
    std::fs::write(guide(), format!("{before}{BEGIN}{table}{END}{after}")).expect("the guide is written");
    assert!(failures.is_empty(), "{}", failures.join("\n\n"));
}
