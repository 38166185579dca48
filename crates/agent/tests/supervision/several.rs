//! A task with several processes, or with none of its own, and what runs beside it.

use std::collections::BTreeMap;
use std::fs;
use std::time::{Duration, Instant};

use muster_agent::supervisor::{Outcome, PROCESSES, Status};
use muster_agent::task;
use muster_model::launch::{Process, Work};

use crate::harness::{Plan, WAYS, supervisor, wait_for};

fn sh(text: &str) -> Process {
    Process::new(vec!["/bin/sh".into(), "-c".into(), text.into()])
}

/// The same script for every rank.
fn ranks(count: usize, text: &str) -> Vec<Process> {
    let env = |rank: usize| BTreeMap::from([("RANK".to_owned(), rank.to_string())]);
    (0..count).map(|rank| Process { env: env(rank), ..sh(text) }).collect()
}

fn plan(work: Work) -> Plan {
    let mut plan = Plan::program(&[]);
    let file = plan.dir().join(PROCESSES);
    let words = [supervisor().display().to_string(), "processes".into(), file.display().to_string()];
    plan.launch.steps[0].argv = words.into();
    plan.launch.work = Some(work);
    plan
}

fn several(processes: Vec<Process>) -> Plan {
    let count = processes.len() as u32;
    let mut plan = plan(Work::Run(processes));
    plan.launch.launched_processes = count;
    plan
}

fn sorted(text: &str) -> Vec<&str> {
    let mut lines: Vec<_> = text.lines().collect();
    lines.sort_unstable();
    lines
}

#[test]
fn each_process_has_its_own_variables_on_top_of_the_tasks() {
    let mut plan = several(ranks(4, "echo $RANK of $WORLD_SIZE"));
    plan.launch.env.insert("WORLD_SIZE".into(), "4".into());
    plan.launch.env.insert("RANK".into(), "the task's".into());
    let (exit, task) = plan.run();
    assert_eq!(exit.outcome, Outcome::Exited { code: 0 });
    assert_eq!(sorted(&task.stdout()), ["0 of 4", "1 of 4", "2 of 4", "3 of 4"]);
    task.assert_gone();
}

#[test]
fn a_directory_of_its_own_has_what_the_tasks_has() {
    for count in [1, 3] {
        let mut processes = ranks(count, "cat train.py > seen; pwd -P; echo $RANK >> ranks");
        for (rank, process) in processes.iter_mut().enumerate() {
            process.dir = Some(format!("device{rank}"));
        }
        let plan = several(processes);
        fs::write(plan.cwd().join("train.py"), "code\n").unwrap();
        let (exit, task) = plan.run();
        assert_eq!(exit.outcome, Outcome::Exited { code: 0 });
        let home = fs::canonicalize(task.cwd()).unwrap();
        for rank in 0..count {
            let dir = home.join(format!("device{rank}"));
            assert!(task.stdout().contains(dir.to_str().unwrap()));
            assert_eq!(fs::read_to_string(dir.join("seen")).unwrap(), "code\n");
            assert_eq!(fs::read_to_string(dir.join("ranks")).unwrap(), format!("{rank}\n"));
        }
        assert!(!home.join("seen").exists());
    }
}

#[test]
fn the_first_failure_is_the_tasks_and_the_others_can_still_save() {
    let script = "if [ $RANK = 1 ]; then while [ ! -e up0 ] || [ ! -e up2 ]; do sleep 0.01; done; echo cause >&2; exit 7; fi; \
                  trap 'echo $RANK saves; exit 3' TERM; : > up$RANK; sleep 1000 & wait";
    let (exit, task) = several(ranks(3, script)).run();
    assert_eq!(exit.outcome, Outcome::Exited { code: 7 });
    assert_eq!(sorted(&task.stdout()), ["0 saves", "2 saves"]);
    let [_, stderr] = task.output();
    let told = "cause\nmuster: process 1 of 3 ended with exit code 7; the others are told to end\n";
    assert_eq!(String::from_utf8(stderr).unwrap(), told);
    task.assert_gone();
}

#[test]
fn a_signal_is_told_as_a_signal() {
    for (name, signal) in [("KILL", 9), ("SEGV", 11), ("TERM", 15)] {
        let script = format!("[ $RANK = 0 ] && kill -{name} $$; sleep 1000");
        let (exit, task) = several(ranks(2, &script)).run();
        assert_eq!(exit.outcome, Outcome::Signaled { signal });
        task.assert_gone();
    }
}

#[test]
fn those_that_do_not_end_have_their_grace_and_no_more() {
    for way in WAYS {
        let script = "[ $RANK = 0 ] && exit 5; trap '' TERM; while :; do sleep 1000; done";
        let mut plan = Plan::script_by(way, "");
        let several = several(ranks(3, script));
        plan.launch.steps[0].argv = several.launch.steps[0].argv.clone();
        plan.launch.steps[0].argv[2] = plan.dir().join(PROCESSES).display().to_string();
        plan.launch.work = several.launch.work.clone();
        plan.launch.grace_ms = 100;
        let (exit, task) = plan.run();
        assert_eq!(exit.outcome, Outcome::Exited { code: 5 }, "{way:?}");
        task.assert_gone();
    }
}

