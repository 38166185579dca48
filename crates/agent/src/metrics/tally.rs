//! One task's use: what it is now, and what it comes to from the task's start on.
//!
//! Means need sums that only this process has, so they are written down from time to time, for the next agent.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use muster_model::metrics::{DeviceUsage, DeviceUse, TaskUse, Usage};
use serde::{Deserialize, Serialize};

use super::rate;
use crate::disk;
use crate::supervisor::{LAUNCH, Launch, STARTED, Started, read};
use crate::tree::{Measured, Process, Processes, Tree};

/// Where the sums are, in the task's directory.
const FILE: &str = "usage.json";
/// How often they are written: what an agent that was killed loses of means and peaks, at most.
const SAVE: Duration = Duration::from_secs(60);
/// Below this, a rate says more about the clock than about the task.
const LEAST_SPAN: Duration = Duration::from_millis(50);

#[derive(Debug)]
pub(super) struct Tally {
    dir: PathBuf,
    tree: Tree,
    supervisor: Process,
    last: Option<(Instant, Measured)>,
    sums: Sums,
    saved_at: Instant,
}

/// All that means and peaks are made of.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct Sums {
    samples: u64,
    peak_cpu_millis: u64,
    memory: Sum,
    peak_processes: u32,
    devices: Vec<DeviceSums>,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize)]
struct Sum {
    count: u64,
    total: u128,
    peak: u64,
}

#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
struct DeviceSums {
    index: u32,
    utilisation: Sum,
    memory: Sum,
    power: Sum,
    temperature: Sum,
}

impl Tally {
    /// None if the task is not there any more, or not yet.
    pub(super) fn open(dir: &Path) -> Option<Tally> {
        let tree = read::<Launch>(dir, LAUNCH).ok()??.tree;
        let supervisor = read::<Started>(dir, STARTED).ok()??.supervisor;
        let sums = disk::read_json(&dir.join(FILE)).ok().flatten().unwrap_or_default();
        Some(Tally { dir: dir.into(), tree, supervisor, last: None, sums, saved_at: Instant::now() })
    }

    /// What it uses now, and what it has used since it started, `age` ago.
    pub(super) fn measure(
        &mut self,
        processes: &Processes,
        devices: &[&DeviceUse],
        age: Duration,
        now: Instant,
    ) -> Option<(TaskUse, Usage)> {
        let measured = self.tree.measure(self.supervisor, processes)?;
        // Every counter began with the task, so the first look has a span to speak of, too.
        let (span, before) = match self.last {
            Some((at, before)) => (now.duration_since(at), before),
            None => (age, Measured::default()),
        };
        let seconds = span.max(LEAST_SPAN).as_secs_f64();
        let disk = |pick: fn(&Measured) -> Option<u64>| {
            pick(&measured).map(|bytes| rate(pick(&before).unwrap_or(0), bytes, seconds))
        };
        let current = TaskUse {
            cpu_millis: rate(before.cpu_microseconds, measured.cpu_microseconds, seconds * 1000.0),
            memory_bytes: measured.memory_bytes,
            processes: measured.processes,
            read_bytes_per_second: disk(|it| it.read_bytes),
            written_bytes_per_second: disk(|it| it.written_bytes),
        };
        self.last = Some((now, measured));
        self.sums.add(&current, devices);
        self.save(now);
        Some((current, self.sums.usage(&measured, age)))
    }

    fn save(&mut self, now: Instant) {
        if now.duration_since(self.saved_at) >= SAVE {
            self.saved_at = now;
            // On a full disk the next agent begins anew, and nothing else is worse for it.
            let _ = disk::write_json(&self.dir.join(FILE), &self.sums);
        }
    }
}

impl Sum {
    fn add(&mut self, value: Option<u64>) {
        if let Some(value) = value {
            self.count += 1;
            self.total += u128::from(value);
            self.peak = self.peak.max(value);
        }
    }

    fn mean(&self) -> Option<u64> {
        (self.count > 0).then(|| ((self.total + u128::from(self.count) / 2) / u128::from(self.count)) as u64)
    }

    fn peak(&self) -> Option<u64> {
        (self.count > 0).then_some(self.peak)
    }
}

