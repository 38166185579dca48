//! SSH into tasks, with the host's ordinary OpenSSH client.

mod terminal;

use std::process::{Command, Stdio};

use muster_testkit::{Home, wait_for};

use crate::{home, until};

/// A plain `ssh`, which reaches tasks through `muster ssh-proxy`.
pub(crate) fn ssh(home: &Home, arguments: &[&str]) -> Command {
    // The first use makes the key.
    home.run(["ssh-proxy", "task0.nobody"]);
    let proxy = format!("ProxyCommand='{}' ssh-proxy %h", env!("CARGO_BIN_EXE_muster"));
    let mut command = Command::new("ssh");
    command.args(["-F", "/dev/null", "-o", &proxy, "-o", "StrictHostKeyChecking=no", "-o", "LogLevel=ERROR"]);
    command.args([
        "-o",
        "UserKnownHostsFile=/dev/null",
        "-o",
        "BatchMode=yes",
        "-o",
        "IdentitiesOnly=yes",
        "-i",
    ]);
    command.arg(home.path().join("ssh/id")).args(arguments);
    for (name, value) in home.command([""; 0]).get_envs() {
        command.env(name, value.unwrap_or_default());
    }
    command.current_dir(home.work());
    command
}

#[test]
fn plain_ssh_runs_commands_in_a_task_as_the_task_would() {
    let home = home();
    home.write("code.txt", "code\n");
    let id = home.submit(&["-N", "2", "--env", "WORD=hello there", "--", "sh", "-c", &until("go")]);
    home.wait_for_state(&id, "running");
    let line = "cat code.txt; echo $WORD $RANK; echo err >&2; exit 3";
    let done = ssh(&home, &[&format!("task1.{id}"), line]).output().expect("an OpenSSH client");
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert_eq!(text(&done.stdout), "code\nhello there 1\n", "{done:?}");
    assert_eq!((text(&done.stderr).as_str(), done.status.code()), ("err\n", Some(3)));
    home.touch("go");
    home.wait_for_state(&id, "succeeded");
    let done = ssh(&home, &[&format!("task1.{id}"), "true"]).output().expect("an OpenSSH client");
    assert_eq!(done.status.code(), Some(255));
    assert!(text(&done.stderr).contains("error[invalid_state]"), "{}", text(&done.stderr));
}

#[test]
fn who_answers_in_a_task_may_be_killed_and_another_one_comes() {
    let home = home();
    let id = home.submit(&["--", "sh", "-c", &until("go")]);
    home.wait_for_state(&id, "running");
    let host = format!("task0.{id}");
    let first = ssh(&home, &[&host, "echo $PPID"]).output().expect("an OpenSSH client");
    let pid = String::from_utf8_lossy(&first.stdout).trim().to_owned();
    assert!(Command::new("kill").args(["-9", &pid]).status().expect("kill starts").success());
    wait_for("another one to answer", || {
        let next = ssh(&home, &[&host, "echo $PPID"]).output().expect("an OpenSSH client");
        next.status.success() && String::from_utf8_lossy(&next.stdout).trim() != pid
    });
    home.touch("go");
    home.wait_for_state(&id, "succeeded");
}

#[test]
fn a_way_that_is_cut_ends_plain_ssh() {
    let home = home();
    let id = home.submit(&["--", "sh", "-c", &until("go")]);
    home.wait_for_state(&id, "running");
    let line = "echo $PPID > \"$SHARED/answers\"; sleep 1000";
    // Its input stays open: nobody types, and nobody leaves.
    let mut client =
        ssh(&home, &[&format!("task0.{id}"), line]).stdin(Stdio::piped()).spawn().expect("an OpenSSH client");
    let mut pid = String::new();
    wait_for("the command to run", || {
        pid = home.wait_for_file("answers").trim().to_owned();
        !pid.is_empty()
    });
    assert!(Command::new("kill").args(["-9", &pid]).status().expect("kill starts").success());
    wait_for("ssh to notice", || client.try_wait().expect("it can be waited for").is_some());
    assert_eq!(client.wait().expect("it has ended").code(), Some(255));
    home.touch("go");
    home.wait_for_state(&id, "succeeded");
}
