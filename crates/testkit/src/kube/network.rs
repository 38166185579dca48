//! The network of a cluster: a bridge in the test's own namespace, with the test on it, the control plane and each node. Pods
//! have subnets of their nodes, which are routed both ways, so that a server that a test runs is reached from pods and reaches them.

use std::fs;
use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use crate::keeper::Keeper;

/// How many there can be, each with a sixteenth of a /16: 10.234.0.0/20 to 10.249.240.0/20.
const COUNT: u16 = 256;
const FIRST: u8 = 234;

/// How many nodes a network has room for.
pub(super) const MOST_NODES: usize = 8;

/// A network that nobody else has.
#[derive(Clone, Copy)]
pub(super) struct Network {
    number: u16,
}

impl Network {
    /// Takes one, which the keeper holds until everything has ended. What killed tests left behind is removed.
    pub(super) fn take(keeper: &mut Keeper) -> Self {
        let taken = output(Command::new("ip").args(["-4", "route", "show", "table", "all"]));
        let network = (0..COUNT)
            // Those that start at the same time begin to look at different places.
            .map(|step| Self { number: (std::process::id() as u16 % 31 * 7 + step) % COUNT })
            .find(|network| {
                let is_held = taken.contains(&format!("{}/24", network.at(0, 0))) && !network.is_ours();
                !is_held && keeper.lock(&network.name())
            });
        let network = network.expect("one of many networks is free");
        network.clear();
        network
    }

    /// What everything of this cluster is called, on this machine.
    pub(super) fn name(self) -> String {
        format!("muster-kube-{}", self.number)
    }

    /// Where its files are.
    pub(super) fn directory(self) -> PathBuf {
        std::env::temp_dir().join(self.name())
    }

    fn at(self, third: u8, last: u8) -> Ipv4Addr {
        let [high, low] = (self.number * 16).to_be_bytes();
        Ipv4Addr::new(10, FIRST + high, low + third, last)
    }

    /// The test's own address, where nodes and pods reach it.
    pub(super) fn launcher(self) -> Ipv4Addr {
        self.at(0, 1)
    }

    /// The control plane's.
    pub(super) fn plane(self) -> Ipv4Addr {
        self.at(0, 2)
    }

    /// A node's, from 1.
    pub(super) fn node(self, number: usize) -> Ipv4Addr {
        self.at(0, 10 + small(number))
    }

    /// The addresses of Services, the first of which is the API server's.
    pub(super) fn services(self) -> String {
        format!("{}/24", self.at(4, 0))
    }

    /// The API server as pods know it.
    pub(super) fn api(self) -> Ipv4Addr {
        self.at(4, 1)
    }

    /// Whom pods ask for names.
    pub(super) fn dns(self) -> Ipv4Addr {
        self.at(4, 10)
    }

    /// All pods.
    pub(super) fn pods(self) -> String {
        format!("{}/21", self.at(8, 0))
    }

    /// The pods of a node, from 1.
    pub(super) fn pods_of(self, node: usize) -> String {
        format!("{}/24", self.at(7 + small(node), 0))
    }

    fn bridge(self) -> String {
        format!("mk{}", self.number)
    }

    /// What this network has of the machine's. A cable goes with the namespace that it leads to, which takes a moment.
    pub(super) fn links(self, nodes: usize) -> Vec<String> {
        (0..=nodes).map(|cable| self.port(cable)).chain([self.bridge()]).collect()
    }

    /// The bridge's end of a cable: 0 is the control plane's.
    fn port(self, cable: usize) -> String {
        format!("mk{}-{cable}", self.number)
    }

    /// Makes the bridge, with the test on it.
    pub(super) fn lay(self) {
        let (bridge, address) = (self.bridge(), format!("{}/24", self.launcher()));
        batch(
            None,
            &[
                format!("link add {bridge} type bridge stp_state 0"),
                format!("addr add {address} dev {bridge}"),
                format!("link set {bridge} up"),
            ],
        );
    }

