//! What this machine has to offer.

use std::fs;
use std::path::{Path, PathBuf};
use std::thread::available_parallelism;

use muster_model::node::{Capacity, Device};

use crate::Options;

/// Tasks that ask for nothing, for each core: enough that many small ones run at once, few enough that a thousand of
/// them do not start together.
const SLOTS_PER_CORE: u64 = 32;

/// What the node offers: what the machine has, where nothing else was said.
pub(crate) fn capacity(options: &Options, devices: Vec<Device>) -> Capacity {
    // Respects the affinity of this process and its cgroup's share.
    let cores = available_parallelism().map_or(1, |cores| cores.get() as u64);
    let cpu_millis = options.cpu_millis.unwrap_or(cores * 1000);
    let slots = cpu_millis.div_ceil(1000).max(1) * SLOTS_PER_CORE;
    Capacity {
        cpu_millis,
        memory_bytes: options.memory_bytes.unwrap_or_else(memory_bytes),
        slots: options.slots.unwrap_or(u32::try_from(slots).unwrap_or(u32::MAX)),
        devices,
    }
}

/// The host's name, for people.
pub(crate) fn host() -> String {
    rustix::system::uname().nodename().to_string_lossy().into_owned()
}

/// The machine's memory, or what this process's cgroup may use of it.
fn memory_bytes() -> u64 {
    let total = fs::read_to_string("/proc/meminfo").ok().and_then(|text| total_memory(&text)).unwrap_or(0);
    let cgroups = fs::read_to_string("/proc/self/cgroup").unwrap_or_default();
    let limits = limit_files(&cgroups).into_iter().filter_map(|path| {
        // A cgroup without a limit says `max`, or a number beyond any machine.
        fs::read_to_string(path).ok()?.trim().parse::<u64>().ok()
    });
    limits.chain([total]).min().unwrap_or(total)
}

fn total_memory(meminfo: &str) -> Option<u64> {
    let line = meminfo.lines().find_map(|line| line.strip_prefix("MemTotal:"))?;
    let kilobytes: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kilobytes * 1024)
}

/// Where the limits on this process's memory are, of its cgroup and all above it.
fn limit_files(cgroups: &str) -> Vec<PathBuf> {
    let mut files = Vec::new();
    for line in cgroups.lines() {
        let mut fields = line.splitn(3, ':');
        let (Some(_), Some(controllers), Some(path)) = (fields.next(), fields.next(), fields.next()) else {
            continue;
        };
        let (root, name) = match controllers {
            "" => ("/sys/fs/cgroup", "memory.max"),
            controllers if controllers.split(',').any(|controller| controller == "memory") => {
                ("/sys/fs/cgroup/memory", "memory.limit_in_bytes")
            }
            _ => continue,
        };
        let below = Path::new(path.trim_start_matches('/'));
        files.extend(below.ancestors().map(|ancestor| Path::new(root).join(ancestor).join(name)));
    }
    files
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_machine_has_what_proc_says() {
        assert_eq!(total_memory("MemTotal:       24683772 kB\nMemFree: 1 kB\n"), Some(24_683_772 * 1024));
        assert_eq!(total_memory("garbage"), None);
        assert!(memory_bytes() > 1 << 20);
    }

    #[test]
    fn limits_are_looked_for_up_to_the_root() {
        let files = limit_files("5:cpu,memory:/a/b\n1:name=systemd:/x\n0::/c\n\n");
        let files: Vec<_> = files.iter().map(|path| path.to_str().unwrap()).collect();
        let memory = "/sys/fs/cgroup/memory";
        assert_eq!(
            files,
            [
                &format!("{memory}/a/b/memory.limit_in_bytes"),
                &format!("{memory}/a/memory.limit_in_bytes"),
                &format!("{memory}/memory.limit_in_bytes"),
                "/sys/fs/cgroup/c/memory.max",
                "/sys/fs/cgroup/memory.max",
            ]
        );
    }
}
