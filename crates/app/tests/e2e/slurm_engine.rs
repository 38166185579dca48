//! The Slurm engine on a real Slurm: the suite that every engine passes, and what can go wrong on the way.

use std::collections::VecDeque;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_engine::conformance::{self, Home as Suite};
use muster_engine::slurm::{GATE_IDLE, Options, Slurm as Cluster, Wishes};
use muster_engine::{Class, Engine, Gang, Key, Seat, StartRequest, Status};
use muster_link::message::Hello;
use muster_model::{AttemptId, JobId, JobSpec, NodeId};
use muster_testkit::{
    Account, DEADLINE, Slurm, SlurmSite, is_alive, kill, wait_for, wait_for_some, with_word,
};
use serde_json::json;
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};

use crate::gate::{Gate, TOKEN};

/// Something that plays the server: an engine, and where its agents come home to.
struct Office {
    engine: Cluster,
    home: Home,
    _folder: TempDir,
}

/// Where agents come home to.
struct Home {
    gate: Gate,
    /// Those who have come before they were asked for.
    early: VecDeque<Hello>,
}

/// What is said of a cluster on this machine.
fn here(options: Options, slurm: &Slurm) -> Options {
    let text = |path: PathBuf| Some(path.to_string_lossy().into_owned());
    Options {
        user: Some(Slurm::ACCOUNT.into()),
        directory: text(slurm.home().join("muster")),
        conf: text(slurm.conf()),
        ..options
    }
}

/// What is said of one that is reached by SSH.
fn there(options: Options, site: &SlurmSite) -> Options {
    let login = site.login().destination_of(Account::Ordinary);
    Options { login: Some(login), key: Some(site.hosts().key()), ..options }
}

impl Office {
    fn open(runtime: &Runtime, cluster: impl FnOnce(Options) -> Options) -> Self {
        let folder = tempfile::tempdir().expect("a folder");
        let socket = folder.path().join("gate.sock");
        let _inside = runtime.enter();
        let gate = Gate::open(UnixListener::bind(&socket).expect("a socket"));
        let options = cluster(Options {
            dir: folder.path().join("slurm"),
            ssh_dir: folder.path().join("ssh"),
            socket,
            exe: env!("CARGO_BIN_EXE_muster").into(),
            others: folder.path().into(),
            program: "ssh".into(),
            login: None,
            port: None,
            key: None,
            user: None,
            becomes_owners: false,
            directory: None,
            address: None,
            programs: None,
            conf: None,
            wishes: Wishes::default(),
            patience: Duration::from_secs(60),
            kept: None,
            gate_idle: GATE_IDLE,
        });
        let home = Home { gate, early: VecDeque::new() };
        Self { engine: Cluster::new(options), home, _folder: folder }
    }
}

fn runtime() -> Runtime {
    Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime")
}

#[async_trait]
impl Suite for Home {
    fn token(&self, _: &NodeId) -> String {
        TOKEN.into()
    }

    async fn next_hello(&mut self, node: &NodeId) -> u32 {
        loop {
            let known = self.early.iter().position(|hello| hello.node == *node);
            if let Some(hello) = known.and_then(|at| self.early.remove(at)) {
                // One that was killed may have dialled twice before.
                if is_alive(hello.pid) {
                    return hello.pid;
                }
                continue;
            }
            self.early.push_back(self.gate.hellos.recv().await.expect("the gate is open"));
        }
    }

    async fn kill_agent(&mut self, _: &NodeId, pid: u32) {
        kill(pid);
    }

    fn place(&self) -> String {
        "main".into()
    }
}

#[test]
fn the_slurm_engine_conforms() {
    let (slurm, runtime) = (Slurm::start(), runtime());
    let Office { engine, mut home, _folder } = Office::open(&runtime, |options| here(options, &slurm));
    runtime.block_on(async {
        let suite = conformance::run(&engine, &mut home);
        tokio::time::timeout(Duration::from_secs(300), suite).await.expect("it comes to an end");
    });
    assert_eq!(slurm.open_jobs(), Vec::<serde_json::Value>::new());
    drop(engine);
    let gates =
        || with_word(&slurm.home().to_string_lossy()).into_iter().filter(|process| process.is("gate"));
    wait_for("the gate to end with its engine", || gates().count() == 0);
}

#[test]
fn a_gate_without_work_ends_and_the_next_question_starts_another() {
    let (slurm, runtime) = (Slurm::start(), runtime());
    let open = |options| Options { gate_idle: Duration::from_millis(500), ..here(options, &slurm) };
    let Office { engine, mut home, _folder } = Office::open(&runtime, open);
    let gates = || {
        with_word(&slurm.home().to_string_lossy()).into_iter().filter(|process| process.is("gate")).count()
    };
    let request = request(1, json!({ "command": ["true"] }));
    runtime.block_on(engine.start(&request)).expect("start");
    runtime.block_on(async {
        let coming = tokio::time::timeout(DEADLINE, home.next_hello(&request.seats[0].node));
        // As a server asks that has gangs there.
        let asking = async {
            let mut turns = tokio::time::interval(Duration::from_millis(100));
            loop {
                turns.tick().await;
                engine.status(std::slice::from_ref(&request.key)).await.expect("status");
            }
        };
        tokio::select! {
            come = coming => drop(come.expect("its agent comes")),
            () = asking => {}
        }
    });
    // While its agent is there, there is work.
    let until = std::time::Instant::now() + Duration::from_secs(2);
    wait_for("some time to pass", || {
        assert_eq!(gates(), 1);
        std::time::Instant::now() > until
    });
    runtime.block_on(engine.stop(&request.key)).expect("stop");
    wait_for("the gate to end", || gates() == 0);
    runtime.block_on(engine.nodes()).expect("another one answers");
    let ended = runtime.block_on(engine.status(std::slice::from_ref(&request.key))).expect("status");
    assert_eq!(ended[0].status, Status::Gone);
}

