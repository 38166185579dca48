//! `muster run`: what it runs, with what around it, what it exits with, and what it refuses.

use std::fs::File;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::process::Command;

use muster_testkit::http::Request;
use muster_testkit::{Home, Running, wait_for, with_word};
use serde_json::{Value, json};

use crate::{attempts, home, home_with, python, until};

/// Every job there is.
fn all(home: &Home) -> Vec<Value> {
    home.json(["ps", "--all", "--json"]).as_array().expect("a list of jobs").clone()
}

#[test]
fn the_exit_code_is_the_jobs_own() {
    let home = home();
    let done = home.run(["run", "--", "true"]);
    assert_eq!((done.code(), done.out().as_str()), (0, ""), "{}", done.err());
    assert!(done.err().contains("succeeded"), "{}", done.err());
    let done = home.run(["run", "--", "sh", "-c", "echo said; exit 3"]);
    assert_eq!((done.code(), done.out().as_str()), (3, "said\n"), "{}", done.err());
    assert!(done.err().contains("exited with code 3"), "{}", done.err());
    for (signal, name) in [(9, "SIGKILL"), (15, "SIGTERM"), (11, "SIGSEGV")] {
        let done = home.run(["run", "--", "sh", "-c", &format!("kill -{signal} $$")]);
        assert_eq!(done.code(), 128 + signal, "{}", done.err());
        assert!(done.err().contains(name), "{}", done.err());
        assert_eq!(home.job("last")["reason"], json!({"code": "signal", "signal": signal}));
    }
    // One word with spaces is a line for the shell.
    let done = home.run(["run", "echo $((40 + 2)); exit 5"]);
    assert_eq!((done.code(), done.out().as_str()), (5, "42\n"), "{}", done.err());
}

#[test]
fn a_command_that_cannot_run_is_named_with_a_hint() {
    let home = home();
    let done = home.run(["run", "--", "no-such-program-7f3", "--flag"]);
    assert_eq!(done.code(), 127, "{}", done.err());
    assert!(done.err().contains("no-such-program-7f3"), "{}", done.err());
    assert!(done.err().contains("hint:"), "{}", done.err());
    assert_eq!(
        home.job("last")["reason"],
        json!({"code": "command_not_found", "command": "no-such-program-7f3"})
    );
    let done = home.run(["run", "--", "./missing.sh"]);
    assert_eq!(done.code(), 127, "{}", done.err());

    home.write("plain.sh", "#!/bin/sh\necho hi\n");
    let done = home.run(["run", "--", "./plain.sh"]);
    assert_eq!(done.code(), 126, "{}", done.err());
    assert!(done.err().contains("./plain.sh") && done.err().contains("chmod"), "{}", done.err());
    assert_eq!(home.job("last")["reason"]["code"], "command_not_executable");
    std::fs::create_dir(home.work().join("folder")).unwrap();
    assert_eq!(home.run(["run", "--", "./folder"]).code(), 126);

    // A script that does not say who reads it: the hint does.
    home.write("bare.sh", "echo bare\n");
    let bare = home.work().join("bare.sh");
    std::fs::set_permissions(&bare, std::fs::Permissions::from_mode(0o755)).unwrap();
    let done = home.run(["run", "--", "./bare.sh"]);
    assert_eq!(done.code(), 126, "{}", done.err());
    assert!(done.err().contains("interpreter"), "{}", done.err());
}

#[test]
fn piped_input_is_refused_and_the_rest_of_a_script_is_left_alone() {
    let home = home();
    home.write("input.txt", "for cat\n");
    let mut command = home.command(["run", "--", "cat"]);
    command.stdin(File::open(home.work().join("input.txt")).unwrap());
    let refused = Running::start(command).finish();
    assert_eq!(refused.code(), 2, "{}", refused.err());
    assert!(refused.err().contains("error[stdin_not_passed]"), "{}", refused.err());
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"for cat\n").unwrap();
    let mut command = home.command(["run", "--detach", "--", "cat"]);
    command.stdin(reader);
    assert_eq!(Running::start(command).finish().code(), 2);
    assert_eq!(all(&home), Vec::<Value>::new(), "no job was made");

    // A pipe that stays empty is how many programs start others.
    let (reader, writer) = std::io::pipe().unwrap();
    let mut command = home.command(["run", "--", "cat"]);
    command.stdin(reader);
    assert_eq!(Running::start(command).finish().code(), 0);
    drop(writer);
    // A shell that reads its script, or lines of a loop, from the same input needs the rest itself.
    let shell = home.command(["--version"]);
    let muster = shell.get_program().to_owned();
    let (reader, mut writer) = std::io::pipe().unwrap();
    writer.write_all(b"\"$MUSTER\" run -- cat\necho and goes on\n").unwrap();
    drop(writer);
    let mut script = Command::new("/bin/sh");
    script.envs(shell.get_envs().filter_map(|(name, value)| Some((name, value?))));
    script.env("MUSTER", muster).current_dir(home.work()).stdin(reader);
    let done = Running::start(script).finish();
    assert_eq!((done.code(), done.out().as_str()), (0, "and goes on\n"), "{}", done.err());
}

