//! A real Kubernetes of a test's own: etcd, the control plane, and nodes with kubelet, containerd, kube-proxy, each in namespaces
//! of its own, up in ten seconds.
//!
//! Kubernetes and CoreDNS are built once, from the pinned modules in `kube/` of this crate, by `scripts/kube.sh`; the rest is Debian's.
//! Several clusters may run at once. The API server is reached from the test's own network, and so are pods, which in turn reach
//! the test. Root is needed. All of it ends with the test, also when that is killed, and nothing of the machine stays changed.

mod keys;
mod network;
mod node;
mod plane;

use std::collections::{BTreeMap, BTreeSet};
use std::ffi::OsStr;
use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use keys::Keys;
use network::{Network, output};
use node::Node;
use plane::Plane;
use serde_json::{Value, json};

use crate::Finished;
use crate::keeper::Keeper;
use crate::process;
use crate::wait::{wait_for, wait_for_some};

/// Daemons and the tools of networks are in folders that an ordinary user's path leaves out.
const PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// What a cluster is to be like.
#[derive(Debug, Clone)]
pub struct KubeOptions {
    /// How many nodes have a kubelet: `node1` and so on.
    pub nodes: usize,
    /// How many GPUs each says it has (`nvidia.com/gpu`). Nobody checks.
    pub gpus: u32,
    /// After how many seconds a silent node is taken for lost, and after how many more its pods are. Kubernetes' own are 50 and 300.
    pub silence_s: Option<u32>,
    /// More words for the API server.
    pub apiserver: Vec<String>,
    /// More words for the scheduler.
    pub scheduler: Vec<String>,
    /// More words for the controller manager.
    pub manager: Vec<String>,
}

impl Default for KubeOptions {
    fn default() -> Self {
        let none = Vec::new;
        Self { nodes: 2, gpus: 8, silence_s: None, apiserver: none(), scheduler: none(), manager: none() }
    }
}

/// A cluster. Dropping it ends it and everything that runs on it.
pub struct Kube {
    daemons: Mutex<Daemons>,
    network: Network,
    keys: Keys,
    programs: PathBuf,
    stock: PathBuf,
    directory: PathBuf,
    options: KubeOptions,
}

struct Daemons {
    keeper: Keeper,
    running: BTreeMap<String, u32>,
}

impl Kube {
    /// Starts one of two nodes and waits until they are ready.
    pub fn start() -> Self {
        Self::start_with(KubeOptions::default())
    }

    /// The same, other than usual.
    pub fn start_with(options: KubeOptions) -> Self {
        assert!(rustix::process::getuid().is_root(), "nodes are made of namespaces: run this test as root");
        assert!((1..=network::MOST_NODES).contains(&options.nodes), "{} nodes", options.nodes);
        let (programs, stock) = (PathBuf::from(script(&["binaries"])), PathBuf::from(script(&["stock"])));
        let mut keeper = Keeper::plain();
        let network = Network::take(&mut keeper);
        let directory = network.directory();
        let groups: Vec<PathBuf> = (1..=options.nodes).flat_map(|node| network.groups(node)).collect();
        keeper.remove_after(&network.links(options.nodes), &groups, &directory);
        for folder in ["log", "certs", "shared"] {
            fs::create_dir_all(directory.join(folder)).expect("a directory of the cluster");
        }
        network.lay();
        let daemons = Mutex::new(Daemons { keeper, running: BTreeMap::new() });
        let keys = Keys::make(directory.join("keys"), network);
        let kube = Self { daemons, network, keys, programs, stock, directory, options };
        kube.boot();
        kube
    }