    /// Lays a cable into the network namespace of a process: 0 is the control plane.
    pub(super) fn plug(self, cable: usize, nodes: usize, pid: u32) {
        let (port, bridge) = (self.port(cable), self.bridge());
        let address = if cable == 0 { self.plane() } else { self.node(cable) };
        let mut outside = vec![
            format!("link add {port} type veth peer name eth0 netns {pid}"),
            format!("link set {port} master {bridge} up"),
        ];
        let mut inside = vec![
            "link set lo up".to_owned(),
            format!("addr add {address}/24 dev eth0"),
            "link set eth0 up".to_owned(),
            // Where packets to a Service seem to go, until they are sent to one of its pods.
            format!("route add {} dev eth0", self.services()),
        ];
        let others = (1..=nodes).filter(|node| *node != cable);
        inside.extend(
            others.map(|node| format!("route add {} via {} dev eth0", self.pods_of(node), self.node(node))),
        );
        if cable > 0 {
            outside.push(format!("route add {} via {} dev {bridge} onlink", self.pods_of(cable), address));
        }
        if cable == 1 {
            outside.push(format!("route add {} via {} dev {bridge} onlink", self.services(), address));
        }
        batch(None, &outside);
        batch(Some(pid), &inside);
    }

    /// Whether anything goes through a cable. As with a switch that fails, neither end sees that it is dead.
    pub(super) fn set_open(self, cable: usize, open: bool) {
        let state = if open { "3" } else { "0" };
        output(Command::new("bridge").args(["link", "set", "dev", &self.port(cable), "state", state]));
    }

    fn is_ours(self) -> bool {
        Path::new("/sys/class/net").join(self.bridge()).exists()
    }

    /// The control groups that a node's pods are in, one for each hierarchy.
    pub(super) fn groups(self, node: usize) -> Vec<PathBuf> {
        let name = format!("{}-n{node}", self.name());
        hierarchies().into_iter().map(|path| path.join(&name)).collect()
    }

    /// Removes what somebody left here who could not do it himself.
    fn clear(self) {
        if self.is_ours() {
            output(Command::new("ip").args(["link", "del", &self.bridge()]));
        }
        for group in (1..=MOST_NODES).flat_map(|node| self.groups(node)) {
            remove_groups(&group);
        }
        let _ = fs::remove_dir_all(self.directory());
    }
}

fn small(number: usize) -> u8 {
    u8::try_from(number).ok().filter(|it| usize::from(*it) <= MOST_NODES).expect("a cluster has few nodes")
}

/// Where each hierarchy of control groups is mounted.
fn hierarchies() -> Vec<PathBuf> {
    let mounts = fs::read_to_string("/proc/mounts").unwrap_or_default();
    let fields = mounts.lines().map(|line| line.split(' ').collect::<Vec<_>>());
    fields
        .filter(|fields| fields.get(2).is_some_and(|kind| *kind == "cgroup" || *kind == "cgroup2"))
        .map(|fields| PathBuf::from(fields[1]))
        .collect()
}

/// Removes a group and those below it. What is in them is not ended.
fn remove_groups(group: &Path) {
    let entries = fs::read_dir(group).into_iter().flatten().flatten();
    for entry in entries.filter(|entry| entry.file_type().is_ok_and(|kind| kind.is_dir())) {
        remove_groups(&entry.path());
    }
    let _ = fs::remove_dir(group);
}

/// Lines for `ip`, in the namespace of a process or here.
fn batch(pid: Option<u32>, lines: &[String]) {
    use std::io::Write;
    let mut command = match pid {
        Some(pid) => {
            let mut command = Command::new("nsenter");
            command.args(["--net", "-t", &pid.to_string(), "ip"]);
            command
        }
        None => Command::new("ip"),
    };
    command.args(["-batch", "-"]).stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut process = command.spawn().expect("ip, of Debian's package iproute2, starts");
    let mut input = process.stdin.take().expect("a pipe");
    input.write_all(lines.join("\n").as_bytes()).expect("ip reads");
    drop(input);
    let done = process.wait_with_output().expect("ip ends");
    assert!(done.status.success(), "ip: {}\n{}", String::from_utf8_lossy(&done.stderr), lines.join("\n"));
}

/// What a command printed that must succeed.
pub(super) fn output(command: &mut Command) -> String {
    let done = command.stdin(Stdio::null()).output();
    let done = done.unwrap_or_else(|error| panic!("{command:?} does not start: {error}"));
    assert!(
        done.status.success(),
        "{command:?} ended with {}\n{}{}",
        done.status,
        String::from_utf8_lossy(&done.stdout),
        String::from_utf8_lossy(&done.stderr)
    );
    String::from_utf8_lossy(&done.stdout).into_owned()
}
