//! A node with its agent, and what tests ask of it.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use muster_agent::tree::Root;
use muster_bundle::chunk;
use muster_bundle::listing::{self, Entry, Kind, Time};
use muster_link::log::SegmentDir;
use muster_link::message::{Launch, Prepare, ToAgent};
use muster_model::bundle::{Chunk, Manifest};
use muster_model::launch::{Process, Surroundings, Work};
use muster_model::{AttemptId, BundleId, JobId, TaskId};
use rustix::process::{Pid, Signal, kill_process};
use tempfile::TempDir;

use crate::server::Server;

pub struct Node {
    pub home: TempDir,
    pub server: Server,
    pub agent: Option<Child>,
}

/// The binary that has the agent's commands: cargo builds it beside this test.
pub fn exe() -> PathBuf {
    let test = std::env::current_exe().unwrap();
    let exe = test.parent().and_then(Path::parent).unwrap().join("examples/agent");
    assert!(exe.exists(), "{} is not built: run `cargo test -p muster-agent`", exe.display());
    exe
}

impl Node {
    /// A node whose agent is connected.
    pub async fn new() -> Node {
        Node::with(&[]).await
    }

    pub async fn with(options: &[&str]) -> Node {
        Node::at(tempfile::tempdir().unwrap(), options).await
    }

    pub async fn at(home: TempDir, options: &[&str]) -> Node {
        let server = Server::start(home.path());
        JOB.set(JobId::from_random(getrandom::u64().unwrap()));
        let mut node = Node { home, server, agent: None };
        node.start_agent(options);
        node.server.connected().await;
        node
    }

    pub fn dir(&self) -> PathBuf {
        self.home.path().join("agent")
    }

    pub fn task_dir(&self, task: &TaskId) -> PathBuf {
        self.dir().join("tasks").join(task.to_string())
    }

    pub fn command(&self, options: &[&str]) -> Command {
        let mut command = Command::new(exe());
        command.arg("agent").arg(self.dir()).arg(self.server.socket()).args(options);
        command
    }

    pub fn start_agent(&mut self, options: &[&str]) {
        self.agent = Some(self.command(options).spawn().unwrap());
    }

    pub fn kill_agent(&mut self) {
        let mut agent = self.agent.take().unwrap();
        agent.kill().unwrap();
        agent.wait().unwrap();
        self.server.forget_connection();
    }

    pub async fn restart_agent(&mut self) {
        self.kill_agent();
        self.start_agent(&[]);
        self.server.connected().await;
    }

