//! Slurm as a place to run, on a real one of each test's own: what a user does with it on a good day, and below, on others.

mod absence;
mod accounting;
mod faults;
mod limits;
mod load;
mod memory;
mod owners;
mod people;
mod queue;
mod scripts;

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::PathBuf;

use muster_testkit::{Home, Running, Slurm, wait_for, wait_for_some};
use serde_json::Value;

use crate::pool::slim;

/// A cluster, and a muster that knows it.
pub(crate) struct Site {
    // In this order: the server goes before the cluster that it talks to.
    pub(crate) home: Home,
    pub(crate) slurm: Slurm,
}

impl Site {
    pub(crate) fn new() -> Self {
        Self::on(Slurm::start())
    }

    /// A server of root's, with jobs that run as the cluster's ordinary account.
    pub(crate) fn on(slurm: Slurm) -> Self {
        Self::with(slurm, "")
    }

    /// The same with more settings of `[slurm]`.
    fn with(slurm: Slurm, more: &str) -> Self {
        let home = Home::new(slim());
        home.share_with_everybody();
        home.configure(&configuration(&slurm, &format!("user = \"{}\"\n{more}", Slurm::ACCOUNT)));
        Self { home, slurm }
    }

    /// Submits a job to `main`.
    fn submit(&self, words: &[&str]) -> String {
        self.submit_to("slurm/main", words)
    }

    fn submit_to(&self, place: &str, words: &[&str]) -> String {
        let all: Vec<&str> = ["--on", place, "--env", "SHARED"].iter().chain(words).copied().collect();
        self.home.submit(&all)
    }

    /// Submits a line for the shell, with other words before it.
    fn submit_line(&self, words: &[&str], line: &str) -> String {
        let all: Vec<&str> = words.iter().copied().chain(["--", "sh", "-c", line]).collect();
        self.submit(&all)
    }

    /// What Slurm has had for a job, all attempts together, those that are over included.
    fn allocations(&self, job: &str) -> Vec<Value> {
        let mark = format!(":{job}.");
        let is_its = |it: &Value| it["comment"].as_str().is_some_and(|comment| comment.contains(&mark));
        self.slurm.jobs().into_iter().filter(is_its).collect()
    }

    /// Waits until Slurm has a job in a state, and gives Slurm's number of it.
    fn wait_for_allocation(&self, job: &str, state: &str) -> String {
        wait_for_some(&format!("Slurm to have {job} as {state}"), || {
            let found = self.allocations(job).into_iter().find(|it| it["job_state"] == state)?;
            Some(found["job_id"].to_string())
        })
    }

    /// Waits for a job's end, which must have this exit code, and gives it.
    fn end_of(&self, job: &str, code: i32) -> Value {
        let waited = self.home.run(["wait", job]);
        let words = || format!("{}{}\n{}", waited.out(), waited.err(), self.home.run(["logs", job]).out());
        assert_eq!(waited.code(), code, "{}", words());
        self.home.job(job)
    }

    /// The directories on the cluster that a job's attempts have left.
    fn left_by(&self, job: &str) -> Vec<PathBuf> {
        let base = self.slurm.home().join("muster");
        let below = |path: PathBuf| fs::read_dir(path).into_iter().flatten().flatten().map(|it| it.path());
        let is_its = |path: &PathBuf| {
            path.file_name().is_some_and(|name| name.to_string_lossy().starts_with(&format!("{job}.")))
        };
        below(base).flat_map(below).filter(is_its).collect()
    }

    /// Waits until Slurm has nothing to do any more, and nothing is left on its nodes.
    fn wait_for_nothing_left(&self) {
        wait_for("Slurm to have nothing to do", || self.slurm.open_jobs().is_empty());
        wait_for("nothing to be left on the nodes", || {
            (1..=4).all(|number| self.slurm.processes_on(number).is_empty())
        });
    }
}

fn configuration(slurm: &Slurm, more: &str) -> String {
    let directory = slurm.home().join("muster");
    format!("[slurm]\ndirectory = \"{}\"\nconf = \"{}\"\n{more}", directory.display(), slurm.conf().display())
}

