//! On a real scheduler: gangs are placed whole or not at all, whoever is killed in between.

use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::thread::{self, JoinHandle};

use async_trait::async_trait;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use muster_engine::Error;
use muster_testkit::{Kube, KubeOptions, wait_for};
use serde_json::{Value, json};
use tokio::runtime::Builder;
use tokio::sync::oneshot;

use super::gathering::{Gathering, TAKEN_BACK};
use super::hall::Hall;
use crate::watch::{Reach, Watches};

#[derive(Debug)]
struct Way(PathBuf);

#[async_trait]
impl Reach for Way {
    async fn client(&self, _: &str) -> Result<Client, Error> {
        let kubeconfig = Kubeconfig::read_from(&self.0).expect("a kubeconfig");
        let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await;
        Ok(Client::try_from(config.expect("a configuration")).expect("a client"))
    }

    async fn renew(&self, _: &str) {}
}

/// What a server has of a cluster, in a thread of its own; dropped as if it were killed.
struct Server {
    hall: Arc<Hall>,
    end: Option<oneshot::Sender<()>>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(kube: &Kube) -> Self {
        let reach: Arc<dyn Reach> = Arc::new(Way(kube.kubeconfig()));
        let hall = Arc::new(Hall::new(Arc::clone(&reach)));
        let (end, ended) = oneshot::channel::<()>();
        let its_hall = Arc::clone(&hall);
        let thread = thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let watches = Watches::new("s1".into(), reach);
                watches.ensure("", "default");
                its_hall.tend(&watches, "");
                drop(ended.await);
            });
        });
        Self { hall, end: Some(end), thread: Some(thread) }
    }

    /// Who places a gang that is to go to this queue.
    fn gathering(&self, kube: &Kube, queue: Option<&str>) -> Result<Gathering, String> {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let client = Way(kube.kubeconfig()).client("").await.unwrap();
            self.hall.gathering(&client, "", queue).await.unwrap()
        })
    }

    fn waits(&self, number: u32, code: &str) {
        let is_said = || self.hall.wait("", &name(number)).is_some_and(|wait| wait.code == code);
        wait_for(&format!("{number} waits for {code}"), is_said);
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.end.take();
        self.thread.take().map(JoinHandle::join);
    }
}

fn name(number: u32) -> String {
    format!("m-0123456789-{number}")
}

/// A gang of so many pods with so many devices each.
fn gang(number: u32, size: u32, gpus: u32, gathering: &Gathering) -> Value {
    let labels = json!({
        "muster.dev/server": "s1", "muster.dev/job": "job_0123456789", "muster.dev/attempt": number.to_string(),
    });
    let limits = json!({ "nvidia.com/gpu": gpus, "cpu": "10m", "memory": "16Mi" });
    let mut job = json!({
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": { "name": name(number), "namespace": "default", "labels": labels },
        "spec": {
            "completions": size, "parallelism": size, "completionMode": "Indexed",
            "backoffLimitPerIndex": 0, "podReplacementPolicy": "Failed",
            "template": { "metadata": { "labels": labels }, "spec": {
                "restartPolicy": "Never", "terminationGracePeriodSeconds": 1,
                "containers": [{
                    "name": "task", "image": "localhost/busybox:1", "command": ["sleep", "1000"],
                    "resources": { "limits": limits },
                }],
            }},
        },
    });
    gathering.adorn(&mut job);
    job
}

fn submit(kube: &Kube, job: &Value) {
    kube.apply(&job.to_string());
}

fn pods(kube: &Kube, number: u32) -> Vec<Value> {
    let selector = format!("job-name={}", name(number));
    kube.get(&["pods", "-n", "default", "-l", &selector])["items"].as_array().cloned().unwrap_or_default()
}

fn placed(kube: &Kube, number: u32) -> usize {
    let is_live =
        |pod: &&Value| pod["metadata"]["deletionTimestamp"].is_null() && pod["spec"]["nodeName"].is_string();
    pods(kube, number).iter().filter(is_live).count()
}

fn wait_placed(kube: &Kube, number: u32, size: usize) {
    let is_placed = || placed(kube, number) == size;
    wait_for(&format!("{number} is placed"), is_placed);
}

