//! A real Slurm of a test's own: munged, one controller, four nodes with simulated GPUs, up in a second.
//!
//! Everything is on this machine: ports, sockets, keys, state and logs are its own, and nothing of an installed cluster is read
//! or changed, so several may run at once. It must be root, because jobs run as an ordinary account. All of it ends with
//! the test, also when that is killed.
//!
//! What became of a job is told by the controller for `MinJobAge` seconds (`squeue --states=all`), and by `sacct --completion` for as
//! long as the cluster lives. Two kinds are more expensive, and only for tests that need them: one that limits memory, and
//! one with an accounting database.

mod accounting;
mod cgroup;
mod configuration;
mod site;

use std::collections::BTreeMap;
use std::ffi::OsStr;
use std::fs;
use std::os::unix::fs::{PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use cgroup::Groups;
use configuration::Ports;
use rustix::fs::{CWD, FileType, Mode, mknodat};
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
pub use site::SlurmSite;

use crate::Finished;
use crate::account;
use crate::keeper::Keeper;
use crate::process::{self, Process};
use crate::wait::{wait_for, wait_for_some};

/// How many nodes there are: `n1` to `n4`.
const NODES: usize = 4;
const CPUS: usize = 8;
const MEMORY_MB: usize = 4000;
const DEVICES: usize = 8;
/// The daemons are in folders that an ordinary user's path leaves out.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// A cluster. Dropping it ends it and everything that runs on it.
///
/// Partitions: `main`, all nodes; `gpu`, the first two, at most two hours; `low`, all nodes, whose jobs make way for those of the
/// others. Each node has 8 CPUs, 4000 MB and 8 GPUs: H100 in `n1` and `n2`, A100 in `n3` and `n4`.
pub struct Slurm {
    // Before the directory, so that nothing writes there when it is removed.
    daemons: Mutex<Daemons>,
    // After the daemons, which are in them.
    _groups: Option<Groups>,
    directory: tempfile::TempDir,
    _ports: Ports,
}

/// What is not the same for every cluster.
#[derive(Default)]
struct Shape<'a> {
    shown: &'a [PathBuf],
    settings: &'a [(&'a str, &'a str)],
    limits_memory: bool,
    has_accounting: bool,
}

struct Daemons {
    keeper: Keeper,
    controller: Option<u32>,
    nodes: [Option<u32>; NODES],
}

impl Slurm {
    /// The ordinary account that jobs run as. It has a home and a shell; `scripts/lib.sh` makes it.
    pub const ACCOUNT: &'static str = "muster-test";

    /// Another one, which Debian's machines have. It has no home of its own and no shell.
    pub const OTHER_ACCOUNT: &'static str = "games";

    /// Starts one and waits until all nodes are idle.
    pub fn start() -> Self {
        Self::start_with(&[])
    }

    /// The same with settings of `slurm.conf` that are not the usual ones.
    pub fn start_with(settings: &[(&str, &str)]) -> Self {
        Self::start_as(&Shape { settings, ..Shape::default() })
    }

    /// The same, with directories that the account can read on the nodes though it may not reach them here, as those in root's home.
    pub fn start_showing(shown: &[PathBuf], settings: &[(&str, &str)]) -> Self {
        Self::start_as(&Shape { shown, settings, ..Shape::default() })
    }

    /// One that holds jobs to the memory they asked for, with control groups, as a site does. There is one of them at a time, because
    /// Slurm names its groups after nodes: whoever wants another waits.
    pub fn start_limiting_memory() -> Self {
        Self::start_as(&Shape { limits_memory: true, ..Shape::default() })
    }

    /// One with slurmdbd and a database, which remember jobs for longer than the controller does, and who cancelled them.
    pub fn start_with_accounting(settings: &[(&str, &str)]) -> Self {
        Self::start_as(&Shape { settings, has_accounting: true, limits_memory: true, ..Shape::default() })
    }

    fn start_as(shape: &Shape) -> Self {
        assert!(rustix::process::getuid().is_root(), "jobs run as another account: run this test as root");
        let account = account::number(Self::ACCOUNT);
        let directory =
            tempfile::Builder::new().prefix("muster-slurm-").tempdir().expect("a temporary directory");
        let (at, ports) = (directory.path(), Ports::take());
        let groups = shape.limits_memory.then(Groups::take);
        let mut keeper = Keeper::start(shape.shown);
        furnish(at, account);
        configuration::write(at, &ports, shape);
        start_munge(&mut keeper, at);
        if shape.has_accounting {
            accounting::start(&mut keeper, at, &ports);
        }
        let daemons = Mutex::new(Daemons { keeper, controller: None, nodes: [None; NODES] });
        let slurm = Self { daemons, _groups: groups, directory, _ports: ports };
        slurm.launch_controller();
        (1..=NODES).for_each(|number| slurm.launch_slurmd(number));
        slurm.wait("all nodes to be idle", || {
            slurm.states().values().filter(|it| *it == "idle").count() == NODES
        });
        slurm
    }