#[test]
fn a_gang_has_the_nodes_and_devices_that_slurm_gave_it() {
    let site = Site::new();
    let script = "echo $(whoami) $RANK $SLURMD_NODENAME $SLURM_JOB_NUM_NODES $CUDA_VISIBLE_DEVICES";
    let done =
        site.home.run(["run", "--on", "slurm/main", "-N", "2", "--gpus", "A100:3", "--", "sh", "-c", script]);
    assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
    let mut lines: Vec<String> = done.out().lines().map(str::to_owned).collect();
    lines.sort_unstable();
    assert_eq!(lines, ["task0 | muster-test 0 n3 2 0,1,2", "task1 | muster-test 1 n4 2 0,1,2"]);
    let shown = site.home.json(["show", "last", "--json"]);
    let devices = crate::tasks(&shown)[1]["devices"].as_array().expect("a list of devices").len();
    assert_eq!(devices, 3, "{shown}");
    let [allocation] = site.allocations(shown["id"].as_str().expect("an id")).try_into().expect("one");
    assert_eq!(allocation["user_name"].as_str().unwrap_or("muster-test"), "muster-test");
    site.wait_for_nothing_left();
    // What it left on the cluster goes with it.
    let id = shown["id"].as_str().expect("an id");
    assert_eq!(site.left_by(id).len(), 1);
    site.home.ok(["rm", id]);
    wait_for("its files to go", || site.left_by(id).is_empty());
}

#[test]
fn who_waits_is_told_why_and_until_when() {
    let site = Site::new();
    let first = site.submit(&["-N", "4", "--exclusive", "--timeout", "1h", "--", "sleep", "1000"]);
    site.home.wait_for_state(&first, "running");
    let second = site.submit(&["-N", "2", "--", "true"]);
    site.wait_for_allocation(&second, "PENDING");
    // Its estimate comes when its scheduler has planned so far.
    wait_for("a reason and an estimate of Slurm's", || {
        let words = site.home.ok(["why", &second]);
        words.contains("no_capacity") && words.contains("expected: in ")
    });
    assert_eq!(site.home.job(&second)["state"], "queued");
    let nodes = site.home.ok(["nodes"]);
    assert!(["n1", "n2", "n3", "n4"].iter().all(|name| nodes.contains(name)), "{nodes}");
    site.home.ok(["stop", &second]);
    site.home.ok(["stop", &first]);
    site.wait_for_nothing_left();
}

#[test]
fn what_slurm_does_not_take_fails_with_its_words() {
    let site = Site::new();
    for (words, says) in
        [(vec!["--on", "slurm/nowhere"], "nowhere"), (vec!["--on", "slurm/main", "--gpus", "99"], "node")]
    {
        let all: Vec<&str> =
            ["run", "--retries", "3"].iter().chain(&words).copied().chain(["--", "true"]).collect();
        let done = site.home.run(&all);
        assert_ne!(done.code(), 0, "{words:?}");
        assert!(done.err().to_lowercase().contains(says), "{words:?}: {}", done.err());
        let shown = site.home.json(["show", "last", "--json"]);
        assert_eq!(
            (&shown["state"], &shown["reason"]["code"]),
            (&"failed".into(), &"refused".into()),
            "{shown}"
        );
    }
    assert_eq!(site.slurm.open_jobs().len(), 0);
    // More nodes than there are it does take, and keeps for ever.
    let job = site.submit(&["-N", "5", "--", "true"]);
    wait_for("a reason", || site.home.json(["why", &job, "--json"]).to_string().contains("never_fits"));
    site.home.ok(["stop", &job]);
    site.wait_for_nothing_left();
}

#[test]
fn jobs_never_run_as_root() {
    let slurm = Slurm::start();
    let home = Home::new(slim());
    home.configure(&configuration(&slurm, ""));
    let done = home.run(["run", "--on", "slurm/main", "--", "whoami"]);
    assert_ne!(done.code(), 0, "{}", done.out());
    assert!(done.err().contains("slurm.user") || done.err().contains("user ="), "{}", done.err());
    assert!(slurm.jobs().is_empty());
}