#[test]
#[ignore = "needs a Kubernetes, which `make test` builds"]
fn gangs_are_placed_whole_one_after_the_other_and_taken_back_whole() {
    let kube = Kube::start_with(KubeOptions { gpus: 8, ..KubeOptions::default() });
    let server = Server::start(&kube);

    // Each takes more than half of every node, so one of them fits.
    (1..=3).for_each(|number| submit(&kube, &gang(number, 2, 5, &Gathering::Gates)));
    submit(&kube, &gang(4, 3, 8, &Gathering::Gates));
    wait_placed(&kube, 1, 2);
    server.waits(2, "no_capacity");
    server.waits(3, "no_capacity");
    server.waits(4, "never_fits");
    // Small ones go where there is room.
    submit(&kube, &gang(5, 2, 1, &Gathering::Gates));
    wait_placed(&kube, 5, 2);
    assert_eq!((placed(&kube, 2), placed(&kube, 3), placed(&kube, 4)), (0, 0, 0));

    // Whoever is killed is not missed, and the next one goes on from what there is.
    drop(server);
    let half = &pods(&kube, 2)[0];
    let half = half["metadata"]["name"].as_str().unwrap().to_owned();
    let open = r#"{"spec":{"schedulingGates":[{"$patch":"delete","name":"muster.dev/gang"}]}}"#;
    kube.kubectl(&["patch", "pod", &half, "-n", "default", "--type", "strategic", "-p", open]);
    kube.kubectl(&["delete", "job", &name(1), "-n", "default", "--wait=true"]);
    let server = Server::start(&kube);
    wait_placed(&kube, 2, 2);
    server.waits(3, "no_capacity");

    // One that fits by count, though not by what only the scheduler knows, gives back what it got.
    kube.kubectl(&["delete", "job", &name(2), &name(3), &name(4), "-n", "default", "--wait=true"]);
    let mut apart = gang(6, 3, 2, &Gathering::Gates);
    apart["spec"]["template"]["spec"]["affinity"] = json!({ "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [{
            "labelSelector": { "matchLabels": { "muster.dev/attempt": "6" } }, "topologyKey": "kubernetes.io/hostname",
        }],
    }});
    submit(&kube, &apart);
    wait_placed(&kube, 6, 2);
    submit(&kube, &gang(7, 2, 5, &Gathering::Gates));
    let annotation =
        || kube.get(&["job", &name(6), "-n", "default"])["metadata"]["annotations"][TAKEN_BACK].clone();
    wait_for("it is taken back", || annotation() == "1");
    wait_placed(&kube, 7, 2);
    let is_gated = |pod: &Value| pod["spec"]["schedulingGates"][0]["name"] == "muster.dev/gang";
    let gated = || pods(&kube, 6).iter().filter(|pod| is_gated(pod)).count() == 3;
    wait_for("its pods are made again", gated);
    server.waits(6, "no_capacity");
    assert_eq!(placed(&kube, 5), 2, "nobody else was disturbed");
}

#[test]
#[ignore = "needs a Kubernetes, which `make test` builds"]
fn a_scheduler_that_knows_gangs_is_told_of_them() {
    let gates = "--feature-gates=GenericWorkload=true,GangScheduling=true".to_owned();
    let kube = Kube::start_with(KubeOptions {
        gpus: 8,
        apiserver: vec![gates.clone(), "--runtime-config=scheduling.k8s.io/v1alpha1=true".to_owned()],
        scheduler: vec![gates],
        ..KubeOptions::default()
    });
    let server = Server::start(&kube);
    let gathering = server.gathering(&kube, None).unwrap();
    assert_eq!(gathering, Gathering::Native);
    server.gathering(&kube, Some("team")).unwrap_err();
    for number in 1..=2 {
        submit(&kube, &gang(number, 2, 5, &gathering));
        let made = kube.get(&["job", &name(number), "-n", "default"]);
        kube.apply(&gathering.companion(&made).unwrap().to_string());
    }
    wait_placed(&kube, 1, 2);
    assert_eq!(pods(&kube, 1)[0]["spec"]["workloadRef"]["name"], name(1));
    server.waits(2, "no_capacity");
    kube.kubectl(&["delete", "job", &name(1), "-n", "default", "--wait=true"]);
    wait_placed(&kube, 2, 2);
    let gone = || {
        kube.get(&["workloads.scheduling.k8s.io", "-n", "default"])["items"].as_array().unwrap().len() == 1
    };
    wait_for("what was beside the Job goes with it", gone);
}

