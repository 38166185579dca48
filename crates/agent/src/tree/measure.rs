//! What a tree's processes use, from its cgroup where that counts and from `/proc` where it does not.
//!
//! All counters only grow while the supervisor lives: a cgroup keeps what its dead have used, and in `/proc` what is
//! reaped counts for the parent, in the end for the supervisor, to which all orphans fall.

use std::cell::OnceCell;
use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use super::process::{Process, Stat};
use super::{Kill, Memory, Tree, cgroup};

/// What a tick of `/proc` is: `USER_HZ` is 100 on every machine that this may run on.
const TICK_MICROSECONDS: u64 = 10_000;

/// What a tree has used so far, and what it holds now.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Measured {
    pub(crate) cpu_microseconds: u64,
    pub(crate) memory_bytes: u64,
    pub(crate) processes: u32,
    /// From disks, and to them; none where the kernel does not count.
    pub(crate) read_bytes: Option<u64>,
    pub(crate) written_bytes: Option<u64>,
}

/// The machine's processes, listed at most once however many trees are looked for.
#[derive(Debug)]
pub(crate) struct Processes {
    proc: PathBuf,
    children: OnceCell<HashMap<i32, Vec<i32>>>,
}

impl Processes {
    pub(crate) fn new(proc: PathBuf) -> Processes {
        Processes { proc, children: OnceCell::new() }
    }

    /// All that descends from a process.
    fn below(&self, root: i32) -> Vec<i32> {
        let children = self.children.get_or_init(|| self.list());
        let mut found = Vec::new();
        let mut waiting = vec![root];
        while let Some(parent) = waiting.pop() {
            for child in children.get(&parent).into_iter().flatten() {
                // A number may have been used again while the list was made; a circle must not keep us.
                if *child != root && !found.contains(child) {
                    found.push(*child);
                    waiting.push(*child);
                }
            }
        }
        found
    }

    fn list(&self) -> HashMap<i32, Vec<i32>> {
        let mut children: HashMap<i32, Vec<i32>> = HashMap::new();
        for entry in fs::read_dir(&self.proc).into_iter().flatten().flatten() {
            let Some(pid) = entry.file_name().to_str().and_then(|name| name.parse().ok()) else { continue };
            if let Some(stat) = self.read(pid, "stat").and_then(|text| Stat::parse(pid, text.as_bytes())) {
                children.entry(stat.parent).or_default().push(pid);
            }
        }
        children
    }

    fn read(&self, pid: i32, file: &str) -> Option<String> {
        // A name may be anything, also not UTF-8.
        fs::read(self.proc.join(pid.to_string()).join(file))
            .ok()
            .map(|bytes| String::from_utf8_lossy(&bytes).into_owned())
    }

    /// CPU time of these processes and of those that they have reaped, and what the supervisor has reaped.
    fn cpu_microseconds(&self, pids: &[i32], supervisor: i32) -> u64 {
        let ticks = |pid: i32| self.read(pid, "stat").and_then(|text| cpu_ticks(&text)).unwrap_or_default();
        let living: u64 = pids.iter().map(|pid| ticks(*pid)).map(|(own, reaped)| own + reaped).sum();
        (living + ticks(supervisor).1) * TICK_MICROSECONDS
    }

    /// Memory that is somebody's own counts for each, memory that is shared once: the largest share there is.
    fn memory_bytes(&self, pids: &[i32]) -> u64 {
        let all = pids.iter().filter_map(|pid| self.read(*pid, "status"));
        let (own, shared) = all.fold((0, 0), |(own, shared), status| {
            (own + number(&status, "RssAnon:"), shared.max(number(&status, "RssShmem:")))
        });
        // They are in kilobytes.
        (own + shared) * 1024
    }

    /// What was read from disks and written to them, by the living and by those that were reaped.
    fn disk_bytes(&self, pids: &[i32], supervisor: i32) -> Option<(u64, u64)> {
        let all = pids.iter().chain([&supervisor]);
        let counts = all.filter_map(|pid| self.read(*pid, "io"));
        counts
            .map(|text| (number(&text, "read_bytes:"), number(&text, "write_bytes:")))
            .reduce(|(read, written), (more_read, more_written)| (read + more_read, written + more_written))
    }
}

