//! A stop ends everything: gently first, and whatever the task does against it.

use std::time::{Duration, Instant};

use muster_agent::supervisor::{Outcome, Status};
use muster_agent::task;

use crate::harness::{Plan, WAYS, is_alive};

const LONG: Duration = Duration::from_secs(1000);

#[test]
fn a_task_that_does_not_mind_ends_at_once() {
    for way in WAYS {
        let mut task = Plan::script_by(way, "echo > ready; exec sleep 1000").start();
        task.wait_file("ready");
        let began = Instant::now();
        task::stop(&task.dir, LONG, "stopped_by_user").unwrap();
        let exit = task.wait();
        println!("{way:?}: gone {:?} after the stop", began.elapsed());
        assert_eq!(exit.outcome, Outcome::Signaled { signal: 15 }, "{way:?}");
        assert!(exit.stopped);
        task.assert_gone();
    }
}

#[test]
fn a_task_that_traps_the_signal_ends_as_it_likes() {
    let mut task =
        Plan::script("trap 'echo bye; exit 7' TERM; echo > ready; while :; do sleep 0.01; done").start();
    task.wait_file("ready");
    task::stop(&task.dir, LONG, "stopped_by_user").unwrap();
    let exit = task.wait();
    assert_eq!(exit.outcome, Outcome::Exited { code: 7 });
    assert!(exit.stopped);
    assert_eq!(task.stdout(), "bye\n");
}

#[test]
fn a_task_that_ignores_the_signal_is_killed_after_the_grace() {
    for way in WAYS {
        let mut task =
            Plan::script_by(way, "trap '' TERM; echo > ready; while :; do sleep 1000; done").start();
        task.wait_file("ready");
        task::stop(&task.dir, Duration::from_millis(50), "stopped_by_user").unwrap();
        let exit = task.wait();
        assert_eq!(exit.outcome, Outcome::Signaled { signal: 9 }, "{way:?}");
        assert!(exit.stopped);
        task.assert_gone();
    }
}

#[test]
fn a_second_stop_can_only_shorten_the_grace() {
    let mut task = Plan::script("trap '' TERM; echo > ready; while :; do sleep 1000; done").start();
    task.wait_file("ready");
    for grace in [LONG, Duration::ZERO, LONG] {
        task::stop(&task.dir, grace, "stopped_by_user").unwrap();
    }
    assert_eq!(task.wait().status, Some(Status::Signaled(9)));
}

#[test]
fn the_whole_tree_has_the_grace() {
    // The outer shell dies of the signal at once; what it started is still saving.
    let inner = "trap \"sleep 0.3; echo saved; exit\" TERM; echo > ready; while :; do sleep 0.01; done";
    for way in WAYS {
        let mut task = Plan::script_by(way, &format!("setsid sh -c '{inner}' & wait")).start();
        task.wait_file("ready");
        task::stop(&task.dir, LONG, "stopped_by_user").unwrap();
        assert_eq!(task.wait().outcome, Outcome::Signaled { signal: 15 }, "{way:?}");
        assert_eq!(task.stdout(), "saved\n", "{way:?}");
        task.assert_gone();
    }
}

#[test]
fn children_that_run_away_are_gone_after_the_stop() {
    let runaway = "trap \"\" TERM HUP INT; echo $$ >> pids; while :; do sleep 1000; done";
    let script = format!(
        "setsid sh -c '{runaway}' & (setsid sh -c '{runaway}' &) ; (setsid sh -c \"(setsid sh -c '{}' &)\" &) ; \
         while [ $(wc -l < pids) -lt 3 ]; do sleep 0.01; done; echo > ready; trap '' TERM; while :; do sleep 1000; done",
        runaway.replace('"', "\\\"").replace('$', "\\$")
    );
    for way in WAYS {
        let mut task = Plan::script_by(way, &format!("touch pids; {script}")).start();
        task.wait_file("ready");
        let pids: Vec<i32> = task.wait_file("pids").lines().map(|line| line.parse().unwrap()).collect();
        assert_eq!(pids.len(), 3);
        assert!(pids.iter().all(|pid| is_alive(*pid)));
        task::stop(&task.dir, Duration::from_millis(20), "stopped_by_user").unwrap();
        let exit = task.wait();
        assert!(exit.stopped && exit.survivors.is_empty(), "{way:?}");
        assert!(!pids.iter().any(|pid| is_alive(*pid)), "{way:?}");
        task.assert_gone();
    }
}

#[test]
fn a_task_that_forks_without_end_is_caught() {
    let script =
        "trap '' TERM; f() { sleep 0.01; f & }; f & f & f & echo > ready; while :; do sleep 1000; done";
    for way in WAYS {
        let mut task = Plan::script_by(way, script).start();
        task.wait_file("ready");
        task::stop(&task.dir, Duration::from_millis(20), "stopped_by_user").unwrap();
        assert!(task.wait().survivors.is_empty(), "{way:?}");
        task.assert_gone();
    }
}

