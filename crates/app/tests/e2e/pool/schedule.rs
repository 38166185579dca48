//! Who starts when, on several machines with simulated devices, and that a server that is killed in the middle changes nothing of it.

use muster_testkit::wait_for;
use serde_json::Value;

use super::Site;
use crate::{attempts, tasks};

/// What a training loop does: it goes on from what it last saved, and saves when it is told to end.
const TRAINING: &str = "S=/shared; step=$(cat $S/saved.$RANK 2>/dev/null || echo 0); echo from $step; \
    trap 'grep -q preempted $MUSTER_STOP_FILE && echo $step > $S/saved.$RANK && touch $MUSTER_SAVED_FILE; exit 0' TERM; \
    touch $S/up.$RANK; while [ ! -e $S/done ]; do step=$((step + 1)); sleep 0.02; done";
/// What holds its place until it is told to go.
const WAITING: &str = "while [ ! -e /shared/go ]; do sleep 0.02; done";

fn code(site: &Site, job: &str) -> String {
    let why = site.home.json(["why", job, "--json"]);
    why["code"].as_str().expect("every answer has a code").to_owned()
}

fn nodes_of(job: &Value) -> Vec<String> {
    tasks(job).iter().map(|task| task["node"].as_str().expect("a task has a node").to_owned()).collect()
}

#[test]
fn whoever_makes_room_saves_waits_and_goes_on_from_there() {
    let site = Site::with_devices(3);
    let shared = site.hosts.shared();
    let at = |name: &str| shared.join(name);
    let low = site.submit(&[
        "--name",
        "low",
        "-N",
        "3",
        "--gpus",
        "2",
        "--priority",
        "100",
        "--preemptible",
        "--",
        "sh",
        "-c",
        TRAINING,
    ]);
    wait_for("all of them to train", || (0..3).all(|rank| at(&format!("up.{rank}")).exists()));
    let high = site.submit(&[
        "--name",
        "high",
        "-N",
        "3",
        "--gpus",
        "2",
        "--priority",
        "900",
        "--",
        "sh",
        "-c",
        WAITING,
    ]);
    // Whatever of it was decided when the server died, it is decided once.
    site.home.kill("server");
    site.home.wait_for_state(&high, "running");
    let waiting = site.home.job(&low);
    assert_eq!(
        (&waiting["state"], &waiting["reason"]["code"]),
        (&"queued".into(), &"preempted".into()),
        "{waiting}"
    );
    assert_eq!(attempts(&waiting).len(), 1, "{waiting}");
    for task in tasks(&waiting) {
        assert_eq!(task["notice"]["reason"], "preempted", "{task}");
        assert_eq!(task["notice"]["killed"], false, "{task}");
        assert!(task["saved_at"].is_string(), "{task}");
    }
    // The server was killed: until its agents are back, no node takes tasks, which is another answer.
    (0..3).for_each(|number| drop(site.wait_for_connected(number, true)));
    assert_eq!(code(&site, &low), "no_capacity");

    site.home.kill("server");
    std::fs::write(at("go"), "").unwrap();
    site.home.wait_for_state(&high, "succeeded");
    site.home.wait_for_state(&low, "running");
    std::fs::write(at("done"), "").unwrap();
    let done = site.home.wait_for_state(&low, "succeeded");
    assert_eq!(attempts(&done).len(), 2, "{done}");
    let log = site.home.ok(["logs", &low, "--task", "1"]);
    let from: u64 = log.lines().last().and_then(|line| line.strip_prefix("from ")).unwrap().parse().unwrap();
    assert!(from > 0, "{log}");
    let events = site.home.ok(["events", &low]);
    assert_eq!(events.matches("for job_").count(), 1, "{events}");
}

#[test]
fn jobs_choose_among_machines_and_gangs_stay_together() {
    let site = Site::with_devices(3);
    let ids: Vec<String> =
        (0..3).map(|number| site.node(number)["id"].as_str().unwrap().to_owned()).collect();
    site.home.ok(["nodes", "label", &ids[0], &ids[2], "rack=r1"]);
    site.home.ok(["nodes", "label", &ids[1], "rack=r2", "disk=fast"]);
    // Labels are remembered.
    site.home.kill("server");
    let fast = site.submit(&["--node-label", "disk=fast", "--gpus", "1", "--", "true"]);
    assert_eq!(nodes_of(&site.home.wait_for_state(&fast, "succeeded")), [ids[1].clone()]);
    let gang = site.submit(&["-N", "2", "--gpus", "2", "--", "true"]);
    let mut nodes = nodes_of(&site.home.wait_for_state(&gang, "succeeded"));
    nodes.sort();
    assert_eq!(nodes, [ids[0].clone(), ids[2].clone()], "one rack");
    let elsewhere = site.submit(&["--exclude", &ids[0], "--exclude", &ids[1], "--gpus", "1", "--", "true"]);
    assert_eq!(nodes_of(&site.home.wait_for_state(&elsewhere, "succeeded")), [ids[2].clone()]);
    let refused = site.home.run(["run", "--on", "ssh/gpu", "--node-label", "disk=slow", "--", "true"]);
    assert_eq!(refused.code(), 2, "{}", refused.err());
    let refused = site.home.run(["run", "--on", "ssh/gpu", "--exclude", "nobody", "--", "true"]);
    assert!(refused.err().contains("there is no node `nobody`"), "{}", refused.err());
}

