//! `muster doctor`: a machine that is well, and the ways in which it is not.

use serde_json::Value;

use crate::{home, home_with};

fn find<'a>(report: &'a Value, name: &str) -> &'a Value {
    let checks = report["checks"].as_array().expect("a list of checks");
    checks
        .iter()
        .find(|check| check["name"] == name)
        .unwrap_or_else(|| panic!("no check of {name}: {report}"))
}

#[test]
fn a_machine_that_works_has_nothing_broken() {
    let home = home_with("[local]\ndevices = [\"H100:2\"]\n");
    let done = home.run(["doctor"]);
    assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
    for part in
        ["this machine", "✓ data directory", "configuration", "✓ config.toml", "server", "✓ node node_local"]
    {
        assert!(done.out().contains(part), "{part}\n{}", done.out());
    }
    let report = home.json(["doctor", "--json"]);
    assert_eq!(find(&report, "engine local")["status"], "ok");
    assert_eq!(find(&report, "clock")["status"], "ok");
    assert!(find(&report, "node node_local")["detail"].as_str().unwrap().contains("2 devices"), "{report}");
    // It tries with files of its own, and takes them away.
    let left = std::fs::read_dir(home.path()).unwrap().flatten();
    assert!(left.into_iter().all(|entry| !entry.file_name().to_string_lossy().contains("doctor")));
    let reply = home.get("/api/v1/doctor");
    assert_eq!(reply.status, 200);
    assert_eq!(reply.json()["checks"][0]["name"], "data directory");
}

#[test]
fn what_is_broken_is_named_with_its_remedy_and_the_exit_code_says_so() {
    let home = home_with("[local]\nslots = 0\n");
    let done = home.run(["doctor", "--json"]);
    assert_eq!(done.code(), 1, "{}", done.err());
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(report["status"], "broken");
    for (name, word) in [("config.toml", "muster config unset"), ("reachable", "")] {
        let check = find(&report, name);
        assert_eq!(check["status"], "broken", "{check}");
        assert!(check["remedy"].as_str().unwrap().contains(word), "{check}");
    }

    let mut command = home.command(["doctor"]);
    command.env("MUSTER_SERVER", "nonsense://x");
    let done = muster_testkit::Running::start(command).finish();
    assert_eq!(done.code(), 1);
    assert!(done.out().contains("✗ server to use") && done.out().contains("→"), "{}", done.out());

    let mut command = home.command(["doctor"]);
    command.env("MUSTER_SERVER", "unix:/nowhere/at/all.sock");
    let done = muster_testkit::Running::start(command).finish();
    assert_eq!(done.code(), 1);
    assert!(done.out().contains("✗ reachable"), "{}", done.out());
}

#[test]
fn another_servers_health_can_be_seen() {
    let home = home();
    home.ok(["server", "start"]);
    let mut command = home.command(["doctor", "--json"]);
    command.env("MUSTER_SERVER", format!("unix:{}", home.path().join("server.sock").display()));
    let done = muster_testkit::Running::start(command).finish();
    assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
    let report: Value = serde_json::from_slice(&done.stdout).unwrap();
    assert_eq!(find(&report, "node node_local")["status"], "ok");
}
