//! Scripts for `sbatch`, submitted on the login node of a real Slurm as their users do it: one test for each construct that
//! scripts rely on.

use std::fs;

use muster_testkit::{Finished, Home, Slurm, wait_for, wait_for_some};

use crate::pool::slim;

/// A login node: the cluster's ordinary account has its shell and its muster there.
struct LoginNode {
    // In this order: the server goes before the cluster that it talks to.
    home: Home,
    slurm: Slurm,
}

impl LoginNode {
    fn new() -> Self {
        Self::with_variables(&[])
    }

    /// The same with variables in the user's shell.
    fn with_variables(variables: &[(&str, &str)]) -> Self {
        let slurm = Slurm::start();
        let mut home = Home::new(slim());
        home.set_variable("SLURM_CONF", slurm.conf());
        home.configure(&format!("[slurm]\ndirectory = \"{}\"\n", slurm.home().join("muster").display()));
        home.give_to(Slurm::ACCOUNT);
        for (name, value) in variables {
            home.set_variable(name, value);
        }
        Self { home, slurm }
    }

    /// Runs a script of these lines, with further flags.
    fn run(&self, header: &str, body: &str, flags: &[&str]) -> Finished {
        self.home.write("job.sbatch", script(header, body));
        let words = ["run", "job.sbatch", "--on", "slurm"];
        self.home.run(words.iter().chain(flags))
    }

    /// What such a script prints.
    fn says(&self, header: &str, body: &str) -> Vec<String> {
        let done = self.run(header, body, &[]);
        assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
        lines(&done)
    }

    fn submit(&self, header: &str, body: &str) -> String {
        self.home.write("job.sbatch", script(header, body));
        self.home.ok(["submit", "job.sbatch", "--on", "slurm"]).trim().to_owned()
    }

    fn wait_for_nothing_left(&self) {
        wait_for("Slurm to have nothing to do", || self.slurm.open_jobs().is_empty());
    }
}

fn script(header: &str, body: &str) -> String {
    let lines: String =
        header.split('|').filter(|line| !line.is_empty()).map(|line| format!("#SBATCH {line}\n")).collect();
    format!("#!/bin/bash\n#SBATCH -J demo\n{lines}set -u\n{body}\n")
}

fn lines(done: &Finished) -> Vec<String> {
    let plain = |line: &str| line.strip_prefix("task0 | ").unwrap_or(line).to_owned();
    done.out().lines().map(plain).collect()
}

#[test]
fn a_script_has_the_variables_of_the_shell_that_submits_it() {
    let node = LoginNode::with_variables(&[("DATASET", "/data/a b"), ("SLURM_NTASKS", "99")]);
    let body = "echo \"${DATASET-none} $SLURM_NTASKS $SLURM_JOB_ID\"";
    let said = node.says("-n 2", body);
    let number = node.slurm.jobs()[0]["job_id"].to_string();
    assert_eq!(said, [format!("/data/a b 2 {number}")]);
    assert_eq!(node.says("--export=NONE", "echo ${DATASET-none}"), ["none"]);
    assert_eq!(node.says("--export=ALL,DATASET=b", "echo $DATASET"), ["b"]);
    node.wait_for_nothing_left();
}

#[test]
fn a_script_loads_modules_with_the_function_of_the_shell() {
    let node = LoginNode::with_variables(&[("BASH_FUNC_module%%", "() {  echo \"module $*\"\n}")]);
    assert_eq!(node.says("", "module load cuda/12.4"), ["module load cuda/12.4"]);
    node.wait_for_nothing_left();
}

#[test]
fn a_script_without_a_partition_runs_in_the_default_one() {
    let node = LoginNode::new();
    assert_eq!(node.says("", "echo $SLURM_JOB_PARTITION"), ["main"]);
    assert_eq!(node.says("-p gpu", "echo $SLURM_JOB_PARTITION"), ["gpu"]);
    node.wait_for_nothing_left();
}

#[test]
fn a_script_waits_for_the_jobs_that_it_depends_on() {
    let node = LoginNode::new();
    let first = node.home.ok(["submit", &write_prep(&node), "--on", "slurm", "--name", "prep"]);
    let second = node.submit("--dependency=afterok:prep", "echo after");
    let why = node.home.json(["why", &second, "--json"]);
    assert_eq!(why["code"], "dependency", "{why}");
    fs::write(node.slurm.home().join("go"), "").expect("a file that the first waits for");
    assert_eq!(node.home.run(["wait", first.trim()]).code(), 0);
    assert_eq!(node.home.run(["wait", &second]).code(), 0);

    // A job of Slurm's own.
    let other = node.slurm.run_as_user("sbatch", &["--parsable", "--hold", "--wrap=true"]);
    let third = node.submit(&format!("--dependency=afterany:{}", other.trim()), "echo after");
    wait_for_some("Slurm to hold it for the other", || {
        let jobs = node.slurm.jobs();
        let mut waiting = jobs.iter().filter(|job| job["state_reason"] == "Dependency");
        waiting.next().map(|job| job["job_id"].to_string())
    });
    node.slurm.run("scancel", &[other.trim()]);
    assert_eq!(node.home.run(["wait", &third]).code(), 0);
    node.wait_for_nothing_left();
}