    /// Everything at once, as far as one does not need the other.
    fn boot(&self) {
        self.launch_bare(
            "plane",
            &["unshare", "--net", "sh", "-c", "touch \"$0\"; exec sleep infinity"],
            &[&self.directory.join("plane-is-up").display().to_string()],
        );
        self.wait("a network for the control plane", || self.directory.join("plane-is-up").exists());
        self.network.plug(0, self.options.nodes, self.pid("plane"));
        self.launch_plane("etcd");
        self.launch_plane("apiserver");
        std::thread::scope(|scope| {
            self.numbers().for_each(|number| {
                scope.spawn(move || self.prepare_node(number));
            });
        });
        self.wait("the API server to be ready", || self.is_ready());
        for name in ["manager", "scheduler", "dns"] {
            self.launch_plane(name);
        }
        for number in self.numbers() {
            self.launch_on(number, "kubelet", &self.node(number).kubelet());
            self.launch_on(number, "proxy", &self.node(number).proxy());
        }
        self.wait("names to be served", || self.try_apply(&self.plane().dns_objects()));
        self.numbers().for_each(|number| self.wait_for_registration(number, 0));
        self.wait("all nodes to be ready", || self.ready_nodes().len() == self.options.nodes);
        // Pods that come before it are refused.
        self.wait("an account for pods", || self.try_kubectl(&["get", "sa", "default"]).status.success());
    }

    /// What `KUBECONFIG` must be for whoever may do everything. Nothing else is needed.
    pub fn kubeconfig(&self) -> PathBuf {
        self.keys.path("admin.kubeconfig")
    }

    /// This test's address, where nodes and pods reach it.
    pub fn launcher(&self) -> Ipv4Addr {
        self.network.launcher()
    }

    /// A directory of this machine that a pod sees under the same path, if it mounts it (`hostPath`), on any node.
    pub fn shared(&self) -> PathBuf {
        self.directory.join("shared")
    }

    /// The programs of Kubernetes.
    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// `kubectl`, to be given words.
    pub fn command(&self) -> Command {
        let mut command = Command::new(self.programs.join("kubectl"));
        command.env("KUBECONFIG", self.kubeconfig()).stdin(Stdio::null());
        // What it remembers of the API is this cluster's.
        command.arg(format!("--cache-dir={}", self.directory.join("kubectl").display()));
        command
    }

    /// `kubectl` that must succeed; what it printed.
    pub fn kubectl<W: AsRef<OsStr>>(&self, words: &[W]) -> String {
        output(self.command().args(words))
    }

    /// `kubectl` that may fail.
    pub fn try_kubectl<W: AsRef<OsStr>>(&self, words: &[W]) -> Finished {
        let done = self.command().args(words).output().expect("kubectl starts");
        Finished { status: done.status, stdout: done.stdout, stderr: done.stderr }
    }

    /// What `kubectl get … -o json` says; `Null` if there is nothing.
    pub fn get<W: AsRef<OsStr>>(&self, words: &[W]) -> Value {
        let done =
            self.command().arg("get").args(words).args(["-o", "json"]).output().expect("kubectl starts");
        serde_json::from_slice(&done.stdout).unwrap_or_default()
    }

    /// Makes or changes objects, which are text in JSON or YAML.
    pub fn apply(&self, objects: &str) {
        assert!(self.try_apply(objects), "kubectl apply refused\n{objects}");
    }

    /// The nodes that are ready.
    pub fn ready_nodes(&self) -> BTreeSet<String> {
        let all = self.get(&["nodes"]);
        let nodes = all["items"].as_array().cloned().unwrap_or_default();
        let is_ready = |node: &&Value| {
            let conditions = node["status"]["conditions"].as_array();
            conditions.is_some_and(|all| all.iter().any(|it| it["type"] == "Ready" && it["status"] == "True"))
        };
        let name = |node: &Value| node["metadata"]["name"].as_str().map(str::to_owned);
        nodes.iter().filter(is_ready).filter_map(name).collect()
    }

