//! Arrays: one job, many elements, each with its index, its log, its end; and whoever is killed meanwhile, every element
//! runs to its end exactly once. `MUSTER_ARRAY_KILLS=200` kills the agent that often, `MUSTER_CRASH_SEED` starts elsewhere.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use muster_testkit::{Home, wait_for, wait_for_some};
use serde_json::Value;

use crate::crash::{Random, number};
use crate::home;

/// What elements wrote into a file of `$SHARED`, a word each, counted.
fn counted(home: &Home, name: &str) -> BTreeMap<u32, usize> {
    let text = std::fs::read_to_string(home.shared().join(name)).unwrap_or_default();
    let mut counts = BTreeMap::new();
    for index in text.lines().filter_map(|line| line.parse().ok()) {
        *counts.entry(index).or_default() += 1;
    }
    counts
}

fn each_once(indices: impl Iterator<Item = u32>) -> BTreeMap<u32, usize> {
    indices.map(|index| (index, 1)).collect()
}

fn elements(home: &Home, job: &str, more: &[&str]) -> Vec<Value> {
    let words = ["elements", job, "--all", "--json"].into_iter().chain(more.iter().copied());
    home.json(words).as_array().expect("a list").clone()
}

fn indices(elements: &[Value]) -> Vec<u64> {
    elements.iter().map(|element| element["index"].as_u64().expect("an index")).collect()
}

#[test]
fn elements_have_their_index_their_log_and_their_exit_code() {
    let home = home();
    let line = "echo I am $MUSTER_ARRAY_INDEX of $MUSTER_ARRAY_COUNT in $MUSTER_ARRAY_MIN-$MUSTER_ARRAY_MAX; \
                echo it went >&2; echo $MUSTER_ARRAY_INDEX > $MUSTER_OUTPUT_DIR/mine; test $MUSTER_ARRAY_INDEX != 20 || exit 3";
    let done = home.run(["run", "--name", "sweep", "--array", "5,10-30:10%2", "--", line]);
    assert_eq!(done.code(), 1, "{}", done.err());
    assert!(done.err().contains("error[elements_failed]"), "{}", done.err());
    assert!(done.err().contains("1 of 4 elements failed"), "{}", done.err());
    let shown = home.job("sweep");
    assert_eq!(
        shown["elements"],
        serde_json::json!({"total": 4, "waiting": 0, "running": 0, "succeeded": 3, "failed": 1}),
        "{shown}"
    );
    let all = elements(&home, "sweep", &[]);
    assert_eq!(indices(&all), [5, 10, 20, 30]);
    assert_eq!(all[2]["failure"]["exit_code"], 3, "{}", all[2]);
    assert_eq!(indices(&elements(&home, "sweep", &["--failed"])), [20]);
    for index in ["5", "10", "20", "30"] {
        let log = home.run(["logs", "sweep", "--element", index]);
        assert_eq!(log.out(), format!("I am {index} of 4 in 5-30\n"));
        assert_eq!(log.err(), "it went\n");
    }
    let listed = home.ok(["ps"]);
    assert!(listed.contains("4/4"), "{listed}");
    let text = home.ok(["show", "sweep"]);
    assert!(text.contains("3 of 4 succeeded, 1 failed") && text.contains("failed elements:"), "{text}");
    let wrong = home.run(["logs", "sweep", "--element", "6"]);
    assert!(wrong.err().contains("there is no element 6; the array is 5,10-30:10%2"), "{}", wrong.err());
    let which = home.run(["logs", "sweep"]);
    assert!(which.err().contains("an array has a log for each element"), "{}", which.err());
    home.wait_for_no_tasks();
}

