//! Machines: held by name, used as one uses a host, parked and taken again.

use muster_testkit::{Home, wait_for};
use rustix::process::Signal;
use serde_json::{Value, json};

use crate::{home, home_with};

/// A command that is just being started has not asked for its machine yet.
fn wait_until_queued(home: &Home, name: &str) {
    wait_for("the machine to wait", || home.run(["show", name, "--json"]).out().contains("\"queued\""));
}

#[test]
fn a_machine_is_made_used_stopped_started_and_killed() {
    let home = home();
    let bare = home.bare_shells();
    let made = home.json([
        "machine",
        "create",
        "v100",
        "-N",
        "2",
        "--label",
        "project=bert",
        "--env",
        &bare,
        "--json",
    ]);
    let names: Vec<&str> = made.as_array().unwrap().iter().map(|row| row["name"].as_str().unwrap()).collect();
    assert_eq!(names, ["task0.v100", "task1.v100"]);
    assert!(made[0]["address"].is_string() && made[0]["state"] == "running", "{made}");
    // Members reach each other by name and by address, as `mpirun --host IP:8` does.
    let address = made[1]["address"].as_str().unwrap();
    for host in ["task1.v100", "worker-1", address] {
        assert_eq!(home.ok(["exec", "v100", "--", "ssh", host, "echo $MUSTER_RANK"]), "1\n", "{host}");
    }
    home.ok(["exec", "task1.v100", "--", "sh", "-c", "echo kept > notes.txt"]);
    home.ok(["session", "run", "v100", "-c", "cd /tmp; export A=1"]);
    assert_eq!(home.ok(["session", "run", "v100", "-c", "echo $PWD $A"]), "/tmp 1\n");

    assert_eq!(home.ok(["machine", "stop", "{v100}"]), "v100 suspended\n");
    assert_eq!(home.ok(["machine", "stop", "v100"]), "v100 suspended\n", "twice is once");
    assert!(home.run(["exec", "v100", "--", "true"]).err().contains("suspended"));
    home.wait_for_no_tasks();

    assert_eq!(home.ok(["machine", "start", "v100"]), "v100 running\n");
    assert_eq!(home.ok(["machine", "start", "v100"]), "v100 running\n");
    assert_eq!(home.ok(["exec", "v100/1", "--", "cat", "notes.txt"]), "kept\n");

    assert_eq!(home.ok(["machine", "rename", "v100", "bert"]), "bert running\n");
    let listed = home.json(["machine", "ls", "--label", "project=bert", "--json"]);
    assert_eq!((listed[1]["name"].as_str(), listed.as_array().unwrap().len()), (Some("task1.bert"), 2));
    assert_eq!(home.json(["machine", "ls", "--label", "project=x", "--json"]), json!([]));
    assert_eq!(home.ok(["machine", "kill", "bert"]), "bert stopped\n");
    assert_eq!(home.json(["machine", "ls", "--json"]), json!([]));
    home.wait_for_no_tasks();
}

#[test]
fn what_runs_on_a_machine_ends_with_it_and_it_costs_nothing_before() {
    let home = home();
    home.ok(["machine", "create", "m"]);
    let mut sleeper = home.start(["exec", "m", "--", "sh", "-c", "echo on > $SHARED/on; exec sleep 600"]);
    home.wait_for_file("on");
    let waiting = home.processes_as("processes");
    assert_eq!(waiting.len(), 1, "{waiting:?}");
    home.ok(["machine", "stop", "m"]);
    wait_for("the end of what ran there", || sleeper.is_over());
    home.wait_for_no_tasks();
}

#[test]
fn names_are_unique() {
    let home = home();
    home.ok(["machine", "create", "a", "-N", "2"]);
    home.ok(["machine", "create", "b"]);
    let taken = home.run(["machine", "create", "a", "--json"]);
    let error: Value = serde_json::from_slice(&taken.stderr).unwrap();
    assert_eq!((taken.code(), error["code"].as_str()), (2, Some("name_taken")), "{error}");
    assert!(home.run(["machine", "rename", "b", "a"]).err().contains("name_taken"));
    for taken in ["b", "task0.b"] {
        assert!(home.run(["machine", "rename", "task1.a", taken]).err().contains("name_taken"));
    }
    let refused = home.run(["machine", "rename", "a", "task1.c"]);
    assert!(refused.code() == 2 && refused.err().contains("name a group: c"), "{}", refused.err());
    assert_eq!(home.ok(["machine", "kill", "task0.b"]), "b stopped\n");
    let unknown = home.run(["machine", "stop", "aa"]);
    assert!(unknown.err().contains("did you mean `a`"), "{}", unknown.err());
    assert!(home.run(["machine", "stop", "task7.a"]).err().contains("task_not_found"));
}