#[test]
fn a_setup_runs_first_and_its_failure_is_the_jobs() {
    let home = home();
    let done =
        home.run(["run", "--setup", "echo before; echo x > made", "--", "sh", "-c", "cat made; echo after"]);
    assert_eq!((done.code(), done.out().as_str()), (0, "before\nx\nafter\n"), "{}", done.err());
    let done = home.run(["run", "--setup", "echo before; exit 7", "--", "echo", "never"]);
    assert_eq!((done.code(), done.out().as_str()), (7, "before\n"), "{}", done.err());
    assert!(done.err().contains("setup failed"), "{}", done.err());
    assert_eq!(home.job("last")["reason"], json!({"code": "setup_failed", "exit_code": 7}));
    let line = "f; cd d; false; echo never";
    let done = home.run(["run", "--setup", "set -e; mkdir d; f() { echo shared; }", line]);
    assert_eq!((done.code(), done.out().as_str()), (1, "shared\n"), "{}", done.err());
}

#[test]
fn what_is_set_up_once_is_there_for_the_next_job() {
    let home = home();
    let (own, cache) = (home.bare_shells(), "date +%s%N > $MUSTER_SETUP_DIR/made; echo made it");
    let run = || {
        let read = ["run", "-e", &own, "--setup-once", cache, "cat $MUSTER_SETUP_DIR/made"];
        home.ok(read)
    };
    let first = run();
    let (said, stamp) = first.split_once('\n').unwrap();
    assert_eq!(said, "made it");
    assert_eq!(run(), stamp, "it was made once");
}

#[test]
fn a_job_that_runs_too_long_is_ended_with_all_it_started() {
    let home = home();
    let mark = format!("too-long-{}", std::process::id());
    let script = format!("setsid sh -c 'sleep 600' {mark} & sh -c 'sleep 600' {mark}");
    let done = home.run(["run", "--timeout", "400ms", "--grace", "200ms", "--", "sh", "-c", &script]);
    assert_eq!(done.code(), 124, "{}", done.err());
    assert!(done.err().contains("timeout") && done.err().contains("--timeout"), "{}", done.err());
    assert_eq!(with_word(&mark), []);
    let job = home.job("last");
    assert_eq!(
        (&job["state"], &job["reason"]),
        (&json!("failed"), &json!({"code": "timeout", "limit_ms": 400}))
    );
    assert_eq!(home.json(["why", "last", "--json"])["code"], "timeout");
}

#[test]
fn a_task_gets_the_submitters_environment_and_what_the_job_adds() {
    let home = home();
    let script = r#"echo "$FROM_SHELL|$GIVEN|$PASSED|$RANK|$WORLD_SIZE|$PYTHONUNBUFFERED|$MUSTER_HOME"
[ -d "$MUSTER_OUTPUT_DIR" ] && echo x > "$MUSTER_OUTPUT_DIR/x" && echo can write; cat; echo "$(pwd) $PWD""#;
    let mut command = home.command(["run", "-e", "GIVEN=a=b c", "--env", "PASSED", "--", "sh", "-c", script]);
    // What another job left in the shell is not what this one is.
    command.env("FROM_SHELL", "here").env("PASSED", "on").env("RANK", "77").env("WORLD_SIZE", "99");
    let done = Running::start(command).finish();
    let shown = done.out();
    let lines: Vec<&str> = shown.lines().collect();
    let expected = format!("here|a=b c|on|0|1|1|{}", home.path().display());
    assert_eq!(lines[..2], [expected.as_str(), "can write"], "{}", done.err());
    let (asked, told) = lines[2].split_once(' ').unwrap();
    assert_eq!(asked, told, "the shell's own idea of where it is");

    let script =
        r#"echo "${FROM_SHELL-none}|${SHARED-none}|$GIVEN|$RANK"; [ -n "$PATH$HOME" ] && ls / >/dev/null"#;
    let mut command = home.command(["run", "--clean-env", "-e", "GIVEN=yes", "--", "sh", "-c", script]);
    command.env("FROM_SHELL", "here");
    let done = Running::start(command).finish();
    assert_eq!((done.code(), done.out().as_str()), (0, "none|none|yes|0\n"), "{}", done.err());

    let print = ["--", "sh", "-c", "echo \"[$PYTHONUNBUFFERED]\""];
    let done = home.run(["run", "-e", "PYTHONUNBUFFERED="].iter().chain(&print));
    assert_eq!(done.out(), "[]\n", "what the user set stays");
}

