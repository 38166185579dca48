//! What a cluster's configuration says, and the ports that it is made for.

use std::fmt::Write as _;
use std::net::{Ipv4Addr, TcpListener};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::Path;

use super::{CPUS, DEVICES, MEMORY_MB, NODES, Shape, accounting, cgroup};

/// Below the ports that the kernel gives to whoever asks for any.
const FIRST_PORT: u16 = 17_000;
const BLOCK: u16 = 8;
const BLOCKS: u16 = 1_500;

/// Ports that no other cluster of a test has: the controller's, then one for each node, and the accounting's.
pub(super) struct Ports {
    first: u16,
    /// Bound and never listened to. The kernel lets go of it with the process.
    _lock: UnixListener,
}

impl Ports {
    pub(super) fn take() -> Self {
        let begin = std::process::id() as u16 % BLOCKS;
        let blocks = (0..BLOCKS).map(|step| (begin + step) % BLOCKS);
        let taken = blocks.map(|block| FIRST_PORT + block * BLOCK).find_map(|first| {
            let name = SocketAddr::from_abstract_name(format!("muster-slurm-{first}")).expect("a short name");
            let lock = UnixListener::bind_addr(&name).ok()?;
            let is_free = |port: u16| TcpListener::bind((Ipv4Addr::UNSPECIFIED, port)).is_ok();
            (first..first + BLOCK).all(is_free).then_some(Self { first, _lock: lock })
        });
        taken.expect("some ports of this machine are free")
    }

    fn controller(&self) -> u16 {
        self.first
    }

    fn node(&self, number: usize) -> u16 {
        self.first + u16::try_from(number).expect("a small number")
    }

    pub(super) fn accounting(&self) -> u16 {
        self.node(NODES + 1)
    }
}

/// What `slurm.conf` says unless a test wants something else. The scheduler looks at once and at every change, which a site
/// with thousands of users would not want.
const USUAL: [(&str, &str); 24] = [
    ("ClusterName", "test"),
    ("SlurmUser", "root"),
    ("SlurmdUser", "root"),
    ("AuthType", "auth/munge"),
    ("CredType", "cred/munge"),
    ("ProctrackType", "proctrack/linuxproc"),
    ("TaskPlugin", "task/none"),
    ("MpiDefault", "none"),
    ("SwitchType", "switch/none"),
    ("JobAcctGatherType", "jobacct_gather/none"),
    ("AccountingStorageType", "accounting_storage/none"),
    ("JobCompType", "jobcomp/filetxt"),
    ("SelectType", "select/cons_tres"),
    ("SelectTypeParameters", "CR_Core_Memory"),
    ("SchedulerParameters", "batch_sched_delay=0,sched_interval=1,sched_min_interval=1000,bf_interval=1"),
    ("SlurmdParameters", "config_overrides"),
    // A node that was away is used again as soon as it is back.
    ("ReturnToService", "2"),
    ("GresTypes", "gpu"),
    ("DefMemPerCPU", "500"),
    ("KillWait", "5"),
    ("MinJobAge", "300"),
    // The default, by which a busy machine does not lose a node.
    ("SlurmdTimeout", "300"),
    ("PreemptType", "preempt/partition_prio"),
    ("PreemptMode", "REQUEUE"),
];

/// The usual settings, with others in their place or after them.
fn with(settings: &[(&str, &str)]) -> String {
    let usual = USUAL.iter().filter(|(name, _)| settings.iter().all(|(own, _)| own != name));
    usual.chain(settings).fold(String::new(), |text, (name, value)| text + name + "=" + value + "\n")
}

/// `cgroup.conf`. Nothing here uses cgroups, and yet a node wants to find out which it has where it is not told.
pub(super) const CGROUPS: &str = "CgroupPlugin=cgroup/v1\n";

