//! A server of root's on a login node that people share: to Slurm, each one's jobs are their own, and so are their files.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::Command;

use muster_testkit::{DEADLINE, Finished, Home, Process, Running, Slurm, wait_for, with_word};
use rustix::process::Signal;
use serde_json::Value;

use crate::pool::slim;
use crate::until;

/// A server with accounts, and a cluster on whose login node it is.
pub(super) struct Team {
    // In this order: the server goes before the cluster that it talks to.
    server: Running,
    pub(super) home: Home,
    slurm: Slurm,
    address: String,
}

impl Team {
    /// One whose people have these accounts.
    fn start(people: &[(&str, &str)]) -> Self {
        let slurm = Slurm::start();
        let home = Home::new(slim());
        home.share_with_everybody();
        let directory = home.shared().join("{account}/muster");
        home.configure(&format!(
            "[slurm]\ndirectory = \"{}\"\nconf = \"{}\"\n",
            directory.display(),
            slurm.conf().display()
        ));
        let (server, address) = serve(&home, "127.0.0.1:0");
        let team = Self { server, home, slurm, address };
        for (name, account) in people {
            team.make_directory(account);
            team.add(name, account);
        }
        team
    }

    /// Somebody who is this account on the machines.
    fn add(&self, name: &str, account: &str) {
        let words = ["user", "add", name, "--workspace", "default", "--role", "member", "--account", account];
        let mut command = self.home.command(words);
        command.arg("--password-stdin").stdin(self.password(name));
        let done = Running::start(command).finish();
        assert_eq!(done.code(), 0, "{}", done.err());
        let url = format!("http://{}", self.address);
        let person = self.person(name);
        let mut command =
            person.command(&["login", &url, "--user", name, "--name", "team", "--password-stdin"]);
        command.stdin(self.password(name));
        let done = Running::start(command).finish();
        assert_eq!(done.code(), 0, "{}", done.err());
    }

    fn password(&self, name: &str) -> fs::File {
        let path = self.home.shared().join(format!("{name}.in"));
        fs::write(&path, format!("the password of {name}\n")).expect("an input");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).expect("its permissions");
        fs::File::open(path).expect("the input")
    }

    /// What an account has of the file system that all nodes see.
    fn directory(&self, account: &str) -> PathBuf {
        self.home.shared().join(account)
    }

    fn make_directory(&self, account: &str) {
        let path = self.directory(account);
        fs::create_dir(&path).expect("a directory");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700)).expect("its permissions");
        let number = number(account);
        chown(&path, Some(number), None).expect("it is given away");
    }

    fn person<'a>(&'a self, name: &'a str) -> Person<'a> {
        Person { team: self, name }
    }

    /// The account that Slurm has a job for, and what it calls it.
    fn in_slurm(&self, job: &str) -> Option<(String, String)> {
        let mark = format!(":{job}.");
        let jobs = self.slurm.jobs();
        let its = |it: &&Value| it["comment"].as_str().is_some_and(|comment| comment.contains(&mark));
        let found = jobs.iter().find(its)?;
        Some((found["user_name"].as_str()?.to_owned(), found["job_id"].to_string()))
    }

    /// The gates of this server, each with the number of its account.
    fn gates(&self) -> Vec<(Process, u32)> {
        let directory = self.home.shared().display().to_string();
        let all = with_word(&directory).into_iter().filter(|process| process.is("gate"));
        all.filter_map(|process| {
            let uid = fs::metadata(format!("/proc/{}", process.pid)).ok()?.uid();
            Some((process, uid))
        })
        .collect()
    }

    fn gate_of(&self, account: &str) -> u32 {
        let number = number(account);
        let gates = self.gates();
        let own = gates.iter().find(|(_, uid)| *uid == number).unwrap_or_else(|| panic!("{gates:?}"));
        own.0.pid
    }

    /// Kills the server, and starts it again where it was.
    fn crash(&mut self) {
        self.home.kill("server");
        let (server, _) = serve(&self.home, &self.address);
        self.server = server;
    }

    fn stop(self) {
        self.server.signal(Signal::TERM);
        assert_eq!(self.server.finish().code(), 0);
    }
}