#[test]
fn machines_of_a_group_are_stopped_started_and_killed_one_by_one() {
    let home = home();
    let bare = home.bare_shells();
    home.ok(["machine", "create", "m", "-N", "3", "--env", &bare]);
    home.ok(["exec", "m/1", "--", "sh", "-c", "echo kept > notes.txt"]);
    home.ok(["session", "run", "m", "-c", "cd /tmp; export A=1"]);
    assert_eq!(home.ok(["machine", "stop", "task1.m"]), "task1.m suspended\n");
    assert_eq!(home.ok(["session", "run", "m", "-c", "echo $PWD $A"]), "/tmp 1\n", "the others go on");
    assert!(home.run(["exec", "m/1", "--", "true"]).err().contains("task1.m is suspended"));
    assert_eq!(home.ok(["exec", "--all", "m", "--", "true"]), "");
    home.write("all.txt", "to all\n");
    home.ok(["cp", "--all", "all.txt", "m:"]);
    let called = home.run(["exec", "m", "--", "ssh", "task1.m", "true"]);
    assert!(called.code() == 255, "nobody is there, and that is said at once: {}", called.err());

    assert_eq!(home.kill("server"), 1);
    assert_eq!(home.ok(["machine", "start", "task1.m"]), "task1.m running\n");
    assert_eq!(home.ok(["exec", "m", "--", "ssh", "task1.m", "cat notes.txt"]), "kept\n");
    assert_eq!(home.ok(["exec", "m/2", "--", "ssh", "worker-1", "cat notes.txt"]), "kept\n");
    let shown = home.job("m");
    let seen: Vec<&Value> = crate::tasks(&shown).iter().map(|task| &task["attempt"]).collect();
    assert_eq!((seen, crate::attempts(&shown).len()), (vec![&json!(1), &json!(2), &json!(1)], 2));

    home.ok(["machine", "kill", "task0.m"]);
    home.ok(["machine", "stop", "task1.m", "task2.m"]);
    assert_eq!(home.job("m")["state"], "suspended", "the last one parks the group");
    assert_eq!(home.ok(["machine", "start", "task2.m"]), "task2.m running\n");
    assert_eq!(home.ok(["machine", "start", "m"]), "m running\n", "those that are left");
    let rows = home.json(["machine", "ls", "--json"]);
    let rows: Vec<(&Value, &Value)> =
        rows.as_array().unwrap().iter().map(|row| (&row["name"], &row["state"])).collect();
    let running = json!("running");
    assert_eq!(rows, [(&json!("task1.m"), &running), (&json!("task2.m"), &running)]);
    home.ok(["machine", "kill", "task1.m", "task2.m"]);
    assert_eq!(home.job("m")["state"], "stopped");
    home.wait_for_no_tasks();
}

#[test]
fn a_whole_node_is_nobody_elses_and_a_machine_waits_for_one() {
    let home = home_with("[local]\ndevices = [\"V100:2\"]\n");
    let made = home.json(["machine", "create", "whole", "--exclusive", "--json"]);
    assert_eq!(made[0]["devices"], json!({"V100": 2}));
    let job = home.submit(&["--", "true"]);
    assert_eq!(home.job(&job)["state"], "queued");
    assert!(home.ok(["why", &job]).contains("waits for room"));
    let late = home.start(["machine", "create", "late", "--exclusive"]);
    wait_until_queued(&home, "late");
    assert!(home.ok(["why", "late"]).contains("a whole node"));
    home.ok(["machine", "kill", "whole"]);
    home.wait_for_state(&job, "succeeded");
    home.wait_for_state("late", "running");
    assert!(late.finish().out().contains("task0.late"));
}

#[test]
fn ctrl_c_gives_back_what_is_not_there_yet() {
    let home = home();
    home.ok(["machine", "create", "whole", "--exclusive"]);
    let waiting = home.start(["machine", "create", "late", "--exclusive"]);
    wait_until_queued(&home, "late");
    waiting.signal(Signal::INT);
    let done = waiting.finish();
    assert!(done.code() == 130 && done.err().contains("given back"), "{}", done.err());
    home.wait_for_state("late", "stopped");
}

#[test]
fn any_job_can_be_paused_and_brought_back() {
    let home = home();
    let job = home.submit(&["--name", "digits", "--", "sh", "-c", "echo attempt $MUSTER_ATTEMPT; sleep 600"]);
    home.wait_for_state(&job, "running");
    assert_eq!(home.ok(["suspend", "digits"]), format!("{job} suspended\n"));
    assert_eq!(home.ok(["suspend", "digits"]), format!("{job} suspended\n"), "twice is once");
    assert!(home.ok(["why", "digits"]).contains("muster resume"));
    home.ok(["resume", "digits"]);
    home.wait_for_state(&job, "running");
    wait_for("the second attempt's line", || home.ok(["logs", &job]).contains("attempt 2"));
    assert_eq!(home.ok(["resume", "digits"]), format!("{job} running\n"), "twice is once");
    home.ok(["stop", "digits"]);
    assert!(home.run(["resume", &job]).err().contains("only one that is suspended can be resumed"));
}

#[test]
fn a_machine_is_a_job_like_any_other_to_files_and_clones() {
    let home = home();
    home.write("m.yaml", "kind: machine\nname: dev\nlabels: {project: bert}\n");
    let id = home.ok(["submit", "m.yaml"]);
    home.wait_for_state(id.trim(), "running");
    let clone = home.ok(["clone", "dev", "--detach"]);
    let clone = home.wait_for_state(clone.trim(), "running");
    assert_eq!((clone["name"].as_str(), clone["labels"]["project"].as_str()), (Some("dev-2"), Some("bert")));
    assert!(home.ok(["ps"]).contains("(machine)"));
    home.write("wrong.yaml", "kind: machine\nname: x\ncommand: python train.py\n");
    let refused = home.run(["submit", "wrong.yaml"]);
    assert!(refused.err().contains("command: a machine runs nothing of its own"), "{}", refused.err());
}
