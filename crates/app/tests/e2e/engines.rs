//! What users see is the same wherever a job runs: one suite on this machine, on SSH hosts, on Slurm and on Kubernetes.
//!
//! A place takes seconds to make, so each test does several things on one.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use muster_testkit::{Account, Finished, Home, Hosts, Slurm, wait_for, wait_for_some};
use serde_json::Value;

use crate::kube;
use crate::pool::slim;
use crate::slurm::Site;
use crate::{attempts, home, tasks};

/// Programs that every machine has, and nobody's own.
const PATH: &str = "PATH=/usr/local/bin:/usr/bin:/bin";

/// Somewhere to run, and a muster that knows it.
struct Place {
    // In this order: the server goes before what it talks to.
    home: Home,
    on: &'static str,
    /// A directory that tasks and the test see, as the test sees it.
    shared: PathBuf,
    /// The same for tasks: where it is, as a variable.
    variable: String,
    _hosts: Option<Hosts>,
    _slurm: Option<Slurm>,
}

impl Place {
    /// This machine.
    fn local() -> Self {
        let home = home();
        let shared = home.shared();
        Self::new(home, "local", shared.clone(), &shared)
    }

    /// Two hosts.
    fn ssh() -> Self {
        let (home, hosts) = (Home::new(slim()), Hosts::start(2));
        let key = hosts.key().display().to_string();
        let all = hosts.all().iter().map(|host| host.destination_of(Account::Ordinary));
        home.ok(["pool", "add", "gpu", "--key", &key].map(str::to_owned).into_iter().chain(all));
        let place = Self::new(home, "ssh/gpu", hosts.shared(), Path::new("/shared"));
        Self { _hosts: Some(hosts), ..place }
    }

    /// A Slurm, from a server that is root's and has jobs run as an ordinary account.
    fn slurm() -> Self {
        let Site { home, slurm } = Site::new();
        let shared = home.shared();
        let place = Self::new(home, "slurm/main", shared.clone(), &shared);
        Self { _slurm: Some(slurm), ..place }
    }

    /// A Kubernetes, from a server that no pod reaches.
    fn kube() -> Self {
        let kube::Site { home, .. } = kube::Site::new();
        let shared = home.shared();
        Self::new(home, "k8s", shared.clone(), &shared)
    }

    fn new(home: Home, on: &'static str, shared: PathBuf, seen: &Path) -> Self {
        let variable = format!("SHARED={}", seen.display());
        Self { home, on, shared, variable, _hosts: None, _slurm: None }
    }

    /// The words of a command that runs something here.
    fn words<'a>(&'a self, verb: &[&'a str], words: &[&'a str]) -> Vec<&'a str> {
        let own = ["--on", self.on, "--env", &self.variable, "--env", PATH];
        verb.iter().chain(&own).chain(words).copied().collect()
    }

    fn run(&self, words: &[&str]) -> Finished {
        self.home.run(self.words(&["run"], words))
    }

    fn submit(&self, words: &[&str]) -> String {
        self.home.submit(&self.words(&[], words))
    }

    /// Submits a line for the shell, with other words before it.
    fn submit_line(&self, words: &[&str], line: &str) -> String {
        let all: Vec<&str> = words.iter().copied().chain(["--", "sh", "-c", line]).collect();
        self.submit(&all)
    }

    fn touch(&self, name: &str) {
        std::fs::write(self.shared.join(name), "").expect("a file in the shared directory");
    }

    fn wait_for_file(&self, name: &str) -> String {
        let path = self.shared.join(name);
        wait_for_some(&format!("a task to make {name}"), || {
            std::fs::read_to_string(&path).ok().filter(|it| !it.is_empty())
        })
    }

    /// Waits for a job's end and gives it.
    fn end_of(&self, job: &str, code: i32) -> Value {
        let waited = self.home.run(["wait", job]);
        assert_eq!(
            waited.code(),
            code,
            "{}{}\n{}",
            waited.out(),
            waited.err(),
            self.home.run(["logs", job]).out()
        );
        self.home.job(job)
    }
}

/// A shell line that waits for a file in the shared directory.
fn until(name: &str) -> String {
    crate::until(name)
}

