//! Batch scripts of Slurm's, as their users have them, on this machine and on SSH hosts; and the `srun` that they find.

mod examples;

use std::path::Path;

use muster_testkit::{Account, Finished, Home, Hosts, Slurm, wait_for};

use crate::home;
use crate::pool::slim;

/// Somewhere to run.
struct Place {
    // In this order: the server goes before what it talks to.
    home: Home,
    on: &'static str,
    shared: std::path::PathBuf,
    seen: String,
    hosts: Option<Hosts>,
}

impl Place {
    fn local() -> Self {
        let home = home();
        let shared = home.shared();
        Self { seen: shared.display().to_string(), home, on: "local", shared, hosts: None }
    }

    /// Two hosts that share nothing but one directory.
    fn ssh() -> Self {
        let (home, hosts) = (Home::new(slim()), Hosts::start(2));
        let key = hosts.key().display().to_string();
        let all = hosts.all().iter().map(|host| host.destination_of(Account::Ordinary));
        home.ok(["pool", "add", "gpu", "--key", &key].map(str::to_owned).into_iter().chain(all));
        Self { shared: hosts.shared(), seen: "/shared".into(), home, on: "ssh/gpu", hosts: Some(hosts) }
    }

    /// Runs a script of these lines, with `$SHARED` in it.
    fn run(&self, header: &str, body: &str) -> Finished {
        // Hosts have room for both tasks of a gang, and would be given both.
        let each = if self.hosts.is_some() { "|--exclusive" } else { "" };
        self.home.write("script.sbatch", script(&format!("{header}{each}"), body));
        let shared = format!("SHARED={}", self.seen);
        self.home.run(["run", "script.sbatch", "--on", self.on, "--env", &shared])
    }

    /// What such a script says.
    fn says(&self, header: &str, body: &str) -> Vec<String> {
        let done = self.run(header, body);
        assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
        said(&done)
    }
}

fn script(header: &str, body: &str) -> String {
    let lines: String = header.split('|').map(|line| format!("#SBATCH {line}\n")).collect();
    format!("#!/bin/bash\n{lines}set -u\n{body}\n")
}

fn said(done: &Finished) -> Vec<String> {
    let plain = |line: &str| line.strip_prefix("task0 | ").unwrap_or(line).to_owned();
    done.out().lines().map(plain).collect()
}

fn sorted(mut lines: Vec<String>) -> Vec<String> {
    lines.sort();
    lines
}

/// What scripts rely on, wherever they run.
fn behaves(place: &Place) {
    let lines = place.says(
        "-N 2 --ntasks-per-node=2|-J bert",
        "cd $SLURM_SUBMIT_DIR\n\
         test -e script.sbatch && echo \"$SLURM_JOB_NAME $SLURM_NNODES $SLURM_NTASKS $SLURM_TASKS_PER_NODE $((SLURM_JOB_ID > 0))\"\n\
         head=$(scontrol show hostnames \"$SLURM_JOB_NODELIST\" | head -n 1)\n\
         getent hosts $head >/dev/null && echo resolves; scontrol show hostnames | wc -l\n\
         export FROM_SCRIPT='a b'; unset HISTFILE; mkdir -p sub; cd sub\n\
         srun -l bash -c 'echo \"$SLURM_PROCID $SLURM_LOCALID $SLURM_NODEID $SLURM_NTASKS $FROM_SCRIPT ${PWD##*/} ${RANK-none}\"' | sort",
    );
    assert_eq!(
        lines,
        [
            "bert 2 4 2(x2) 1",
            "resolves",
            "2",
            "0: 0 0 0 4 a b sub none",
            "1: 1 1 0 4 a b sub none",
            "2: 2 0 1 4 a b sub none",
            "3: 3 1 1 4 a b sub none",
        ]
    );
    let lines = place.says(
        "-N 2",
        "printf 'a\\nb\\n' | srun -l cat | sort\n\
         srun bash -c 'exit $((SLURM_PROCID + 3))'; echo $?\n\
         srun -n1 no-such-program; echo $?\n\
         srun -K bash -c '[ $SLURM_PROCID = 0 ] && exit 3; sleep 1000'; echo $?\n\
         srun -w $(scontrol show hostnames | tail -n 1) -N1 -n1 bash -c 'echo $MUSTER_RANK'\n\
         srun -o 'out-%j-%t.txt' bash -c 'echo rank $SLURM_PROCID'; cat out-$SLURM_JOB_ID-0.txt out-$SLURM_JOB_ID-1.txt\n\
         srun --export=NONE,A=1 bash -c 'echo $A'\n\
         (srun -n1 -N1 echo one; srun -n1 -N1 echo two) & wait",
    );
    let expected =
        ["0: a", "0: b", "1: a", "1: b", "4", "2", "143", "1", "rank 0", "rank 1", "1", "1", "one", "two"];
    assert_eq!(lines, expected);
}

