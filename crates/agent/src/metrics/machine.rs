//! The machine as a whole, from `/proc` and `/sys`.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::Instant;

use muster_model::metrics::NodeUse;

use super::rate;

/// What the kernel's block layer counts in, whatever the disk.
const SECTOR: u64 = 512;
/// What InfiniBand counts in.
const WORD: u64 = 4;
/// A network device's type when it is IP over InfiniBand.
const INFINIBAND: &str = "32";

#[derive(Debug)]
pub(super) struct Machine {
    root: PathBuf,
    /// Of each network interface and of each disk, by name, whether it counts. Both seldom change.
    interfaces: HashMap<String, bool>,
    disks: HashMap<String, bool>,
    last: (Instant, Counters),
}

/// What only grows.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
struct Counters {
    busy_ticks: u64,
    all_ticks: u64,
    /// Received and sent.
    network: Option<[u64; 2]>,
    /// Read and written.
    disk: Option<[u64; 2]>,
}

impl Machine {
    pub(super) fn open(root: PathBuf, now: Instant) -> Machine {
        let mut machine = Machine {
            root,
            interfaces: HashMap::new(),
            disks: HashMap::new(),
            last: (now, Counters::default()),
        };
        machine.last.1 = machine.count().0;
        machine
    }

    pub(super) fn measure(&mut self, now: Instant) -> NodeUse {
        let (counters, cpus) = self.count();
        let (at, before) = std::mem::replace(&mut self.last, (now, counters.clone()));
        let seconds = now.duration_since(at).as_secs_f64();
        let rates = |before: Option<[u64; 2]>, after: Option<[u64; 2]>| {
            let both = before.zip(after);
            both.map(|(before, after)| [0, 1].map(|i| rate(before[i], after[i], seconds)))
        };
        let network = rates(before.network, counters.network);
        let disk = rates(before.disk, counters.disk);
        let busy = counters.busy_ticks.saturating_sub(before.busy_ticks);
        let all = counters.all_ticks.saturating_sub(before.all_ticks);
        let (memory_total_bytes, memory_bytes) = self.memory();
        NodeUse {
            cpu_total_millis: cpus * 1000,
            // Ticks pass on every CPU, so that their part of all is the part of the machine.
            cpu_millis: if all == 0 { 0 } else { (busy * cpus * 1000).div_ceil(all).min(cpus * 1000) },
            memory_total_bytes,
            memory_bytes,
            received_bytes_per_second: network.map(|[received, _]| received),
            sent_bytes_per_second: network.map(|[_, sent]| sent),
            read_bytes_per_second: disk.map(|[read, _]| read),
            written_bytes_per_second: disk.map(|[_, written]| written),
        }
    }

    fn read(&self, path: &str) -> Option<String> {
        fs::read_to_string(self.root.join(path)).ok()
    }

    fn count(&mut self) -> (Counters, u64) {
        let stat = self.read("proc/stat").unwrap_or_default();
        let (busy_ticks, all_ticks) = ticks(&stat);
        let cpus = stat.lines().filter(|line| is_cpu(line)).count() as u64;
        (Counters { busy_ticks, all_ticks, network: self.network(), disk: self.disk() }, cpus)
    }

