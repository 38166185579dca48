//! The server dies, comes back, and is replaced by another build, while hosts and their cables have troubles of their own.

use std::path::PathBuf;
use std::process::Command;
use std::time::{Duration, Instant};

use muster_testkit::wait_for;

use super::{Site, slim};
use crate::attempts;

/// Prints numbered lines until its host has `/var/tmp/end`.
pub(super) const COUNT: &str = "i=0; while [ ! -e /var/tmp/end ]; do i=$((i + 1)); echo line $i; sleep 0.02; done; echo $i > /var/tmp/last";

/// A job with one counting task on each host; gives its id when all of them run.
pub(super) fn counting(site: &Site) -> String {
    let count = site.hosts.all().len().to_string();
    let job = site.submit(&["-N", &count, "--file", "whole.yaml", "--", "sh", "-c", COUNT]);
    site.home.wait_for_state(&job, "running");
    job
}

/// Lets every task end, and looks whether each line of each of them is there, once and in order, of one attempt.
pub(super) fn check(site: &Site, job: &str) {
    site.hosts.all().iter().for_each(|host| drop(host.run("touch /var/tmp/end")));
    let shown = site.home.wait_for_state(job, "succeeded");
    assert_eq!(attempts(&shown).len(), 1, "{shown}");
    for rank in 0..site.hosts.all().len() {
        let count: u64 =
            site.host_of(&shown, rank).run("cat /var/tmp/last").trim().parse().expect("a number");
        let expected: String = (1..=count).map(|i| format!("line {i}\n")).collect();
        assert_eq!(site.home.ok(["logs", job, "--task", &rank.to_string()]), expected, "of task {rank}");
    }
}

/// Another build of the same binary.
pub(super) fn tomorrow(site: &Site) -> PathBuf {
    let path = site.home.work().with_file_name("muster-of-tomorrow");
    let line = "cp \"$0\" \"$1\" && printf x >> \"$1\"";
    assert!(
        Command::new("sh").args(["-c", line]).arg(slim()).arg(&path).status().expect("sh starts").success()
    );
    path
}

#[test]
fn a_killed_server_finds_its_hosts_again_and_nothing_is_lost() {
    let site = Site::new(2);
    let job = counting(&site);
    assert_eq!(site.home.kill("server"), 1);
    let begun = Instant::now();
    wait_for("longer to pass than hosts may be away", || begun.elapsed() > Duration::from_secs(8));
    site.home.ok(["server", "start"]);
    (0..2).for_each(|number| drop(site.wait_for_connected(number, true)));
    check(&site, &job);
}

#[test]
fn a_server_that_dies_while_a_cable_is_cut_still_has_its_tasks() {
    let site = Site::new(2);
    let job = counting(&site);
    site.host(1).cut();
    site.home.kill("server");
    site.home.ok(["server", "start"]);
    site.wait_for_connected(0, true);
    site.host(1).join();
    site.wait_for_connected(1, true);
    check(&site, &job);
}

#[test]
fn another_build_is_sent_to_hosts_and_takes_over_while_tasks_run() {
    let mut site = Site::new(2);
    let job = counting(&site);
    let before: Vec<_> = (0..2).map(|number| site.agents_exe(number).expect("an agent")).collect();
    let copy = tomorrow(&site);
    site.home.set_binary(copy);
    site.home.ok(["server", "start"]);
    wait_for("agents of the other build", || {
        (0..2).all(|number| site.agents_exe(number).is_some_and(|exe| exe != before[number]))
    });
    check(&site, &job);
    assert_eq!(site.home.ok(["run", "--on", "ssh/gpu", "--", "echo", "goes on"]), "goes on\n");
}

#[test]
fn another_build_takes_over_while_a_host_is_cut_off_and_another_reboots() {
    let mut site = Site::new(2);
    let job = site.submit(&["--", "sh", "-c", COUNT]);
    let shown = site.home.wait_for_state(&job, "running");
    let used = usize::from(site.host_of(&shown, 0).address() == site.host(1).address());
    site.host(used).cut();
    let copy = tomorrow(&site);
    site.home.set_binary(copy);
    site.home.ok(["server", "start"]);
    site.host(1 - used).reboot();
    site.host(used).join();
    (0..2).for_each(|number| drop(site.wait_for_connected(number, true)));
    check_one(&site, used, &job);
    let done = site.home.run(["run", "--on", "ssh/gpu", "-N", "2", "--file", "whole.yaml", "--", "true"]);
    assert_eq!(done.code(), 0, "{}", done.err());
}

/// The same as `check` for a job of one task.
pub(super) fn check_one(site: &Site, host: usize, job: &str) {
    let host = site.host(host);
    host.run("touch /var/tmp/end");
    site.home.wait_for_state(job, "succeeded");
    let count: u64 = host.run("cat /var/tmp/last").trim().parse().expect("a number");
    let expected: String = (1..=count).map(|i| format!("line {i}\n")).collect();
    assert_eq!(site.home.ok(["logs", job]), expected);
}

#[test]
fn another_build_that_finds_no_space_loses_nothing() {
    let mut site = Site::new(1);
    let before = site.agents_exe(0).expect("an agent");
    let job = counting(&site);
    site.host(0).fill_disk();
    let copy = tomorrow(&site);
    site.home.set_binary(copy);
    site.home.ok(["server", "start"]);
    // The agent that is there is as good as another, until there is space.
    site.wait_for_connected(0, true);
    assert_eq!(builds(&site), [1]);
    site.host(0).free_disk();
    wait_for("the other build to be there", || builds(&site) == [2]);
    wait_for("its agent", || site.agents_exe(0).is_some_and(|exe| exe != before));
    check(&site, &job);
}

#[test]
fn another_build_comes_over_a_slow_way_behind_what_is_urgent() {
    let mut site = Site::new(1);
    let before = site.agents_exe(0).expect("an agent");
    let job = counting(&site);
    site.host(0).slow(Some("4mbit"));
    let copy = tomorrow(&site);
    site.home.set_binary(copy);
    site.home.ok(["server", "start"]);
    site.wait_for_connected(0, true);
    assert_eq!(builds(&site), [1], "it takes more than a minute to be sent");
    assert_eq!(site.home.ok(["exec", &job, "--", "hostname"]), "host0\n");
    site.host(0).slow(None);
    wait_for("the other build to be there", || builds(&site) == [2]);
    wait_for("its agent", || site.agents_exe(0).is_some_and(|exe| exe != before));
    check(&site, &job);
}

/// How many builds of muster each host has.
fn builds(site: &Site) -> Vec<usize> {
    let count = "ls /root/.muster/bin | wc -l";
    site.hosts.all().iter().map(|host| host.run(count).trim().parse().expect("a number")).collect()
}

#[test]
fn a_full_disk_holds_a_task_up_and_loses_nothing() {
    let site = Site::new(1);
    let job = counting(&site);
    site.host(0).fill_disk();
    let begun = Instant::now();
    wait_for("some seconds to pass", || begun.elapsed() > Duration::from_secs(3));
    site.home.kill("server");
    site.home.ok(["server", "start"]);
    site.wait_for_connected(0, true);
    site.host(0).free_disk();
    check(&site, &job);
}
