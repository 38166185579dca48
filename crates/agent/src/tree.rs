//! A task's whole process tree: where it is held, how all of it is ended, and what the kernel counted against it.
//!
//! Three ways lead to the same end, and a tree says which one it takes: cgroup v2 with `cgroup.kill`; a cgroup v1
//! freezer, frozen, killed and thawed; and a walk through `/proc`, for everyone whom the machine gives no cgroup. Agent
//! and supervisor both may end a tree, the agent when the supervisor is dead.
//!
//! A kill must never reach a process of anyone else: a process number is believed only together with what makes it ours.

mod cgroup;
mod cgroup1;
mod cgroup2;
mod device_limit;
mod device_program;
mod measure;
mod memory;
mod process;
mod walk;

pub use device_limit::{DeviceLimit, DeviceNumber};
pub(crate) use measure::{Measured, Processes};
pub use memory::Memory;
pub use process::{Process, boot_id, is_same_boot, kernel_boot};

use std::collections::HashSet;
use std::fs::File;
use std::io;
use std::os::fd::OwnedFd;
use std::path::PathBuf;
use std::str::FromStr;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde::{Deserialize, Serialize};

use process::Stat;

/// How long a kill waits for what it killed. Longer than any exit takes that is going to happen; a process that hangs
/// in a driver or a dead file server is left and reported.
const PATIENCE: Duration = Duration::from_secs(10);

/// Which way to use. All but `Auto` are for tests and for operators who know their machines.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Preference {
    /// The first that works here.
    #[default]
    Auto,
    Cgroup2,
    Cgroup1,
    Walk,
}

#[derive(Debug, thiserror::Error)]
#[error("`{0}` is not a way to end a task; write auto, cgroup2, cgroup1 or walk")]
pub struct UnknownPreference(String);

impl FromStr for Preference {
    type Err = UnknownPreference;

    fn from_str(text: &str) -> Result<Preference, UnknownPreference> {
        match text {
            "auto" => Ok(Preference::Auto),
            "cgroup2" => Ok(Preference::Cgroup2),
            "cgroup1" => Ok(Preference::Cgroup1),
            "walk" => Ok(Preference::Walk),
            _ => Err(UnknownPreference(text.to_owned())),
        }
    }
}

/// A way that was asked for by name cannot be had here.
#[derive(Debug, thiserror::Error)]
#[error("{way} cannot be used here")]
pub struct Unavailable {
    way: &'static str,
    #[source]
    source: io::Error,
}

/// How a tree is ended.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kill {
    Cgroup2 { path: PathBuf },
    Cgroup1 { path: PathBuf },
    Walk,
}

/// Where a walk begins.
#[derive(Clone, Copy, Debug)]
pub enum Root {
    /// With the calling process's children: it is the supervisor, to which orphans of the tree fall.
    Children,
    /// The supervisor is dead, and its orphans have fallen to someone else. The task's own process, if it was known.
    Orphans(Option<Process>),
}

/// What became of a kill.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Killed {
    /// Processes that would not die in time: they hang in the kernel.
    pub survivors: Vec<i32>,
}

/// End all that the calling process has started, to which their orphans fall, and wait until it is gone. The caller reaps.
pub(crate) fn kill_descendants() -> Killed {
    // A task without a name is nobody's, so only descent counts.
    walk::kill("", Root::Children, Instant::now() + PATIENCE)
}

/// The children of the calling process.
pub(crate) fn children() -> Vec<Process> {
    walk::children(Root::Children).into_iter().map(|stat| stat.process).collect()
}

/// End all that the calling process has started, but for these children and what they have started. The caller reaps.
pub(crate) fn kill_descendants_but(kept: &[Process]) -> Killed {
    walk::kill_but(kept, Instant::now() + PATIENCE)
}

/// A task's process tree.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Tree {
    task: String,
    kill: Kill,
    memory: Option<Memory>,
    /// Absent in what older agents have written down.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    devices: Option<DeviceLimit>,
}

