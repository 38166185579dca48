//! Everything a task starts ends with it, whatever it does to get away, by each of the three ways; and its memory limit.

use std::path::PathBuf;

use muster_testkit::{Home, cgroup, wait_for, with_word};
use serde_json::json;

use crate::{home_with, python};

/// Starts children that want to stay, says that they are there, and then ends or waits. Every process has the mark, its
/// first argument, in its command line.
const CLINGING: &str = r#"
import os, signal, sys, time
mark, up, end = sys.argv[1], sys.argv[2], sys.argv[3]

def stay(name):
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    open(f"{up}.{name}", "w").close()
    while True:
        time.sleep(1)

# A session of its own.
if os.fork() == 0:
    os.setsid()
    stay("session")
# Twice forked: its parent is gone.
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        stay("orphan")
    os._exit(0)
# An orphan without anything of the task in its environment, and with another program.
if os.fork() == 0:
    os.setsid()
    if os.fork() == 0:
        script = 'trap "" TERM; : > "$1"; while :; do sleep 1; done'
        os.execve("/bin/sh", ["sh", "-c", script, mark, f"{up}.stranger"], {})
    os._exit(0)
# One that is never there for long: each generation starts the next one and ends. Should nobody end them, they do.
last = time.monotonic() + 60
if os.fork() == 0:
    os.setsid()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    open(f"{up}.chain", "w").close()
    while os.fork() == 0 and time.monotonic() < last:
        time.sleep(0.003)
    os._exit(0)

while not all(os.path.exists(f"{up}.{name}") for name in ("session", "orphan", "stranger", "chain")):
    time.sleep(0.005)
print(open("/proc/self/cgroup").read(), end="", flush=True)
open(up, "w").close()
if end == "wait":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
"#;

struct Scene {
    home: Home,
    mark: String,
}

impl Scene {
    fn new(way: &str) -> Self {
        let home = home_with(&format!("[local]\ntree_kill = \"{way}\"\n"));
        home.write("clinging.py", CLINGING);
        Self { home, mark: format!("clinging-{way}-{}", std::process::id()) }
    }

    /// Starts a clinging task and waits until everything of it is there.
    fn cling(&self, name: &str, end: &str) -> String {
        let up = self.home.shared().join(name);
        let up = up.to_str().expect("a temporary path is text");
        let id = self.home.submit(&[
            "--grace",
            "100ms",
            "--",
            python(),
            "-I",
            "-S",
            "clinging.py",
            &self.mark,
            up,
            end,
        ]);
        wait_for("everything of the task to be there", || {
            let job = self.home.get(&format!("/api/v1/jobs/{id}")).json();
            let is_up = self.home.shared().join(name).exists();
            // On a machine without that kind of cgroups, it says so here.
            assert!(is_up || job["state"] != "failed", "{}", job["message"]);
            is_up
        });
        id
    }

    /// The groups the task said it was in, none of which may be left.
    fn groups(&self, job: &str) -> Vec<PathBuf> {
        cgroup::directories(&self.home.ok(["logs", job]))
    }

    fn check(&self, hierarchies: &[&str]) {
        let stopped = self.cling("stopped", "wait");
        assert!(with_word(&self.mark).len() >= 4, "{:?}", with_word(&self.mark));
        self.home.ok(["stop", &stopped]);
        assert_eq!(with_word(&self.mark), [], "left behind after `stop`");
        assert_eq!(self.home.job(&stopped)["state"], "stopped");

        let ended = self.cling("ended", "end");
        self.home.wait_for_state(&ended, "succeeded");
        assert_eq!(with_word(&self.mark), [], "left behind by a task that ended by itself");

        let timed = self.home.shared().join("timed");
        let words = [
            "run",
            "--timeout",
            "2s",
            "--grace",
            "50ms",
            "--",
            python(),
            "-I",
            "-S",
            "clinging.py",
            &self.mark,
        ];
        let done = self.home.run(words.iter().copied().chain([timed.to_str().expect("text"), "wait"]));
        assert_eq!(done.code(), 124, "{}", done.err());
        assert_eq!(with_word(&self.mark), [], "left behind by a task that ran out of time");

        for job in [&stopped, &ended] {
            let groups = self.groups(job);
            // The way that was asked for was taken, and no other.
            let names: Vec<String> = groups.iter().map(|group| hierarchy(group)).collect();
            assert_eq!(names, hierarchies, "{groups:?}");
            wait_for("the task's control groups to go", || groups.iter().all(|group| !group.exists()));
        }
        self.home.wait_for_no_tasks();
    }
}

/// `freezer` or `unified`: the hierarchy a group is in, by what only that one has in its root.
fn hierarchy(group: &std::path::Path) -> String {
    let root = group
        .ancestors()
        .skip(1)
        .find(|above| above.join("cgroup.procs").exists() && !above.to_string_lossy().contains("muster-"));
    let root = root.expect("a group is in a hierarchy");
    let is_unified = root.join("cgroup.controllers").exists();
    if is_unified {
        "unified".into()
    } else {
        root.file_name().expect("a name").to_string_lossy().into_owned()
    }
}

#[test]
fn nothing_is_left_of_a_task_with_a_cgroup_of_version_2() {
    Scene::new("cgroup2").check(&["unified"]);
}

#[test]
fn nothing_is_left_of_a_task_with_a_cgroup_of_version_1() {
    Scene::new("cgroup1").check(&["freezer"]);
}

#[test]
fn nothing_is_left_of_a_task_without_cgroups() {
    Scene::new("walk").check(&[]);
}

#[test]
fn a_task_that_takes_more_memory_than_it_asked_for_is_out_of_memory() {
    let home = home_with("[local]\ntree_kill = \"cgroup1\"\n");
    let greedy = "x = bytearray(512 << 20)\nfor i in range(0, len(x), 4096): x[i] = 1\nprint('had it all')\n";
    home.write("greedy.py", greedy);
    let done = home.run(["run", "--memory", "64MB", "--", python(), "-I", "-S", "greedy.py"]);
    assert_eq!((done.code(), done.out().as_str()), (137, ""), "{}", done.err());
    assert!(done.err().contains("--memory"), "{}", done.err());
    assert_eq!(home.job("last")["reason"], json!({"code": "out_of_memory"}));
    let done = home.run(["run", "--memory", "2GB", "--", python(), "-I", "-S", "greedy.py"]);
    assert_eq!((done.code(), done.out().as_str()), (0, "had it all\n"), "{}", done.err());
    // Someone else's kill -9 is not taken for it.
    let done = home.run(["run", "--memory", "64MB", "--", "sh", "-c", "kill -9 $$"]);
    assert_eq!(done.code(), 137, "{}", done.err());
    assert_eq!(home.job("last")["reason"], json!({"code": "signal", "signal": 9}));
}