/// A program beside the cluster, and what it said.
struct Beside {
    child: Child,
    log: PathBuf,
}

impl Drop for Beside {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
        if thread::panicking() {
            let log = std::fs::read_to_string(&self.log).unwrap_or_default();
            let last: Vec<&str> = log.lines().rev().take(20).collect();
            eprintln!("what it said last: {last:#?}");
        }
    }
}

impl Beside {
    fn start(command: &mut Command, dir: &Path) -> Self {
        let log = dir.join("log");
        let file = std::fs::File::create(&log).unwrap();
        let child = command.current_dir(dir).stdout(Stdio::null()).stderr(file).spawn().unwrap();
        Self { child, log }
    }
}

/// Defines what a program adds to the API. It ends at once if that is not served yet.
fn define(kube: &Kube, folder: &Path) {
    let crds = folder.join("crds");
    kube.kubectl(&[OsStr::new("create"), OsStr::new("-f"), crds.as_os_str()]);
    let is_met = |condition: &Value| condition["type"] == "Established" && condition["status"] == "True";
    let is_served =
        |crd: &Value| crd["status"]["conditions"].as_array().is_some_and(|all| all.iter().any(is_met));
    wait_for("what it adds to the API is served", || {
        kube.get(&["crd"])["items"].as_array().is_some_and(|all| !all.is_empty() && all.iter().all(is_served))
    });
}

