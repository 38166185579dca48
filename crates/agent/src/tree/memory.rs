//! What the kernel limits and counts of a task's memory. That a task ran out of memory is claimed from here or not at all.

use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

use super::Kill;
use super::cgroup::{self, Hierarchy};

/// Where a task's memory is counted.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Memory {
    /// In the cgroup that also holds its processes.
    Cgroup2 { path: PathBuf },
    /// In a cgroup of its own: version 1 has a hierarchy for each controller.
    Cgroup1 { path: PathBuf },
    /// In the cgroup that somebody else has put us into, and limits. It counted so many kills before.
    Around { path: PathBuf, file: String, before: u64 },
}

impl Memory {
    /// Version 2 costs nothing more, so it is used whenever it is there. Version 1 needs the process to be moved once
    /// more at its start, so it is used only for a limit.
    pub(super) fn prepare(task: &str, kill: &Kill, limit: Option<u64>) -> Option<Memory> {
        match kill {
            Kill::Walk => None,
            Kill::Cgroup2 { path } if path.join("memory.events").exists() => {
                if let Some(limit) = limit {
                    cgroup::write(path, "memory.max", &limit.to_string()).ok()?;
                    // A limit that swap can stretch is none. Absent where the kernel does not count swap.
                    let _ = cgroup::write(path, "memory.swap.max", "0");
                }
                Some(Memory::Cgroup2 { path: path.clone() })
            }
            Kill::Cgroup2 { .. } | Kill::Cgroup1 { .. } => {
                let limit = limit?.to_string();
                let path = Hierarchy::Controller("memory").prepare(task).ok()?;
                if cgroup::write(&path, "memory.limit_in_bytes", &limit).is_err() {
                    cgroup::remove(&path);
                    return None;
                }
                let _ = cgroup::write(&path, "memory.memsw.limit_in_bytes", &limit);
                Some(Memory::Cgroup1 { path })
            }
        }
    }

    /// The cgroup that this process is in, where the limit is not ours to set.
    pub(super) fn around() -> Option<Memory> {
        let found =
            [(Hierarchy::Unified, "memory.events"), (Hierarchy::Controller("memory"), "memory.oom_control")];
        found.iter().find_map(|(hierarchy, file)| {
            let path = hierarchy.own().ok()?;
            // What is in no cgroup of its own is limited by the machine alone, and counted with everything else. The machine's
            // own has no such file in version 2, and in version 1 one that no other has. A container may see no parent.
            let is_own = !path.join("release_agent").exists();
            let before = count(&path, file).filter(|_| is_own)?;
            Some(Memory::Around { path, file: (*file).to_owned(), before })
        })
    }

    /// The directory that is not also the tree's.
    pub(super) fn own_path(&self) -> Option<&PathBuf> {
        match self {
            Memory::Cgroup2 { .. } | Memory::Around { .. } => None,
            Memory::Cgroup1 { path } => Some(path),
        }
    }

    pub(super) fn oom_kills(&self) -> Option<u64> {
        match self {
            Memory::Cgroup2 { path } => count(path, "memory.events"),
            Memory::Cgroup1 { path } => count(path, "memory.oom_control"),
            Memory::Around { path, file, before } => Some(count(path, file)?.saturating_sub(*before)),
        }
    }
}

fn count(path: &Path, file: &str) -> Option<u64> {
    let text = cgroup::read(path, file).ok()?;
    text.lines().find_map(|line| line.strip_prefix("oom_kill ")?.parse().ok())
}
