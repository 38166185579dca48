//! Machines of a group, one by one, on hosts that share nothing.

use std::time::{Duration, Instant};

use muster_testkit::{wait_for, wait_for_some};
use serde_json::Value;

use super::Site;

impl Site {
    /// Two machines that are whole hosts, each with a session in which something was set, and a file.
    fn pair(&self) {
        self.home.ok(["machine", "create", "v100", "-N", "2", "--on", "ssh/gpu"]);
        for rank in ["0", "1"] {
            let task = format!("v100/{rank}");
            self.home.ok(["session", "run", &task, "-c", &format!("cd /tmp; export A=set{rank}")]);
            self.home.ok(["exec", &task, "--", "sh", "-c", "echo $MUSTER_RANK > kept"]);
        }
    }

    fn session_of(&self, rank: u32) -> String {
        self.home.ok(["session", "run", &format!("v100/{rank}"), "-c", "echo $PWD $A"])
    }

    /// A machine as `muster machine ls` shows it.
    fn machine(&self, rank: u32) -> Value {
        let all = self.home.json(["machine", "ls", "--json"]);
        let found = all.as_array().expect("a list").iter().find(|row| row["rank"] == rank);
        found.cloned().unwrap_or(Value::Null)
    }

    fn wait_for_machine(&self, rank: u32, state: &str) -> Value {
        wait_for_some(&format!("task{rank} to be {state}"), || {
            Some(self.machine(rank)).filter(|row| row["state"] == state)
        })
    }
}

#[test]
fn one_machine_of_a_group_is_given_to_others_and_taken_again_whatever_becomes_of_the_server() {
    let site = Site::new(2);
    site.pair();
    let before = site.machine(1)["node"].clone();
    assert_eq!(site.home.ok(["machine", "stop", "task1.v100"]), "task1.v100 suspended\n");
    assert_eq!(site.home.ok(["machine", "stop", "task1.v100"]), "task1.v100 suspended\n", "twice is once");
    assert_eq!(site.session_of(0), "/tmp set0\n", "the other has noticed nothing");
    let stopped = site.machine(1);
    assert!(stopped["state"] == "suspended" && stopped["node"].is_null(), "{stopped}");

    // Its host is free for somebody else, and then there is no room for it.
    let other = site.submit(&["--file", "whole.yaml", "--", "sleep", "1000"]);
    let shown = site.home.wait_for_state(&other, "running");
    assert_eq!(crate::tasks(&shown)[0]["node"], before);
    let refused = site.home.run(["machine", "start", "task1.v100"]);
    assert!(refused.code() == 2 && refused.err().contains("no_room"), "{}", refused.err());
    assert!(refused.err().contains("hint: "), "{}", refused.err());
    assert_eq!(site.machine(1)["state"], "suspended", "nothing waits");
    site.home.ok(["stop", &other]);
    site.home.wait_for_state(&other, "stopped");

    assert_eq!(site.home.kill("server"), 1);
    site.home.ok(["server", "start"]);
    (0..2).for_each(|number| drop(site.wait_for_connected(number, true)));
    assert_eq!(site.home.ok(["machine", "start", "task1.v100"]), "task1.v100 running\n");
    assert_eq!(site.machine(1)["node"], before, "it has the host it had");
    assert_eq!(site.home.ok(["exec", "v100/1", "--", "cat", "kept"]), "1\n");
    assert_eq!(site.session_of(0), "/tmp set0\n");
    // They reach each other as before.
    assert_eq!(site.home.ok(["exec", "v100/0", "--", "ssh", "task1.v100", "cat kept"]), "1\n");
    assert_eq!(site.home.ok(["exec", "v100/1", "--", "ssh", "task0.v100", "cat kept"]), "0\n");

    assert_eq!(site.home.ok(["machine", "kill", "task0.v100"]), "task0.v100 stopped\n");
    assert_eq!(site.machine(0), Value::Null, "it is nobody's any more");
    site.home.kill("server");
    let gone = site.home.run(["machine", "start", "task0.v100"]);
    assert!(gone.err().contains("does not come back"), "{}", gone.err());
    assert_eq!(site.home.ok(["machine", "stop", "v100"]), "v100 suspended\n");
    assert_eq!(site.home.ok(["machine", "start", "v100"]), "v100 running\n", "one host is enough");
    assert_eq!(site.home.ok(["exec", "v100/1", "--", "cat", "kept"]), "1\n");
    assert_eq!(site.home.ok(["machine", "kill", "v100"]), "v100 stopped\n");
    for number in 0..2 {
        let host = site.host(number);
        wait_for("nothing to be left there", || host.processes_with("supervise").is_empty());
        assert_eq!(site.node(number)["slots_used"], 0);
    }
}

#[test]
fn a_machine_whose_host_is_lost_is_its_own_affair() {
    let site = Site::new(2);
    site.pair();
    let lost = site.hosts.all().iter().find(|host| site.machine(1)["address"] == host.address().to_string());
    let lost = lost.expect("the host of task1");
    lost.cut();
    let row = site.wait_for_machine(1, "failed");
    assert!(row["message"].as_str().unwrap().starts_with("lost "), "{row}");
    assert_eq!(site.session_of(0), "/tmp set0\n", "the other goes on");
    assert_eq!(site.home.job("v100")["state"], "running");
    assert!(site.home.ok(["machine", "ls"]).contains("failed"));
    assert!(site.home.ok(["show", "v100"]).contains("lost node_"));
    assert!(site.home.run(["exec", "v100/1", "--", "true"]).err().contains("machine start task1.v100"));
    // There is no other host that it could have.
    let refused = site.home.run(["machine", "start", "v100"]);
    assert!(refused.err().contains("no_room"), "{}", refused.err());

    lost.join();
    wait_for("what ran there to be stopped", || lost.processes_with("supervise").is_empty());
    let begun = Instant::now();
    wait_for("it to start again", || {
        let started = site.home.run(["machine", "start", "v100"]);
        assert!(begun.elapsed() < Duration::from_secs(60), "{}", started.err());
        started.code() == 0
    });
    assert_eq!(site.machine(1)["state"], "running");
    assert_eq!(site.home.ok(["exec", "v100/0", "--", "ssh", "task1.v100", "cat kept"]), "1\n");
    assert_eq!(site.home.json(["show", "v100", "--json"])["failed_rank"], Value::Null);
    site.home.ok(["machine", "kill", "v100"]);
}