/// A script that waits for a file in the cluster's home.
fn write_prep(node: &LoginNode) -> String {
    let go = node.slurm.home().join("go");
    let body = format!("while [ ! -e {} ]; do sleep 0.05; done", go.display());
    node.home.write("prep.sbatch", script("", &body));
    "prep.sbatch".into()
}

#[test]
fn output_files_are_where_sbatch_puts_them() {
    let node = LoginNode::new();
    let done = node.run("-o logs/%x-%j.out|-e logs/%x.err", "echo out; echo err >&2; pwd", &[]);
    assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
    let number = node.slurm.jobs()[0]["job_id"].to_string();
    let logs = node.home.work().join("logs");
    let read = |name: &str| fs::read_to_string(logs.join(name)).expect("a file beside the script");
    assert!(read(&format!("demo-{number}.out")).starts_with("out\n"));
    assert_eq!(read("demo.err"), "err\n");
    // With --in-place all that it writes is there.
    let done = node.run("", "pwd; echo $SLURM_SUBMIT_DIR; echo made > result.txt", &["--in-place"]);
    assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
    let work = node.home.work().canonicalize().expect("it is there").display().to_string();
    assert_eq!(lines(&done), [work.clone(), work]);
    assert_eq!(fs::read_to_string(node.home.work().join("result.txt")).expect("its file"), "made\n");
    node.wait_for_nothing_left();
}

#[test]
fn srun_starts_so_many_tasks_on_each_node_as_it_is_told() {
    let node = LoginNode::new();
    let body = "srun --ntasks-per-node=2 sh -c 'echo $SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID $SLURM_NTASKS' | sort\n\
                srun -N1 -n1 echo one; srun hostname | wc -l; echo ${SLURM_NTASKS_PER_NODE-unset}";
    let said = node.says("-N 2|-n 4", body);
    assert_eq!(said, ["0 0 0 4", "1 1 0 4", "2 0 1 4", "3 1 1 4", "one", "4", "unset"]);
    node.wait_for_nothing_left();
}

#[test]
fn a_script_finds_the_head_node_for_torchrun() {
    let node = LoginNode::new();
    // As the usual scripts have it, with a stand-in that says what it was told.
    let body = "nodes=( $(scontrol show hostnames $SLURM_JOB_NODELIST) )\n\
                head=${nodes[0]}\n\
                head_ip=$(srun --nodes=1 --ntasks=1 -w \"$head\" hostname --ip-address | awk '{print $1}')\n\
                torchrun() { echo \"torchrun $*\"; }\n\
                [ -n \"$head_ip\" ] && echo \"${#nodes[@]} nodes\"\n\
                export -f torchrun\n\
                srun --ntasks-per-node=1 bash -c \"torchrun --nnodes=\\$SLURM_NNODES --node_rank=\\$SLURM_NODEID --rdzv_backend=c10d\" | sort";
    let said = node.says("-N 2|--ntasks-per-node=1", body);
    let expected = [
        "2 nodes",
        "torchrun --nnodes=2 --node_rank=0 --rdzv_backend=c10d",
        "torchrun --nnodes=2 --node_rank=1 --rdzv_backend=c10d",
    ];
    assert_eq!(said, expected);
    node.wait_for_nothing_left();
}

#[test]
fn what_only_slurm_can_start_is_started_by_its_own_srun() {
    let node = LoginNode::new();
    let said = node.says(
        "-N 2|-n 2|--exclusive",
        "srun --mpi=pmi2 sh -c 'echo $PMI_RANK of $PMI_SIZE on $SLURMD_NODENAME' | sort",
    );
    assert_eq!(said.len(), 2, "{said:?}");
    assert!(said[0].starts_with("0 of 2 on n") && said[1].starts_with("1 of 2 on n"), "{said:?}");
    // This Slurm has no Pyxis and rejects the option.
    let done = node.run("", "srun --container-image=ubuntu --container-mounts=/data:/data true", &[]);
    let all = done.out() + &done.err();
    assert!(done.code() != 0 && all.contains("unrecognized option '--container-image=ubuntu'"), "{all}");
    let done = node.run("--container-image=ubuntu", "true", &[]);
    let all = done.out() + &done.err();
    assert!(done.code() != 0 && all.contains("unrecognized option '--container-image=ubuntu'"), "{all}");
    node.wait_for_nothing_left();
}