    /// How the agent ended, by itself.
    pub async fn agent_exit(&mut self) -> ExitStatus {
        let mut agent = self.agent.take().unwrap();
        let deadline = Instant::now() + Duration::from_secs(10);
        loop {
            if let Some(status) = agent.try_wait().unwrap() {
                return status;
            }
            assert!(Instant::now() < deadline, "the agent does not end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }

    pub async fn prepare(&self, task: &TaskId) {
        self.server.send(prepare(task)).await;
        self.server.ready(task).await;
    }

    pub async fn launch(&self, task: &TaskId, script: &str) {
        self.server.send(launch(task, script)).await;
    }

    /// Prepare, launch and wait until it runs.
    pub async fn run(&self, task: &TaskId, script: &str) {
        self.prepare(task).await;
        self.launch(task, script).await;
        self.server.started(task).await;
    }

    /// How much a task has written, headers included.
    pub fn log_bytes(&self, task: &TaskId) -> u64 {
        SegmentDir::new(self.task_dir(task).join("log")).whole_end().unwrap()
    }

    /// The agent, its supervisors and their tasks.
    pub fn processes(&self) -> Vec<Pid> {
        processes_with(&self.dir())
    }

    /// A bundle that the server has, whose content is cut into chunks of this length.
    pub fn bundle(&self, entries: &[(Entry, &[u8])], chunk_bytes: usize) -> (BundleId, Manifest) {
        let listed = listing::encode(entries.iter().map(|(entry, _)| entry));
        let content: Vec<u8> = entries.iter().flat_map(|(_, bytes)| bytes.iter().copied()).collect();
        self.raw_bundle(&listed, &content, chunk_bytes)
    }

    /// The same from any bytes.
    pub fn raw_bundle(&self, listed: &[u8], content: &[u8], chunk_bytes: usize) -> (BundleId, Manifest) {
        let mut state = self.server.state();
        let mut keep = |bytes: &[u8]| {
            let id = chunk::id(bytes);
            state.chunks.insert(id.clone(), chunk::Encoder::default().encode(bytes));
            Chunk { id, bytes: bytes.len() as u64 }
        };
        let manifest = Manifest {
            listing: listed.chunks(chunk_bytes).map(&mut keep).collect(),
            content: content.chunks(chunk_bytes).map(&mut keep).collect(),
        };
        let id = chunk::bundle_id(&manifest);
        state.manifests.insert(id.clone(), manifest.text());
        (id, manifest)
    }
}

pub fn file(path: &str, mode: u32, seconds: i64, bytes: &[u8]) -> Entry {
    let (kind, mtime) = (Kind::File { size: bytes.len() as u64 }, Time { seconds, nanos: 0 });
    Entry { path: path.into(), kind, mode, mtime }
}

pub fn directory(path: &str, mode: u32) -> Entry {
    Entry { path: path.into(), kind: Kind::Directory, mode, mtime: Time::default() }
}

pub fn link(path: &str, target: &str) -> Entry {
    let kind = Kind::Link { target: target.into() };
    Entry { path: path.into(), kind, mode: 0, mtime: Time::default() }
}

/// Wait until something outside the link is as wanted.
pub async fn eventually(what: &str, condition: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(20);
    while !condition() {
        assert!(Instant::now() < deadline, "waited in vain: {what}");
        tokio::time::sleep(Duration::from_millis(2)).await;
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        // Not one process of a test outlives it, also when it failed.
        if let Some(agent) = &mut self.agent {
            let _ = agent.kill();
            let _ = agent.wait();
        }
        for pid in processes_with(&self.dir()) {
            let _ = kill_process(pid, Signal::KILL);
        }
        // Nor do their cgroups, which nobody is left to give back.
        for entry in std::fs::read_dir(self.dir().join("tasks")).into_iter().flatten().flatten() {
            let launch = std::fs::read(entry.path().join("launch.json")).unwrap_or_default();
            if let Ok(launch) = serde_json::from_slice::<muster_agent::supervisor::Launch>(&launch) {
                launch.tree.kill(Root::Orphans(None));
                launch.tree.remove();
            }
        }
    }
}

/// Processes that name this directory in their command line or environment: supervisors and tasks.
pub fn processes_with(dir: &Path) -> Vec<Pid> {
    let needle = dir.to_str().unwrap().as_bytes();
    let mut found = Vec::new();
    for entry in std::fs::read_dir("/proc").unwrap() {
        let Some(pid) = entry.unwrap().file_name().to_str().and_then(|name| name.parse().ok()) else {
            continue;
        };
        let read = |name: &str| std::fs::read(format!("/proc/{pid}/{name}")).unwrap_or_default();
        let text = [read("cmdline"), read("environ")].concat();
        if pid != std::process::id() as i32 && text.windows(needle.len()).any(|window| window == needle) {
            found.extend(Pid::from_raw(pid));
        }
    }
    found
}

thread_local! {
    /// The job of the node that this test made last. Each has its own, since tasks are known on a machine by their
    /// ids, and tests run beside each other.
    static JOB: RefCell<JobId> = RefCell::new(JobId::from_random(0));
}

/// A task of the job that the test's node runs.
pub fn task(rank: u32) -> TaskId {
    JOB.with_borrow(|job| AttemptId { job: job.clone(), number: 1 }.task(rank))
}

pub fn prepare(task: &TaskId) -> ToAgent {
    prepare_with(task, |_| {})
}

pub fn prepare_with(task: &TaskId, change: impl FnOnce(&mut Prepare)) -> ToAgent {
    let mut prepare = Prepare {
        task: task.clone(),
        bundle: None,
        previous: None,
        outputs: vec![],
        in_place: None,
        goes_on: false,
        ports: 1,
        shared_port: None,
        devices: vec![],
        memory_bytes: None,
        account: None,
        volumes: vec![],
        disk: Default::default(),
    };
    change(&mut prepare);
    ToAgent::Prepare(Box::new(prepare))
}

pub fn launch(task: &TaskId, script: &str) -> ToAgent {
    launch_with(task, script, |_| {})
}

pub fn launch_with(task: &TaskId, script: &str, change: impl FnOnce(&mut Launch)) -> ToAgent {
    let mut launch = Launch {
        task: task.clone(),
        env: BTreeMap::from([("PATH".into(), "/usr/bin:/bin".into())]),
        setup: None,
        setup_once: None,
        work: Work::Run(vec![Process::new(vec!["/bin/sh".into(), "-c".into(), script.into()])]),
        paths: BTreeMap::new(),
        files: Vec::new(),
        surroundings: Surroundings::default(),
        peers: None,
        secrets: Vec::new(),
        elements: None,
        withheld: None,
        timeout_ms: None,
        grace_ms: 1000,
        stop_signal: muster_model::signal::Signal::TERM,
    };
    change(&mut launch);
    ToAgent::Launch(Box::new(launch))
}

/// The work of running this program, without arguments.
pub fn program(name: &str) -> Work {
    Work::Run(vec![Process::new(vec![name.into()])])
}