#[test]
fn short_jobs_fill_what_a_large_one_waits_for() {
    let site = Site::with_devices(2);
    let long = site.submit(&["--name", "long", "--gpus", "2", "--timeout", "1h", "--", "sh", "-c", WAITING]);
    site.home.wait_for_state(&long, "running");
    let large = site.submit(&["--name", "large", "-N", "2", "--gpus", "2", "--", "true"]);
    let why = site.home.json(["why", &large, "--json"]);
    assert_eq!((&why["code"], &why["starts_after"]), (&"no_capacity".into(), &"long".into()), "{why}");
    let changes: Vec<&str> =
        why["options"].as_array().unwrap().iter().map(|it| it["change"].as_str().unwrap()).collect();
    assert_eq!(changes, ["--gpus 1", "--nodes 1"], "{why}");
    // Nobody knows when it ends, so it would keep the large one waiting; one that says so does not.
    let endless = site.submit(&["--gpus", "1", "--", "true"]);
    let why = site.home.json(["why", &endless, "--json"]);
    assert_eq!(why["code"], "behind_others", "{why}");
    let option = why["options"]
        .as_array()
        .unwrap()
        .iter()
        .find(|it| it["change"].as_str().unwrap().starts_with("--timeout"));
    assert!(option.is_some(), "{why}");
    let short = site.submit(&["--gpus", "1", "--timeout", "10m", "--", "true"]);
    site.home.wait_for_state(&short, "succeeded");
    assert_eq!(site.home.job(&endless)["state"], "queued");
    std::fs::write(site.hosts.shared().join("go"), "").unwrap();
    for job in [&long, &large, &endless] {
        site.home.wait_for_state(job, "succeeded");
    }
}

#[test]
fn what_lies_idle_is_borrowed_and_taken_back() {
    let site = Site::with_devices(3);
    site.home.ok(["quota", "set", "red", "--gpus", "4"]);
    site.home.ok(["quota", "set", "blue", "--gpus", "2"]);
    let submit = |workspace: &str, name: &str, line: &str| {
        site.submit(&["--workspace", workspace, "--name", name, "--gpus", "2", "--", "sh", "-c", line])
    };
    let own = [submit("red", "r1", WAITING), submit("red", "r2", WAITING)];
    own.iter().for_each(|job| drop(site.home.wait_for_state(job, "running")));
    let line = TRAINING.replace("up.$RANK", "up");
    let borrows = submit("red", "r3", &line);
    wait_for("it to have what is blue's", || site.hosts.shared().join("up").exists());
    let fourth = submit("red", "r4", WAITING);
    // It has all that is its own and all that others leave idle.
    assert_eq!(code(&site, &fourth), "out_of_quota");
    site.home.kill("server");

    let back = submit("blue", "b1", WAITING);
    site.home.kill("server");
    site.home.wait_for_state(&back, "running");
    let waiting = site.home.job(&borrows);
    assert_eq!(
        (&waiting["state"], &waiting["reason"]["code"]),
        (&"queued".into(), &"preempted".into()),
        "{waiting}"
    );
    assert!(tasks(&waiting)[0]["saved_at"].is_string(), "{waiting}");
    assert!(site.home.ok(["events", &borrows]).contains("takes its own back"));
    // Nothing that is a workspace's own makes room, and nobody has more than there is.
    own.iter().for_each(|job| assert_eq!(site.home.job(job)["state"], "running"));
    assert_eq!(code(&site, &borrows), "out_of_quota");
    assert_eq!(code(&site, &fourth), "out_of_quota");

    std::fs::write(site.hosts.shared().join("go"), "").unwrap();
    std::fs::write(site.hosts.shared().join("done"), "").unwrap();
    for job in own.iter().chain([&back, &borrows, &fourth]) {
        site.home.wait_for_state(job, "succeeded");
    }
    assert_eq!(attempts(&site.home.job(&borrows)).len(), 2);
}