#[test]
fn words_arrive_as_they_were_typed() {
    let home = home();
    let long = "x".repeat(100_000);
    let words =
        ["a b", "", "quo'te\"", "new\nline", "größe 训练", "$HOME", "*", "--nodes", "--", "-x", "\\", &long];
    let done = home.run(["run", "--", "printf", "[%s]"].iter().chain(&words));
    let expected: String = words.iter().map(|word| format!("[{word}]")).collect();
    assert_eq!((done.code(), done.out()), (0, expected), "{}", done.err());
    let done = home.run(["run", "-e", &format!("LONG={long}"), "--", "sh", "-c", "printf %s \"$LONG\""]);
    assert_eq!((done.code(), done.out()), (0, long), "{}", done.err());
}

#[test]
fn a_task_may_run_jobs_of_its_own() {
    let home = home();
    let inner =
        format!("{} run -N 2 -- sh -c 'echo $RANK of $WORLD_SIZE'; exit 3", env!("CARGO_BIN_EXE_muster"));
    let done = home.run(["run", "--", "sh", "-c", &inner]);
    assert_eq!(done.code(), 3, "{}", done.err());
    let mut lines: Vec<String> = done.out().lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["task0 | 0 of 2", "task1 | 1 of 2"]);
    assert_eq!(all(&home).len(), 2);
}

#[test]
fn the_submitters_environment_is_nobody_elses() {
    let home = home();
    let secret = format!("secret-{}", std::process::id());
    let script = format!("printf %s \"$TOKEN\" | wc -c; {}", until("go"));
    let mut command = home.command(["run", "-d", "--name", "private", "--", "sh", "-c", &script]);
    command.env("TOKEN", &secret);
    assert_eq!(Running::start(command).finish().code(), 0);
    home.wait_for_state("private", "running");
    assert_eq!(with_word(&secret), [], "in no command line");
    let views =
        ["", "/why", "/events", "/logs"].map(|part| home.get(&format!("/api/v1/jobs/private{part}")).text());
    assert!(views.iter().all(|view| !view.contains(&secret)), "{views:?}");
    for path in mentions(&home, &secret) {
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o077, 0, "{path} can be read by others");
        assert!(!path.ends_with(".log"), "{path}");
    }
    home.touch("go");
    home.wait_for_state("private", "succeeded");
    assert_eq!(home.ok(["logs", "private"]).trim(), secret.len().to_string());
    wait_for("the node to forget it", || {
        mentions(&home, &secret).iter().all(|path| path.contains("muster.db"))
    });
    assert!(database(&home).contains(&secret));
    home.ok(["rm", "private"]);
    assert!(!database(&home).contains(&secret), "it goes with the job");
}

/// Everything in the server's database, as SQL.
fn database(home: &Home) -> String {
    let dump = "import sqlite3, sys\nfor line in sqlite3.connect(sys.argv[1]).iterdump(): print(line)";
    let path = home.path().join("muster.db");
    let done = Command::new(python()).args(["-c", dump]).arg(path).output().expect("python3 starts");
    assert!(done.status.success(), "{}", String::from_utf8_lossy(&done.stderr));
    String::from_utf8_lossy(&done.stdout).into_owned()
}

