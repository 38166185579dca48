//! On a real API server: what is seen, what is missed and made good, and what may not be seen.

use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};

use async_trait::async_trait;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use muster_engine::{Class, Error};
use muster_testkit::{Kube, KubeOptions, wait_for};

use super::*;

/// A way to a cluster that can be closed.
#[derive(Debug)]
struct Way {
    kubeconfig: PathBuf,
    token: Option<String>,
    is_closed: AtomicBool,
}

impl Way {
    fn new(kube: &Kube, token: Option<String>) -> Arc<Self> {
        Arc::new(Self { kubeconfig: kube.kubeconfig(), token, is_closed: AtomicBool::new(false) })
    }
}

#[async_trait]
impl Reach for Way {
    async fn client(&self, _: &str) -> Result<Client, Error> {
        if self.is_closed.load(Ordering::Relaxed) {
            return Err(Error { what: "the way is closed".into(), class: Class::Retryable, source: None });
        }
        let mut kubeconfig = Kubeconfig::read_from(&self.kubeconfig).expect("a kubeconfig");
        if let Some(token) = &self.token {
            for user in &mut kubeconfig.auth_infos {
                let only = serde_json::json!({ "token": token });
                user.auth_info = Some(serde_json::from_value(only).expect("a token"));
            }
        }
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        Ok(Client::try_from(config.expect("a configuration")).expect("a client"))
    }

    async fn renew(&self, _: &str) {}
}

fn attempt(number: u32) -> AttemptId {
    AttemptId { job: "job_0123456789".parse().unwrap(), number }
}

fn manifest(number: u32) -> String {
    format!(
        r#"
apiVersion: batch/v1
kind: Job
metadata:
  name: m-0123456789-{number}
  labels: &labels {{muster.dev/server: s1, muster.dev/job: job_0123456789, muster.dev/attempt: "{number}"}}
spec:
  completions: 2
  parallelism: 2
  completionMode: Indexed
  backoffLimitPerIndex: 0
  podReplacementPolicy: Failed
  template:
    metadata: {{labels: *labels}}
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      containers:
      - {{name: task, image: "localhost/busybox:1", command: [sleep, "1000"], resources: {{limits: {{cpu: 100m, memory: 32Mi}}}}}}
"#
    )
}

struct Observer {
    runtime: tokio::runtime::Runtime,
    watches: Watches,
}

impl Observer {
    fn new(reach: Arc<dyn Reach>) -> Self {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        Self { runtime, watches: Watches::new("s1".into(), reach) }
    }

    fn ensure(&self) {
        let _guard = self.runtime.enter();
        self.watches.ensure("", "default");
    }

    fn status(&self, number: u32) -> Status {
        let attempt = attempt(number);
        let asked = async {
            // What watches say is heard in between.
            sleep(MOMENT).await;
            self.watches.status("", &[&attempt], |_| None, Timestamp::now()).await
        };
        self.runtime.block_on(asked).remove(0).observed.status
    }

    fn wait(&self, what: &str, number: u32, is_so: impl Fn(&Status) -> bool) {
        wait_for(what, || is_so(&self.status(number)));
    }
}

fn is_running(status: &Status) -> bool {
    *status == Status::Running
}

fn is_unanswered(status: &Status) -> bool {
    matches!(status, Status::Unanswered(_))
}

#[test]
#[ignore = "needs a Kubernetes, which `make test` builds"]
fn a_cluster_is_seen_as_it_is_whatever_happens_to_the_way_there() {
    let kube = Kube::start_with(KubeOptions { nodes: 1, ..KubeOptions::default() });
    kube.bring("busybox");
    let way = Way::new(&kube, None);
    let observer = Observer::new(Arc::clone(&way) as Arc<dyn Reach>);
    observer.ensure();
    assert_eq!(observer.status(1), Status::Gone);
    for number in [1, 2] {
        kube.apply(&manifest(number));
        observer.wait("both pods to run", number, is_running);
    }
    let named = observer.runtime.block_on(observer.watches.changed());
    assert!(
        named.contains(&Key::Gang { attempt: attempt(1), place: String::new(), account: None }),
        "{named:?}"
    );

    // Silence is noticed although no connection was closed, and nothing is forgotten.
    kube.cut_plane();
    observer.wait("silence to be noticed", 1, is_unanswered);
    kube.join_plane();
    observer.wait("an answer", 1, is_running);

    // What goes while nobody can look is gone when somebody can: the server no longer has what happened since.
    way.is_closed.store(true, Ordering::Relaxed);
    kube.kill("apiserver");
    kube.restart("apiserver");
    kube.kubectl(&["delete", "job", "m-0123456789-2"]);
    let pods = ["get", "pods", "-l", "batch.kubernetes.io/job-name=m-0123456789-2", "-o", "name"];
    wait_for("its pods to be gone", || kube.kubectl(&pods).trim().is_empty());
    observer.wait("the closed way to be noticed", 1, is_unanswered);
    way.is_closed.store(false, Ordering::Relaxed);
    observer.wait("the deletion to be known", 2, |status| *status == Status::Ended(Verdict::Unknown));
    assert_eq!(observer.status(1), Status::Running);

    // What goes before our eyes was taken away.
    kube.kubectl(&["delete", "job", "m-0123456789-1"]);
    observer.wait("its end", 1, |status| *status == Status::Ended(Verdict::Cancelled { by: None }));

    let place = {
        let _guard = observer.runtime.enter();
        observer.watches.survey("")
    };
    observer.runtime.block_on(place.surveyed());
    let inventory = place.inventory().unwrap();
    let offers = inventory.offers("", &crate::settings::Cluster::default());
    assert_eq!((offers.len(), offers[0].name.as_str(), offers[0].total.devices["gpu"]), (1, "node1", 8));
    assert!(offers[0].free.cpu_millis > 0);

    // Who may see nothing is told so, and nobody waits for ever.
    let token = kube.kubectl(&["create", "token", "default"]).trim().to_owned();
    let stranger = Observer::new(Way::new(&kube, Some(token)));
    stranger.ensure();
    let Status::Unanswered(why) = stranger.status(1) else { panic!("it may see nothing") };
    assert!(why.contains("forbidden"), "{why}");
    let place = {
        let _guard = stranger.runtime.enter();
        stranger.watches.survey("")
    };
    stranger.runtime.block_on(place.surveyed());
    let why = place.inventory().unwrap_err();
    assert!(why.starts_with("muster may not list the nodes and pods of this cluster; "), "{why}");
}