#[test]
fn failed_elements_are_tried_again_and_then_cloned() {
    let home = home();
    let line = "echo $MUSTER_ARRAY_INDEX >> $SHARED/ran; \
                case $MUSTER_ARRAY_INDEX in 2) test $(grep -cx 2 $SHARED/ran) -ge 3;; 4) test -e $SHARED/mended;; esac";
    let job = home.submit(&["--array", "1-5", "--retries", "2", "--", line]);
    assert_eq!(home.run(["wait", &job]).code(), 1);
    assert_eq!(counted(&home, "ran"), BTreeMap::from([(1, 1), (2, 3), (3, 1), (4, 3), (5, 1)]));
    let failed = elements(&home, &job, &["--failed"]);
    assert_eq!((indices(&failed), failed[0]["tries"].as_u64()), (vec![4], Some(3)));
    home.touch("mended");
    let again = home.ok(["clone", &job, "--failed", "--detach"]).trim().to_owned();
    assert_eq!(home.run(["wait", &again]).code(), 0);
    assert_eq!(home.job(&again)["spec"]["array"], "4");
    assert_eq!(counted(&home, "ran")[&4], 4);
    let none = home.run(["clone", &again, "--failed"]);
    assert!(none.err().contains("has failed"), "{}", none.err());
}

#[test]
fn no_more_run_at_once_than_the_array_says() {
    let home = home();
    let line = "mkdir $SHARED/run.$MUSTER_ARRAY_INDEX; ls -d $SHARED/run.* | wc -l >> $SHARED/at_once; sleep 0.05; \
                rmdir $SHARED/run.$MUSTER_ARRAY_INDEX";
    let job = home.submit(&["--array", "1-40%3", "--", line]);
    assert_eq!(home.run(["wait", &job]).code(), 0);
    let text = std::fs::read_to_string(home.shared().join("at_once")).expect("what ran at once");
    let most = text.lines().map(|line| line.trim().parse::<u32>().expect("a number")).max();
    assert_eq!((text.lines().count(), most), (40, Some(3)));
}

/// An array of short elements, somebody killed in the middle of it, and what must hold after.
fn survive(victims: &[&str], lost: usize) {
    let home = home();
    let line =
        "echo $MUSTER_ARRAY_INDEX >> $SHARED/began; sleep 0.01; echo $MUSTER_ARRAY_INDEX >> $SHARED/ended";
    let job = home.submit(&["--array", "1-300%2", "--retries", "3", "--", line]);
    for (round, victim) in victims.iter().enumerate() {
        let enough = 40 * (round + 1);
        wait_for("some elements", || counted(&home, "ended").len() >= enough);
        assert!(home.kill(victim) > 0, "there is a {victim} to kill");
        // Whoever comes next starts the server again, and that its agent.
        home.wait_for_node();
    }
    let waited = home.run(["wait", &job]);
    assert_eq!(waited.code(), 0, "{}\n{}", home.job(&job), home.diagnosis());
    let (began, ended) = (counted(&home, "began"), counted(&home, "ended"));
    assert_eq!(
        ended.keys().copied().collect::<Vec<_>>(),
        (1..=300).collect::<Vec<_>>(),
        "every element ended"
    );
    // What was under way in a killed supervisor runs again; nothing else does.
    let again: usize = began.values().map(|count| count - 1).sum();
    assert!(again <= lost, "{again} ran again: {began:?}");
    if lost == 0 {
        assert_eq!(ended, each_once(1..=300));
    }
    let shown = home.job(&job);
    assert_eq!(shown["elements"]["succeeded"], 300, "{shown}");
    home.wait_for_no_tasks();
}

#[test]
fn a_killed_server_loses_no_element_and_runs_none_twice() {
    survive(&["server", "server"], 0);
}

#[test]
fn a_killed_agent_loses_no_element_and_runs_none_twice() {
    survive(&["agent", "agent"], 0);
}

