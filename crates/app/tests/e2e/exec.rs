//! `muster exec` and `muster ssh`: commands and shells in tasks.

use std::io::Write;
use std::process::{Command, Stdio};

use muster_testkit::{Finished, Home, Running, wait_for};
use rustix::process::Signal;

use crate::{home, home_with, until};

/// A job that runs until `go` is there.
fn running(home: &Home, words: &[&str]) -> String {
    let script = until("go");
    let bare = home.bare_shells();
    let mut all = words.to_vec();
    all.extend(["--env", &bare, "--", "sh", "-c", &script]);
    let id = home.submit(&all);
    home.wait_for_state(&id, "running");
    id
}

fn end(home: &Home, id: &str) {
    home.touch("go");
    home.wait_for_state(id, "succeeded");
}

fn with_input(mut command: Command, input: &[u8]) -> Finished {
    let mut child = command
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("the binary starts");
    let mut stdin = child.stdin.take().expect("its input is piped");
    let input = input.to_vec();
    let writing = std::thread::spawn(move || drop(stdin.write_all(&input)));
    let done = child.wait_with_output().expect("a child can be waited for");
    writing.join().expect("who writes does not panic");
    Finished { status: done.status, stdout: done.stdout, stderr: done.stderr }
}

#[test]
fn a_command_in_a_task_is_as_if_it_were_typed_there() {
    let home = home();
    home.write("code.txt", "code\n");
    home.write("sub dir/x", "");
    let id = running(&home, &["-N", "2", "--name", "bert", "--env", "WORD=hello there"]);
    let script = "cat code.txt; echo $WORD $RANK $MINE; echo err >&2; exit 3";
    let done = home.run(["exec", "bert/1", "--env", "MINE=it's", "--", "sh", "-c", script]);
    assert_eq!(done.out(), "code\nhello there 1 it's\n", "{}", done.err());
    assert_eq!((done.err().as_str(), done.code()), ("err\n", 3));
    let words = ["a b", "$HOME", "it's", "", r"back\slash", "*", "größe", "line\nbreak", "--all"];
    let mut argv = vec!["exec", &id, "--", "printf", r"%s\0"];
    argv.extend(words);
    assert_eq!(home.ok(&argv), words.map(|word| format!("{word}\0")).concat());
    assert_eq!(home.ok(["exec", "bert", "-w", "sub dir", "ls"]), "x\n", "`--` may be left out");
    for (line, code) in [("kill -9 $$", 137), ("exit 200", 200)] {
        assert_eq!(home.run(["exec", &id, "--", "sh", "-c", line]).code(), code, "{line}");
    }
    let done = home.run(["exec", &id, "--", "no-such-program"]);
    assert_eq!(done.code(), 127);
    assert!(done.err().contains("no-such-program") && done.err().contains("not found"), "{}", done.err());
    let one = home.json(["exec", &id, "--task", "1", "--json", "--", "sh", "-c", "echo a; echo b >&2"]);
    assert_eq!(one, serde_json::json!({"task": 1, "exit_code": 0, "stdout": "a\n", "stderr": "b\n"}));
    end(&home, &id);
}

#[test]
fn input_goes_in_when_it_is_asked_for_and_comes_out_whole() {
    let home = home();
    let id = running(&home, &[]);
    let done = with_input(home.command(["exec", &id, "--", "cat"]), b"kept for the next\n");
    assert_eq!((done.out().as_str(), done.code()), ("", 0));
    let big: Vec<u8> = (0..8 << 20).map(|i: u32| (i ^ (i >> 8)) as u8).collect();
    let done = with_input(home.command(["exec", "-i", &id, "--", "cat"]), &big);
    assert!(done.stdout == big, "{} of {} bytes: {}", done.stdout.len(), big.len(), done.err());
    let done = with_input(home.command(["ssh", &id]), b"echo $((1 + 1)); exit 4\n");
    assert_eq!((done.out().as_str(), done.code()), ("2\n", 4), "{}", done.err());
    let done = with_input(home.command(["ssh", &id, "--", "wc", "-c;", "echo two words"]), b"12345");
    assert_eq!(done.out().replace(' ', ""), "5\ntwowords\n", "as with ssh, it is a line: {}", done.err());
    end(&home, &id);
}