#[test]
fn a_program_that_is_not_there_ends_the_task_as_in_a_shell() {
    for processes in [
        vec![sh("sleep 1000"), Process::new(vec!["no-such-program".into()])],
        vec![Process { dir: Some("own".into()), ..Process::new(vec!["no-such-program".into()]) }],
    ] {
        let (exit, task) = several(processes).run();
        assert_eq!(exit.outcome, Outcome::Exited { code: 127 });
        let [_, stderr] = task.output();
        let stderr = String::from_utf8(stderr).unwrap();
        assert!(stderr.contains("`no-such-program` cannot be started: No such file"), "{stderr}");
        task.assert_gone();
    }
}

#[test]
fn a_stop_reaches_every_process_once() {
    let script = "trap 'echo $RANK told' TERM; : > up$RANK; while [ ! -e end ]; do sleep 0.01; done; exit 0";
    let mut task = several(ranks(3, script)).start();
    wait_for("all are up", || (0..3).all(|rank| task.cwd().join(format!("up{rank}")).exists()).then_some(()));
    task::stop(&task.dir, Duration::from_secs(50), "stopped_by_user").unwrap();
    wait_for("all were told", || (task.stdout().lines().count() == 3).then_some(()));
    fs::write(task.cwd().join("end"), "").unwrap();
    let exit = task.wait();
    assert!(exit.stopped);
    assert_eq!(exit.status, Some(Status::Exited(0)));
    assert_eq!(sorted(&task.stdout()), ["0 told", "1 told", "2 told"]);
    task.assert_gone();
}

#[test]
fn a_process_starts_with_no_signal_held_back() {
    let status = Process::new(["grep", "SigBlk", "/proc/self/status"].map(str::to_owned).into());
    let (_, task) = several(vec![status.clone(), status]).run();
    assert!(task.stdout().lines().all(|line| line.ends_with("\t0000000000000000")), "{}", task.stdout());
}

#[test]
fn lines_stay_whole_and_unfinished_ones_are_not_held_back() {
    // As Python does without a buffer: a line in two pieces.
    let script = "for i in 1 2 3 4 5 6 7 8 9; do printf 'rank %s' $RANK; printf ' line %s\\n' $i; done; printf 'loading'; \
                  while [ ! -e end ]; do sleep 0.01; done";
    for has_streams in [true, false] {
        let mut plan = several(ranks(4, script));
        if !has_streams {
            plan.launch.launched_processes = 0;
        }
        let mut task = plan.start();
        wait_for("what is unfinished", || (task.stdout().matches("loading").count() == 4).then_some(()));
        fs::write(task.cwd().join("end"), "").unwrap();
        assert_eq!(task.wait().outcome, Outcome::Exited { code: 0 });
        let text = task.stdout().replace("loading", "");
        let mut expected: Vec<_> =
            (0..4).flat_map(|rank| (1..10).map(move |line| format!("rank {rank} line {line}"))).collect();
        expected.sort_unstable();
        assert_eq!(sorted(&text), expected);
        let processes: Vec<_> = task.records().iter().map(|record| record.process.is_some()).collect();
        assert_eq!(processes, vec![has_streams; processes.len()]);
    }
}

#[test]
fn all_output_arrives_however_much_it_is() {
    let script =
        "head -c 3000000 /dev/zero | tr '\\0' $RANK; echo; head -c 100000 /dev/zero | tr '\\0' e >&2";
    let (exit, task) = several(ranks(3, script)).run();
    assert_eq!(exit.outcome, Outcome::Exited { code: 0 });
    let [stdout, stderr] = task.output();
    assert_eq!((stdout.len(), stderr.len()), (3 * 3_000_001, 3 * 100_000));
}

#[test]
fn a_task_that_waits_ends_at_once_when_told_to() {
    let mut task = plan(Work::Wait).start();
    let started = task.wait_started();
    let pid = started.task.pid().unwrap().as_raw_nonzero();
    wait_for("it listens", || {
        let status = fs::read_to_string(format!("/proc/{pid}/status")).unwrap();
        let held = status.lines().find_map(|line| line.strip_prefix("SigBlk:")).unwrap().trim();
        (u64::from_str_radix(held, 16).unwrap() != 0).then_some(())
    });
    let asked = Instant::now();
    task::stop(&task.dir, Duration::from_secs(50), "stopped_by_user").unwrap();
    let exit = task.wait();
    assert!(exit.stopped && asked.elapsed() < Duration::from_secs(10));
    assert_eq!(exit.status, Some(Status::Exited(0)), "{started:?}");
    task.assert_gone();
}