#[test]
fn scripts_run_on_this_machine_as_under_slurm() {
    behaves(&Place::local());
}

#[test]
fn scripts_run_on_ssh_hosts_as_under_slurm() {
    behaves(&Place::ssh());
}

/// How many tasks a step has, on how many nodes, and what it ends with.
const STEPS: &str = r#"
for options in -N1 -N2 -n3 "-N1 -n2" "-N2 -n2"; do
    srun $options sh -c 'echo $SLURM_PROCID of $SLURM_NTASKS on $SLURM_NNODES' | sort
done
code() { srun "$@" 2>/dev/null; echo "$*: $?" | tail -n 1; }
code -n2 sh -c 'test $SLURM_PROCID = 1 && kill -9 $$; sleep 0.5; echo goes on'
code -n2 sh -c 'test $SLURM_PROCID = 1 && kill -9 $$; kill -15 $$'
code -n2 sh -c 'test $SLURM_PROCID = 1 && kill -15 $$; exit 200'
code -n3 sh -c 'exit $SLURM_PROCID'
code -K -n2 sh -c 'test $SLURM_PROCID = 1 && kill -9 $$; exec sleep 30'
code -K -n2 sh -c 'test $SLURM_PROCID = 1 && exit 5; exec sleep 30'
"#;

#[test]
fn steps_are_as_those_of_a_real_slurm() {
    let slurm = Slurm::start();
    std::fs::write(slurm.home().join("steps.sh"), script("-N 2 -n 4|--exclusive", STEPS)).expect("a script");
    slurm.run_as_user("sbatch", &["--wait", "--output=steps.out", "steps.sh"]);
    let theirs = std::fs::read_to_string(slurm.home().join("steps.out")).expect("its output");
    // A controller that is busy says so, and that it no longer is.
    let is_said = |line: &&str| !line.starts_with("srun: ");
    assert_eq!(Place::local().says("-N 2 -n 4", STEPS), theirs.lines().filter(is_said).collect::<Vec<_>>());
}

/// Whatever ends an `srun`, its tasks end too, on every node.
fn leaves_nothing(place: &Place) {
    for (name, end) in [
        ("kill", "kill -9 $pid"),
        ("term", "kill $pid"),
        ("int", "kill -INT $pid; sleep 0.1; kill -INT $pid"),
    ] {
        let body = format!(
            "srun bash -c 'trap \"echo got >> $SHARED/{name}-told\" TERM; [ {name} = int ] && trap \"\" INT; echo $$ > $SHARED/{name}-$SLURM_PROCID; \
             [ {name} = term ] && {{ sleep 1000 & wait $!; exit 5; }}; sleep 1000 & sleep 1000' & pid=$!\n\
             while [ ! -s $SHARED/{name}-0 ] || [ ! -s $SHARED/{name}-1 ]; do sleep 0.02; done\n\
             {end}; wait $pid; echo $?\n\
             srun bash -c 'while pgrep -f \"[s]leep 1000\" >/dev/null; do sleep 0.02; done'"
        );
        let code = match name {
            "kill" => "137",
            "term" => "5",
            _ => "137",
        };
        let lines = place.says("-N 2", &body);
        assert_eq!(lines, [code], "{name}");
    }
    assert_eq!(std::fs::read_to_string(place.shared.join("term-told")).unwrap_or_default(), "got\ngot\n");
}

#[test]
fn an_srun_that_ends_leaves_nothing_behind_on_hosts() {
    leaves_nothing(&Place::ssh());
}

#[test]
fn a_stop_reaches_every_task_once_and_leaves_nothing() {
    let place = Place::local();
    let body = "srun bash -c 'trap \"echo told >> $SHARED/told-$SLURM_PROCID; exit 0\" TERM; echo > $SHARED/up-$SLURM_PROCID; \
                while true; do sleep 0.05; done'";
    place.home.write("script.sbatch", script("-N 2", body));
    let shared = format!("SHARED={}", place.seen);
    let job = place.home.ok(["submit", "script.sbatch", "--env", &shared]).trim().to_owned();
    for rank in 0..2 {
        wait_for("a task of the step", || place.shared.join(format!("up-{rank}")).exists());
    }
    place.home.ok(["stop", &job]);
    place.home.run(["wait", &job]);
    for rank in 0..2 {
        let told = std::fs::read_to_string(place.shared.join(format!("told-{rank}"))).expect("it was told");
        assert_eq!(told, "told\n");
    }
    place.home.wait_for_no_tasks();
}