    /// How often the API server was asked what by whoever has this in the name of his program, as in `create jobs` or `get pods/log`.
    pub fn calls(&self, agent: &str) -> BTreeMap<String, u64> {
        let log = fs::read_to_string(self.directory.join("audit.log")).unwrap_or_default();
        let (mut counts, mut known) = (BTreeMap::new(), BTreeSet::new());
        for line in log.lines() {
            let Ok(event) = serde_json::from_str::<Value>(line) else { continue };
            let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
            // What takes long is told of twice.
            if !text(&event["userAgent"]).contains(agent) || !known.insert(text(&event["auditID"])) {
                continue;
            }
            let object = &event["objectRef"];
            let below = object["subresource"].as_str().map(|it| format!("/{it}")).unwrap_or_default();
            let what = format!("{} {}{below}", text(&event["verb"]), text(&object["resource"]));
            *counts.entry(what.trim().to_owned()).or_default() += 1;
        }
        counts
    }

    /// An image that every node has: `busybox` (which has no glibc) or `debian` (Python, numpy, MPI). It is called `localhost/NAME:1`.
    pub fn bring(&self, name: &str) -> String {
        assert!(["busybox", "debian"].contains(&name), "there is no image {name}");
        format!("localhost/{name}:1")
    }

    /// Brings an image of a muster to every node, and says what it is called.
    pub fn bring_muster(&self, binary: &Path) -> String {
        let path = binary.to_str().expect("a path that is text");
        self.import(Path::new(&script(&["agent-image", path])));
        "localhost/muster:dev".into()
    }

    /// Brings the archive of an image to every node.
    pub fn import(&self, archive: &Path) {
        std::thread::scope(|scope| {
            self.numbers().for_each(|number| {
                scope.spawn(move || self.import_to(number, archive));
            });
        });
    }

    /// Cuts a node off, from 1: nothing gets through to it or from it, and nobody notices at once.
    pub fn cut(&self, number: usize) {
        self.network.set_open(number, false);
    }

    /// Ends that.
    pub fn join(&self, number: usize) {
        self.network.set_open(number, true);
    }

    /// Cuts the control plane off from the test and from all nodes.
    pub fn cut_plane(&self) {
        self.network.set_open(0, false);
    }

    /// Ends that.
    pub fn join_plane(&self) {
        self.network.set_open(0, true);
    }

    /// `kill -9` for a node's kubelet, from 1. What runs there goes on.
    pub fn kill_kubelet(&self, number: usize) {
        self.end(&format!("{}-kubelet", node::name(number)));
    }

    /// Starts it again, and waits until it has told of itself.
    pub fn start_kubelet(&self, number: usize) {
        let before = self.registrations(number);
        self.launch_on(number, "kubelet", &self.node(number).kubelet());
        self.wait_for_registration(number, before);
        let name = node::name(number);
        self.wait("the node to be ready", || self.ready_nodes().contains(&name));
    }

    /// `kill -9` for one of `etcd`, `apiserver`, `manager`, `scheduler`, `dns`.
    pub fn kill(&self, name: &str) {
        self.end(name);
    }

    /// Starts it again; waits, if it is the API server or what that needs, until one is answered.
    pub fn restart(&self, name: &str) {
        self.launch_plane(name);
        let is_up = |name: &str| self.daemons().running.contains_key(name);
        if is_up("etcd") && is_up("apiserver") {
            self.wait("the API server to be ready", || self.is_ready());
        }
    }

    /// Ends a node with everything that runs on it, as without current. It does not come back.
    pub fn kill_node(&self, number: usize) {
        let prefix = format!("{}-", node::name(number));
        let mut daemons = self.daemons();
        let all: Vec<String> =
            daemons.running.keys().filter(|name| name.starts_with(&prefix)).cloned().collect();
        let pids: Vec<u32> = all.iter().filter_map(|name| daemons.running.remove(name)).collect();
        drop(daemons);
        self.cut(number);
        pids.iter().for_each(|pid| process::kill(*pid));
        wait_for("everything on the node to end", || {
            let left = self.processes_on(number);
            left.iter().for_each(|process| process::kill(process.pid));
            left.is_empty()
        });
    }