/// The lanes are many for so few elements, so that each is given one or two at a time and then waits for the next.
#[test]
fn no_array_stands_still_however_often_its_agent_is_killed() {
    let home = home();
    home.wait_for_node();
    let mut random = Random(number("MUSTER_CRASH_SEED", 1));
    let mut arrived = Instant::now();
    for round in 0..number("MUSTER_ARRAY_KILLS", 12) {
        // An agent that stays for less than a second is not restarted at once.
        wait_for("the agent to have stayed", || arrived.elapsed() > Duration::from_millis(1100));
        let ended = format!("ended.{round}");
        let line = format!("echo $MUSTER_ARRAY_INDEX >> $SHARED/{ended}");
        let job = home.submit(&["--array", "1-64%8", "--", &line]);
        let enough = 1 + random.below(63) as usize;
        wait_for("some elements", || counted(&home, &ended).len() >= enough);
        assert!(home.kill("agent") > 0, "there is an agent to kill");
        home.wait_for_node();
        arrived = Instant::now();
        wait_for_some(&format!("the array of round {round}"), || {
            let shown = home.get(&format!("/api/v1/jobs/{job}")).json();
            (shown["state"] == "succeeded").then_some(())
        });
        assert_eq!(counted(&home, &ended), each_once(1..=64));
    }
    home.wait_for_no_tasks();
}

#[test]
fn server_and_agent_killed_together_lose_no_element() {
    survive(&["server", "agent", "server"], 0);
}

#[test]
fn killed_supervisors_run_again_only_what_was_under_way() {
    survive(&["supervise", "supervise"], 4);
}

#[test]
fn an_array_is_stopped_suspended_and_resumed() {
    let home = home();
    let line = "echo $MUSTER_ARRAY_INDEX >> $SHARED/began; test -e $SHARED/go || sleep 600; echo $MUSTER_ARRAY_INDEX >> $SHARED/ended";
    let job = home.submit(&["--array", "1-50%2", "--grace", "1s", "--", line]);
    wait_for("two to begin", || counted(&home, "began").len() == 2);
    home.ok(["suspend", &job]);
    home.wait_for_state(&job, "suspended");
    home.wait_for_no_tasks();
    assert_eq!(home.job(&job)["elements"]["waiting"], 50, "what did not finish waits again");
    home.touch("go");
    home.ok(["resume", &job]);
    assert_eq!(home.run(["wait", &job]).code(), 0);
    assert_eq!(counted(&home, "ended"), each_once(1..=50));
    let other = home.submit(&["--array", "1-9%1", "--grace", "1s", "--", "sleep 600"]);
    wait_for("one to run", || home.job(&other)["elements"]["running"] == 1);
    home.ok(["stop", &other]);
    let stopped = home.wait_for_state(&other, "stopped");
    assert_eq!(stopped["elements"]["waiting"], 9, "{stopped}");
    home.wait_for_no_tasks();
}

#[test]
fn the_log_of_an_element_is_followed_from_before_it_begins_to_its_end() {
    let home = home();
    let line = "echo one $MUSTER_ARRAY_INDEX; until test -e $SHARED/go.$MUSTER_ARRAY_INDEX; do sleep 0.01; done; echo two";
    let job = home.submit(&["--array", "1-3%1", "--", line]);
    let follower = home.start(["logs", &job, "--element", "2", "--follow"]);
    home.touch("go.1");
    wait_for_some("the second to run", || {
        elements(&home, &job, &["--state", "running"])
            .first()
            .filter(|element| element["index"] == 2)
            .cloned()
    });
    home.touch("go.2");
    let done = follower.finish();
    assert_eq!(done.out(), "one 2\ntwo\n", "{}", done.err());
    home.touch("go.3");
    assert_eq!(home.run(["wait", &job]).code(), 0);
}