/// The files of the data directory that contain a text.
fn mentions(home: &Home, text: &str) -> Vec<String> {
    let found = Command::new("grep").args(["-rlF", "--", text]).arg(home.path()).output();
    let text = String::from_utf8_lossy(&found.expect("grep starts").stdout).into_owned();
    text.lines().map(str::to_owned).collect()
}

#[test]
fn every_command_prints_json_when_asked() {
    let home = home();
    assert_eq!(home.json(["version", "--json"])["version"], env!("CARGO_PKG_VERSION"));
    assert!(!home.path().exists(), "asking for the version starts nothing");
    assert_eq!(home.run(["run", "--json", "--name", "x", "--", "echo", "hi"]).code(), 0);
    for words in [
        &["ps", "--json"][..],
        &["show", "x", "--json"],
        &["wait", "x", "--json"],
        &["logs", "x", "--json"],
        &["why", "x", "--json"],
        &["nodes", "--json"],
        &["server", "start", "--json"],
        &["server", "status", "--json"],
        &["server", "openapi", "--json"],
        &["stop", "x", "--json"],
        &["rm", "x", "--json"],
        &["server", "stop", "--json"],
    ] {
        let value = home.json(words);
        assert!(value.is_object() || value.is_array(), "{words:?}: {value}");
    }
}

#[test]
fn a_file_is_a_job_and_flags_go_on_top() {
    let home = home();
    home.write(
        "jobs/train.yaml",
        "name: from-file\nnodes: 2\nworkdir: ..\nenv:\n  A: file\n  B: file\nretries: 1\n\
         command: echo \"$RANK $WORLD_SIZE $A $B $(ls -d jobs)\"\n",
    );
    let done = home.run(["run", "jobs/train.yaml", "--nodes", "1", "-e", "A=flag", "--name", "from-flag"]);
    assert_eq!((done.code(), done.out().as_str()), (0, "0 1 flag file jobs\n"), "{}", done.err());
    let job = home.job("from-flag");
    assert_eq!((&job["nodes"], &job["spec"]["retries"]["max"]), (&json!(1), &json!(1)));

    let done = home.run(["run", "-f", "jobs/train.yaml"]);
    assert_eq!(done.code(), 0, "{}", done.err());
    let mut lines: Vec<String> = done.out().lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["task0 | 0 2 file file jobs", "task1 | 1 2 file file jobs"]);
    // The words after `--` are the command, in place of the file's.
    let done = home.run(["run", "jobs/train.yaml", "-N", "1", "--", "echo", "mine"]);
    assert_eq!((done.code(), done.out().as_str()), (0, "mine\n"), "{}", done.err());
}

#[test]
fn a_dry_run_shows_the_job_and_makes_nothing() {
    let home = home();
    home.wait_for_node();
    let done = home.run(["run", "--dry-run", "--nodes", "2", "--timeout", "2h", "--", "python", "train.py"]);
    assert_eq!(done.code(), 0, "{}", done.err());
    for line in ["nodes: 2", "timeout: 7200s", "priority: 500", "- train.py"] {
        assert!(done.out().contains(line), "{line}: {}", done.out());
    }
    let preview = home.json(["run", "--dry-run", "--json", "--", "python", "train.py"]);
    assert_eq!((&preview["name"], &preview["spec"]["nodes"]), (&json!("train"), &json!(1)));
    assert_eq!(preview["why"]["code"], "starts_now");
    let done = home.run(["run", "--dry-run", "--nodes", "none", "--", "true"]);
    assert_eq!(done.code(), 2, "{}", done.err());
    let done = home.run(["run", "--dry-run", "--on", "k8s/prod", "--", "true"]);
    assert_eq!(done.code(), 2, "{}", done.err());
    assert_eq!(all(&home), [] as [Value; 0]);
}

