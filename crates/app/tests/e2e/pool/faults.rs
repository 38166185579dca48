//! Cables that are cut, hosts that go away and come back, while something runs there.

use std::time::{Duration, Instant};

use muster_testkit::{Host, wait_for};
use serde_json::Value;

use super::Site;
use crate::attempts;

/// From the moment that nothing comes any more to the end of the tasks there; promised to users.
const NOTICED: Duration = Duration::from_secs(15);

/// A task that prints numbered lines until its host has `/var/tmp/end`, and says how many there were.
const COUNT: &str = "i=0; while [ ! -e /var/tmp/end ]; do i=$((i + 1)); echo line $i; echo $i > /var/tmp/at; sleep 0.02; done; \
     echo $i > /var/tmp/last";

fn at(host: &Host) -> u64 {
    host.try_run("cat /var/tmp/at").out().trim().parse().unwrap_or(0)
}

/// Waits until the counting task has printed some more lines.
fn wait_for_progress(host: &Host) {
    let goal = at(host) + 20;
    wait_for("the task to go on", || at(host) >= goal);
}

/// Lets the counting task end, and looks whether every line is there, once and in order.
fn check_count(site: &Site, host: &Host, job: &str) {
    host.run("touch /var/tmp/end");
    site.home.wait_for_state(job, "succeeded");
    let count: u64 = host.run("cat /var/tmp/last").trim().parse().expect("a number");
    let expected: String = (1..=count).map(|i| format!("line {i}\n")).collect();
    assert_eq!(site.home.ok(["logs", job]), expected);
}

fn ended_by_loss(attempt: &Value) -> bool {
    attempt["reason"]["code"] == "node_lost"
}

#[test]
fn a_cable_that_is_cut_for_some_seconds_loses_nothing() {
    let site = Site::new(1);
    let host = site.host(0);
    let job = site.submit(&["--", "sh", "-c", COUNT]);
    wait_for_progress(host);
    host.cut();
    let begun = Instant::now();
    let before = at(host);
    wait_for("five seconds to pass", || begun.elapsed() > Duration::from_secs(5));
    assert!(at(host) > before, "the task goes on without its server");
    host.join();
    wait_for_progress(host);
    check_count(&site, host, &job);
    let shown = site.home.job(&job);
    assert_eq!(attempts(&shown).len(), 1, "{shown}");
}

#[test]
fn a_host_that_vanishes_is_noticed_and_what_ran_there_is_not_doubled_when_it_returns() {
    let site = Site::new(2);
    site.home.write(
        "job.yaml",
        format!("on: ssh/gpu\nretries: {{max: 2, backoff: 100ms}}\ncommand: [sh, -c, '{COUNT}']\n"),
    );
    let job = site.home.submit(&["--file", "job.yaml"]);
    let first = site.home.wait_for_state(&job, "running");
    let lost = site.host_of(&first, 0);
    wait_for_progress(lost);
    lost.cut();
    let cut = Instant::now();
    wait_for("the first attempt to be lost", || {
        attempts(&site.home.job(&job)).first().is_some_and(ended_by_loss)
    });
    assert!(cut.elapsed() < NOTICED, "noticed after {:?}", cut.elapsed());

    wait_for("the second attempt to run", || {
        let shown = site.home.job(&job);
        attempts(&shown).len() == 2 && shown["state"] == "running"
    });
    let second = site.home.job(&job);
    let other = site.host_of(&second, 0);
    assert_ne!(other.address(), lost.address(), "it goes on where the hosts are");
    wait_for_progress(other);
    assert!(!lost.processes_with("line $i").is_empty(), "nobody could tell the first one to end");

    lost.join();
    wait_for("what still ran there to be stopped", || lost.processes_with("line $i").is_empty());
    wait_for_progress(other);
    check_count(&site, other, &job);
    assert_eq!(attempts(&site.home.job(&job)).len(), 2);
}

#[test]
fn a_gang_that_loses_one_host_is_stopped_on_the_others() {
    let site = Site::new(2);
    let job = site.submit(&["-N", "2", "--file", "whole.yaml", "--", "sleep", "1000"]);
    site.home.wait_for_state(&job, "running");
    site.host(1).cut();
    let cut = Instant::now();
    let shown = site.home.wait_for_state(&job, "failed");
    assert!(cut.elapsed() < NOTICED, "noticed after {:?}", cut.elapsed());
    assert_eq!(shown["reason"]["code"], "node_lost", "{shown}");
    wait_for("the other task to be gone", || site.host(0).processes_with("sleep 1000").is_empty());
    site.host(1).join();
    wait_for("the lost task to be stopped", || site.host(1).processes_with("sleep 1000").is_empty());
}

#[test]
fn a_reboot_loses_what_ran_and_the_next_attempt_runs_on_the_same_host() {
    let site = Site::new(1);
    let host = site.host(0);
    let script = "echo attempt $MUSTER_ATTEMPT; [ $MUSTER_ATTEMPT -gt 1 ] || sleep 1000";
    site.home.write(
        "job.yaml",
        format!("on: ssh/gpu\nretries: {{max: 1, backoff: 100ms}}\ncommand: [sh, -c, '{script}']\n"),
    );
    let job = site.home.submit(&["--file", "job.yaml"]);
    wait_for("the task to run", || !host.processes_with("sleep 1000").is_empty());
    host.reboot();
    site.home.wait_for_state(&job, "succeeded");
    let shown = site.home.job(&job);
    let all = attempts(&shown);
    assert_eq!(all.len(), 2, "{shown}");
    assert!(ended_by_loss(&all[0]), "{shown}");
    assert_eq!(site.home.ok(["logs", &job, "--attempt", "2"]), "attempt 2\n");
}

