//! `submit`, `clone` and `events`: a job from a file, again with changes, and what happened to it.

use std::io::{BufRead, BufReader, Write};
use std::process::Stdio;

use muster_testkit::wait_for;
use serde_json::{Value, json};

use crate::{home, until};

#[test]
fn a_file_is_submitted_and_only_the_id_is_printed() {
    let home = home();
    home.write("jobs/job.yaml", "name: from-file\nnodes: 2\ncommand: echo rank $RANK $A\nworkdir: ..\n");
    let done = home.run(["submit", "jobs/job.yaml", "-e", "A=b", "--name", "other"]);
    assert_eq!((done.code(), done.err().as_str()), (0, ""), "{}", done.out());
    let id = done.out().trim().to_owned();
    assert!(id.starts_with("job_") && done.out().lines().count() == 1, "{}", done.out());
    let job = home.wait_for_state(&id, "succeeded");
    assert_eq!(
        (&job["name"], &job["nodes"], &job["spec"]["env"]["A"]),
        (&json!("other"), &json!(2), &json!("b"))
    );
    let job = home.json(["submit", "jobs/job.yaml", "--json", "--", "true"]);
    assert_eq!(job["spec"]["command"], json!(["true"]));
    assert_eq!(home.run(["submit"]).code(), 2);
    let done = home.run(["submit", "jobs/none.yaml"]);
    assert_eq!(done.code(), 2);
    assert!(done.err().contains("jobs/none.yaml"), "{}", done.err());
}

#[test]
fn a_job_can_come_from_stdin_as_yaml_or_json() {
    let home = home();
    for text in ["command: echo hello\n", r#"{"command": ["echo", "hello"]}"#] {
        let mut command = home.command(["submit", "-"]);
        command.stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut child = command.spawn().unwrap();
        child.stdin.take().unwrap().write_all(text.as_bytes()).unwrap();
        let output = child.wait_with_output().unwrap();
        assert!(output.status.success());
        let id = String::from_utf8(output.stdout).unwrap();
        home.wait_for_state(id.trim(), "succeeded");
        assert_eq!(home.ok(["logs", id.trim()]), "hello\n");
    }
}

#[test]
fn on_a_terminal_a_detached_job_comes_with_the_next_commands() {
    let home = home();
    for words in [vec!["run", "-d", "--", "true"], vec!["submit", "job.yaml"]] {
        home.write("job.yaml", "command: 'true'\n");
        let terminal = home.start_on_terminal(words);
        wait_for("the hints", || terminal.screen().contains("muster stop job_"));
        assert!(terminal.screen().contains("muster logs -f job_"), "{}", terminal.screen());
        assert!(terminal.screen().contains("muster show job_"), "{}", terminal.screen());
    }
    let terminal = home.start_on_terminal(["run", "-d", "--json", "--", "true"]);
    wait_for("the job", || terminal.screen().contains("\"attempts\""));
    assert!(!terminal.screen().contains("muster logs"), "{}", terminal.screen());
}

#[test]
fn run_without_a_command_points_at_the_job_file() {
    let home = home();
    home.write("muster.yaml", "command: 'true'\n");
    let done = home.run(["run"]);
    assert_eq!(done.code(), 2);
    assert!(done.err().contains("muster run muster.yaml"), "{}", done.err());
}

#[test]
fn a_clone_has_the_old_code_unless_it_is_to_be_fresh() {
    let home = home();
    home.write("say.sh", "echo old $A\n");
    let first = home.submit(&["--name", "say", "--timeout", "1h", "-e", "A=1", "--", "sh", "say.sh"]);
    home.wait_for_state(&first, "succeeded");
    home.write("say.sh", "echo new $A\n");

    let done = home.run(["clone", "say"]);
    assert_eq!((done.code(), done.out().as_str()), (0, "old 1\n"), "{}", done.err());
    assert!(done.err().contains("the same job as job_"), "{}", done.err());

    let done = home.run(["clone", &first, "--fresh", "-e", "A=2", "--unset", "timeout", "-N", "2"]);
    assert_eq!(done.code(), 0, "{}", done.err());
    assert!(done.out().contains("task0 | new 2") && done.out().contains("task1 | new 2"), "{}", done.out());
    for line in ["env.A:   1 -> 2", "nodes:   1 -> 2", "timeout: 1h -> -", "code:    bundle_"] {
        assert!(done.err().contains(line), "{line}\n{}", done.err());
    }
    assert!(!done.err().contains('\u{1b}'), "{}", done.err());
    let job = home.job("last");
    assert_eq!(
        (&job["name"], &job["nodes"], &job["spec"]["timeout"]),
        (&json!("say"), &json!(2), &Value::Null)
    );
}