impl Tree {
    /// Make a place for a task's processes. The task's environment must have `MUSTER_TASK_ID` set to `task`, which
    /// must be unique among all that run on this machine. Not being allowed a cgroup is not an error, unless that way
    /// was asked for by name. A memory limit holds only where there is a memory cgroup: see `limits_memory`.
    pub fn prepare(
        task: &str,
        preference: Preference,
        memory_bytes: Option<u64>,
    ) -> Result<Tree, Unavailable> {
        let cgroup2 = || cgroup2::prepare(task).map(|path| Kill::Cgroup2 { path });
        let cgroup1 = || cgroup1::prepare(task).map(|path| Kill::Cgroup1 { path });
        let kill = match preference {
            Preference::Auto => cgroup2().or_else(|_| cgroup1()).unwrap_or(Kill::Walk),
            Preference::Cgroup2 => cgroup2().map_err(|source| Unavailable { way: "cgroup v2", source })?,
            Preference::Cgroup1 => {
                cgroup1().map_err(|source| Unavailable { way: "the cgroup v1 freezer", source })?
            }
            Preference::Walk => Kill::Walk,
        };
        let memory = Memory::prepare(task, &kill, memory_bytes);
        Ok(Tree { task: task.to_owned(), kill, memory, devices: None })
    }

    /// The same where somebody else limits the memory of us all.
    pub fn prepare_within(task: &str, preference: Preference) -> Result<Tree, Unavailable> {
        let tree = Tree::prepare(task, preference, None)?;
        Ok(Tree { memory: tree.memory.or_else(Memory::around), ..tree })
    }

    /// The same, denied these devices. They are denied only where there is a device cgroup: see `limits_devices`.
    #[must_use]
    pub fn without_devices(mut self, denied: &[DeviceNumber]) -> Tree {
        self.devices = DeviceLimit::prepare(&self.task, &self.kill, denied);
        self
    }

    /// Whether devices can be denied to tasks here: tried with a tree without processes.
    pub(crate) fn can_limit_devices(preference: Preference) -> bool {
        let name = format!("device-limit-{}", std::process::id());
        let Ok(tree) = Tree::prepare(&name, preference, None) else { return false };
        let tree = tree.without_devices(&[DeviceNumber::UNUSED]);
        tree.remove();
        tree.limits_devices()
    }

    pub fn limits_devices(&self) -> bool {
        self.devices.is_some()
    }

    /// Which way this tree is ended.
    pub fn way(&self) -> &Kill {
        &self.kill
    }

    pub fn limits_memory(&self) -> bool {
        self.memory.is_some()
    }

    /// How often the kernel killed one of its processes for memory; none if nothing counts.
    pub fn oom_kills(&self) -> Option<u64> {
        self.memory.as_ref()?.oom_kills()
    }

    /// The cgroup that a process can be born into. Moving a process after its birth makes older kernels wait for
    /// every CPU, tens of milliseconds long; being born there does not.
    pub(crate) fn birthplace(&self) -> io::Result<Option<OwnedFd>> {
        match &self.kill {
            Kill::Cgroup2 { path } => File::open(path).map(|directory| Some(directory.into())),
            Kill::Cgroup1 { .. } | Kill::Walk => Ok(None),
        }
    }

    /// The `cgroup.procs` files to which a new process of this tree must write `0`. With `born`, it already is where
    /// `birthplace` says.
    pub(crate) fn doors(&self, born: bool) -> io::Result<Vec<OwnedFd>> {
        let held = match &self.kill {
            Kill::Cgroup2 { path } if !born => Some(path),
            Kill::Cgroup1 { path } => Some(path),
            Kill::Cgroup2 { .. } | Kill::Walk => None,
        };
        held.into_iter().chain(self.limits()).map(|path| cgroup::open_procs(path)).collect()
    }