    /// What runs in pods of a node.
    pub fn processes_on(&self, number: usize) -> Vec<process::Process> {
        let mark = format!("/{}-n{number}/", self.network.name());
        process::living(|pid| {
            fs::read_to_string(format!("/proc/{pid}/cgroup")).is_ok_and(|groups| groups.contains(&mark))
        })
    }

    /// The last lines of every log, for a test that fails.
    pub fn diagnosis(&self) -> String {
        let entries = fs::read_dir(self.directory.join("log")).into_iter().flatten().flatten();
        let tail = |path: PathBuf| {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let lines: Vec<&str> = text.lines().collect();
            let last = lines[lines.len().saturating_sub(12)..].join("\n");
            format!("--- {}\n{last}\n", path.file_name().unwrap_or_default().to_string_lossy())
        };
        entries.map(|entry| tail(entry.path())).collect()
    }

    fn numbers(&self) -> impl Iterator<Item = usize> + use<> {
        1..=self.options.nodes
    }

    fn plane(&self) -> Plane<'_> {
        Plane {
            programs: &self.programs,
            directory: &self.directory,
            network: self.network,
            keys: &self.keys,
            options: &self.options,
        }
    }

    fn node(&self, number: usize) -> Node<'_> {
        Node {
            number,
            programs: &self.programs,
            stock: &self.stock,
            directory: &self.directory,
            network: self.network,
            keys: &self.keys,
            options: &self.options,
        }
    }

    /// What can be done before there is an API server: everything but the kubelet.
    fn prepare_node(&self, number: usize) {
        let node = self.node(number);
        node.furnish();
        let words = node.holder();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        let holder = format!("{}-holder", node::name(number));
        self.launch_bare(&holder, &words, &[]);
        let ready = node::directory(&self.directory, number).join("ready");
        self.wait("a node's namespaces", || ready.exists());
        self.network.plug(number, self.options.nodes, self.pid(&holder));
        let forward =
            ["--net", "-t", &self.pid(&holder).to_string(), "sysctl", "-qw", "net.ipv4.ip_forward=1"];
        output(Command::new("nsenter").env("PATH", PATH).args(forward));
        self.launch_on(number, "containerd", &node.containerd());
        let socket = node::socket(&self.directory, number);
        self.wait("containerd to answer", || {
            let asked = Command::new("ctr").args(["-a", &socket, "version"]).output();
            asked.is_ok_and(|done| done.status.success())
        });
    }

    fn import_to(&self, number: usize, archive: &Path) {
        let socket = node::socket(&self.directory, number);
        output(Command::new("ctr").args(["-a", &socket, "-n", "k8s.io", "images", "import"]).arg(archive));
    }

    fn registrations(&self, number: usize) -> usize {
        let log = self.directory.join(format!("log/{}-kubelet.log", node::name(number)));
        fs::read_to_string(log).unwrap_or_default().matches("Successfully registered node").count()
    }

    /// Waits until a kubelet has told of its node once more than before. It then says that there are no devices that it does not
    /// know; so they are told of again.
    fn wait_for_registration(&self, number: usize, before: usize) {
        self.wait("a kubelet to tell of its node", || self.registrations(number) > before);
        if self.options.gpus == 0 {
            return;
        }
        let gpus = json!({ "nvidia.com/gpu": self.options.gpus.to_string() });
        let patch = json!({ "status": { "capacity": gpus, "allocatable": gpus } }).to_string();
        let name = node::name(number);
        self.wait("a node to have devices", || {
            let words = ["patch", "node", &name, "--subresource=status", "--type=merge", "-p", &patch];
            self.try_kubectl(&words).status.success()
        });
    }

    fn is_ready(&self) -> bool {
        let address = (self.network.plane(), 6443).into();
        let timeout = std::time::Duration::from_millis(200);
        // A program that is started for nothing takes longer than a look.
        std::net::TcpStream::connect_timeout(&address, timeout).is_ok()
            && self.try_kubectl(&["get", "--raw", "/readyz"]).out() == "ok"
    }

    fn try_apply(&self, objects: &str) -> bool {
        use std::io::Write;
        let mut command = self.command();
        command.args(["apply", "--validate=false", "-f", "-"]).stdin(Stdio::piped());
        let mut process =
            command.stdout(Stdio::null()).stderr(Stdio::piped()).spawn().expect("kubectl starts");
        let mut input = process.stdin.take().expect("a pipe");
        // One that refuses at once does not read.
        let _ = input.write_all(objects.as_bytes());
        drop(input);
        let done = process.wait_with_output().expect("kubectl ends");
        let said = String::from_utf8_lossy(&done.stderr).into_owned();
        let _ = fs::write(self.directory.join("log/apply.log"), said);
        done.status.success()
    }

    fn launch_plane(&self, name: &str) {
        let plane = self.plane();
        let words = match name {
            "etcd" => plane.etcd(),
            "apiserver" => plane.apiserver(),
            "manager" => plane.manager(),
            "scheduler" => plane.scheduler(),
            "dns" => plane.dns(),
            _ => panic!("{name} is no part of the control plane"),
        };
        self.launch(name, self.pid("plane"), &["--net"], &words);
    }

    fn launch_on(&self, number: usize, what: &str, words: &[String]) {
        let node = node::name(number);
        let holder = self.pid(&format!("{node}-holder"));
        self.launch(&format!("{node}-{what}"), holder, &["--net", "--mount"], words);
    }

    /// Starts something in namespaces of a process.
    fn launch(&self, name: &str, pid: u32, namespaces: &[&str], words: &[String]) {
        let pid = pid.to_string();
        let before: Vec<&str> =
            ["nsenter"].iter().chain(namespaces).copied().chain(["-t", &pid, "--"]).collect();
        let words: Vec<&str> = words.iter().map(String::as_str).collect();
        self.launch_bare(name, &before, &words);
    }

    fn launch_bare(&self, name: &str, before: &[&str], words: &[&str]) {
        let log = self.directory.join(format!("log/{name}.log"));
        let words: Vec<&str> = before.iter().chain(words).copied().collect();
        let mut daemons = self.daemons();
        assert!(!daemons.running.contains_key(name), "{name} runs already");
        let pid = daemons.keeper.daemon(&log, &[("PATH", PATH)], &words);
        daemons.running.insert(name.to_owned(), pid);
    }

    fn pid(&self, name: &str) -> u32 {
        *self.daemons().running.get(name).unwrap_or_else(|| panic!("{name} does not run"))
    }

    fn end(&self, name: &str) {
        let pid = self.daemons().running.remove(name).unwrap_or_else(|| panic!("{name} does not run"));
        process::kill(pid);
        wait_for("a killed daemon to be gone", || !process::is_alive(pid));
    }

    /// Waits, unless a daemon has ended meanwhile.
    fn wait(&self, what: &str, mut condition: impl FnMut() -> bool) {
        wait_for_some(what, || {
            if condition() {
                return Some(());
            }
            let daemons = self.daemons();
            let dead = daemons.running.iter().find(|(_, pid)| !process::is_alive(**pid));
            let dead = dead.map(|(name, _)| name.clone());
            drop(daemons);
            assert!(dead.is_none(), "{dead:?} of a Kubernetes ended\n{}", self.diagnosis());
            None
        });
    }

    fn daemons(&self) -> MutexGuard<'_, Daemons> {
        // A test that failed while it held this is about to remove the cluster.
        self.daemons.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Kube {
    fn drop(&mut self) {
        if std::thread::panicking() {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "{}", self.diagnosis());
        }
    }
}

/// What `scripts/kube.sh` says, which makes what is missing.
fn script(words: &[&str]) -> String {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../scripts/kube.sh");
    output(Command::new(path).args(words)).trim().to_owned()
}
