//! Processes that a launcher starts, each with output streams of its own.

use std::fs;

use muster_agent::supervisor::Outcome;
use muster_agent::task;

use crate::harness::{Plan, Task, wait_for};

/// Has a shell move to the streams of process `$i`, as `sitecustomize` has Python.
const MOVE: &str = r#"exec 7<>"${MUSTER_STREAMS%:*:*}/out.$i" >"${MUSTER_STREAMS%:*:*}/out.$i" 2>"${MUSTER_STREAMS%:*:*}/err.$i""#;

fn launcher(count: u32, process: &str) -> Plan {
    let script = format!("i=0; while [ $i -lt {count} ]; do ( {MOVE}; {process} ) & i=$((i+1)); done; wait");
    let mut plan = Plan::script(&script);
    plan.launch.launched_processes = count;
    plan
}

#[test]
fn lines_written_in_halves_stay_whole() {
    let process =
        r"n=0; while [ $n -lt 3000 ]; do printf 'rank %s ' $i; printf 'line %s\n' $n; n=$((n+1)); done";
    let (exit, task) = launcher(4, process).run();
    assert_eq!(exit.outcome, Outcome::Exited { code: 0 });
    let stdout = task.stdout();
    for rank in 0..4 {
        let start = format!("rank {rank} ");
        let lines: Vec<_> = stdout.lines().filter_map(|line| line.strip_prefix(&start)).collect();
        let expected: Vec<_> = (0..3000).map(|line| format!("line {line}")).collect();
        assert_eq!(lines, expected, "rank {rank}");
    }
    assert_eq!(stdout.lines().count(), 12_000);
    for record in task.records() {
        let start = format!("rank {} ", record.process.unwrap());
        assert!(record.bytes.starts_with(start.as_bytes()), "{record:?}");
    }
    task.assert_gone();
}

#[test]
fn an_unfinished_line_is_not_held_back_and_a_long_one_is_not_cut_short() {
    let process = r#"printf 'loading' >&2; while [ ! -e end ]; do sleep 0.01; done; head -c 300000 /dev/zero | tr '\0' $i; echo"#;
    let mut task = launcher(3, process).start();
    let loading = |task: &Task| {
        let [_, stderr] = task.output();
        String::from_utf8(stderr).unwrap().matches("loading").count()
    };
    wait_for("what is unfinished", || (loading(&task) == 3).then_some(()));
    fs::write(task.cwd().join("end"), "").unwrap();
    assert_eq!(task.wait().outcome, Outcome::Exited { code: 0 });
    let stdout = task.stdout();
    assert_eq!(stdout.len(), 3 * 300_001);
    for rank in ["0", "1", "2"] {
        assert_eq!(stdout.matches(rank).count(), 300_000);
    }
}

#[test]
fn a_launcher_may_start_a_process_anew() {
    let mut plan = launcher(1, "echo first");
    plan.launch.steps[0].argv[2] += &format!("; i=0; ( {MOVE}; echo second ) & wait; exit 3");
    let (exit, task) = plan.run();
    assert_eq!(exit.outcome, Outcome::Exited { code: 3 });
    assert_eq!(task.stdout(), "first\nsecond\n");
}

#[test]
fn a_killed_supervisor_loses_nothing_of_a_process() {
    let process = "echo read; : > ready$i; while [ ! -e go ]; do sleep 0.01; done; echo unread; echo $i > done$i; sleep 1000";
    let mut task = launcher(2, process).start();
    wait_for("both are read", || (task.stdout().matches("read").count() == 2).then_some(()));
    task.kill_supervisor();
    fs::write(task.cwd().join("go"), "").unwrap();
    (0..2).for_each(|process| assert_eq!(task.wait_file(&format!("done{process}")), format!("{process}\n")));
    let pipes = task.pipes.take();
    task::bury(&task.dir, pipes.as_ref()).unwrap();
    assert_eq!(task.stdout().lines().collect::<Vec<_>>(), ["read", "read", "unread", "unread"]);
    task.assert_gone();
}