fn serve(home: &Home, listen: &str) -> (Running, String) {
    let folder = home.path();
    let words = ["server", "run", "--home", folder.to_str().expect("plain"), "--listen", listen, "--auth"];
    let server = home.start(words);
    server.wait_for_out("ready\n");
    (server, fs::read_to_string(folder.join("server.address")).expect("where it listens"))
}

/// The number of an account of this machine.
fn number(account: &str) -> u32 {
    let known = fs::read_to_string("/etc/passwd").expect("accounts can be read");
    let line = known.lines().find(|line| line.starts_with(&format!("{account}:")));
    let field = line.and_then(|line| line.split(':').nth(2)).and_then(|field| field.parse().ok());
    field.unwrap_or_else(|| panic!("the account {account} is missing"))
}

/// Everything below a directory.
fn below(path: &Path) -> Vec<PathBuf> {
    let inside = fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    inside
        .flat_map(
            |path| if path.is_symlink() { Vec::new() } else { [vec![path.clone()], below(&path)].concat() },
        )
        .collect()
}

pub(super) struct Person<'a> {
    team: &'a Team,
    name: &'a str,
}

impl Person<'_> {
    fn command(&self, words: &[&str]) -> Command {
        let mut command = self.team.home.command(words);
        command.env("MUSTER_HOME", self.team.home.shared().join(format!("{}.home", self.name)));
        command.env("USER", self.name);
        command
    }

    fn run(&self, words: &[&str]) -> Finished {
        Running::start(self.command(words)).finish()
    }

    fn ok(&self, words: &[&str]) -> String {
        let done = self.run(words);
        assert_eq!(done.code(), 0, "{} {words:?}: {}{}", self.name, done.out(), done.err());
        done.out()
    }

    fn submit(&self, line: &str) -> String {
        let shared = format!("SHARED={}", self.team.home.shared().display());
        let words = ["run", "-d", "--json", "--on", "slurm/main", "--env", &shared, "--", "bash", "-c", line];
        let made: Value = serde_json::from_str(&self.ok(&words)).expect("JSON");
        made["id"].as_str().expect("an id").to_owned()
    }

    /// A line of a shell, run to its end.
    fn line(&self, line: &str) -> String {
        self.ok(&["run", "--on", "slurm/main", "--", "bash", "-c", line])
    }

    fn state(&self, job: &str) -> String {
        let shown: Value = serde_json::from_str(&self.ok(&["show", job, "--json"])).expect("JSON");
        shown["state"].as_str().expect("a state").to_owned()
    }

    fn wait_for_state(&self, job: &str, state: &str) {
        wait_for(&format!("{job} of {} to be {state}", self.name), || self.state(job) == state);
    }
}