    /// What `SLURM_CONF` must be for whoever uses it. Nothing else is needed.
    pub fn conf(&self) -> PathBuf {
        self.directory.path().join("slurm.conf")
    }

    /// A directory that is the account's and that every node sees, as a site's homes are.
    pub fn home(&self) -> PathBuf {
        self.directory.path().join("home")
    }

    /// A program of this cluster, as root.
    pub fn command(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = Command::new(program);
        command
            .env("SLURM_CONF", self.conf())
            .env("PATH", PATH)
            .current_dir(self.home())
            .stdin(Stdio::null());
        command
    }

    /// The same as the ordinary account, with its variables and nobody else's.
    pub fn command_as_user(&self, program: impl AsRef<OsStr>) -> Command {
        let mut command = self.command("setpriv");
        command.env_clear().env("SLURM_CONF", self.conf()).env("PATH", PATH).env("HOME", self.home());
        command.env("USER", Self::ACCOUNT).env("LOGNAME", Self::ACCOUNT).env("SHELL", "/bin/bash");
        command.args([&format!("--reuid={}", Self::ACCOUNT), &format!("--regid={}", Self::ACCOUNT)]);
        command.args(["--init-groups", "--"]).arg(program);
        command
    }

    /// Runs a program as root that must succeed, and gives what it printed.
    pub fn run(&self, program: &str, words: &[&str]) -> String {
        succeed(self.command(program).args(words))
    }

    /// Runs a program as the ordinary account that must succeed, and gives what it printed.
    pub fn run_as_user(&self, program: &str, words: &[&str]) -> String {
        succeed(self.command_as_user(program).args(words))
    }

    /// `scontrol`, as an operator.
    pub fn scontrol(&self, words: &[&str]) -> String {
        self.run("scontrol", words)
    }

    /// The jobs that the controller knows, those that ended a while ago included, as `squeue --json` has them.
    pub fn jobs(&self) -> Vec<Value> {
        let text = self.run("squeue", &["--json"]);
        let answer: Value = serde_json::from_str(&text).expect("JSON");
        answer["jobs"].as_array().cloned().unwrap_or_default()
    }

    /// One of them.
    pub fn job(&self, id: &str) -> Option<Value> {
        let id: u64 = id.parse().expect("a job of Slurm has a number");
        self.jobs().into_iter().find(|job| job["job_id"] == id)
    }

    /// Those that are neither over nor about to be.
    pub fn open_jobs(&self) -> Vec<Value> {
        let is_open = |job: &Value| {
            ["PENDING", "RUNNING", "CONFIGURING", "SUSPENDED"].iter().any(|open| job["job_state"] == *open)
        };
        self.jobs().into_iter().filter(is_open).collect()
    }

    /// Lets a job's time limit pass within some seconds. Limits are whole minutes, which no test waits for.
    pub fn end_in(&self, job: &str, seconds: u32) {
        self.scontrol(&["update", &format!("jobid={job}"), &format!("endtime=now+{seconds}")]);
    }

    /// The state of each node, as `sinfo` has it: `idle`, `mixed`, `down*`.
    pub fn states(&self) -> BTreeMap<String, String> {
        let output = self.command("sinfo").args(["-h", "-N", "-o", "%N %T"]).output().expect("sinfo starts");
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let pairs = text.lines().filter_map(|line| line.trim().split_once(' '));
        pairs.map(|(node, state)| (node.to_owned(), state.to_owned())).collect()
    }

    /// What was asked of the controller since it started, by the name of the message. `sdiag`, which tells, is not counted.
    pub fn rpcs(&self) -> BTreeMap<String, u64> {
        let text = self.run("sdiag", &[]);
        let section = text.split("statistics by message type").nth(1).unwrap_or_default();
        let section = section.split("statistics by user").next().unwrap_or_default();
        let counts = section.lines().filter_map(|line| {
            let (name, rest) = line.trim().split_once(' ')?;
            let count = rest.split_once("count:")?.1.split_whitespace().next()?.parse().ok()?;
            (name != "REQUEST_STATS_INFO").then(|| (name.to_owned(), count))
        });
        counts.collect()
    }

    /// Waits until what the controller knows of a job is on its disk, which takes up to five seconds: until then a kill makes it
    /// forget, also what it has promised.
    pub fn wait_until_saved(&self, job: &str) {
        let state = self.directory.path().join("state/job_state");
        let written = || fs::metadata(&state).and_then(|file| file.modified()).ok();
        let before = written();
        // A change, so that it writes at all.
        self.scontrol(&["update", &format!("jobid={job}"), "admincomment=saved"]);
        wait_for("the controller to write its state", || {
            written() != before && fs::read(&state).is_ok_and(|bytes| contains(&bytes, b"saved"))
        });
    }

