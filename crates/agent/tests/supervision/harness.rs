//! Starts tasks and waits for what becomes of them.

use std::collections::BTreeMap;
use std::ffi::CString;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Child;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use muster_agent::supervisor::{EXIT, Exit, FORMAT, LOG, Launch, Started, Step, StepKind};
use muster_agent::task::{self, Observation, Pipes, Spawned};
use muster_agent::tree::{Kill, Preference, Process, Tree};
use muster_link::log::{Reader, Record, SegmentDir};
use muster_model::signal::Signal as StopSignal;
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_remount, unmount};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

/// Every way to end a tree.
pub const WAYS: [Preference; 3] = [Preference::Cgroup2, Preference::Cgroup1, Preference::Walk];

/// Far longer than anything here takes on a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// A task to be started.
pub struct Plan {
    home: TempDir,
    id: String,
    pub launch: Launch,
}

impl Plan {
    /// A task that runs this program.
    pub fn program(argv: &[&str]) -> Plan {
        Plan::with(argv, Preference::Auto, None)
    }

    /// A task that runs this script.
    pub fn script(text: &str) -> Plan {
        Plan::program(&["/bin/sh", "-c", text])
    }

    /// The same, ended in a certain way.
    pub fn script_by(way: Preference, text: &str) -> Plan {
        Plan::with(&["/bin/sh", "-c", text], way, None)
    }

    pub fn with(argv: &[&str], way: Preference, memory_bytes: Option<u64>) -> Plan {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let number = NEXT.fetch_add(1, Ordering::Relaxed);
        let id = format!("test-{}-{number}", std::process::id());
        let home = tempfile::tempdir().unwrap();
        let tree = Tree::prepare(&id, way, memory_bytes).unwrap_or_else(|error| {
            panic!("{error}: run this as root with cgroup v2 and the v1 freezer mounted")
        });
        let path = "/usr/local/bin:/usr/bin:/bin".to_owned();
        let env = BTreeMap::from([("PATH".to_owned(), path), ("MUSTER_TASK_ID".to_owned(), id.clone())]);
        let launch = Launch {
            gang: None,
            overlay: None,
            home: None,
            stage: None,
            work: None,
            launched_processes: 0,
            format: FORMAT,
            task: id.clone(),
            steps: vec![step(StepKind::Command, argv)],
            cwd: home.path().to_owned(),
            env,
            elements: None,
            timeout_ms: None,
            grace_ms: 10_000,
            stop_signal: StopSignal::TERM,
            umask: None,
            person: None,
            limits: Vec::new(),
            seen: Vec::new(),
            has_secrets: false,
            disk: Default::default(),
            tree,
        };
        Plan { home, id, launch }
    }

    pub fn setup(mut self, text: &str) -> Plan {
        self.launch.steps.insert(0, step(StepKind::Setup, &["/bin/sh", "-c", text]));
        self
    }

    pub fn timeout(mut self, timeout: Duration, grace: Duration) -> Plan {
        self.launch.timeout_ms = Some(timeout.as_millis() as u64);
        self.launch.grace_ms = grace.as_millis() as u64;
        self
    }

    /// The directory in which the task runs.
    pub fn cwd(&self) -> &Path {
        self.home.path()
    }

    /// The directory that agent and supervisor share.
    pub fn dir(&self) -> PathBuf {
        self.home.path().join("task")
    }

    pub fn start(self) -> Task {
        let dir = self.dir();
        let Spawned { child, pipes } = task::start(&supervisor(), &dir, &self.launch).unwrap();
        Task { home: self.home, id: self.id, tree: self.launch.tree, dir, child, pipes: Some(pipes) }
    }

    /// Start it and wait for its end.
    pub fn run(self) -> (Exit, Task) {
        let mut task = self.start();
        (task.wait(), task)
    }
}

fn step(kind: StepKind, argv: &[&str]) -> Step {
    Step { kind, argv: argv.iter().map(|argument| argument.to_string()).collect() }
}

/// A task that was started.
pub struct Task {
    home: TempDir,
    id: String,
    tree: Tree,
    pub dir: PathBuf,
    pub child: Child,
    pub pipes: Option<Pipes>,
}

impl Task {
    pub fn cwd(&self) -> &Path {
        self.home.path()
    }

    /// Wait for the supervisor to be gone, and return what it wrote about the end.
    pub fn wait(&mut self) -> Exit {
        wait_for("the supervisor to end", || self.child.try_wait().unwrap());
        match task::observe(&self.dir).unwrap() {
            Observation::Ended(exit) => exit,
            other => panic!("{other:?}\n{}", fs::read_to_string(self.dir.join("supervisor.log")).unwrap()),
        }
    }