#[test]
fn a_clone_is_looked_at_before_it_is_made() {
    let home = home();
    let first = home.submit(&["--name", "wait", "--", "sh", "-c", &until("go")]);
    home.wait_for_state(&first, "running");
    let text = home.ok(["clone", "wait", "--nodes", "3", "--dry-run"]);
    assert!(text.contains("nodes: 1 -> 3") && text.contains("name:  wait -> wait-2"), "{text}");
    let json = home.json(["clone", "wait", "--nodes", "3", "--dry-run", "--json"]);
    let nodes = json!({"field": "nodes", "old": 1, "new": 3});
    assert!(json["changes"].as_array().unwrap().contains(&nodes), "{json}");
    assert_eq!(home.json(["ps", "-a", "--json"]).as_array().map(Vec::len), Some(1));

    // The name is in use, so the second gets a number.
    let second = home.ok(["clone", "wait", "--detach"]);
    assert_eq!(home.job(second.trim())["name"], "wait-2");
    home.touch("go");
    home.wait_for_state(second.trim(), "succeeded");

    for (words, message) in [
        (vec!["clone", "wait", "--unset", "timeout"], "has no `timeout`"),
        (vec!["clone", "wait", "--nodes", "0"], "--nodes: must be a whole number"),
        (vec!["clone", "wiat"], "did you mean `wait`?"),
    ] {
        let done = home.run(&words);
        assert_eq!(done.code(), 2, "{words:?}");
        assert!(done.err().contains(message), "{words:?}: {}", done.err());
    }
}

#[test]
fn events_tell_the_story_of_a_job_and_of_all() {
    let home = home();
    let job = home.submit(&[
        "--name",
        "tale",
        "-N",
        "2",
        "--",
        "sh",
        "-c",
        &format!("{}; exit $RANK", until("go")),
    ]);
    let follower = home.start(["events", "tale", "-f"]);
    wait_for("the gang to run", || follower.out().contains("every task runs"));
    // A follower outlives the server, and is told nothing twice.
    home.kill("server");
    home.touch("go");
    let done = follower.finish();
    assert_eq!(done.code(), 0, "{}", done.err());
    let text = done.out();
    for part in [
        "submitted        as tale",
        "2 tasks on node_local",
        "task1 on node_local: exited with code 1",
        "failed ",
    ] {
        assert!(text.contains(part), "{part}\n{text}");
    }
    assert_eq!(home.ok(["events", &job]), text);

    let other = home.submit(&["--", "true"]);
    home.wait_for_state(&other, "succeeded");
    let all: Vec<Value> =
        home.ok(["events", "--json"]).lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    for id in [&job, &other] {
        assert!(all.iter().any(|event| event["job"] == json!(id) && event["kind"] == "submitted"), "{all:?}");
    }
    assert_eq!(home.ok(["events", "--tail", "1", "--json"]).lines().count(), 1);
    assert_eq!(home.ok(["events", "--tail", "0"]).lines().count(), 1, "only the heading");
    assert_eq!(home.run(["events", "nobody"]).code(), 2);
}

#[test]
fn a_follower_ends_when_nobody_reads_it() {
    let home = home();
    home.wait_for_state(&home.submit(&["--", "true"]), "succeeded");
    let mut command = home.command(["events", "-f"]);
    let mut child = command.stdout(Stdio::piped()).spawn().unwrap();
    let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
    // All there is to say has been said when the reader goes.
    assert!(lines.by_ref().any(|line| line.unwrap().contains("succeeded")));
    drop(lines);
    let mut status = None;
    wait_for("the follower to end", || {
        status = child.try_wait().unwrap();
        status.is_some()
    });
    assert_eq!(status.unwrap().code(), Some(141));
}