    /// `kill -9` for the controller. Jobs go on.
    pub fn kill_controller(&self) {
        let pid = self.daemons().controller.take().expect("the controller runs");
        end(pid);
    }

    /// `kill -9` for a controller that has written down nothing of its jobs, and what comes after it: none of them is known.
    pub fn forget_jobs(&self) {
        self.kill_controller();
        let state = self.directory.path().join("state");
        for name in ["job_state", "job_state.old"] {
            let _ = fs::remove_file(state.join(name));
        }
        self.start_controller();
    }

    /// Starts the controller with the state it had, and waits until it answers.
    pub fn start_controller(&self) {
        self.launch_controller();
        self.wait("the controller to answer", || {
            self.command("scontrol").arg("ping").output().is_ok_and(|ping| ping.status.success())
        });
    }

    /// Stops the controller as it is: connections are taken, and nobody answers.
    pub fn pause_controller(&self) {
        self.signal_controller(Signal::STOP);
    }

    /// Lets it go on.
    pub fn resume_controller(&self) {
        self.signal_controller(Signal::CONT);
    }

    /// `kill -9` for the daemon of a node, from 1. What runs there goes on.
    pub fn kill_slurmd(&self, number: usize) {
        let pid = self.daemons().nodes[number - 1].take().expect("the node's daemon runs");
        end(pid);
    }

    /// Starts the daemon of a node again, and waits until the controller hears of it.
    pub fn start_slurmd(&self, number: usize) {
        self.launch_slurmd(number);
        let name = format!("n{number}");
        self.wait("the node to be back", || {
            self.states().get(&name).is_some_and(|state| !state.ends_with('*') && state != "down")
        });
    }

    /// Ends a node with everything that runs on it, as without current.
    pub fn kill_node(&self, number: usize) {
        let daemon = self.daemons().nodes[number - 1].take();
        daemon.iter().for_each(|pid| process::kill(*pid));
        // All at once, as far as anybody can tell: nobody is to note the end of another.
        let mut frozen = Vec::new();
        wait_for("everything on the node to stand still", || {
            let all = self.processes_on(number);
            let is_complete = all.len() == frozen.len();
            all.iter().for_each(|process| process::freeze(process.pid));
            frozen = all;
            is_complete
        });
        frozen.iter().for_each(|process| process::kill(process.pid));
        wait_for("everything on the node to end", || {
            let is_any_left = frozen.iter().map(|it| it.pid).chain(daemon).any(process::is_alive);
            !is_any_left && self.processes_on(number).is_empty()
        });
    }

    /// What runs on a node, its daemon apart: steps of jobs, and what they started.
    pub fn processes_on(&self, number: usize) -> Vec<Process> {
        let marks = [format!("SLURM_CONF={}", self.conf().display()), format!("SLURMD_NODENAME=n{number}")];
        let mut all = self.steps_on(number);
        all.extend(process::living(|pid| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            let has =
                |wanted: &String| environment.split(|byte| *byte == 0).any(|it| it == wanted.as_bytes());
            marks.iter().all(has)
        }));
        // Not all of them keep the variables that they were started with.
        let below = process::started_by(&all);
        all.extend(
            below.into_iter().filter(|it| all.iter().all(|known| known.pid != it.pid)).collect::<Vec<_>>(),
        );
        all
    }

    /// The processes of Slurm that are above those of jobs. All that tells whose they are is the log that they write.
    fn steps_on(&self, number: usize) -> Vec<Process> {
        let log = self.directory.path().join(format!("slurmd.n{number}.log"));
        process::living(|pid| {
            let is_step =
                fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|words| words.starts_with(b"slurmstepd"));
            let files = || fs::read_dir(format!("/proc/{pid}/fd")).into_iter().flatten().flatten();
            is_step && files().any(|file| fs::read_link(file.path()).is_ok_and(|path| path == log))
        })
    }

    /// The last lines of every log, for a test that fails.
    pub fn diagnosis(&self) -> String {
        diagnosis(self.directory.path())
    }

    fn signal_controller(&self, signal: Signal) {
        let pid = self.daemons().controller.expect("the controller runs");
        let pid = i32::try_from(pid).ok().and_then(Pid::from_raw).expect("a process has a number");
        kill_process(pid, signal).expect("the controller can be signalled");
    }

    fn launch_controller(&self) {
        let mut daemons = self.daemons();
        assert!(daemons.controller.is_none(), "the controller runs already");
        daemons.controller = Some(self.launch(&mut daemons.keeper, "slurmctld", &["slurmctld", "-D"]));
    }

    fn launch_slurmd(&self, number: usize) {
        let mut daemons = self.daemons();
        assert!(daemons.nodes[number - 1].is_none(), "the daemon of n{number} runs already");
        let name = format!("n{number}");
        let words = ["slurmd", "-D", "-N", &name];
        let pid = self.launch(&mut daemons.keeper, &name, &words);
        daemons.nodes[number - 1] = Some(pid);
    }

    fn launch(&self, keeper: &mut Keeper, name: &str, words: &[&str]) -> u32 {
        let conf = self.conf().display().to_string();
        let output = self.directory.path().join(format!("{name}.out"));
        keeper.daemon(&output, &[("SLURM_CONF", conf.as_str()), ("PATH", PATH)], words)
    }

    /// Waits for a condition, and ends at once with the daemons' words if one of them has ended by itself.
    fn wait(&self, what: &str, mut condition: impl FnMut() -> bool) {
        wait_for_some(what, || {
            let daemons = self.daemons();
            let dead = daemons
                .nodes
                .iter()
                .chain([&daemons.controller])
                .flatten()
                .find(|pid| !process::is_alive(**pid));
            assert!(dead.is_none(), "a daemon of Slurm ended\n{}", self.diagnosis());
            drop(daemons);
            condition().then_some(())
        });
    }

    fn daemons(&self) -> MutexGuard<'_, Daemons> {
        // A test that failed while it held this is about to remove the cluster.
        self.daemons.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Slurm {
    fn drop(&mut self) {
        if std::thread::panicking() {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "{}", self.diagnosis());
        }
    }
}