/// A gang of one, for tests that do not need its agents.
fn request(number: u32, spec: serde_json::Value) -> StartRequest {
    let spec = JobSpec::from_value(spec).expect("a spec");
    let key = Key::Gang {
        attempt: AttemptId { job: JobId::from_random(7), number },
        place: "main".into(),
        account: None,
    };
    let node: NodeId = format!("node_test.{number}").parse().expect("a node");
    let gang = Gang { name: "test".into(), place: "main".into(), spec: Arc::new(spec), volumes: Vec::new() };
    StartRequest { key, seats: vec![Seat { node, token: TOKEN.into() }], gang: Some(gang) }
}

#[test]
fn a_submission_that_timed_out_is_never_made_twice() {
    let (slurm, runtime) = (Slurm::start_with(&[("MessageTimeout", "3")]), runtime());
    let Office { engine, mut home, _folder } = Office::open(&runtime, |options| here(options, &slurm));
    let request = request(1, json!({ "command": ["true"] }));
    runtime.block_on(engine.nodes()).expect("the gate is there");
    slurm.pause_controller();
    let start = || runtime.block_on(engine.start(&request));
    let error = start().expect_err("nobody answers");
    assert_eq!(error.class, Class::Retryable, "{error}");
    slurm.resume_controller();
    let id = wait_for_some("it to be found out", || match start() {
        Ok(id) => Some(id),
        Err(error) => {
            assert_eq!(error.class, Class::Retryable, "{error}");
            None
        }
    });
    let coming = home.next_hello(&request.seats[0].node);
    runtime.block_on(async { tokio::time::timeout(DEADLINE, coming).await }).expect("its agent comes");
    assert_eq!(start().expect("it is there"), id);
    runtime.block_on(engine.stop(&request.key)).expect("stop");
    assert_eq!(slurm.jobs().len(), 1, "{:?}", slurm.jobs());
}

#[test]
fn what_slurm_does_not_take_is_refused_with_its_own_words() {
    let (slurm, runtime) = (Slurm::start(), runtime());
    let Office { engine, home: _home, _folder } = Office::open(&runtime, |options| here(options, &slurm));
    runtime.block_on(async {
        let many = request(1, json!({ "command": ["true"], "resources": { "gpus": "H100:9" } }));
        let error = engine.start(&many).await.expect_err("no node has nine");
        assert_eq!(error.class, Class::Terminal, "{error}");
        assert!(error.what.contains("node configuration is not available"), "{error}");
        slurm.kill_controller();
        let error =
            engine.start(&request(2, json!({ "command": ["true"] }))).await.expect_err("nobody is there");
        assert_eq!(error.class, Class::Retryable, "{error}");
        slurm.start_controller();
    });
}

#[test]
fn a_cluster_behind_a_login_node_conforms() {
    let (site, runtime) = (SlurmSite::start(2), runtime());
    let Office { engine, home, _folder } = Office::open(&runtime, |options| there(options, &site));
    let mut home = Far { home, site: &site };
    runtime.block_on(async {
        let suite = conformance::run(&engine, &mut home);
        tokio::time::timeout(Duration::from_secs(300), suite).await.expect("it comes to an end");
    });
}

/// Where agents come home to whose processes are of other machines.
struct Far<'a> {
    home: Home,
    site: &'a SlurmSite,
}

#[async_trait]
impl Suite for Far<'_> {
    fn token(&self, node: &NodeId) -> String {
        self.home.token(node)
    }

    async fn next_hello(&mut self, node: &NodeId) -> u32 {
        loop {
            let known = self.home.early.iter().position(|hello| hello.node == *node);
            if let Some(hello) = known.and_then(|at| self.home.early.remove(at)) {
                return hello.pid;
            }
            self.home.early.push_back(self.home.gate.hellos.recv().await.expect("the gate is open"));
        }
    }

    /// Numbers of processes are each host's own: it is the one that serves this rank.
    async fn kill_agent(&mut self, node: &NodeId, pid: u32) {
        let rank = node.as_str().rsplit('.').next().expect("a rank");
        let is_it = |host: &&muster_testkit::Host| {
            let environment =
                host.try_run(&format!("tr '\\0' '\\n' < /proc/{pid}/environ | grep -x SLURM_PROCID={rank}"));
            environment.status.success()
        };
        let hosts = self.site.hosts().all().iter();
        hosts.filter(is_it).for_each(|host| drop(host.run(&format!("kill -9 {pid}"))));
    }

    fn place(&self) -> String {
        "main".into()
    }
}
