//! A changed configuration without a restart.

use std::fs;

use muster_testkit::{Home, wait_for};
use rustix::process::{Pid, Signal, kill_process};

use crate::{home, home_with};

fn log(home: &Home) -> String {
    fs::read_to_string(home.path().join("server.log")).expect("the server logs")
}

#[test]
fn what_can_change_does_what_cannot_is_named_and_a_wrong_file_changes_nothing() {
    let home = home_with("[keep]\nlogs = '1GB'\n");
    assert_eq!(home.run(["run", "--", "sh", "-c", "echo kept"]).code(), 0);
    let pid = home.server_pid();
    assert_eq!(home.ok(["server", "reload"]), "nothing has changed\n");

    home.configure("[keep]\nlogs_age = 'soon'\n");
    let wrong = home.run(["server", "reload"]);
    let said = wrong.err();
    assert!(wrong.code() == 2 && said.contains("server_config_invalid"), "{said}");
    assert!(
        said.contains("keep.logs_age") && said.contains("soon") && said.contains("nothing was changed"),
        "{said}"
    );
    home.ok(["gc"]);
    assert_eq!(home.ok(["logs", "last"]), "kept\n");

    home.configure("[keep]\nlogs = '0B'\n[local]\nslots = 1\n[pools.gpu]\nhosts = []\n");
    assert_eq!(
        home.ok(["server", "reload"]),
        "changed: keep.logs, pools.gpu\nneeds a restart: local.slots\n"
    );
    assert!(home.ok(["pool", "ls"]).contains("gpu"));
    home.ok(["gc"]);
    let gone = home.run(["logs", "last"]);
    assert!(!gone.out().contains("kept"), "{}", gone.out());

    // The same by a signal, as service managers send it; what came of it is in the log.
    home.configure("[keep]\nlogs = '0B'\n");
    let server = Pid::from_raw(i32::try_from(pid).unwrap()).unwrap();
    kill_process(server, Signal::HUP).unwrap();
    wait_for("the pool to go", || !home.ok(["pool", "ls"]).contains("gpu"));
    home.configure("[keep]\nlog = '0B'\n");
    kill_process(server, Signal::HUP).unwrap();
    wait_for("the error to be logged", || log(&home).contains("nothing was changed"));
    assert_eq!(home.server_pid(), pid, "it is the same process");
}

#[test]
fn nodes_hear_what_they_keep_from_now_on() {
    let home = home();
    assert_eq!(home.run(["run", "--name", "first", "--", "sh", "-c", "echo 1 > left"]).code(), 0);
    let tasks = home.path().join("node/tasks");
    let left = || fs::read_dir(&tasks).unwrap().flatten().any(|task| task.path().join("work/left").exists());
    assert!(left());
    home.configure("[keep]\nfiles = '0B'\n");
    assert_eq!(home.ok(["server", "reload"]), "changed: keep.files\n");
    wait_for("the node to remove it", || {
        home.ok(["gc"]);
        !left()
    });
}
