//! Pools of SSH hosts, on machines with a real sshd that share nothing: what a user does with them on a good day, and
//! below, on others.

mod faults;
mod machines;
mod refusals;
mod schedule;
mod troubles;
mod upheaval;
mod ways;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::time::SystemTime;

use muster_testkit::{Account, Finished, Home, Host, Hosts, executable, wait_for, wait_for_some};
use serde_json::Value;

use crate::tasks;

/// Hosts, and a muster that knows them as the pool `gpu`.
struct Site {
    // In this order: the server goes before the hosts that it talks to.
    home: Home,
    hosts: Hosts,
}

impl Site {
    /// This many hosts, all in the pool and connected.
    fn new(count: usize) -> Self {
        let site = Self::bare(count);
        let added = site.add(&site.destinations(Account::Root));
        assert_eq!(added.code(), 0, "{}{}", added.out(), added.err());
        site
    }

    /// This many hosts, and no pool.
    fn bare(count: usize) -> Self {
        let home = Home::new(slim());
        home.write("whole.yaml", "exclusive: true\n");
        Self { home, hosts: Hosts::start(count) }
    }

    /// Hosts with two simulated devices each, whose scheduler waits for nothing before it ends work for other work.
    fn with_devices(count: usize) -> Self {
        let site = Self::bare(count);
        site.home.configure("[scheduler]\nmin_run_time = \"0s\"\npreempt_after = \"0s\"\n");
        for host in site.hosts.all() {
            host.run(
                "mkdir -p ~/.muster && printf '[local]\\ndevices = [\"H100:2\"]\\n' > ~/.muster/config.toml",
            );
        }
        let added = site.add(&site.destinations(Account::Root));
        assert_eq!(added.code(), 0, "{}{}", added.out(), added.err());
        (0..count).for_each(|number| drop(site.wait_for_connected(number, true)));
        site
    }

    fn destinations(&self, account: Account) -> Vec<String> {
        self.hosts.all().iter().map(|host| host.destination_of(account)).collect()
    }

    /// Adds hosts to the pool with the key that they know.
    fn add(&self, destinations: &[String]) -> Finished {
        self.add_with(&self.hosts.key(), destinations)
    }

    fn add_with(&self, key: &Path, destinations: &[String]) -> Finished {
        let key = key.to_str().expect("a path of a test");
        let words = ["pool", "add", "gpu", "--key", key].into_iter();
        self.home.run(words.chain(destinations.iter().map(String::as_str)))
    }

    fn host(&self, number: usize) -> &Host {
        self.hosts.host(number)
    }

    /// A host as `muster nodes` shows it.
    fn node(&self, number: usize) -> Value {
        let address = self.host(number).address().to_string();
        let nodes = self.home.json(["nodes", "--json"]);
        let all = nodes.as_array().or(nodes["items"].as_array()).expect("a list of nodes").clone();
        let found = all.iter().find(|node| node["id"].as_str().is_some_and(|id| id.contains(&address)));
        found.unwrap_or_else(|| panic!("no node of {address} among {nodes}")).clone()
    }

    fn wait_for_connected(&self, number: usize, connected: bool) -> Value {
        let what = format!("host {number} to be {}", if connected { "connected" } else { "away" });
        wait_for_some(&what, || Some(self.node(number)).filter(|node| node["connected"] == connected))
    }

    /// The binary that a host's agent runs.
    fn agents_exe(&self, number: usize) -> Option<PathBuf> {
        let agent = self.host(number).processes().into_iter().find(|process| process.is("agent"))?;
        executable(agent.pid)
    }

    /// Submits a job to the pool.
    fn submit(&self, words: &[&str]) -> String {
        let all: Vec<&str> = ["--on", "ssh/gpu"].iter().chain(words).copied().collect();
        self.home.submit(&all)
    }

    /// Where a task of a job runs.
    fn host_of(&self, job: &Value, rank: usize) -> &Host {
        let ip = tasks(job)[rank]["address"]["ip"].as_str().expect("a task has an address").to_owned();
        let found = self.hosts.all().iter().find(|host| host.address().to_string() == ip);
        found.unwrap_or_else(|| panic!("{ip} is no host's address"))
    }
}

/// The binary without what only a debugger reads: it is sent to every host of every test. It is made once for each build.
pub(crate) fn slim() -> &'static Path {
    static PATH: OnceLock<PathBuf> = OnceLock::new();
    PATH.get_or_init(|| {
        let whole = Path::new(env!("CARGO_BIN_EXE_muster"));
        let modified = |path: &Path| fs::metadata(path).and_then(|file| file.modified());
        let built = modified(whole).expect("the binary was built");
        let built = built.duration_since(SystemTime::UNIX_EPOCH).expect("after 1970").as_nanos();
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("slim");
        let path = folder.join(format!("muster-{built}"));
        if path.exists() {
            return path;
        }
        // Those of builds before this one have served.
        let _ = fs::remove_dir_all(&folder);
        fs::create_dir_all(&folder).expect("a directory for it");
        let part = folder.join(format!("part-{}", std::process::id()));
        let made = Command::new("strip").arg("-o").arg(&part).arg(whole).status();
        assert!(made.expect("strip, of Debian's package binutils, starts").success());
        fs::rename(part, &path).expect("it gets its name when it is whole");
        path
    })
}

