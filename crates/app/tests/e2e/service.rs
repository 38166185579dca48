//! The server under a service manager. No systemd is the first process where tests run, so what it does is done by the test: it waits to be told,
//! ends the main process alone (`KillMode=process`), and starts another.

use std::fs;
use std::os::unix::net::UnixDatagram;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

use muster_testkit::{DEADLINE, Running, is_alive, wait_for};
use rustix::process::Signal;

use crate::{home, until};

const UNITS: [&str; 2] = ["muster.service", "muster-user.service"];

fn unit(name: &str) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy/systemd").join(name);
    fs::read_to_string(path).expect("a unit of this repository")
}

#[test]
fn the_units_are_right_in_systemds_own_eyes() {
    let dir = tempfile::tempdir().unwrap();
    for name in UNITS {
        // What a unit names must be there to be verified.
        let text = unit(name).replace("/usr/local/bin/muster", env!("CARGO_BIN_EXE_muster"));
        assert!(text.contains(env!("CARGO_BIN_EXE_muster")), "{name}");
        let text = text.replace("User=muster\n", "User=root\n").replace("Group=muster\n", "Group=root\n");
        let path = dir.path().join(name);
        fs::write(&path, text).unwrap();
        if name == "muster.service" {
            let extra = dir.path().join("muster.service.d");
            fs::create_dir(&extra).unwrap();
            fs::write(extra.join("no-tasks.conf"), unit("no-tasks.conf")).unwrap();
        }
        let mut analyze = Command::new("systemd-analyze");
        analyze.args(["verify", "--man=no", "--recursive-errors=no"]);
        if name.contains("user") {
            analyze.arg("--user").env("XDG_RUNTIME_DIR", dir.path());
        }
        let done = analyze.arg(&path).output().expect("systemd-analyze, of Debian's package systemd");
        let said = String::from_utf8_lossy(&done.stderr);
        assert!(done.status.success() && said.trim().is_empty(), "{name}: {said}");
    }
}

#[test]
fn a_restart_of_the_service_spares_what_runs() {
    for word in ["KillMode=process\n", "Delegate=yes\n", "Type=notify\n", "Restart=on-failure\n"] {
        UNITS.iter().for_each(|name| assert!(unit(name).contains(word), "{name}: {word}"));
    }
    let home = home();
    fs::create_dir_all(home.path()).unwrap();
    let socket = home.shared().join("notify");
    let manager = UnixDatagram::bind(&socket).unwrap();
    manager.set_read_timeout(Some(DEADLINE)).unwrap();
    let heard = || {
        let mut word = [0; 64];
        let length = manager.recv(&mut word).expect("the server tells its manager");
        String::from_utf8_lossy(&word[..length]).into_owned()
    };
    let start = || {
        let mut command = home.command(["server", "run"]);
        let server = Running::start({
            command.env("NOTIFY_SOCKET", &socket);
            command
        });
        assert_eq!(heard(), "READY=1");
        assert_eq!(home.run(["server", "status"]).code(), 0, "who says ready serves");
        server
    };
    let first = start();
    let line = format!("echo up; {}; echo done; exit 5", until("end"));
    let id = home.submit(&["--", "sh", "-c", &line]);
    home.wait_for_state(&id, "running");
    let others: Vec<u32> = ["agent", "supervise"]
        .iter()
        .flat_map(|role| home.processes_as(role))
        .map(|process| process.pid)
        .collect();
    assert_eq!(others.len(), 2, "{:?}", home.processes());

    first.signal(Signal::TERM);
    assert_eq!(heard(), "STOPPING=1");
    assert_eq!(first.finish_within(Duration::from_secs(30)).code(), 0);
    assert!(others.iter().all(|pid| is_alive(*pid)), "only the server has ended");
    let second = start();
    assert!(others.iter().all(|pid| is_alive(*pid)), "and what runs goes on under the next");
    home.touch("end");
    home.wait_for_state(&id, "failed");
    assert_eq!((home.job(&id)["exit_code"].as_u64(), home.ok(["logs", &id])), (Some(5), "up\ndone\n".into()));
    assert_eq!(home.job(&id)["attempt"], 1);

    // A server that dies is another matter to its manager, and none to its tasks.
    second.signal(Signal::KILL);
    wait_for("it to be gone", || !is_alive(second.pid()));
    let third = start();
    third.signal(Signal::TERM);
    assert_eq!(third.finish_within(Duration::from_secs(30)).code(), 0);
}