impl Tree {
    /// What its processes use; none once they are gone.
    pub(crate) fn measure(&self, supervisor: Process, processes: &Processes) -> Option<Measured> {
        let pids = match &self.kill {
            Kill::Cgroup2 { path } | Kill::Cgroup1 { path } => cgroup::members(path).ok()?,
            Kill::Walk => processes.below(supervisor.pid),
        };
        if pids.is_empty() {
            return None;
        }
        let group = match &self.kill {
            Kill::Cgroup2 { path } => Some(path.as_path()),
            Kill::Cgroup1 { .. } | Kill::Walk => None,
        };
        let cpu = group.and_then(|path| cgroup::read(path, "cpu.stat").ok());
        let cpu = cpu.and_then(|text| field(&text, "usage_usec"));
        let memory = self.memory.as_ref().and_then(group_memory);
        let disk = group.and_then(|path| cgroup::read(path, "io.stat").ok()).map(|text| group_disk(&text));
        let disk = disk.or_else(|| processes.disk_bytes(&pids, supervisor.pid));
        Some(Measured {
            cpu_microseconds: cpu.unwrap_or_else(|| processes.cpu_microseconds(&pids, supervisor.pid)),
            memory_bytes: memory.unwrap_or_else(|| processes.memory_bytes(&pids)),
            processes: u32::try_from(pids.len()).unwrap_or(u32::MAX),
            read_bytes: disk.map(|(read, _)| read),
            written_bytes: disk.map(|(_, written)| written),
        })
    }
}

/// What a cgroup's memory comes to, without the files that the kernel keeps only because nobody else wants the room.
fn group_memory(memory: &Memory) -> Option<u64> {
    let (path, used, idle): (&Path, _, _) = match memory {
        Memory::Cgroup2 { path } => (path, "memory.current", "inactive_file"),
        Memory::Cgroup1 { path } => (path, "memory.usage_in_bytes", "total_inactive_file"),
        // The agent is in there, too.
        Memory::Around { .. } => return None,
    };
    let used: u64 = cgroup::read(path, used).ok()?.trim().parse().ok()?;
    let idle = cgroup::read(path, "memory.stat").ok().and_then(|text| field(&text, idle));
    Some(used.saturating_sub(idle.unwrap_or(0)))
}

/// `MAJOR:MINOR rbytes=… wbytes=… …`, a line for each disk.
fn group_disk(text: &str) -> (u64, u64) {
    let sum = |key: &str| {
        let words = text.split_ascii_whitespace();
        words.filter_map(|word| word.strip_prefix(key)?.parse::<u64>().ok()).sum()
    };
    (sum("rbytes="), sum("wbytes="))
}

/// A line `NAME NUMBER`.
fn field(text: &str, name: &str) -> Option<u64> {
    text.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.trim().parse().ok())
}

/// The number after a name, or 0: kernels leave out what they do not count.
fn number(text: &str, name: &str) -> u64 {
    let rest = text.lines().find_map(|line| line.strip_prefix(name));
    rest.and_then(|rest| rest.split_ascii_whitespace().next()?.parse().ok()).unwrap_or(0)
}