impl Sums {
    fn add(&mut self, current: &TaskUse, devices: &[&DeviceUse]) {
        self.samples += 1;
        self.peak_cpu_millis = self.peak_cpu_millis.max(current.cpu_millis);
        self.memory.add(Some(current.memory_bytes));
        self.peak_processes = self.peak_processes.max(current.processes);
        for device in devices {
            let known = self.devices.iter().position(|sums| sums.index == device.index);
            let at = known.unwrap_or_else(|| {
                self.devices.push(DeviceSums { index: device.index, ..DeviceSums::default() });
                self.devices.len() - 1
            });
            let sums = &mut self.devices[at];
            sums.utilisation.add(device.utilisation_percent.map(u64::from));
            sums.memory.add(device.memory_bytes);
            sums.power.add(device.power_watts.map(u64::from));
            sums.temperature.add(device.temperature_celsius.map(u64::from));
        }
    }

    fn usage(&self, measured: &Measured, age: Duration) -> Usage {
        let small = |value: Option<u64>| value.map(|value| u32::try_from(value).unwrap_or(u32::MAX));
        let device = |sums: &DeviceSums| DeviceUsage {
            index: sums.index,
            mean_utilisation_percent: small(sums.utilisation.mean()),
            peak_utilisation_percent: small(sums.utilisation.peak()),
            mean_memory_bytes: sums.memory.mean(),
            peak_memory_bytes: sums.memory.peak(),
            mean_power_watts: small(sums.power.mean()),
            peak_power_watts: small(sums.power.peak()),
            peak_temperature_celsius: small(sums.temperature.peak()),
        };
        Usage {
            samples: self.samples,
            cpu_milliseconds: measured.cpu_microseconds / 1000,
            mean_cpu_millis: rate(0, measured.cpu_microseconds, age.max(LEAST_SPAN).as_secs_f64() * 1000.0),
            peak_cpu_millis: self.peak_cpu_millis,
            mean_memory_bytes: self.memory.mean(),
            peak_memory_bytes: self.memory.peak,
            peak_processes: Some(self.peak_processes),
            read_bytes: measured.read_bytes,
            written_bytes: measured.written_bytes,
            devices: self.devices.iter().map(device).collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn current(cpu_millis: u64, memory_bytes: u64) -> TaskUse {
        TaskUse { cpu_millis, memory_bytes, processes: 2, ..TaskUse::default() }
    }

    #[test]
    fn means_and_peaks_are_of_what_was_told_and_what_was_not_does_not_count() {
        let mut sums = Sums::default();
        let busy = DeviceUse {
            index: 3,
            utilisation_percent: Some(90),
            power_watts: Some(500),
            ..DeviceUse::default()
        };
        let idle = DeviceUse { utilisation_percent: Some(11), power_watts: None, ..busy.clone() };
        sums.add(&current(500, 100), &[&busy]);
        sums.add(&current(2000, 301), &[&idle]);
        let measured = Measured { cpu_microseconds: 6_000_000, ..Measured::default() };
        let usage = sums.usage(&measured, Duration::from_secs(4));
        assert_eq!((usage.samples, usage.cpu_milliseconds), (2, 6000));
        assert_eq!((usage.mean_cpu_millis, usage.peak_cpu_millis), (1500, 2000));
        assert_eq!((usage.mean_memory_bytes, usage.peak_memory_bytes), (Some(201), 301));
        let device = DeviceUsage {
            index: 3,
            mean_utilisation_percent: Some(51),
            peak_utilisation_percent: Some(90),
            mean_power_watts: Some(500),
            peak_power_watts: Some(500),
            ..DeviceUsage::default()
        };
        assert_eq!(usage.devices, [device]);
    }

    #[test]
    fn the_next_agent_goes_on_with_the_sums_of_this_one() {
        let mut sums = Sums::default();
        sums.add(&current(1, u64::MAX), &[&DeviceUse { memory_bytes: Some(5), ..DeviceUse::default() }]);
        sums.add(&current(1, u64::MAX), &[]);
        let text = serde_json::to_string(&sums).unwrap();
        assert_eq!(serde_json::from_str::<Sums>(&text).unwrap(), sums);
        assert_eq!(sums.memory.mean(), Some(u64::MAX));
    }
}