#[test]
fn to_slurm_and_to_each_other_jobs_are_their_users() {
    let (first, second) = (Slurm::ACCOUNT, Slurm::OTHER_ACCOUNT);
    let mut team = Team::start(&[("ada", first), ("bob", second)]);
    let line = |word: &str| {
        format!(
            "id -un; echo marker of {word} | tee $MUSTER_OUTPUT_DIR/file; {}; \
             stat -c %U . $MUSTER_OUTPUT_DIR/file | sort -u; echo end",
            until("go")
        )
    };
    let jobs = [("ada", first), ("bob", second)].map(|(name, account)| {
        let job = team.person(name).submit(&line(name));
        team.person(name).wait_for_state(&job, "running");
        (name, account, job)
    });
    for (_, account, job) in &jobs {
        assert_eq!(team.in_slurm(job).expect("Slurm has it").0, *account);
    }
    let mut uids: Vec<u32> = team.gates().into_iter().map(|(_, uid)| uid).collect();
    uids.sort_unstable();
    let mut both = [number(first), number(second)];
    both.sort_unstable();
    assert_eq!(uids, both, "a gate for each account, and none of root's");

    // Neither a server that is gone nor the other's gate keeps anybody from going on.
    team.crash();
    team.home.touch("go");
    for (name, account, job) in &jobs {
        let person = team.person(name);
        person.wait_for_state(job, "succeeded");
        assert_eq!(person.ok(&["logs", job]), format!("{account}\nmarker of {name}\n{account}\nend\n"));
        assert_eq!(person.ok(&["get", job, "@output/file", "-o", "-"]), format!("marker of {name}\n"));
    }
    let ended = team.slurm.run("sacct", &["--completion", "-n", "-P", "--format=jobid,user"]);
    for (_, account, job) in &jobs {
        let (_, id) = team.in_slurm(job).expect("Slurm remembers it");
        assert!(ended.lines().any(|line| line.starts_with(&format!("{id}|{account}("))), "{ended}");
    }

    // What is on the disk is each one's own, and nobody else's to look at.
    for (_, account, job) in &jobs {
        let (all, number) = (below(&team.directory(account)), number(account));
        assert!(all.iter().any(|path| path.to_string_lossy().contains(job.as_str())), "{all:?}");
        for path in &all {
            assert_eq!(fs::symlink_metadata(path).map(|it| it.uid()).unwrap_or(number), number, "{path:?}");
        }
    }
    let (theirs, all) = (team.directory(first), team.home.shared());
    let look = format!(
        "me=marker; ls {} 2>&1; grep -rlsa \"$me of ada\" {} || true",
        theirs.display(),
        all.display()
    );
    let seen = team.person("bob").line(&look);
    assert!(seen.contains("Permission denied") && seen.lines().count() == 1, "{seen}");
    let job = &jobs[0].2;
    team.person("ada").ok(&["rm", job]);
    wait_for("what it left to go", || {
        !below(&team.directory(first)).iter().any(|path| path.to_string_lossy().contains(job.as_str()))
    });
    team.stop();
}

#[test]
fn the_gate_of_one_account_holds_up_no_other_and_is_taken_back_from_after_its_user_has_left() {
    let (first, second) = (Slurm::ACCOUNT, Slurm::OTHER_ACCOUNT);
    let mut team = Team::start(&[("ada", first), ("bob", second)]);
    let job = team.person("bob").submit("echo begun; sleep 1000");
    team.person("bob").wait_for_state(&job, "running");
    // An account may do with its own gate what it wants.
    let gate = team.gate_of(second);
    muster_testkit::freeze(gate);
    assert_eq!(team.person("ada").line("id -un"), format!("{first}\n"));
    muster_testkit::kill(gate);
    assert_eq!(team.person("ada").line("id -un"), format!("{first}\n"));

    // Bob has become somebody else, and has left; what ran as he was is still his to Slurm, and is ended there.
    team.home.ok(["user", "set", "bob", "--account", first]);
    team.home.ok(["user", "disable", "bob"]);
    team.crash();
    let (account, id) = team.in_slurm(&job).expect("Slurm has it");
    assert_eq!(account, second);
    team.home.ok(["stop", &job]);
    team.home.wait_for_state(&job, "stopped");
    let is_over = || {
        team.slurm.job(&id).is_some_and(|it| it["job_state"] != "RUNNING" && it["job_state"] != "COMPLETING")
    };
    wait_for("Slurm to have ended it", is_over);
    team.stop();
}