#[test]
fn everything_that_is_wrong_is_said_at_once_and_nothing_is_made() {
    let home = home();
    home.write(
        "wrong.yaml",
        "nodes: 0\nnodez: 3\nresources:\n  memory: lots\n  gpu: 1\ntimeout: soon\nenv: [1]\ncommand: 'true'\n",
    );
    let done = home.run(["run", "wrong.yaml", "--priority", "5000"]);
    assert_eq!(done.code(), 2, "{}", done.err());
    for field in
        ["nodes:", "nodez:", "resources.memory:", "resources.gpu:", "timeout:", "env:", "--priority:"]
    {
        assert!(done.err().contains(&format!("\n  {field}")), "{field}: {}", done.err());
    }
    home.write("broken.yaml", "nodes: 2\ncommand: [a, b\n");
    let done = home.run(["run", "broken.yaml"]);
    assert_eq!(done.code(), 2, "{}", done.err());
    assert!(done.err().contains("broken.yaml:3:1"), "{}", done.err());
    for (words, code) in [
        (&["run"][..], "required"),
        (&["run", "missing.yaml"], "job_file_unreadable"),
        (&["run", "--nodez", "2", "--", "true"], "usage"),
        (&["run", "--workdir", "nowhere", "--", "true"], "workdir_missing"),
        (&["run", "--name", "not a name", "--", "true"], "invalid_value"),
        (&["run", "--image", "pytorch", "--", "true"], "not_supported"),
        (&["run", "--on", "k8s/prod", "--", "true"], "not_supported"),
        (&["run", "--env", "NOT_SET_ANYWHERE", "--", "true"], "variable_not_set"),
    ] {
        let done = home.run(words);
        assert_eq!(done.code(), 2, "{words:?}: {}", done.err());
        assert!(done.err().starts_with(&format!("error[{code}]: ")), "{words:?}: {}", done.err());
        assert_eq!(done.out(), "", "{words:?}");
    }
    assert_eq!(all(&home), [] as [Value; 0]);
}

#[test]
fn a_detached_job_is_waited_for() {
    let home = home();
    let done = home.run(["run", "-d", "--", "sh", "-c", &format!("{}; exit 4", until("go"))]);
    assert_eq!(done.code(), 0, "{}", done.err());
    let id = done.out().trim().to_owned();
    assert!(id.starts_with("job_") && done.out() == format!("{id}\n"), "{}", done.out());
    let done = home.run(["wait", &id, "--timeout", "100ms"]);
    assert_eq!(done.code(), 124, "{}", done.err());
    assert_ne!(home.job(&id)["state"], "failed");
    let waiting = home.start(["wait", &id, "--json"]);
    home.touch("go");
    let done = waiting.finish();
    assert_eq!(done.code(), 4, "{}", done.err());
    let ended: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&ended[0]["id"], &ended[0]["exit_code"]), (&json!(id), &json!(4)));

    let done = home.run(["run", "--json", "--", "sh", "-c", "echo out; exit 5"]);
    assert_eq!(done.code(), 5, "{}", done.err());
    let job: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!((&job["state"], &job["exit_code"]), (&json!("failed"), &json!(5)));
    assert!(done.err().contains("out\n"), "{}", done.err());
}

#[test]
fn the_same_request_twice_makes_one_job() {
    let home = home();
    home.ok(["server", "start"]);
    let request = |command: &str, key: &str| {
        let body = json!({"spec": {"command": command, "clean_env": true}});
        home.door().ask(&Request::post("/api/v1/jobs", &body).header("idempotency-key", key))
    };
    let first = request("true", "one");
    assert_eq!(first.status, 201, "{}", first.text());
    let second = request("true", "one");
    assert_eq!((second.status, &second.json()["id"]), (201, &first.json()["id"]));
    request("false", "one").problem(409, "idempotency_conflict");
    let third = request("true", "two");
    assert_ne!(third.json()["id"], first.json()["id"]);
    request("true", &"x".repeat(300)).problem(400, "invalid_request");
    assert_eq!(all(&home).len(), 2);
}

#[test]
fn why_says_what_is_the_case_with_a_stable_code() {
    let home = home_with("[local]\nslots = 1\n");
    let why = |job: &str| home.json(["why", job, "--json"]);
    let first = home.submit(&["--", "sh", "-c", &until("go")]);
    home.wait_for_state(&first, "running");
    assert_eq!(why(&first)["code"], "running");
    let second = home.submit(&["--", "sh", "-c", "exit 6"]);
    let third = home.submit(&["--", "true"]);
    let waits = why(&second);
    assert_eq!(waits["code"], "no_capacity");
    assert!(waits["constraint"].as_str().is_some_and(|text| text.contains("slot")), "{waits}");
    assert!(waits["help"].as_str().is_some_and(|text| !text.is_empty()), "{waits}");
    let text = home.ok(["why", &second]);
    assert_eq!(text.lines().last(), Some("  code: no_capacity"));
    home.ok(["stop", &third]);
    home.touch("go");
    home.run(["wait", &first, &second, &third]);
    assert_eq!(why(&first)["code"], "succeeded");
    let failed = why(&second);
    assert_eq!(failed["code"], "exit_code");
    assert!(failed["summary"].as_str().is_some_and(|text| text.contains("code 6")), "{failed}");
    assert_eq!(why(&third)["code"], "stopped_by_user");
    assert_eq!(attempts(&home.job(&third)).len(), 0, "a job that is stopped in the queue never starts");
}

