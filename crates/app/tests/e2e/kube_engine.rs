//! The Kubernetes engine on a real cluster: the suite that every engine passes.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use async_trait::async_trait;
use muster_engine::conformance::{self, Home as Suite};
use muster_engine_kube::{Cluster, Kubernetes, Settings};
use muster_link::message::Hello;
use muster_model::NodeId;
use muster_testkit::{Kube, kill};
use tempfile::TempDir;
use tokio::net::UnixListener;
use tokio::runtime::{Builder, Runtime};

use crate::gate::{Gate, TOKEN};
use crate::kube::{self, IMAGE};

/// Where agents come home to, which the API server carries them to.
struct Home {
    gate: Gate,
    /// Those who have come before they were asked for.
    early: VecDeque<Hello>,
    kube: &'static Kube,
    namespace: &'static str,
    _folder: TempDir,
}

fn open(runtime: &Runtime, kube: &'static Kube, namespace: &'static str) -> (Kubernetes, Home) {
    let folder = tempfile::tempdir().expect("a folder");
    let socket = folder.path().join("gate.sock");
    let _inside = runtime.enter();
    let gate = Gate::open(UnixListener::bind(&socket).expect("a socket"));
    let cluster = Cluster {
        namespace: Some(namespace.into()),
        agent_image: Some("localhost/muster:dev".into()),
        image: Some(IMAGE.into()),
        ..Cluster::default()
    };
    let settings = Settings {
        dir: folder.path().join("k8s"),
        socket,
        exe: env!("CARGO_BIN_EXE_muster").into(),
        kubeconfig: Some(kube.kubeconfig()),
        cluster,
        contexts: BTreeMap::new(),
    };
    let home = Home { gate, early: VecDeque::new(), kube, namespace, _folder: folder };
    (Kubernetes::new(settings), home)
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
                return hello.pid;
            }
            self.early.push_back(self.gate.hellos.recv().await.expect("the gate is open"));
        }
    }

    /// Numbers of processes are each pod's own: it is the agent in the pod of this rank.
    async fn kill_agent(&mut self, node: &NodeId, _: u32) {
        let mut parts = node.as_str().rsplit('.');
        let (rank, attempt) = (parts.next().expect("a rank"), parts.next().expect("an attempt"));
        let marks = [
            format!("JOB_COMPLETION_INDEX={rank}"),
            // What its host is called has the name of the Job, which ends with the number of the attempt.
            format!("-{attempt}-{rank}"),
        ];
        for process in (1..=2).flat_map(|number| self.kube.processes_on(number)) {
            let environment = std::fs::read(format!("/proc/{}/environ", process.pid)).unwrap_or_default();
            let variables: Vec<String> = environment
                .split(|byte| *byte == 0)
                .map(|entry| String::from_utf8_lossy(entry).into_owned())
                .collect();
            let is_rank = variables.contains(&marks[0]);
            let is_its = variables.iter().any(|it| it.starts_with("HOSTNAME=") && it.ends_with(&marks[1]));
            if is_rank && is_its && process.is("agent") {
                kill(process.pid);
            }
        }
    }
}

#[test]
fn the_kubernetes_engine_conforms() {
    let kube = kube::shared();
    let namespace = "conformance";
    kube.kubectl(&["create", "namespace", namespace]);
    let runtime = Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let (engine, mut home) = open(&runtime, kube, namespace);
    runtime.block_on(async {
        let suite = conformance::run(&engine, &mut home);
        tokio::time::timeout(Duration::from_secs(300), suite).await.expect("it comes to an end");
    });
    muster_testkit::wait_for("no pod to be left", || {
        let left = kube.get(&["pods", "-n", home.namespace]);
        left["items"].as_array().is_some_and(Vec::is_empty)
    });
}