/// Ticks of a process itself, and of the children it has reaped.
fn cpu_ticks(stat: &str) -> Option<(u64, u64)> {
    // The name in parentheses may contain anything, so fields are counted from the last one.
    let after_name = stat.rfind(')')? + 1;
    let mut fields = stat.get(after_name..)?.split_ascii_whitespace().skip(11);
    let mut next = || fields.next()?.parse::<u64>().ok();
    let (user, system, user_reaped, system_reaped) = (next()?, next()?, next()?, next()?);
    Some((user + system, user_reaped + system_reaped))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Number, parent, own and reaped ticks, own and shared kilobytes, bytes read.
    type Row = (i32, i32, [u64; 2], [u64; 2], u64);

    /// A `/proc` of these processes.
    fn machine(processes: &[Row]) -> tempfile::TempDir {
        let proc = tempfile::tempdir().unwrap();
        for (pid, parent, [own, reaped], [anonymous, shared], read) in processes {
            let dir = proc.path().join(pid.to_string());
            fs::create_dir(&dir).unwrap();
            let stat = format!(
                "{pid} (a) b) S {parent} {pid} {pid} 0 -1 4194560 99 0 0 0 {own} 0 {reaped} 0 20 0 1 0 55 0 0"
            );
            fs::write(dir.join("stat"), stat).unwrap();
            let status = format!(
                "Name:\ta) b\nVmRSS:\t  9999 kB\nRssAnon:\t  {anonymous} kB\nRssFile:\t 5 kB\nRssShmem:\t {shared} kB\n"
            );
            fs::write(dir.join("status"), status).unwrap();
            let io =
                format!("rchar: 7\nwchar: 7\nread_bytes: {read}\nwrite_bytes: 1\ncancelled_write_bytes: 0\n");
            fs::write(dir.join("io"), io).unwrap();
        }
        fs::create_dir(proc.path().join("sys")).unwrap();
        proc
    }

    fn tree(kill: Kill, memory: Option<Memory>) -> Tree {
        Tree { task: "t".into(), kill, memory, devices: None }
    }

    const SUPERVISOR: Process = Process { pid: 10, start_ticks: 55 };

    #[test]
    fn without_a_cgroup_a_tree_is_what_descends_from_its_supervisor() {
        let proc = machine(&[
            (1, 0, [500, 500], [9, 9], 9),
            (10, 1, [40, 7], [1000, 0], 100),
            (11, 10, [100, 20], [2000, 64], 10),
            (12, 11, [3, 0], [1000, 80], 20),
            (13, 1, [900, 0], [7, 7], 7),
        ]);
        let processes = Processes::new(proc.path().into());
        let measured = tree(Kill::Walk, None).measure(SUPERVISOR, &processes).unwrap();
        assert_eq!(
            measured,
            Measured {
                // What the supervisor used itself is not the task's, what it has reaped is.
                cpu_microseconds: (100 + 20 + 3 + 7) * 10_000,
                memory_bytes: (2000 + 1000 + 80) * 1024,
                processes: 2,
                read_bytes: Some(130),
                written_bytes: Some(3),
            }
        );
        assert_eq!(tree(Kill::Walk, None).measure(Process { pid: 13, start_ticks: 0 }, &processes), None);
    }

    #[test]
    fn a_version_2_cgroup_says_all_that_it_counts() {
        let proc = machine(&[(10, 1, [0, 0], [0, 0], 0), (11, 10, [9, 9], [9, 9], 9)]);
        let group = tempfile::tempdir().unwrap();
        let write = |name: &str, text: &str| fs::write(group.path().join(name), text).unwrap();
        write("cgroup.procs", "11\n");
        write("cpu.stat", "usage_usec 1234567\nuser_usec 1200000\nsystem_usec 34567\n");
        let path = group.path().to_path_buf();
        let kill = Kill::Cgroup2 { path: path.clone() };
        let processes = Processes::new(proc.path().into());
        // Without controllers: CPU from the cgroup, the rest from its processes.
        let bare = tree(kill.clone(), None).measure(SUPERVISOR, &processes).unwrap();
        assert_eq!((bare.cpu_microseconds, bare.memory_bytes, bare.processes), (1_234_567, 18 << 10, 1));
        write("memory.current", "104857600\n");
        write("memory.stat", "anon 1\nfile 2\ninactive_file 4857600\nactive_file 3\n");
        write("io.stat", "8:0 rbytes=100 wbytes=20 rios=1 wios=1 dbytes=0 dios=0\n259:0 rbytes=1 wbytes=2\n");
        let whole = tree(kill, Some(Memory::Cgroup2 { path })).measure(SUPERVISOR, &processes).unwrap();
        assert_eq!(
            whole,
            Measured {
                cpu_microseconds: 1_234_567,
                memory_bytes: 100_000_000,
                processes: 1,
                read_bytes: Some(101),
                written_bytes: Some(22),
            }
        );
    }

    #[test]
    fn a_version_1_freezer_lists_processes_and_a_memory_cgroup_counts_theirs() {
        let proc = machine(&[(10, 1, [0, 1], [0, 0], 0), (11, 10, [9, 0], [9, 9], 9)]);
        let (freezer, memory) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        fs::write(freezer.path().join("cgroup.procs"), "11\n").unwrap();
        fs::write(memory.path().join("memory.usage_in_bytes"), "5000\n").unwrap();
        fs::write(
            memory.path().join("memory.stat"),
            "cache 4000\ninactive_file 1\ntotal_inactive_file 1500\n",
        )
        .unwrap();
        let tree = tree(
            Kill::Cgroup1 { path: freezer.path().into() },
            Some(Memory::Cgroup1 { path: memory.path().into() }),
        );
        let measured = tree.measure(SUPERVISOR, &Processes::new(proc.path().into())).unwrap();
        assert_eq!((measured.cpu_microseconds, measured.memory_bytes), (100_000, 3500));
    }

    #[test]
    fn garbage_is_counted_as_nothing() {
        for text in ["", ")", "1 (x", "1 (x) S 1 2 3"] {
            assert_eq!(cpu_ticks(text), None);
        }
        assert_eq!(group_disk("8:0 rbytes=x wbytes\n"), (0, 0));
        assert_eq!(
            (field("usage_usec x\n", "usage_usec"), number("read_bytes:\n", "read_bytes:")),
            (None, 0)
        );
    }
}