#[test]
fn a_job_that_names_itself_anothers_is_taken_for_none_of_theirs() {
    let team = Team::start(&[("ada", Slurm::ACCOUNT), ("bob", Slurm::OTHER_ACCOUNT)]);
    // Both have a gate that looks at all jobs of its account.
    let jobs = ["ada", "bob"].map(|name| {
        let job = team.person(name).submit("sleep 1000");
        team.person(name).wait_for_state(&job, "running");
        job
    });
    let (_, id) = team.in_slurm(&jobs[0]).expect("Slurm has it");
    let comment = team.slurm.job(&id).expect("Slurm has it")["comment"].clone();
    let mut forge = team.slurm.command("setpriv");
    let number = number(Slurm::OTHER_ACCOUNT).to_string();
    forge.args([
        "--reuid",
        &number,
        "--regid",
        &number,
        "--clear-groups",
        "sbatch",
        "--parsable",
        "--chdir=/",
    ]);
    forge.args(["--output=/dev/null", "--wrap=sleep 1000"]);
    forge.arg(format!("--comment={}", comment.as_str().expect("a comment")));
    let forged = Running::start(forge).finish();
    assert_eq!(forged.code(), 0, "{}", forged.err());
    let forged = forged.out().trim().to_owned();
    let state = |id: &str| team.slurm.job(id).expect("Slurm has it")["job_state"].clone();
    wait_for("what is forged to run", || state(&forged) == "RUNNING");

    // What it does is no news of ada's, and what is done with ada's is not done with it.
    team.slurm.run("scancel", &[&forged]);
    wait_for("what is forged to end", || state(&forged) == "CANCELLED");
    assert_eq!(team.person("ada").line("id -un"), format!("{}\n", Slurm::ACCOUNT));
    for (name, job) in ["ada", "bob"].iter().zip(&jobs) {
        assert_eq!(team.person(name).state(job), "running");
        team.person(name).ok(&["stop", job]);
        team.person(name).wait_for_state(job, "stopped");
    }
    team.stop();
}

#[test]
fn an_account_that_is_none_is_refused_and_one_that_cannot_work_holds_up_nobody() {
    let team = Team::start(&[("ada", Slurm::ACCOUNT)]);
    team.add("bob", "no-such-account");
    let refused = |says: &[&str]| {
        let done = team.person("bob").run(&["run", "--on", "slurm/main", "--", "true"]);
        assert_eq!(done.code(), 2, "{}{}", done.out(), done.err());
        for word in says {
            assert!(done.err().contains(word), "{word}: {}", done.err());
        }
    };
    refused(&["on:", "no account `no-such-account`", "muster user set"]);
    team.home.ok(["user", "set", "bob", "--account", "root"]);
    refused(&["on:", "jobs never run as root"]);
    // The operator is root, and no slurm.user says who else.
    let done = team.home.run(["run", "--on", "slurm/main", "--", "true"]);
    assert!(done.code() == 2 && done.err().contains("slurm.user"), "{}", done.err());
    assert_eq!(team.slurm.jobs(), Vec::<Value>::new());
    assert!(team.home.ok(["nodes"]).contains("n1"), "what the cluster has is seen all the same");

    // There is no directory for it yet, which is nobody else's affair.
    team.home.ok(["user", "set", "bob", "--account", Slurm::OTHER_ACCOUNT]);
    let job = team.person("bob").submit("id -un");
    wait_for("the reason to be told", || {
        let why = team.person("bob").ok(&["why", &job]);
        why.contains("could not be put into") && why.contains(Slurm::OTHER_ACCOUNT)
    });
    assert_eq!(team.person("ada").line("id -un"), format!("{}\n", Slurm::ACCOUNT));
    // One that another account has made in its place is not used.
    let path = team.directory(Slurm::OTHER_ACCOUNT);
    fs::create_dir_all(path.join("muster/bin")).expect("a directory");
    for path in [path.clone(), path.join("muster"), path.join("muster/bin")] {
        chown(&path, Some(number(Slurm::ACCOUNT)), None).expect("it is given away");
        fs::set_permissions(&path, fs::Permissions::from_mode(0o777)).expect("its permissions");
    }
    assert_eq!(team.person("ada").line("id -un"), format!("{}\n", Slurm::ACCOUNT));
    assert_eq!(fs::read_dir(path.join("muster/bin")).expect("a directory").count(), 0);
    fs::remove_dir_all(&path).expect("it is gone");
    team.make_directory(Slurm::OTHER_ACCOUNT);
    muster_testkit::wait_within(2 * DEADLINE, "it to run at last", || {
        team.person("bob").state(&job) == "succeeded"
    });
    assert_eq!(team.person("bob").ok(&["logs", &job]), format!("{}\n", Slurm::OTHER_ACCOUNT));
    team.stop();
}