    fn memory(&self) -> (u64, u64) {
        let text = self.read("proc/meminfo").unwrap_or_default();
        let bytes = |name: &str| {
            let rest = text.lines().find_map(|line| line.strip_prefix(name));
            rest.and_then(|rest| rest.split_ascii_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
                * 1024
        };
        let total = bytes("MemTotal:");
        (total, total.saturating_sub(bytes("MemAvailable:")))
    }

    fn network(&mut self) -> Option<[u64; 2]> {
        let text = self.read("proc/net/dev")?;
        let interfaces: Vec<_> = text.lines().filter_map(interface).collect();
        for (name, _) in &interfaces {
            if !self.interfaces.contains_key(*name) {
                let kind = self.read(&format!("sys/class/net/{name}/type")).unwrap_or_default();
                let is_real = self.root.join("sys/class/net").join(name).join("device").exists();
                self.interfaces.insert((*name).to_owned(), is_real && kind.trim() != INFINIBAND);
            }
        }
        let real = |name: &str| self.interfaces.get(name).is_some_and(|is_real| *is_real);
        // A container has no hardware of its own, and what it has instead is counted once.
        let any_real = interfaces.iter().any(|(name, _)| real(name));
        let counted = interfaces.iter().filter(|(name, _)| if any_real { real(name) } else { *name != "lo" });
        let bytes =
            counted.map(|(_, bytes)| *bytes).chain(infiniband(&self.root.join("sys/class/infiniband")));
        Some(bytes.fold([0, 0], add))
    }

    fn disk(&mut self) -> Option<[u64; 2]> {
        let text = self.read("proc/diskstats")?;
        let mut sum = [0, 0];
        for (name, sectors) in text.lines().filter_map(disk) {
            if !self.disks.contains_key(name) {
                // Partitions, and what is made of disks (RAID, volumes, loops), would count the same bytes again.
                let is_real = self.root.join("sys/block").join(name).join("device").exists();
                self.disks.insert(name.to_owned(), is_real);
            }
            if self.disks.get(name) == Some(&true) {
                sum = add(sum, sectors.map(|count| count.saturating_mul(SECTOR)));
            }
        }
        Some(sum)
    }
}

fn add(sum: [u64; 2], more: [u64; 2]) -> [u64; 2] {
    [sum[0].saturating_add(more[0]), sum[1].saturating_add(more[1])]
}

/// A line `cpu0 …`, and not the one of all.
fn is_cpu(line: &str) -> bool {
    line.strip_prefix("cpu").is_some_and(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}

/// Busy ticks, and all: `cpu user nice system idle iowait irq softirq steal …`. The rest is contained in the first.
fn ticks(stat: &str) -> (u64, u64) {
    let line = stat.lines().find_map(|line| line.strip_prefix("cpu ")).unwrap_or_default();
    let ticks: Vec<u64> =
        line.split_ascii_whitespace().take(8).filter_map(|word| word.parse().ok()).collect();
    let all: u64 = ticks.iter().sum();
    let idle: u64 = ticks.iter().skip(3).take(2).sum();
    (all - idle, all)
}

/// `  eth0: RECEIVED packets … (8 fields) SENT …`.
fn interface(line: &str) -> Option<(&str, [u64; 2])> {
    let (name, counts) = line.split_once(':')?;
    let mut counts = counts.split_ascii_whitespace();
    let received = counts.next()?.parse().ok()?;
    let sent = counts.nth(7)?.parse().ok()?;
    Some((name.trim(), [received, sent]))
}

/// What travelled past the kernel's network, as the traffic of training does: one count for each port.
fn infiniband(class: &Path) -> Vec<[u64; 2]> {
    let entries = |path: &Path| fs::read_dir(path).into_iter().flatten().flatten().map(|entry| entry.path());
    let words = |port: &Path, name: &str| {
        let text = fs::read_to_string(port.join("counters").join(name)).ok()?;
        text.trim().parse::<u64>().ok().map(|words| words.saturating_mul(WORD))
    };
    entries(class)
        .flat_map(|adapter| entries(&adapter.join("ports")).collect::<Vec<_>>())
        .filter_map(|port| Some([words(&port, "port_rcv_data")?, words(&port, "port_xmit_data")?]))
        .collect()
}

/// `8 0 sda READS merged SECTORS ms WRITES merged SECTORS …`.
fn disk(line: &str) -> Option<(&str, [u64; 2])> {
    let mut fields = line.split_ascii_whitespace();
    let name = fields.nth(2)?;
    let read = fields.nth(2)?.parse().ok()?;
    let written = fields.nth(3)?.parse().ok()?;
    Some((name, [read, written]))
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    /// Files as a machine with two CPUs, one Ethernet and one InfiniBand port, and one disk has them.
    struct Recorded(tempfile::TempDir);

    impl Recorded {
        fn new() -> Recorded {
            let recorded = Recorded(tempfile::tempdir().unwrap());
            recorded
                .write("proc/meminfo", "MemTotal:       1000 kB\nMemFree:  10 kB\nMemAvailable:   400 kB\n");
            for name in ["eth0", "ib0"] {
                recorded.make(&format!("sys/class/net/{name}/device"));
            }
            recorded.write("sys/class/net/ib0/type", "32\n");
            recorded.write("sys/class/net/eth0/type", "1\n");
            recorded.make("sys/block/vda/device");
            recorded
        }

        fn make(&self, path: &str) {
            fs::create_dir_all(self.0.path().join(path)).unwrap();
        }

        fn write(&self, path: &str, text: &str) {
            let path = self.0.path().join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }

        /// Everything a multiple of what it was.
        fn at(&self, n: u64) {
            let stat = format!(
                "cpu  {} 0 {} {} {} 0 0 0 0 0\ncpu0 1 2 3\ncpu1 1 2 3\nintr 5 6\nctxt 7\n",
                100 * n,
                50 * n,
                200 * n,
                50 * n
            );
            self.write("proc/stat", &stat);
            let dev = format!(
                "Inter-|   Receive  |  Transmit\n face |bytes    packets\n    lo: 9999 1 0 0 0 0 0 0 9999 1 0 0 0 0 0 0\n\
                 \x20 eth0: {} 1 0 0 0 0 0 0 {} 1 0 0 0 0 0 0\n   ib0: 777 1 0 0 0 0 0 0 777 1 0 0 0 0 0 0\n\
                 docker0: 555 1 0 0 0 0 0 0 555 1 0 0 0 0 0 0\n",
                1000 * n,
                200 * n
            );
            self.write("proc/net/dev", &dev);
            let port = "sys/class/infiniband/mlx5_0/ports/1/counters";
            self.write(&format!("{port}/port_rcv_data"), &format!("{}\n", 25 * n));
            self.write(&format!("{port}/port_xmit_data"), &format!("{}\n", 50 * n));
            let disks = format!(
                " 252 0 vda 5 1 {} 9 7 1 {} 9 0 1 1\n 252 1 vda1 5 1 {} 9 7 1 {} 9 0 1 1\n 7 0 loop0 5 1 9 9 7 1 9 9 0\n",
                2 * n,
                4 * n,
                2 * n,
                4 * n
            );
            self.write("proc/diskstats", &disks);
        }
    }

    #[test]
    fn a_machine_is_measured_by_how_its_counters_grow() {
        let recorded = Recorded::new();
        recorded.at(1);
        let begun = Instant::now();
        let mut machine = Machine::open(recorded.0.path().into(), begun);
        recorded.at(3);
        let measured = machine.measure(begun + Duration::from_secs(2));
        assert_eq!(
            measured,
            NodeUse {
                cpu_total_millis: 2000,
                // 300 of 800 ticks, on two CPUs.
                cpu_millis: 750,
                memory_total_bytes: 1000 << 10,
                memory_bytes: 600 << 10,
                // Ethernet as the kernel counts it, InfiniBand as its adapter does: nothing twice.
                received_bytes_per_second: Some(1000 + 100),
                sent_bytes_per_second: Some(200 + 200),
                read_bytes_per_second: Some(1024),
                written_bytes_per_second: Some(2048),
            }
        );
        // Counters that were reset have not grown.
        recorded.at(1);
        let measured = machine.measure(begun + Duration::from_secs(4));
        assert_eq!((measured.cpu_millis, measured.received_bytes_per_second), (0, Some(0)));
    }

    #[test]
    fn a_container_without_hardware_counts_what_it_has_instead() {
        let root = tempfile::tempdir().unwrap();
        fs::create_dir_all(root.path().join("proc/net")).unwrap();
        let line = "eth0: 70 1 0 0 0 0 0 0 30 1 0 0 0 0 0 0\nlo: 5 1 0 0 0 0 0 0 5 1 0 0 0 0 0 0\n";
        fs::write(root.path().join("proc/net/dev"), line).unwrap();
        let mut machine = Machine::open(root.path().into(), Instant::now());
        assert_eq!(machine.network(), Some([70, 30]));
        assert_eq!(machine.disk(), None);
    }

    #[test]
    fn this_machine_can_be_measured() {
        let mut machine = Machine::open("/".into(), Instant::now());
        let measured = machine.measure(Instant::now());
        assert!(measured.cpu_total_millis >= 1000 && measured.memory_total_bytes > 1 << 20, "{measured:?}");
        assert!(measured.memory_bytes <= measured.memory_total_bytes);
    }
}