#[test]
fn the_account_of_a_cluster_sees_no_secret_of_the_servers() {
    let mut site = Site::new();
    site.home.set_variable("MUSTER_SECRETS_KEY", "a key that is quite long enough to be one");
    let done = site.home.run(["run", "--on", "slurm/main", "--", "env"]);
    assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
    assert!(!done.out().contains("MUSTER_SECRETS_KEY"), "{}", done.out());
    let directory = site.slurm.home().join("muster").display().to_string();
    let processes = fs::read_dir("/proc").expect("processes").flatten().map(|entry| entry.path());
    let of_account = processes.filter(|path| {
        let words = fs::read_to_string(path.join("cmdline")).unwrap_or_default();
        let is_ordinary = fs::metadata(path).is_ok_and(|found| found.uid() != 0);
        is_ordinary && words.contains("\0gate\0") && words.contains(&directory)
    });
    let environments: Vec<String> =
        of_account.filter_map(|path| fs::read_to_string(path.join("environ")).ok()).collect();
    assert!(!environments.is_empty(), "the gate runs");
    for variables in environments {
        assert!(!variables.contains("MUSTER_SECRETS_KEY"), "{variables}");
    }
}

#[test]
fn a_script_cannot_say_otherwise_than_the_operator() {
    let site = Site::with(Slurm::start(), "qos = \"normal\"\noptions = [\"--licenses=a\"]\n");
    site.home.write("job.sh", "#!/bin/sh\n#SBATCH --qos=high\ntrue\n");
    let done = site.home.run(["run", "--on", "slurm/main", "--file", "job.sh"]);
    assert_eq!(done.code(), 2, "{}{}", done.out(), done.err());
    for word in ["batch.options[0]", "`--qos=high` contradicts `--qos=normal`"] {
        assert!(done.err().contains(word), "{word}: {}", done.err());
    }
    assert!(site.slurm.jobs().is_empty());
}

#[test]
fn a_shared_server_submits_as_its_users_and_shares_no_directory_among_them() {
    let site = Site::new();
    let (home, people) = (&site.home, site.home.shared().join("people"));
    fs::create_dir(&people).expect("what a file server has");
    fs::set_permissions(&people, fs::Permissions::from_mode(0o777)).expect("open to all");
    let volumes = format!("[volumes.user]\npath = \"{}/{{user}}\"\n", people.display());
    let settings = configuration(&site.slurm, &format!("user = \"{}\"\n", Slurm::ACCOUNT));
    home.configure(&format!("{settings}{volumes}"));
    let folder = home.path();
    let words =
        ["server", "run", "--home", folder.to_str().expect("plain"), "--listen", "127.0.0.1:0", "--auth"];
    let server = home.start(words);
    server.wait_for_out("ready\n");
    let url =
        format!("http://{}", fs::read_to_string(folder.join("server.address")).expect("where it listens"));
    let input = home.shared().join("password");
    fs::write(&input, "the password of ada\n").expect("an input");
    let by_ada = |words: &[&str]| {
        let mut command = home.command(words);
        command.env("MUSTER_HOME", home.shared().join("ada")).env("USER", "ada");
        // What nobody reads is refused by `run`.
        if words.contains(&"--password-stdin") {
            command.stdin(fs::File::open(&input).expect("the input"));
        }
        Running::start(command).finish()
    };
    let mut command = home.command(["user", "add", "ada", "--workspace", "default", "--role", "member"]);
    command.arg("--password-stdin").stdin(fs::File::open(&input).expect("the input"));
    assert_eq!(Running::start(command).finish().code(), 0);
    let login = by_ada(&["login", &url, "--user", "ada", "--name", "team", "--password-stdin"]);
    assert_eq!(login.code(), 0, "{}", login.err());

    let refused = by_ada(&["run", "--on", "slurm/main", "--", "whoami"]);
    assert_eq!(refused.code(), 2, "{}{}", refused.out(), refused.err());
    for word in ["on:", "slurm.directory", "`ada`"] {
        assert!(refused.err().contains(word), "{word}: {}", refused.err());
    }
    home.ok(["user", "set", "ada", "--account", Slurm::ACCOUNT]);
    let line = format!("whoami && echo kept > {}/ada/file", people.display());
    let done = by_ada(&["run", "--on", "slurm/main", "--", "sh", "-c", &line]);
    assert_eq!((done.code(), done.out()), (0, format!("{}\n", Slurm::ACCOUNT)), "{}", done.err());
    assert_eq!(fs::read_to_string(people.join("ada/file")).expect("its file"), "kept\n");
    server.signal(rustix::process::Signal::TERM);
    assert_eq!(server.finish().code(), 0);
}