/// A job's output, of which each line says what it is to say.
fn said(output: &str, rank: usize) -> Vec<&str> {
    output.lines().filter_map(|line| line.strip_prefix(&format!("task{rank} | "))).collect()
}

#[test]
fn hosts_are_added_in_one_command_and_run_gangs() {
    let site = Site::bare(2);
    let added = site.add(&site.destinations(Account::Root));
    assert_eq!(added.code(), 0, "{}{}", added.out(), added.err());
    for host in site.hosts.all() {
        assert!(added.out().contains(&host.address().to_string()), "{}", added.out());
    }
    let shown = site.home.ok(["nodes"]);
    assert_eq!(shown.matches("gpu.").count(), 2, "{shown}");

    // Who fails stops the other, and both are to say everything before.
    let script = "hostname; whoami; echo $MUSTER_HOSTS; echo $MASTER_ADDR; cat data; : > /shared/$RANK\n\
                  until [ -e /shared/0 ] && [ -e /shared/1 ]; do sleep 0.02; done; exit $((3 - RANK * 3))";
    site.home.write("train.sh", script);
    site.home.write("data", "what is sent is there\n");
    let done =
        site.home.run(["run", "--on", "ssh/gpu", "-N", "2", "--file", "whole.yaml", "--", "sh", "train.sh"]);
    assert_eq!(done.code(), 3, "{}{}", done.out(), done.err());
    let addresses: Vec<String> = site.hosts.all().iter().map(|host| host.address().to_string()).collect();
    let mut names = Vec::new();
    for rank in 0..2 {
        let output = done.out();
        let lines = said(&output, rank);
        names.push(lines[0].to_owned());
        let mut hosts: Vec<&str> = lines[2].split(',').collect();
        assert_eq!(lines[3], hosts[0], "the master is task 0's host");
        hosts.sort_unstable();
        assert_eq!(hosts, addresses, "{output}");
        assert_eq!((lines[1], lines[4]), ("root", "what is sent is there"), "{output}");
    }
    names.sort_unstable();
    assert_eq!(names, ["host0", "host1"]);
}

#[test]
fn an_ordinary_account_is_enough() {
    let site = Site::bare(1);
    let added = site.add(&site.destinations(Account::Ordinary));
    assert_eq!(added.code(), 0, "{}{}", added.out(), added.err());
    site.home.write("data", "sent\n");
    let script = "whoami; cat data; echo made > \"$MUSTER_OUTPUT_DIR/model\"";
    let done = site.home.run(["run", "--on", "ssh/gpu", "--", "sh", "-c", script]);
    assert_eq!((done.code(), done.out().as_str()), (0, "train\nsent\n"), "{}", done.err());
    let job = site.home.json(["show", "last", "--json"])["id"].as_str().expect("an id").to_owned();
    site.home.ok(["get", &job]);
    assert_eq!(
        site.host(0).run("find / -xdev -user train -not -path '/home/train*' -not -path '/proc/*' | head"),
        ""
    );
}

#[test]
fn people_get_into_tasks_on_hosts() {
    let site = Site::new(1);
    let job = site.submit(&["--", "sleep", "1000"]);
    site.home.wait_for_state(&job, "running");
    assert_eq!(site.home.ok(["exec", &job, "--", "hostname"]), "host0\n");
    site.home.write("note", "carried\n");
    site.home.ok(["cp", "note", &format!("{job}:note")]);
    assert_eq!(site.home.ok(["exec", &job, "--", "cat", "note"]), "carried\n");
    site.home.ok(["stop", &job]);
    site.home.wait_for_state(&job, "stopped");
    assert!(site.host(0).processes_with("sleep 1000").is_empty());
}

#[test]
fn a_drained_host_gets_nothing_new_and_one_that_is_removed_has_nothing_left_running() {
    let site = Site::new(2);
    let node = |number: usize| site.node(number)["id"].as_str().expect("an id").to_owned();
    site.home.ok(["nodes", "drain", &node(0)]);
    for _ in 0..3 {
        assert_eq!(site.home.ok(["run", "--on", "ssh/gpu", "--", "hostname"]), "host1\n");
    }
    site.home.ok(["nodes", "undrain", &node(0)]);
    site.home.ok(["nodes", "drain", &node(1)]);
    assert_eq!(site.home.ok(["run", "--on", "ssh/gpu", "--", "hostname"]), "host0\n");
    site.home.ok(["pool", "rm", "gpu"]);
    wait_for("nothing of muster's to be left on the hosts", || {
        site.hosts.all().iter().all(|host| host.processes_with("/.muster/").is_empty())
    });
    let refused = site.home.run(["run", "--on", "ssh/gpu", "--", "true"]);
    assert!(refused.code() != 0 && refused.err().contains("muster pool add gpu"), "{}", refused.err());
}