#[test]
fn every_task_at_once_has_its_label_and_the_first_failure_is_the_code() {
    let home = home_with("[local]\nslots = 4\n");
    let id = running(&home, &["-N", "3"]);
    let script = "echo out $RANK; echo err $RANK >&2; exit $((RANK * 2))";
    let done = home.run(["exec", &id, "--all", "--", "sh", "-c", script]);
    let mut lines: Vec<String> = done.out().lines().map(str::to_owned).collect();
    lines.sort();
    assert_eq!(lines, ["task0 | out 0", "task1 | out 1", "task2 | out 2"]);
    assert_eq!(done.code(), 2, "task 1's, not task 2's");
    for line in
        ["task1 | err 1\n", "2 of 3 tasks failed\n", "  task1: exit code 2\n", "  task2: exit code 4\n"]
    {
        assert!(done.err().contains(line), "{line:?} in {}", done.err());
    }
    let all = home.run(["exec", &id, "--all", "--json", "--", "sh", "-c", "echo $RANK; exit $RANK"]);
    let all: serde_json::Value = serde_json::from_str(&all.out()).unwrap();
    let ranks: Vec<_> = all.as_array().unwrap().iter().map(|one| one["stdout"].as_str().unwrap()).collect();
    assert_eq!(ranks, ["0\n", "1\n", "2\n"]);
    assert_eq!(all[2]["exit_code"], 2);
    let done = home.run(["exec", "--all", &format!("{id}/1"), "--", "true"]);
    assert!(done.code() == 2 && done.err().contains("task 1 alone"), "{}", done.err());
    end(&home, &id);
}

#[test]
fn who_cannot_be_reached_is_said_with_what_helps() {
    let home = home_with("[local]\nslots = 1\n");
    let id = running(&home, &[]);
    let waiting = home.submit(&[
        "--name",
        "late",
        "--",
        "sh",
        "-c",
        "while ! test -e $SHARED/late; do sleep 0.02; done",
    ]);
    for (words, code, said) in [
        (vec!["exec", "nobody", "--", "true"], 2, "job_not_found"),
        (vec!["exec", &id, "--task", "7", "--", "true"], 2, "its tasks are 0 to 0"),
        (vec!["exec", &id], 2, "COMMAND"),
        (vec!["exec", "late", "--", "true"], 2, "--wait waits until it runs"),
        (vec!["exec", "--all", "late", "--", "true"], 2, "--wait waits until it runs"),
        (vec!["ssh", "late"], 2, "is queued"),
        (vec!["exec", "late/0", "--task", "1", "--", "true"], 2, "names task 0 already"),
    ] {
        let done = home.run(&words);
        assert_eq!(done.code(), code, "{words:?}: {}", done.err());
        assert!(done.err().contains(said), "{words:?}: {}", done.err());
    }
    let waits = home.start(["exec", "--wait", "late", "--", "echo", "in"]);
    wait_for("it to say what it waits for", || waits.err().contains("note:"));
    end(&home, &id);
    let done = waits.finish();
    assert_eq!((done.out().as_str(), done.code()), ("in\n", 0), "{}", done.err());
    home.touch("late");
    home.wait_for_state(&waiting, "succeeded");
    let done = home.run(["exec", "late", "--", "true"]);
    assert_eq!(done.code(), 2);
    assert!(done.err().contains("task_not_running") && done.err().contains("succeeded"), "{}", done.err());
}

#[test]
fn a_signal_goes_to_the_command_and_a_second_one_ends_the_wait() {
    let home = home();
    let id = running(&home, &[]);
    let ready = |running: &Running| running.wait_for_out("ready");
    let polite = "trap 'echo bye; exit 7' INT; echo ready; while :; do sleep 0.02; done";
    let exec = home.start(["exec", &id, "--", "sh", "-c", polite]);
    ready(&exec);
    exec.signal(Signal::INT);
    let done = exec.finish();
    assert_eq!((done.out().as_str(), done.code()), ("ready\nbye\n", 7));
    let exec = home.start(["exec", &id, "--", "sh", "-c", "echo ready; exec sleep 60"]);
    ready(&exec);
    exec.signal(Signal::TERM);
    assert_eq!(exec.finish().code(), 143);
    let deaf = "trap 'touch $SHARED/heard' INT; echo ready; while ! test -e $SHARED/go; do sleep 0.02; done";
    let exec = home.start(["exec", &id, "--", "sh", "-c", deaf]);
    ready(&exec);
    exec.signal(Signal::INT);
    home.wait_for_file("heard");
    exec.signal(Signal::INT);
    assert_eq!(exec.finish().code(), 130);
    end(&home, &id);
}

