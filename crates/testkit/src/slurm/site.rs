//! A Slurm across hosts of a test's own, as an institute has it: a login node that people reach by ssh and that has the
//! controller, compute nodes behind it, and homes that all of them share.
//!
//! The test is somebody's laptop: it reaches the login node's sshd, and neither do compute nodes reach the laptop nor it them.

use std::fs;
use std::process::Command;

use super::configuration;
use crate::wait::wait_for;
use crate::{Account, Host, Hosts};

/// A cluster of hosts. Dropping it ends and removes everything.
///
/// One partition, `main`; nodes are `host1` and so on, each with 8 CPUs, 4000 MB and 8 GPUs (H100). Jobs are the account `train`'s.
pub struct SlurmSite {
    hosts: Hosts,
}

impl SlurmSite {
    /// Starts a login node and this many that compute, and waits until they are idle.
    pub fn start(nodes: usize) -> Self {
        Self::start_with(nodes, &[])
    }

    /// The same with settings of `slurm.conf` that are not the usual ones.
    pub fn start_with(nodes: usize, settings: &[(&str, &str)]) -> Self {
        let site = Self { hosts: Hosts::start(nodes + 1) };
        let shared = site.hosts.shared();
        super::make_key(&shared.join("munge.key"));
        super::write(&shared.join("slurm.conf"), &configuration::site(nodes + 1, settings));
        super::write(&shared.join("gres.conf"), &configuration::site_devices(nodes + 1));
        super::write(&shared.join("cgroup.conf"), configuration::CGROUPS);
        // The home that the login node's account has, its keys included, becomes everybody's.
        site.login().run("mkdir /shared/home && cp -a /home/train /shared/home/");
        site.hosts.all().iter().for_each(|host| host.run(FURNISH).clear());
        site.start_controller();
        (1..=nodes).for_each(|number| site.start_node(number));
        wait_for("all nodes to be idle", || {
            let states = site.login().try_run("sinfo -h -N -o %T").out();
            states.lines().filter(|state| state.trim() == "idle").count() == nodes
        });
        site
    }

    /// The login node.
    pub fn login(&self) -> &Host {
        self.hosts.host(0)
    }

    /// One that computes, from 1.
    pub fn node(&self, number: usize) -> &Host {
        assert!(number > 0, "the first host is the login node");
        self.hosts.host(number)
    }

    /// The hosts, for what they can do besides.
    pub fn hosts(&self) -> &Hosts {
        &self.hosts
    }

    /// Where the laptop sees the account's home. A user would not.
    pub fn home(&self) -> std::path::PathBuf {
        self.hosts.shared().join("home/train")
    }

    /// What somebody types on the login node.
    pub fn login_command(&self) -> Command {
        self.login().ssh_command(Account::Ordinary)
    }

    /// Starts the controller, also after a `pkill`.
    pub fn start_controller(&self) {
        self.login().run("slurmctld");
    }

    /// Starts what computes on a node, also after a reboot.
    pub fn start_node(&self, number: usize) {
        let (host, laptop) = (self.node(number), self.hosts.launcher());
        host.run(FURNISH);
        // An answer to the laptop has no way either, so this is closed in both directions.
        host.run(&format!("ip route replace unreachable {laptop}/32 && slurmd"));
    }

    /// What the daemons logged, for a test that fails.
    pub fn diagnosis(&self) -> String {
        let log = |host: &Host| host.try_run("tail -n 15 /var/log/slurm*.log 2>/dev/null").out();
        self.hosts
            .all()
            .iter()
            .filter(|host| host.is_on())
            .map(|host| format!("--- {}\n{}", host.name(), log(host)))
            .collect()
    }
}

impl Drop for SlurmSite {
    fn drop(&mut self) {
        if std::thread::panicking() {
            use std::io::Write;
            let _ = writeln!(std::io::stderr(), "{}", self.diagnosis());
        }
        let _ = fs::remove_dir_all(self.hosts.shared().join("home"));
    }
}

/// Makes a host one of the site, once for each time that it is started: homes, configuration, devices, munge.
const FURNISH: &str = "set -e; test -e /run/furnished && exit 0
mount --bind /shared/home /home
mkdir -p /etc/munge /run/munge /var/lib/slurm-state /var/lib/slurm-spool
ln -sf /shared/slurm.conf /shared/gres.conf /shared/cgroup.conf /etc/slurm/
install -m 600 -o root -g root /shared/munge.key /etc/munge/test.key
for number in 0 1 2 3 4 5 6 7; do mknod -m 666 /dev/gpu$number c 1 3; done
munged --force --key-file=/etc/munge/test.key --pid-file=/run/munge/pid --log-file=/var/log/munge.log --seed-file=/run/munge/seed
touch /run/furnished
";
