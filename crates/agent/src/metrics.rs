//! What is in use: of this machine, of its devices, and by each task. The agent measures and sends; the server keeps.
//!
//! A measurement reads a few small files and asks the drivers, and holds nothing up: it is made where one may wait, its
//! message is dropped where there is no room, and one that takes long makes the next come later.

mod end;
mod machine;
mod tally;

use std::collections::{HashMap, HashSet};
use std::path::PathBuf;
use std::time::Instant;

use jiff::Timestamp;
use muster_model::TaskId;
use muster_model::metrics::{Sample, TaskSample};
use muster_model::node::Device;

use crate::device::Gauges;
use crate::tree::Processes;
pub(crate) use end::at_end;
use machine::Machine;
use tally::Tally;

/// A task that runs.
#[derive(Debug, Clone)]
pub(crate) struct Subject {
    pub(crate) task: TaskId,
    /// Its directory.
    pub(crate) dir: PathBuf,
    /// The node's devices that it was given.
    pub(crate) devices: Vec<u32>,
    pub(crate) started_at: Timestamp,
}

/// Measures, and remembers what it takes to make rates and means of counters.
#[derive(Debug)]
pub(crate) struct Sampler {
    machine: Machine,
    gauges: Gauges,
    tallies: HashMap<TaskId, Tally>,
    proc: PathBuf,
}

impl Sampler {
    /// May take seconds where a driver is slow. Rates are means from now on.
    pub(crate) fn open(devices: &[Device]) -> Sampler {
        Sampler {
            machine: Machine::open("/".into(), Instant::now()),
            gauges: Gauges::open(devices),
            tallies: HashMap::new(),
            proc: "/proc".into(),
        }
    }

    /// Measure the machine and these tasks. What is no longer among them is forgotten.
    pub(crate) fn sample(&mut self, subjects: &[Subject], at: Timestamp) -> Sample {
        let now = Instant::now();
        let node = self.machine.measure(now);
        let devices = self.gauges.read();
        let live: HashSet<&TaskId> = subjects.iter().map(|subject| &subject.task).collect();
        self.tallies.retain(|task, _| live.contains(task));
        let processes = Processes::new(self.proc.clone());
        let mut tasks = Vec::new();
        for subject in subjects {
            if !self.tallies.contains_key(&subject.task) {
                let Some(tally) = Tally::open(&subject.dir) else { continue };
                self.tallies.insert(subject.task.clone(), tally);
            }
            let Some(tally) = self.tallies.get_mut(&subject.task) else { continue };
            let held: Vec<_> = devices.iter().filter(|it| subject.devices.contains(&it.index)).collect();
            let age =
                std::time::Duration::try_from(at.duration_since(subject.started_at)).unwrap_or_default();
            let Some((now, usage)) = tally.measure(&processes, &held, age, now) else { continue };
            tasks.push(TaskSample {
                task: subject.task.clone(),
                devices: subject.devices.clone(),
                now,
                usage,
            });
        }
        Sample { at, node, devices, tasks }
    }
}

/// How much a counter grew in a second; one that was reset has not.
fn rate(before: u64, after: u64, seconds: f64) -> u64 {
    if seconds <= 0.0 { 0 } else { (after.saturating_sub(before) as f64 / seconds).round() as u64 }
}
