//! Control groups in which a cluster holds its jobs to their memory.
//!
//! Slurm names them after the node (`slurm_n1`) and jobs within them by their number, so two clusters would take each other's for
//! their own: whoever uses them has a lock, and removes them.

use std::fs;
use std::os::linux::net::SocketAddrExt;
use std::os::unix::net::{SocketAddr, UnixListener};
use std::path::{Path, PathBuf};
use std::time::Duration;

use super::NODES;
use crate::wait::wait;

/// What `slurm.conf` says for it.
pub(super) const SETTINGS: [(&str, &str); 2] =
    [("TaskPlugin", "task/cgroup"), ("ProctrackType", "proctrack/cgroup")];
/// What `cgroup.conf` says. Version 1, where every controller has a hierarchy of its own.
pub(super) const LIMITED: &str = "CgroupPlugin=cgroup/v1\nConstrainRAMSpace=yes\n";
/// The hierarchies that Slurm makes groups in.
const HIERARCHIES: [&str; 2] = ["memory", "freezer"];
/// Several tests may be before this one.
const TURN: Duration = Duration::from_secs(600);
const MOUNTS: &str = "/sys/fs/cgroup";

/// The groups of a cluster, from before its first daemon to after its last.
pub(super) struct Groups {
    /// Bound and never listened to. The kernel lets go of it with the process.
    _lock: UnixListener,
}

impl Groups {
    /// Waits until nobody else has them, and removes what a test has left that was killed.
    pub(super) fn take() -> Self {
        for hierarchy in HIERARCHIES {
            let is_there = Path::new(MOUNTS).join(hierarchy).join("cgroup.procs").exists();
            assert!(is_there, "there is no {hierarchy} hierarchy of cgroups, version 1, in {MOUNTS}");
        }
        let name = SocketAddr::from_abstract_name("muster-slurm-groups").expect("a short name");
        let lock =
            wait(TURN, "another cluster with control groups to end", || UnixListener::bind_addr(&name).ok());
        let groups = Self { _lock: lock };
        groups.remove();
        groups
    }

    fn remove(&self) {
        let name = |number: usize| format!("slurm_n{number}");
        for hierarchy in HIERARCHIES {
            (1..=NODES).for_each(|number| remove(&Path::new(MOUNTS).join(hierarchy).join(name(number))));
        }
    }
}

impl Drop for Groups {
    fn drop(&mut self) {
        self.remove();
    }
}

/// Removes a group with those below it.
fn remove(group: &Path) {
    let below: Vec<PathBuf> = fs::read_dir(group)
        .into_iter()
        .flatten()
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| path.is_dir())
        .collect();
    below.iter().for_each(|path| remove(path));
    crate::cgroup::end(group);
}
