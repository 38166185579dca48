//! Kubernetes as a place to run, on a real one: what a user does with it on a good day, and below, on others.
//!
//! A cluster takes ten seconds and a gigabyte, so that all tests that do not break it share one, each with a namespace of its own.

mod faults;
mod outages;
mod people;

use std::ops::Deref;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use muster_testkit::{DEADLINE, Home, Kube, KubeOptions, wait_for, wait_for_some};
use serde_json::Value;

use crate::pool::slim;

/// Python, numpy, and what people take for granted.
pub(crate) const IMAGE: &str = "localhost/debian:1";

/// A cluster with a namespace of the test's own, and a muster that knows it.
pub(crate) struct Site {
    // In this order: the server goes before the cluster that it talks to.
    pub(crate) home: Home,
    pub(crate) namespace: String,
    pub(crate) kube: Cluster,
}

/// A cluster of everybody's or of one test's.
pub(crate) enum Cluster {
    Shared(&'static Kube),
    Own(Box<Kube>),
}

impl Deref for Cluster {
    type Target = Kube;

    fn deref(&self) -> &Kube {
        match self {
            Self::Shared(kube) => kube,
            Self::Own(kube) => kube,
        }
    }
}

/// The cluster of all tests that do not break it. It ends with the process.
pub(crate) fn shared() -> &'static Kube {
    static SHARED: OnceLock<Kube> = OnceLock::new();
    SHARED.get_or_init(|| furnished(KubeOptions::default()))
}

/// A cluster whose nodes have the images that jobs need.
pub(crate) fn furnished(options: KubeOptions) -> Kube {
    let kube = Kube::start_with(options);
    kube.bring_muster(slim());
    kube.bring("debian");
    kube
}

impl Site {
    pub(crate) fn new() -> Self {
        Self::on(Cluster::Shared(shared()), "")
    }

    /// One whose server is told this of the cluster.
    pub(crate) fn with(settings: &str) -> Self {
        Self::on(Cluster::Shared(shared()), settings)
    }

    /// One on a cluster of its own.
    pub(crate) fn apart(options: KubeOptions, settings: &str) -> Self {
        Self::on(Cluster::Own(Box::new(furnished(options))), settings)
    }

    fn on(kube: Cluster, settings: &str) -> Self {
        static NUMBER: AtomicU32 = AtomicU32::new(1);
        let namespace = format!("test-{}", NUMBER.fetch_add(1, Ordering::Relaxed));
        kube.kubectl(&["create", "namespace", &namespace]);
        // Pods that come before it are refused.
        wait_for("an account for pods", || {
            kube.try_kubectl(&["get", "sa", "default", "-n", &namespace]).status.success()
        });
        let home = Home::new(slim());
        home.share_with_everybody();
        home.configure(&configuration(&kube, &namespace, &home, settings));
        Self { home, namespace, kube }
    }

    /// Submits a job.
    pub(crate) fn submit(&self, words: &[&str]) -> String {
        let all: Vec<&str> = ["--on", "k8s", "--env", "SHARED"].iter().chain(words).copied().collect();
        self.home.submit(&all)
    }

    /// Submits a line for the shell, with other words before it.
    pub(crate) fn submit_line(&self, words: &[&str], line: &str) -> String {
        let all: Vec<&str> = words.iter().copied().chain(["--", "sh", "-c", line]).collect();
        self.submit(&all)
    }

    /// Waits for a job's end, which must have this exit code, and gives it.
    pub(crate) fn end_of(&self, job: &str, code: i32) -> Value {
        let waited = self.home.run(["wait", job]);
        let words = || {
            let pods = self.kube.kubectl(&["get", "jobs,pods,events", "-n", &self.namespace, "-o", "wide"]);
            format!("{}{}\n{}\n{pods}", waited.out(), waited.err(), self.home.run(["logs", job]).out())
        };
        assert_eq!(waited.code(), code, "{}", words());
        self.home.job(job)
    }

    /// Objects of a kind in the test's namespace.
    pub(crate) fn objects(&self, kind: &str) -> Vec<Value> {
        let all = self.kube.get(&[kind, "-n", &self.namespace]);
        all["items"].as_array().cloned().unwrap_or_default()
    }

    /// Waits until a pod of the namespace runs, and gives it.
    pub(crate) fn wait_for_pod(&self) -> Value {
        wait_for_some("a pod to run", || {
            self.objects("pods").into_iter().find(|pod| pod["status"]["phase"] == "Running")
        })
    }

    /// The node, from 1, that a pod runs on.
    pub(crate) fn node_of(pod: &Value) -> usize {
        let name = pod["spec"]["nodeName"].as_str().expect("it has a node");
        name.trim_start_matches("node").parse().expect("a number")
    }

    /// Waits until nothing of ours is left in the namespace.
    pub(crate) fn wait_for_nothing_left(&self) {
        let namespace = ["-n", &self.namespace];
        let begun = Instant::now();
        while !self.objects("jobs,pods,secrets,services").is_empty() {
            if begun.elapsed() < DEADLINE {
                continue;
            }
            let said = |words: &[&str]| self.kube.try_kubectl(&[words, &namespace].concat()).out();
            let pods = said(&["get", "jobs,pods,events", "-o", "wide"]);
            let logs = said(&["logs", "-l", "muster.dev/job", "--tail=20", "--prefix"]);
            panic!("in {DEADLINE:?} not everything went:\n{pods}\n{logs}");
        }
    }
}

/// What a server is told of a cluster. Tasks see the shared directory, as of a file server.
fn configuration(kube: &Kube, namespace: &str, home: &Home, settings: &str) -> String {
    let shared = home.shared().display().to_string();
    format!(
        "[k8s]\nkubeconfig = \"{}\"\nnamespace = \"{namespace}\"\nagent_image = \"localhost/muster:dev\"\nimage = \"{IMAGE}\"\n\
         {settings}\n\
         [k8s.pod]\nvolumes = [{{ name = \"shared\", hostPath = {{ path = \"{shared}\" }} }}]\n\
         containers = [{{ name = \"task\", volumeMounts = [{{ name = \"shared\", mountPath = \"{shared}\" }}] }}]\n",
        kube.kubeconfig().display()
    )
}

#[test]
fn a_gang_runs_over_two_nodes_with_the_devices_it_asks_for() {
    let site = Site::new();
    let script = "echo $RANK of $WORLD_SIZE on $MUSTER_NODE_NAME";
    let done = site
        .home
        .run(["run", "--on", "k8s", "-N", "2", "--gpus", "5", "--env", "SHARED", "--", "sh", "-c", script]);
    assert_eq!(done.code(), 0, "{}{}", done.out(), done.err());
    let shown = site.home.json(["show", "last", "--json"]);
    let tasks = crate::tasks(&shown);
    assert_ne!(shown["allocation"]["hosts"][0], shown["allocation"]["hosts"][1], "no node has ten: {shown}");
    assert!(tasks.iter().all(|task| task["devices"].as_array().is_some_and(|all| all.len() == 5)), "{shown}");
    site.wait_for_nothing_left();
}