#[test]
fn a_stopped_process_is_ended_too() {
    for way in WAYS {
        let mut task = Plan::script_by(way, "echo > ready; kill -STOP $$").start();
        task.wait_file("ready");
        task::stop(&task.dir, LONG, "stopped_by_user").unwrap();
        assert_eq!(task.wait().outcome, Outcome::Signaled { signal: 15 }, "{way:?}");
    }
}

#[test]
fn a_task_that_was_stopped_before_its_start_is_not_run() {
    let plan = Plan::script("echo never");
    std::fs::create_dir(plan.dir()).unwrap();
    task::stop(&plan.dir(), LONG, "stopped_by_user").unwrap();
    let (exit, task) = plan.run();
    assert_eq!(exit.outcome, Outcome::NotStarted);
    assert!(exit.stopped);
    assert_eq!(task.stdout(), "");
    task.assert_gone();
}

#[test]
fn a_stop_during_setup_keeps_the_command_from_running() {
    let mut task = Plan::script("echo never")
        .setup("trap 'exit 0' TERM; echo > ready; while :; do sleep 0.01; done")
        .start();
    task.wait_file("ready");
    task::stop(&task.dir, LONG, "stopped_by_user").unwrap();
    assert_eq!(task.wait().outcome, Outcome::NotStarted);
    assert_eq!(task.stdout(), "");
}

#[test]
fn a_stop_after_the_end_changes_nothing() {
    let (exit, mut task) = Plan::script("exit 3").run();
    task::stop(&task.dir, Duration::ZERO, "stopped_by_user").unwrap();
    assert_eq!(task.wait(), exit);
}

#[test]
fn signals_meant_for_others_do_not_reach_the_supervisor() {
    let plan = Plan::script("for s in HUP INT QUIT TERM PIPE; do kill -$s $PPID; done; sleep 0.1; echo done");
    let (exit, task) = plan.run();
    assert_eq!(exit.outcome, Outcome::Exited { code: 0 });
    assert_eq!(task.stdout(), "done\n");
}

/// Writes down what it is told, says that it has saved, and goes.
const SAVES: &str = "trap 'cat task/stop-notice.json; mkdir task/notes; echo > task/notes/saved; exit 0' USR1; \
                     echo > ready; while :; do sleep 0.01; done";

#[test]
fn a_task_is_told_why_and_until_when_with_the_signal_of_its_choice() {
    for way in WAYS {
        let mut plan = Plan::script_by(way, SAVES);
        plan.launch.stop_signal = "USR1".parse().unwrap();
        let mut task = plan.start();
        task.wait_file("ready");
        task::stop(&task.dir, LONG, "preempted").unwrap();
        // What is asked later changes nothing about why.
        task::stop(&task.dir, LONG, "stopped_by_user").unwrap();
        let exit = task.wait();
        assert_eq!(exit.outcome, Outcome::Exited { code: 0 }, "{way:?}");
        let notice = exit.notice.expect("it was told");
        assert_eq!((notice.reason.as_str(), notice.killed), ("preempted", false));
        assert!(exit.saved_at.expect("it has saved") >= notice.at);
        let told: serde_json::Value = serde_json::from_str(&task.stdout()).unwrap();
        assert_eq!(told["reason"], "preempted");
        let moment = |name: &str| told[name].as_str().unwrap().parse::<jiff::Timestamp>().unwrap();
        assert_eq!(moment("kill_at"), moment("at") + LONG);
    }
}

#[test]
fn whoever_outlives_the_grace_is_killed_and_that_is_written_down() {
    let script = "trap '' TERM; echo > ready; while :; do sleep 1000; done";
    let mut task = Plan::script(script).start();
    task.wait_file("ready");
    task::stop(&task.dir, Duration::from_millis(20), "suspended").unwrap();
    let exit = task.wait();
    let notice = exit.notice.expect("it was told");
    assert_eq!((notice.reason.as_str(), notice.killed, exit.saved_at), ("suspended", true, None));
}

#[test]
fn a_time_limit_gives_notice_too() {
    let plan = Plan::script(&SAVES.replace("USR1", "TERM")).timeout(Duration::from_millis(200), LONG);
    let (exit, _task) = plan.run();
    assert_eq!(exit.outcome, Outcome::Timeout);
    assert_eq!(exit.notice.map(|notice| notice.reason), Some("timeout".to_owned()));
}

#[test]
fn without_any_grace_there_is_no_notice() {
    let mut task = Plan::script("echo > ready; exec sleep 1000").start();
    task.wait_file("ready");
    task::stop(&task.dir, Duration::ZERO, "stopped_by_user").unwrap();
    assert_eq!((task.wait().notice, task.dir.join("stop-notice.json").exists()), (None, false));
}