/// What runs, what it is given, and what comes of it.
fn runs(place: &Place) {
    place.home.write("data/input", "what is sent is there\n");
    let script =
        "cat data/input; echo \"$GREETING|$1|$MUSTER_JOB_NAME|$RANK of $WORLD_SIZE\"; echo aside >&2";
    let done = place.run(&[
        "--name",
        "first",
        "--env",
        "GREETING=good day",
        "--",
        "sh",
        "-c",
        script,
        "x",
        "a 'b' \"c\" $d",
    ]);
    assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
    assert_eq!(done.out(), "what is sent is there\ngood day|a 'b' \"c\" $d|first|0 of 1\n");
    assert!(done.err().contains("aside\n"), "{}", done.err());
    assert_eq!(place.run(&["--", "sh", "-c", "exit 7"]).code(), 7);
    assert_eq!(place.run(&["--", "no-such-program"]).code(), 127);
    assert_eq!(place.run(&["--", "sh", "-c", "kill -9 $$"]).code(), 137);
}

/// A gang whose tasks meet where they are told that task 0 is; its whole output, in order.
fn gangs(place: &Place) {
    place.home.write("meet.py", MEET);
    let job = place.submit(&["-N", "2", "--", "python3", "-I", "-S", "meet.py"]);
    let shown = place.end_of(&job, 0);
    assert_eq!(tasks(&shown).len(), 2);
    let wanted = |rank: u32| (0..20_000).map(|line| format!("{rank} {line}\n")).collect::<String>();
    for rank in 0..2 {
        let text = place.home.ok(["logs", &job, "--task", &rank.to_string()]);
        assert!(text == wanted(rank) + "met 1\n", "the log of task {rank} has {} bytes", text.len());
    }
    // One that fails ends the other.
    let line = "[ $RANK = 1 ] && exit 5; sleep 1000";
    let begun = Instant::now();
    let job = place.submit_line(&["-N", "2", "--grace", "1s"], line);
    place.end_of(&job, 5);
    assert!(begun.elapsed() < Duration::from_secs(30), "{:?}", begun.elapsed());
}

/// Every rank writes many lines, then meets the others.
const MEET: &str = r#"
import os, socket, sys, time
rank = int(os.environ["RANK"])
for line in range(20_000):
    print(rank, line)
master = (os.environ["MASTER_ADDR"], int(os.environ["MASTER_PORT"]))
if rank == 0:
    peer = socket.create_server(master).accept()[0]
    total = int(peer.makefile().readline())
    peer.sendall(b"%d\n" % total)
else:
    deadline = time.monotonic() + 30
    while True:
        try:
            peer = socket.create_connection(master, timeout=30)
            break
        except ConnectionRefusedError:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    peer.sendall(b"%d\n" % rank)
    total = int(peer.makefile().readline())
print("met", total)
"#;

/// Ways into a task that runs, and what is left of one that has ended.
fn reach(place: &Place) {
    place.home.write("code.txt", "code\n");
    let script = format!(
        "mkdir -p sub && echo inside > sub/a; echo 7 > \"$MUSTER_OUTPUT_DIR/result\"; echo up > \"$SHARED/up\"; {}",
        until("leave")
    );
    let job = place.submit_line(&["--env", &place.variable.replace("SHARED=", "HOME=")], &script);
    place.wait_for_file("up");
    let home = &place.home;
    assert_eq!(home.ok(["exec", &job, "--", "cat", "code.txt", "sub/a"]), "code\ninside\n");
    assert_eq!(home.run(["exec", &job, "--", "sh", "-c", "exit 4"]).code(), 4);
    assert_eq!(home.ok(["ssh", &job, "--", "cat sub/a; echo $RANK"]), "inside\n0\n");
    home.write("note", "carried\n");
    home.ok(["cp", "note", &format!("{job}:sub/note")]);
    assert_eq!(home.ok(["get", &job, "sub/note", "-o", "-"]), "carried\n");
    home.ok(["session", "run", &job, "-c", "cd sub; X=kept"]);
    assert_eq!(home.ok(["session", "run", &job, "-c", "cat note; echo $X"]), "carried\nkept\n");
    let files = home.json(["files", &job, "--json"]);
    let names: Vec<&str> =
        files["items"].as_array().expect("files").iter().filter_map(|it| it["path"].as_str()).collect();
    assert!(["code.txt", "sub", "@output"].iter().all(|name| names.contains(name)), "{names:?}");
    place.touch("leave");
    place.end_of(&job, 0);
    assert_eq!(home.ok(["get", &job, "@output/result", "-o", "-"]), "7\n");
    // A pod's own files go with it.
    if place.on != "k8s" {
        assert_eq!(home.ok(["get", &job, "sub/a", "-o", "-"]), "inside\n");
    }
    assert_ne!(home.run(["exec", &job, "--", "true"]).code(), 0, "it has ended");
}