#[test]
fn ps_lists_jobs_in_columns_and_by_state() {
    let home = home();
    let mut ended = Vec::new();
    for i in 0..22 {
        ended.push(home.submit(&["--name", &format!("quick{i}"), "--", "true"]));
    }
    for id in &ended {
        home.wait_for_state(id, "succeeded");
    }
    let failed = home.submit(&["--name", "broken", "--", "false"]);
    home.wait_for_state(&failed, "failed");
    let running = home.submit(&["--name", "long", "-N", "2", "--", "sh", "-c", &until("go")]);
    home.wait_for_state(&running, "running");

    let text = home.ok(["ps"]);
    let rows: Vec<Vec<&str>> = text.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["ID", "NAME", "STATE", "NODES", "GPUS", "AGE", "DURATION", "COMMAND"]);
    assert_eq!(rows[1][..5], [&running, "long", "running", "2", "-"]);
    assert_eq!(rows[2][..2], [&failed, "broken"]);
    assert!(text.lines().nth(2).unwrap().contains("exited with code 1"), "{text}");
    // What is not over, and the twenty that were last.
    assert_eq!(rows.len(), 1 + 1 + 20, "{text}");
    assert_eq!(home.ok(["ps", "-a"]).lines().count(), 1 + 24);
    assert_eq!(home.ok(["ps", "-q", "--state", "running"]), format!("{running}\n"));
    assert_eq!(home.ok(["ps", "-aq", "--state", "running,failed"]), format!("{running}\n{failed}\n"));
    assert_eq!(home.ok(["ps", "-aq"]).lines().count(), 24);
    let jobs = home.json(["ps", "--state", "failed", "--json"]);
    assert_eq!((&jobs[0]["id"], &jobs[0]["exit_code"]), (&json!(failed), &json!(1)));
    let done = home.run(["ps", "--state", "confused"]);
    assert_eq!(done.code(), 2, "{}", done.err());
    home.touch("go");
    home.wait_for_state(&running, "succeeded");
}

#[test]
fn rm_takes_everything_of_a_job_that_is_over() {
    let home = home();
    home.write("code.txt", "code");
    let script = format!("echo logged; echo made > made.txt; {}", until("go"));
    let id = home.submit(&["--name", "gone", "--", "sh", "-c", &script]);
    home.wait_for_state(&id, "running");
    let done = home.run(["rm", "gone"]);
    assert_eq!(done.code(), 2, "{}", done.err());
    assert!(done.err().contains("rm --force"), "{}", done.err());
    home.touch("go");
    home.wait_for_state(&id, "succeeded");
    assert_eq!(home.ok(["logs", &id]), "logged\n");
    assert!(!places(&home, &id).is_empty(), "a finished job's log and files are kept");

    assert_eq!(home.ok(["rm", "gone"]), format!("{id}\n"));
    assert_eq!(home.run(["show", &id]).code(), 2);
    assert_eq!(all(&home), [] as [Value; 0]);
    wait_for("every file of the job to go", || places(&home, &id).is_empty());

    let id = home.submit(&["--", "sleep", "600"]);
    home.wait_for_state(&id, "running");
    assert_eq!(home.json(["rm", "--force", &id, "--json"]), json!({"removed": [id]}));
    home.wait_for_no_tasks();
    assert_eq!(home.run(["rm", "nothing-of-this-name"]).code(), 2);
}

/// Everything in the data directory whose path names a job.
fn places(home: &Home, job: &str) -> Vec<String> {
    let bare = job.trim_start_matches("job_");
    let found = Command::new("find").arg(home.path()).output().expect("find starts");
    let text = String::from_utf8_lossy(&found.stdout).into_owned();
    text.lines().filter(|path| path.contains(bare)).map(str::to_owned).collect()
}