fn free_port() -> u16 {
    std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// Kueue's manager has fixed ideas of where its certificates are: they lie over `/etc` for it alone.
fn kueue(kube: &Kube, folder: &Path, dir: &Path) -> Beside {
    define(kube, folder);
    let certs = dir.join("etc/kueue/metrics/certs");
    std::fs::create_dir_all(&certs).unwrap();
    std::fs::create_dir_all(dir.join("work")).unwrap();
    let made = Command::new("openssl")
        .args("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -subj /CN=kueue".split(' '))
        .args("-keyout tls.key -out tls.crt".split(' '))
        .current_dir(&certs)
        .output()
        .unwrap();
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    let config = json!({
        "apiVersion": "config.kueue.x-k8s.io/v1beta2",
        "kind": "Configuration",
        "health": { "healthProbeBindAddress": format!("127.0.0.1:{}", free_port()) },
        "metrics": { "bindAddress": format!("127.0.0.1:{}", free_port()) },
        "webhook": { "port": free_port(), "host": "127.0.0.1", "certDir": certs },
        "leaderElection": { "leaderElect": false },
        "internalCertManagement": { "enable": false },
        "integrations": { "frameworks": ["batch/job"] },
    });
    std::fs::write(dir.join("config.yaml"), config.to_string()).unwrap();
    let mount = "mount -t overlay overlay -o lowerdir=/etc,upperdir=etc,workdir=work /etc && exec \"$@\"";
    let mut command = Command::new("unshare");
    command
        .args(["--mount", "--propagation", "private", "--fork", "--kill-child", "sh", "-c", mount, "sh"])
        .arg(folder.join("kueue"))
        .args(["--config", "config.yaml", "--feature-gates=VisibilityOnDemand=false", "--kubeconfig"])
        .arg(kube.kubeconfig());
    Beside::start(&mut command, dir)
}

#[test]
#[ignore = "needs a Kueue, which `make test-queues` builds: minutes that nobody wants to wait for each time"]
fn kueue_lets_gangs_go_whole_and_says_why_others_wait() {
    let folder = std::env::var_os("MUSTER_TEST_KUEUE").expect("`make test-queues` builds it");
    let kube = Kube::start();
    let dir = tempfile::tempdir().unwrap();
    let _kueue = kueue(&kube, Path::new(&folder), dir.path());
    kube.apply(
        r#"
apiVersion: kueue.x-k8s.io/v1beta2
kind: ResourceFlavor
metadata: {name: any}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: ClusterQueue
metadata: {name: all}
spec:
  namespaceSelector: {}
  resourceGroups:
  - coveredResources: [nvidia.com/gpu, cpu, memory]
    flavors:
    - name: any
      resources:
      - {name: nvidia.com/gpu, nominalQuota: 12}
      - {name: cpu, nominalQuota: 100}
      - {name: memory, nominalQuota: 100Gi}
---
apiVersion: kueue.x-k8s.io/v1beta2
kind: LocalQueue
metadata: {name: team, namespace: default}
spec: {clusterQueue: all}
"#,
    );
    let server = Server::start(&kube);
    let gathering = server.gathering(&kube, Some("team")).unwrap();
    assert_eq!(gathering, Gathering::Kueue { queue: "team".into() });
    submit(&kube, &gang(1, 2, 5, &gathering));
    wait_placed(&kube, 1, 2);
    submit(&kube, &gang(2, 2, 5, &gathering));
    submit(&kube, &gang(3, 2, 8, &gathering));
    submit(&kube, &gang(4, 2, 1, &Gathering::Kueue { queue: "nowhere".into() }));
    server.waits(2, "limit");
    server.waits(3, "never_fits");
    server.waits(4, "never_fits");
    assert_eq!(pods(&kube, 2), Vec::<Value>::new(), "it has no pods before it may have all of them");
    kube.kubectl(&["delete", "job", &name(1), "-n", "default", "--wait=true"]);
    wait_placed(&kube, 2, 2);
    wait_for("it waits for nothing", || server.hall.wait("", &name(2)).is_none());
}

/// What Volcano's own installation has it do.
const VOLCANO: &str = r#"
actions: "enqueue, allocate, backfill"
tiers:
- plugins:
  - name: priority
  - name: gang
  - name: conformance
- plugins:
  - name: drf
  - name: predicates
  - name: proportion
  - name: nodeorder
"#;

#[test]
#[ignore = "needs a Volcano, which `make test-queues` builds: minutes that nobody wants to wait for each time"]
fn volcano_places_gangs_whole_and_says_why_others_wait() {
    let folder = std::env::var_os("MUSTER_TEST_VOLCANO").expect("`make test-queues` builds it");
    let folder = Path::new(&folder);
    let kube = Kube::start();
    let dir = tempfile::tempdir().unwrap();
    define(&kube, folder);
    // It reads this anew with every change in that folder.
    let conf = dir.path().join("conf/conf.yaml");
    std::fs::create_dir_all(dir.path().join("conf")).unwrap();
    std::fs::write(&conf, VOLCANO).unwrap();
    let mut command = Command::new(folder.join("scheduler"));
    command.arg("--scheduler-conf").arg(&conf);
    command.arg("--kubeconfig").arg(kube.kubeconfig()).args(["--leader-elect=false", "--logtostderr"]);
    command.arg(format!("--listen-address=127.0.0.1:{}", free_port()));
    command.arg(format!("--healthz-address=127.0.0.1:{}", free_port()));
    let _volcano = Beside::start(&mut command, dir.path());
    kube.apply(
        r#"
apiVersion: scheduling.volcano.sh/v1beta1
kind: Queue
metadata: {name: team}
spec: {weight: 1}
"#,
    );
    // Volcano's controllers do this; there are none here.
    let open = r#"{"status":{"state":"Open"}}"#;
    let queue =
        ["patch", "queue.scheduling.volcano.sh", "team", "--subresource=status", "--type=merge", "-p", open];
    kube.kubectl(&queue);
    let server = Server::start(&kube);
    let gathering = server.gathering(&kube, Some("team")).unwrap();
    assert_eq!(gathering, Gathering::Volcano { queue: "team".into() });
    for number in 1..=2 {
        submit(&kube, &gang(number, 2, 5, &gathering));
        let made = kube.get(&["job", &name(number), "-n", "default"]);
        kube.apply(&gathering.companion(&made).unwrap().to_string());
        if number == 1 {
            wait_placed(&kube, 1, 2);
        }
    }
    server.waits(2, "no_capacity");
    assert_eq!(placed(&kube, 2), 0, "it has no node before it may have all of them");
    kube.kubectl(&["delete", "job", &name(1), "-n", "default", "--wait=true"]);
    wait_placed(&kube, 2, 2);
    wait_for("it waits for nothing", || server.hall.wait("", &name(2)).is_none());
}