#[test]
fn a_header_that_cannot_be_is_refused_with_its_line() {
    let home = home();
    home.write("train.sbatch", script("-N 2|--array=9-0|--ntask-per-node=2", "srun hostname"));
    let done = home.run(["submit", "train.sbatch"]);
    assert_eq!(done.code(), 2);
    for part in [
        "train.sbatch:3: --array: `9-0` ends before it begins",
        "train.sbatch:4: --ntask-per-node: there is no such option; did you mean --ntasks-per-node?",
    ] {
        assert!(done.err().contains(part), "{}", done.err());
    }
    home.write("no-interpreter.sbatch", "#SBATCH -N 2\nsrun hostname\n");
    let done = home.run(["submit", "no-interpreter.sbatch"]);
    assert!(done.code() == 2 && done.err().contains("begins with #!"), "{}", done.err());
}

#[test]
fn flags_and_arguments_go_with_a_script() {
    let home = home();
    let header = "-N 4|-t 1-0|-J a/b|--mail-type=END|-p gpu";
    home.write(
        "jobs/train.sbatch",
        script(header, "echo \"$# $1 $SLURM_NNODES\"; pwd; echo $SLURM_SUBMIT_DIR"),
    );
    home.write("data.txt", "");
    let done = home.run(["run", "jobs/train.sbatch", "--nodes", "2", "--", "--lr 0.1", "x"]);
    assert_eq!(done.code(), 0, "{}", done.err());
    let lines = said(&done);
    assert_eq!(lines[0], "2 --lr 0.1 2");
    assert_eq!(lines[1], lines[2]);
    for note in
        ["without effect here: --mail-type", "for Slurm alone (`--on slurm/PARTITION`): --partition=gpu"]
    {
        assert!(done.err().contains(note), "{}", done.err());
    }
    // The same name twice at once, as Slurm's users have it.
    let jobs: Vec<String> =
        (0..2).map(|_| home.ok(["submit", "jobs/train.sbatch", "--nodes", "1"])).collect();
    for job in jobs {
        let job = home.job(job.trim());
        assert_eq!((job["name"].as_str(), job["spec"]["timeout"].as_str()), (Some("a-b"), Some("86400s")));
    }
    let text = script("-N 1|-o /dev/null", "echo from stdin");
    let mut command = home.command(["run", "--file", "-"]);
    let file = home.work().join("piped");
    std::fs::write(&file, text).expect("a file");
    command.stdin(std::fs::File::open(&file).expect("a file"));
    let done = muster_testkit::Running::start(command).finish();
    assert_eq!(done.out(), "from stdin\n", "{}", done.err());
}

#[test]
fn output_also_goes_to_the_files_that_a_script_names() {
    let home = home();
    home.write(
        "train.sbatch",
        script("-J x|-o logs/%x-%j.out|-e logs/%x.err", "echo out; echo err >&2; exit 3"),
    );
    let job = home.ok(["submit", "train.sbatch"]).trim().to_owned();
    assert_eq!(home.run(["wait", &job]).code(), 3);
    let logs = home.run(["logs", &job]);
    assert!(logs.out().contains("out") && (logs.out() + &logs.err()).contains("err"));
    let to = home.work().join("got");
    home.ok(["get", &job, "logs", "--output", &to.display().to_string()]);
    let read = |path: &Path| std::fs::read_to_string(path).expect("a file of the job");
    let files: Vec<_> =
        std::fs::read_dir(find(&to, "logs")).expect("logs").flatten().map(|it| it.path()).collect();
    assert_eq!(files.len(), 2, "{files:?}");
    for file in files {
        let expected = if file.extension().is_some_and(|end| end == "err") { "err\n" } else { "out\n" };
        assert_eq!(read(&file), expected, "{file:?}");
    }
}

/// What was fetched, whether it was put there or below.
fn find(folder: &Path, name: &str) -> std::path::PathBuf {
    if folder.join(name).is_dir() { folder.join(name) } else { folder.to_owned() }
}