#[test]
fn a_killed_agent_and_killed_logins_lose_nothing() {
    let site = Site::new(1);
    let host = site.host(0);
    let job = site.submit(&["--", "sh", "-c", COUNT]);
    wait_for_progress(host);
    for role in ["carry", "agent", "sshd"] {
        let victims = host.processes().into_iter().filter(|process| match role {
            // The login's own sshd, not the one that listens.
            "sshd" => process.words.join(" ").contains("sshd: root"),
            role => process.is(role),
        });
        let victims: Vec<u32> = victims.map(|process| process.pid).collect();
        assert!(!victims.is_empty(), "no {role} among {:?}", host.processes());
        victims.iter().for_each(|pid| muster_testkit::kill(*pid));
        wait_for_progress(host);
        site.wait_for_connected(0, true);
    }
    check_count(&site, host, &job);
    assert_eq!(attempts(&site.home.job(&job)).len(), 1);
}

#[test]
fn code_that_is_sent_over_a_slow_cable_that_is_cut_meanwhile_arrives() {
    let site = Site::new(1);
    let host = site.host(0);
    site.home.write("weights", noise(6_000_000));
    host.slow(Some("8mbit"));
    let (before, _) = host.traffic();
    let job = site.submit(&["--", "sh", "-c", "wc -c < weights"]);
    wait_for("a part of it to be sent", || host.traffic().0 > before + 1_000_000);
    host.cut();
    let begun = Instant::now();
    wait_for("some seconds to pass", || begun.elapsed() > Duration::from_secs(4));
    host.join();
    host.slow(Some("80mbit"));
    site.home.wait_for_state(&job, "succeeded");
    assert_eq!(site.home.ok(["logs", &job]).trim(), "6000000");
}

#[test]
fn a_command_in_a_session_goes_on_while_the_cable_is_cut() {
    let site = Site::new(1);
    let host = site.host(0);
    let job = site.submit(&["--", "sleep", "1000"]);
    site.home.wait_for_state(&job, "running");
    let text = "for i in 1 2 3 4; do echo step $i; sleep 2; done; cd /var/tmp";
    let command = site.home.start(["session", "run", &job, "-c", text]);
    command.wait_for_out("step 1\n");
    host.cut();
    let begun = Instant::now();
    wait_for("some seconds to pass", || begun.elapsed() > Duration::from_secs(4));
    host.join();
    let done = command.finish();
    assert_eq!((done.code(), done.out().as_str()), (0, "step 1\nstep 2\nstep 3\nstep 4\n"), "{}", done.err());
    assert_eq!(site.home.ok(["session", "run", &job, "-c", "pwd"]), "/var/tmp\n");
}

#[test]
fn commands_of_sessions_end_on_a_full_disk_and_go_on_when_there_is_space() {
    let site = Site::new(2);
    // Both ways to hold a terminal, and two shells.
    site.host(1).only_sh();
    site.host(1).without("tmux");
    let job = site.submit(&["-N", "2", "--file", "whole.yaml", "--", "sleep", "1000"]);
    site.home.wait_for_state(&job, "running");
    let until_full = "KEPT=yes; echo begun; until [ -e /dev/shm/full ]; do sleep 0.02; done; (exit 7)";
    for rank in ["0", "1"] {
        let task = format!("{job}/{rank}");
        site.home.ok(["session", "run", &task, "--detach", "-c", until_full]);
        // The second is written down while there is space, and begins when there is none.
        site.home.ok(["session", "run", &task, "--detach", "-c", "echo $KEPT > /var/tmp/kept || (exit 8)"]);
        wait_for("it to run", || site.home.ok(["session", "output", &task, "1"]) == "begun\n");
    }
    for host in site.hosts.all() {
        host.fill_disk();
        host.run("touch /dev/shm/full");
    }
    for task in [format!("{job}/0"), format!("{job}/1")] {
        for (number, status) in [("1", 7), ("2", 8)] {
            let waited = site.home.run(["session", "wait", &task, number, "--timeout", "20s"]);
            assert_eq!(waited.code(), status, "command {number} of {task}: {}", waited.err());
        }
        let refused = site.home.run(["session", "run", &task, "-c", "true"]);
        assert!(
            refused.code() != 0 && refused.err().contains("No space left on device"),
            "{}",
            refused.err()
        );
    }
    site.hosts.all().iter().for_each(Host::free_disk);
    for task in [format!("{job}/0"), format!("{job}/1")] {
        assert_eq!(site.home.ok(["session", "run", &task, "-c", "echo $KEPT"]), "yes\n");
    }
}

#[test]
fn a_copy_goes_on_after_the_cable_was_cut() {
    let site = Site::new(1);
    let host = site.host(0);
    let job = site.submit(&["--", "sleep", "1000"]);
    site.home.wait_for_state(&job, "running");
    std::fs::write(site.home.shared().join("large"), noise(6_000_000)).expect("a file to copy");
    host.slow(Some("8mbit"));
    let (before, _) = host.traffic();
    let from = site.home.shared().join("large");
    let copy = site.home.start(["cp", from.to_str().expect("a path of a test"), &format!("{job}:large")]);
    wait_for("a part of it to be sent", || host.traffic().0 > before + 1_000_000);
    host.cut();
    let begun = Instant::now();
    wait_for("some seconds to pass", || begun.elapsed() > Duration::from_secs(4));
    host.join();
    host.slow(Some("80mbit"));
    let done = copy.finish();
    assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
    assert_eq!(site.home.ok(["exec", &job, "--", "sh", "-c", "wc -c < large"]).trim(), "6000000");
}

/// Bytes that cannot be made shorter.
fn noise(count: usize) -> Vec<u8> {
    let mut state = 1u64;
    let next = || {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 56) as u8
    };
    std::iter::repeat_with(next).take(count).collect()
}