#[test]
fn a_lost_connection_is_an_error_and_never_success() {
    let home = home();
    let id = running(&home, &[]);
    let exec = home.start(["exec", &id, "--", "sh", "-c", "echo ready; exec sleep 60"]);
    exec.wait_for_out("ready");
    home.ok(["stop", &id]);
    let done = exec.finish();
    assert_eq!(done.code(), 125, "{}", done.err());
    assert!(done.err().contains("error[task_lost]"), "{}", done.err());
}

#[test]
fn a_command_whose_reader_has_left_ends() {
    let home = home();
    let id = running(&home, &[]);
    let line = format!(
        "\"{}\" exec {id} -- sh -c 'echo $$ > $SHARED/pid; exec yes' | head -n 1",
        env!("CARGO_BIN_EXE_muster")
    );
    let mut shell = Command::new("bash");
    shell.args(["-c", &format!("{line}; exit ${{PIPESTATUS[0]}}")]).current_dir(home.work());
    shell.env("MUSTER_HOME", home.path()).stdin(Stdio::null());
    let done = Running::start(shell).finish();
    assert_eq!((done.out().as_str(), done.code()), ("y\n", 141), "{}", done.err());
    let pid = home.wait_for_file("pid").trim().to_owned();
    wait_for("the command to be gone", || !std::path::Path::new("/proc").join(&pid).exists());
    end(&home, &id);
}

#[test]
fn a_shell_on_a_terminal_follows_its_window_and_its_keys() {
    let home = home();
    let id = running(&home, &["-N", "2"]);
    let mut shell = home.start_on_terminal(["ssh", &id]);
    shell.wait_for("this is task 0 of 2 tasks", 1);
    for (rows, columns) in [(33, 101), (41, 77)] {
        shell.resize(rows, columns);
        // What the kernel says of the window may come later than the keys, so the shell waits for it.
        shell.press(&format!(
            "until [ \"$(stty size)\" = '{rows} {columns}' ]; do sleep 0.02; done; echo si'ze' {rows} {columns}\r"
        ));
        shell.wait_for(&format!("size {rows} {columns}"), 1);
    }
    // Who says so is the program that the key is for: between two programs the key may be lost on a shell.
    shell.press("sh -c \"echo wai'ting'; exec sleep 60\"\r");
    shell.wait_for("waiting", 1);
    shell.press("\x03");
    shell.press("echo größe $RANK; exit 5\r");
    let (status, screen) = shell.finish();
    assert_eq!(status.code(), Some(5), "{screen}");
    assert!(screen.contains("größe 0"), "{screen}");
    let mut shell = home.start_on_terminal(["ssh", &format!("{id}/1")]);
    shell.press("echo rea'dy'\r");
    shell.wait_for("ready", 1);
    shell.press("~.");
    assert_eq!(shell.finish().0.code(), Some(129), "`~.` leaves");
    end(&home, &id);
}

#[test]
fn the_terminal_is_given_back_as_it_was_whatever_happens() {
    let home = home();
    let id = running(&home, &[]);
    let muster = env!("CARGO_BIN_EXE_muster");
    let ended = format!("\"{muster}\" exec -it {id} -- sh -c 'test -t 0 && test -t 1 && exit 6'");
    let killed = format!(
        "\"{muster}\" exec -it {id} -- sh -c 'echo on > $SHARED/on; sleep 60' & pid=$!; \
         (while ! test -e $SHARED/on; do sleep 0.02; done; kill -TERM $pid) & fg %1 >/dev/null"
    );
    for (line, code) in [(ended, 6), (killed, 143)] {
        let script =
            format!("set -m; stty -a > $SHARED/before; {line}; code=$?; stty -a > $SHARED/after; exit $code");
        let mut command = home.command([""; 0]);
        let mut shell = Command::new("bash");
        shell.args(["-c", &script]).current_dir(home.work());
        command.env("TERM", "xterm");
        for (name, value) in command.get_envs() {
            match value {
                Some(value) => shell.env(name, value),
                None => shell.env_remove(name),
            };
        }
        let (status, screen) = muster_testkit::Terminal::start(&shell).finish();
        assert_eq!(status.code(), Some(code), "{screen}");
        assert_eq!(home.wait_for_file("after"), home.wait_for_file("before"));
    }
    let done = home.run(["exec", "-t", &id, "--", "sh", "-c", "test -t 1 || echo none"]);
    assert_eq!((done.out().as_str(), done.code()), ("none\n", 0), "{}", done.err());
    assert!(done.err().contains("not a terminal"), "{}", done.err());
    end(&home, &id);
}