/// Writes what the daemons of a cluster on this machine alone read.
pub(super) fn write(directory: &Path, ports: &Ports, shape: &Shape) {
    let host = rustix::system::uname().nodename().to_string_lossy().into_owned();
    let host = host.split('.').next().expect("a first part");
    let accounting = if shape.has_accounting { accounting::settings(directory, ports) } else { Vec::new() };
    let limits: &[(&str, &str)] = if shape.limits_memory { &cgroup::SETTINGS } else { &[] };
    let mut settings = shape.settings.to_vec();
    settings.extend(limits);
    settings.extend(accounting.iter().map(|(name, value)| (*name, value.as_str())));
    super::write(&directory.join("slurm.conf"), &slurm(directory, host, ports, &settings));
    super::write(&directory.join("gres.conf"), &devices(directory));
    let cgroups = if shape.limits_memory { cgroup::LIMITED } else { CGROUPS };
    super::write(&directory.join("cgroup.conf"), cgroups);
}

/// `slurm.conf` of a cluster on this machine alone.
fn slurm(directory: &Path, host: &str, ports: &Ports, settings: &[(&str, &str)]) -> String {
    let at = directory.display();
    let mut text = with(settings);
    let _ = write!(
        text,
        "SlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={}\nAuthInfo=socket={at}/munge.sock\n\
         StateSaveLocation={at}/state\nSlurmctldPidFile={at}/slurmctld.pid\nSlurmctldLogFile={at}/slurmctld.log\n\
         SlurmdSpoolDir={at}/spool/%n\nSlurmdPidFile={at}/slurmd.%n.pid\nSlurmdLogFile={at}/slurmd.%n.log\n\
         JobCompLoc={at}/ended\n",
        ports.controller()
    );
    for number in 1..=NODES {
        let _ = writeln!(
            text,
            "NodeName=n{number} NodeHostname={host} NodeAddr=127.0.0.1 Port={} CPUs={CPUS} RealMemory={MEMORY_MB} \
             Gres=gpu:{}:{DEVICES}",
            ports.node(number),
            device_type(number)
        );
    }
    text + "PartitionName=main Nodes=n[1-4] Default=YES MaxTime=INFINITE PriorityTier=10 PreemptMode=off\n\
         PartitionName=gpu Nodes=n[1-2] MaxTime=2:00:00 DefaultTime=30 PriorityTier=10 PreemptMode=off\n\
         PartitionName=low Nodes=n[1-4] MaxTime=INFINITE PriorityTier=1 PreemptMode=REQUEUE GraceTime=2\n"
}

/// `slurm.conf` of a cluster of hosts: the first is the login node and has the controller, the others compute.
pub(super) fn site(count: usize, settings: &[(&str, &str)]) -> String {
    let last = count - 1;
    with(settings)
        + &format!(
            "SlurmctldHost=host0\nStateSaveLocation=/var/lib/slurm-state\nSlurmctldPidFile=/run/slurmctld.pid\n\
             SlurmctldLogFile=/var/log/slurmctld.log\nSlurmdSpoolDir=/var/lib/slurm-spool\nSlurmdPidFile=/run/slurmd.pid\n\
             SlurmdLogFile=/var/log/slurmd.log\nJobCompLoc=/var/log/slurm-ended\n\
             NodeName=host[1-{last}] CPUs={CPUS} RealMemory={MEMORY_MB} Gres=gpu:h100:{DEVICES}\n\
             PartitionName=main Nodes=host[1-{last}] Default=YES MaxTime=INFINITE PriorityTier=10 PreemptMode=off\n"
        )
}

/// `gres.conf` of the same.
pub(super) fn site_devices(count: usize) -> String {
    format!("NodeName=host[1-{}] Name=gpu Type=h100 File=/dev/gpu[0-{}]\n", count - 1, DEVICES - 1)
}

/// `gres.conf`. Slurm wants a file for each device and does not look into it.
fn devices(directory: &Path) -> String {
    let line = |number: usize| {
        let (kind, last) = (device_type(number), DEVICES - 1);
        format!("NodeName=n{number} Name=gpu Type={kind} File={}/gpu[0-{last}]\n", directory.display())
    };
    (1..=NODES).map(line).collect()
}

fn device_type(number: usize) -> &'static str {
    if number <= 2 { "h100" } else { "a100" }
}