#[test]
fn another_job_does_not_wait_for_all_of_an_array() {
    let home = home();
    home.configure("[local]\ndevices = [\"H100:1\"]\n");
    let line = "test -e $SHARED/enough || sleep 0.05; echo $MUSTER_ARRAY_INDEX >> $SHARED/ended";
    let job = home.submit(&["--array", "1-2000", "--gpus", "1", "--", line]);
    wait_for("some elements", || counted(&home, "ended").len() >= 5);
    let other = home.submit(&["--gpus", "1", "--priority", "900", "--", "true"]);
    assert_eq!(home.run(["wait", &other]).code(), 0);
    let done = counted(&home, "ended").len();
    assert!(done < 1900, "{done} of the array had ended first");
    home.touch("enough");
    assert_eq!(home.run(["wait", &job]).code(), 0);
    assert_eq!(counted(&home, "ended"), each_once(1..=2000));
}

#[test]
fn a_thousand_elements_take_seconds() {
    let home = home();
    home.wait_for_node();
    let begun = Instant::now();
    let done = home.run(["run", "--array", "1-1000", "--cpus", "1", "--", "true"]);
    assert_eq!(done.code(), 0, "{}", done.err());
    // A process takes a millisecond or two; each with a supervisor of its own would take a minute.
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
    assert_eq!(home.job("last")["elements"]["succeeded"], 1000);
}

#[test]
fn what_an_array_cannot_be_is_said_with_the_field() {
    let home = home();
    for (words, says) in [
        (vec!["--array", "9-1"], "--array: `9-1` ends before it begins"),
        (vec!["--array", "1-5", "-N", "2"], "--nodes: must be 1 in an array"),
        (
            vec!["--array", "1-5", "--on", "slurm/x"],
            "--array: elements are started by muster's own scheduler",
        ),
    ] {
        let done = home.run(["run"].into_iter().chain(words.iter().copied()).chain(["--", "true"]));
        assert!(done.code() == 2 && done.err().contains(says), "{words:?}: {}", done.err());
    }
}

#[test]
fn a_batch_script_finds_what_slurm_gives_an_array() {
    let home = home();
    home.write(
        "sweep.sbatch",
        "#!/bin/sh\n#SBATCH --array=3-4\necho $SLURM_ARRAY_TASK_ID of $SLURM_ARRAY_TASK_COUNT, $SLURM_ARRAY_TASK_MIN-$SLURM_ARRAY_TASK_MAX\n\
         test \"$SLURM_ARRAY_JOB_ID\" = \"$SLURM_JOB_ID\"\n",
    );
    let job = home.ok(["submit", "sweep.sbatch"]).trim().to_owned();
    assert_eq!(home.run(["wait", &job]).code(), 0, "{}", home.job(&job));
    assert_eq!(home.ok(["logs", &job, "--element", "4"]), "4 of 2, 3-4\n");
}

#[test]
fn an_element_that_is_told_to_end_has_not_finished_whatever_it_says() {
    let home = home();
    let line = "echo began; trap 'exit 0' TERM; while ! test -e $SHARED/go; do sleep 0.05; done";
    let job = home.submit(&["--array", "1-2", "--", line]);
    let counts = |what: &str| home.job(&job)["elements"][what].clone();
    wait_for("both to run", || counts("running") == 2);
    home.ok(["nodes", "drain", "local", "--evict"]);
    wait_for("the node to be empty", || counts("running") == 0);
    assert_eq!(counts("succeeded"), 0);
    // What they wrote is there until they run again.
    assert_eq!(home.ok(["logs", &job, "--element", "1"]), "began\n");
    home.ok(["nodes", "undrain", "local"]);
    wait_for("both to run again", || counts("running") == 2);
    home.ok(["suspend", &job]);
    home.wait_for_state(&job, "suspended");
    assert_eq!(counts("succeeded"), 0);

    let early = home.run(["clone", &job, "--unfinished"]);
    assert!(early.err().contains("is not over"), "{}", early.err());
    home.ok(["stop", &job]);
    home.wait_for_state(&job, "stopped");
    home.touch("go");
    let rest = home.ok(["clone", &job, "--unfinished", "--detach"]).trim().to_owned();
    home.wait_for_state(&rest, "succeeded");
    assert_eq!(indices(&elements(&home, &rest, &["--state", "succeeded"])), [1, 2]);
}