    /// Wait until the task's program runs.
    pub fn wait_started(&self) -> Started {
        wait_for("the task to start", || match task::observe(&self.dir).unwrap() {
            Observation::Running(started) => Some(started),
            Observation::Ended(exit) => panic!("{exit:?}"),
            _ => None,
        })
    }

    /// Wait until the task's script has made this file, and return what is in it.
    pub fn wait_file(&self, name: &str) -> String {
        wait_for(name, || fs::read_to_string(self.cwd().join(name)).ok().filter(|text| text.ends_with('\n')))
    }

    pub fn kill_supervisor(&mut self) {
        kill_process(Pid::from_child(&self.child), Signal::KILL).unwrap();
        self.child.wait().unwrap();
    }

    pub fn supervisor(&self) -> Process {
        Process::of(Pid::from_child(&self.child)).unwrap()
    }

    pub fn log(&self) -> SegmentDir {
        SegmentDir::new(self.dir.join(LOG))
    }

    pub fn records(&self) -> Vec<Record> {
        let mut reader = Reader::new(self.log(), 0);
        std::iter::from_fn(|| reader.next_record().unwrap()).collect()
    }

    /// All of stdout, and all of stderr.
    pub fn output(&self) -> [Vec<u8>; 2] {
        let mut output = [Vec::new(), Vec::new()];
        for record in self.records() {
            output[record.stream.index()].extend(record.bytes);
        }
        output
    }

    pub fn stdout(&self) -> String {
        let [stdout, _] = self.output();
        String::from_utf8(stdout).unwrap()
    }

    /// Nothing of it runs, and its cgroups are gone.
    pub fn assert_gone(&self) {
        assert_eq!(self.processes(), Vec::<i32>::new());
        if let Kill::Cgroup2 { path } | Kill::Cgroup1 { path } = self.tree.way() {
            assert!(!path.exists(), "{} is left", path.display());
        }
    }

    /// Living processes that were started with the task's id.
    pub fn processes(&self) -> Vec<i32> {
        let marker = format!("MUSTER_TASK_ID={}", self.id);
        let pids = fs::read_dir("/proc")
            .unwrap()
            .filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
        pids.filter(|pid: &i32| {
            let environment = fs::read(format!("/proc/{pid}/environ")).unwrap_or_default();
            environment.split(|byte| *byte == 0).any(|entry| entry == marker.as_bytes()) && is_alive(*pid)
        })
        .collect()
    }
}

impl Drop for Task {
    /// A test that failed must not leave processes behind.
    fn drop(&mut self) {
        if let Ok(None) = self.child.try_wait() {
            self.kill_supervisor();
        }
        match task::bury(&self.dir, self.pipes.take().as_ref()) {
            // Unless the test has spoilt the directory on purpose, it must work.
            Err(error)
                if !std::thread::panicking()
                    && fs::exists(self.dir.join(EXIT)).is_ok_and(|exists| !exists) =>
            {
                panic!("{error}")
            }
            _ => {}
        }
    }
}

/// A filesystem of its own, gone with this.
pub struct Disk {
    path: PathBuf,
}

impl Disk {
    pub fn mount(path: &Path, megabytes: u32) -> Disk {
        let options = CString::new(format!("size={megabytes}m")).unwrap();
        mount("tmpfs", path, "tmpfs", MountFlags::empty(), options.as_c_str())
            .unwrap_or_else(|error| panic!("cannot mount a filesystem to fill: {error}; run this as root"));
        Disk { path: path.to_owned() }
    }

    pub fn is_full(&self) -> bool {
        rustix::fs::statvfs(&self.path).unwrap().f_bavail == 0
    }

    pub fn grow(&self, megabytes: u32) {
        mount_remount(&self.path, MountFlags::empty(), format!("size={megabytes}m")).unwrap();
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // At once for everyone who looks, and in truth when the last file is closed.
        let _ = unmount(&self.path, UnmountFlags::DETACH);
    }
}

pub fn is_alive(pid: i32) -> bool {
    Pid::from_raw(pid).and_then(|pid| Process::of(pid).ok()).is_some_and(|process| process.is_alive())
}

/// Look again and again until there is something.
pub fn wait_for<T>(what: &str, mut condition: impl FnMut() -> Option<T>) -> T {
    let deadline = Instant::now() + PATIENCE;
    loop {
        if let Some(value) = condition() {
            return value;
        }
        assert!(Instant::now() < deadline, "waited too long for {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// The binary that can supervise, built along with this one.
pub fn supervisor() -> PathBuf {
    let own = std::env::current_exe().unwrap();
    let path = own.parent().and_then(Path::parent).unwrap().join("examples/supervise");
    assert!(path.exists(), "{} is missing: run `cargo build -p muster-agent --examples`", path.display());
    path
}