fn end(pid: u32) {
    process::kill(pid);
    wait_for("a killed daemon to be gone", || !process::is_alive(pid));
}

/// Directories and files that must be there first.
fn furnish(at: &Path, account: u32) {
    // Everybody may look in, and munge insists that nobody else may write.
    fs::set_permissions(at, fs::Permissions::from_mode(0o755)).expect("its permissions");
    for name in ["state", "spool", "home"] {
        fs::create_dir(at.join(name)).expect("a directory of the cluster");
    }
    chown(at.join("home"), Some(account), Some(account)).expect("a home is its account's");
    // What is no device is counted and given to nobody.
    for number in 0..DEVICES {
        let (path, null) = (at.join(format!("gpu{number}")), rustix::fs::makedev(1, 3));
        mknodat(CWD, path, FileType::CharacterDevice, Mode::from(0o666), null).expect("a device");
    }
    make_key(&at.join("munge.key"));
}

/// A key for munge, which insists that nobody else may read it.
fn make_key(path: &Path) {
    let mut key = [0; 1024];
    let mut random = fs::File::open("/dev/urandom").expect("random bytes");
    std::io::Read::read_exact(&mut random, &mut key).expect("random bytes");
    fs::write(path, key).expect("a key");
    fs::set_permissions(path, fs::Permissions::from_mode(0o600)).expect("its permissions");
}

fn start_munge(keeper: &mut Keeper, at: &Path) {
    let own = |option: &str, name: &str| format!("--{option}={}/{name}", at.display());
    let words = [
        "munged".to_owned(),
        "--foreground".to_owned(),
        own("key-file", "munge.key"),
        own("socket", "munge.sock"),
        own("pid-file", "munge.pid"),
        own("log-file", "munge.log"),
        own("seed-file", "munge.seed"),
    ];
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let pid = keeper.daemon(&at.join("munged.out"), &[("PATH", PATH)], &words);
    wait_for("munged to listen", || {
        assert!(process::is_alive(pid), "munged ended\n{}", diagnosis(at));
        at.join("munge.sock").exists()
    });
}

fn diagnosis(at: &Path) -> String {
    let entries = fs::read_dir(at).into_iter().flatten().flatten().map(|entry| entry.path());
    let is_log = |path: &PathBuf| path.extension().is_some_and(|end| end == "log" || end == "out");
    let tail = |path: PathBuf| {
        let text = fs::read_to_string(&path).unwrap_or_default();
        let lines: Vec<&str> = text.lines().collect();
        let last = lines[lines.len().saturating_sub(15)..].join("\n");
        format!("--- {}\n{last}\n", path.file_name().unwrap_or_default().to_string_lossy())
    };
    entries.filter(is_log).map(tail).collect()
}

fn contains(bytes: &[u8], wanted: &[u8]) -> bool {
    bytes.windows(wanted.len()).any(|part| part == wanted)
}

fn write(path: &Path, text: &str) {
    fs::write(path, text).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
}

fn succeed(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    let finished = Finished { status: output.status, stdout: output.stdout, stderr: output.stderr };
    assert!(
        finished.status.success(),
        "{command:?} ended with {}\n{}{}",
        finished.status,
        finished.out(),
        finished.err()
    );
    finished.out()
}