    /// Ask every process to end: `SIGTERM` to the main process group at once, so that none of it is forked away from
    /// under us, and to everything outside of it one by one. `SIGCONT` follows, since a stopped process hears nothing.
    pub fn terminate(&self, signal: muster_model::signal::Signal, group: Option<Pid>, root: Root) {
        let signal = Signal::from_named_raw(signal.number()).unwrap_or(Signal::TERM);
        if let Some(group) = group {
            // A group that is gone is as good as told.
            let _ = kill_process_group(group, signal).and_then(|()| kill_process_group(group, Signal::CONT));
        }
        for stat in self.members(root) {
            if group.is_none_or(|group| stat.group != group.as_raw_nonzero().get())
                && let Some(pid) = stat.process.pid()
            {
                let _ = kill_process(pid, signal).and_then(|()| kill_process(pid, Signal::CONT));
            }
        }
    }

    /// Stop every process where it is, so that none writes any more. They are to be killed next; until then nothing lets them go
    /// on, also if that takes another agent.
    pub(crate) fn stop(&self, root: Root) {
        let deadline = Instant::now() + PATIENCE;
        let mut stopped = HashSet::new();
        // One that was not stopped yet may have started others.
        while Instant::now() < deadline {
            let all = self.members(root).into_iter().filter_map(|stat| stat.process.pid());
            let new: Vec<Pid> = all.filter(|pid| stopped.insert(*pid)).collect();
            if new.is_empty() {
                return;
            }
            for pid in new {
                // One that is gone writes no more.
                let _ = kill_process(pid, Signal::STOP);
            }
        }
    }

    /// End every process, and wait until it is gone. The caller reaps those that are its children.
    pub fn kill(&self, root: Root) -> Killed {
        let deadline = Instant::now() + PATIENCE;
        let done = match &self.kill {
            Kill::Cgroup2 { path } => cgroup2::kill(path, deadline),
            Kill::Cgroup1 { path } => cgroup1::kill(path, deadline),
            Kill::Walk => return walk::kill(&self.task, root, deadline),
        };
        match done {
            Ok(killed) => killed,
            // The cgroup went away or was taken from us: the processes, if any, can still be found.
            Err(_) => walk::kill(&self.task, root, deadline),
        }
    }

    /// End what has left the cgroup but not the tree.
    pub(crate) fn kill_strays(&self, root: Root) -> Killed {
        walk::kill(&self.task, root, Instant::now() + PATIENCE)
    }

    /// Give back the cgroups. To be called when the tree is ended; again does no harm.
    pub fn remove(&self) {
        let held = match &self.kill {
            Kill::Cgroup2 { path } | Kill::Cgroup1 { path } => Some(path),
            Kill::Walk => None,
        };
        for path in held.into_iter().chain(self.limits()) {
            cgroup::remove(path);
        }
    }

    /// Cgroups that only limit: version 1 has one for each controller.
    fn limits(&self) -> impl Iterator<Item = &PathBuf> {
        let memory = self.memory.as_ref().and_then(Memory::own_path);
        memory.into_iter().chain(self.devices.as_ref().and_then(DeviceLimit::own_path))
    }

    /// Every process of the tree, also those that have left its cgroup.
    pub(crate) fn processes(&self, root: Root) -> Vec<Process> {
        let mut found = self.members(root);
        if !matches!(self.kill, Kill::Walk) {
            found.extend(walk::members(&self.task, root));
        }
        found.into_iter().map(|stat| stat.process).collect()
    }

    fn members(&self, root: Root) -> Vec<Stat> {
        let pids = match &self.kill {
            Kill::Cgroup2 { path } | Kill::Cgroup1 { path } => cgroup::members(path),
            Kill::Walk => return walk::members(&self.task, root),
        };
        pids.unwrap_or_default().into_iter().filter_map(Stat::of).collect()
    }
}