/// Stop, retry and timeout.
fn ends(place: &Place) {
    let home = &place.home;
    let polite = "trap 'echo saved > \"$SHARED/saved\"; exit 0' TERM; echo up > \"$SHARED/polite\"; while :; do sleep 0.05; done";
    let job = place.submit_line(&[], polite);
    place.wait_for_file("polite");
    home.ok(["stop", &job]);
    assert_eq!(place.wait_for_file("saved"), "saved\n", "there is time to save");
    assert_eq!(place.end_of(&job, 130)["reason"]["code"], "stopped_by_user");

    let deaf = "trap '' TERM; echo up > \"$SHARED/deaf\"; while :; do sleep 0.05; done";
    let job = place.submit_line(&["--grace", "500ms"], deaf);
    place.wait_for_file("deaf");
    let begun = Instant::now();
    home.ok(["stop", &job]);
    place.end_of(&job, 130);
    let took = begun.elapsed();
    assert!(took >= Duration::from_millis(500) && took < Duration::from_secs(20), "{took:?}");

    let train = "cat \"$MUSTER_PREVIOUS_OUTPUT_DIR/step\" 2>/dev/null; echo step $MUSTER_ATTEMPT > \"$MUSTER_OUTPUT_DIR/step\"; [ $MUSTER_ATTEMPT = 2 ]";
    home.write("retry.yaml", "retries: {max: 2, backoff: 100ms}\n");
    let job = place.submit_line(&["--file", "retry.yaml"], train);
    let shown = place.end_of(&job, 0);
    assert_eq!(attempts(&shown).len(), 2, "{shown}");

    let job = place.submit_line(&["--timeout", "1s", "--grace", "1s"], "sleep 1000");
    assert_eq!(place.end_of(&job, 124)["reason"]["code"], "timeout");
}

/// The server is killed at the worst moments; what runs goes on, and is told once.
fn survives(place: &Place) {
    let home = &place.home;
    let line = format!(
        "echo ran >> \"$SHARED/runs\"; echo before; echo up > \"$SHARED/up\"; {}; echo after; exit 6",
        until("go")
    );
    // While it is on its way, while it runs, and while it ends.
    let job = place.submit_line(&[], &line);
    home.kill("server");
    home.ok(["server", "start"]);
    place.wait_for_file("up");
    home.kill("server");
    home.ok(["server", "start"]);
    home.wait_for_state(&job, "running");
    home.kill("server");
    place.touch("go");
    let shown = place.end_of(&job, 6);
    assert_eq!(home.ok(["logs", &job]), "before\nafter\n");
    assert_eq!(place.wait_for_file("runs"), "ran\n", "{shown}");
    assert_eq!(attempts(&shown).len(), 1);
    // A gang too.
    let line = format!("echo $RANK; echo up > \"$SHARED/up$RANK\"; {}; echo end $RANK", until("go2"));
    let job = place.submit_line(&["-N", "2"], &line);
    for rank in ["up0", "up1"] {
        place.wait_for_file(rank);
    }
    home.kill("server");
    place.touch("go2");
    place.end_of(&job, 0);
    for rank in ["0", "1"] {
        assert_eq!(home.ok(["logs", &job, "--task", rank]), format!("{rank}\nend {rank}\n"));
    }
    wait_for("nothing to be claimed", || {
        let nodes = home.json(["nodes", "--json"]);
        let all = nodes.as_array().or(nodes["items"].as_array()).expect("a list of nodes").clone();
        all.iter().all(|node| node["slots_used"] == 0)
    });
}

macro_rules! everywhere {
    ($($scenario:ident),+) => {
        mod on_this_machine { $(#[test] fn $scenario() { super::$scenario(&super::Place::local()); })+ }
        mod on_ssh_hosts { $(#[test] fn $scenario() { super::$scenario(&super::Place::ssh()); })+ }
        mod on_kubernetes { $(#[test] fn $scenario() { super::$scenario(&super::Place::kube()); })+ }
        mod on_slurm { $(#[test] fn $scenario() { super::$scenario(&super::Place::slurm()); })+ }
    };
}

everywhere!(runs, gangs, reach, ends, survives);
