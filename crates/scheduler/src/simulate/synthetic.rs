//! Work as clusters of accelerators see it, made up from a seed: most jobs are small and short, most of the time goes to few large ones.

use muster_model::quantity::DeviceRequest;

use super::trace::{JobLine, NodeLine, Trace, WorkspaceLine};
use crate::quota::Quota;

/// How much is made up.
#[derive(Debug, Clone, PartialEq)]
pub struct Synthetic {
    /// How many nodes, of 8 devices each.
    pub nodes: u32,
    /// How many jobs.
    pub jobs: u32,
    /// What everything follows from.
    pub seed: u64,
    /// How much is asked for, beside what there is, until the last job is submitted.
    pub load: f64,
    /// How many workspaces share it.
    pub workspaces: u32,
    /// How many users each of them has.
    pub users: u32,
    /// No two jobs need the same: each has CPUs and memory of its own measure.
    pub distinct: bool,
}

impl Default for Synthetic {
    fn default() -> Self {
        let (workspaces, users) = (20, 10);
        Self { nodes: 10_000, jobs: 100_000, seed: 1, load: 1.5, workspaces, users, distinct: false }
    }
}

/// Numbers that look random and follow from a seed (SplitMix64).
struct Dice(u64);

impl Dice {
    fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// From 0 on, below 1.
    fn part(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1u64 << 53) as f64
    }

    fn below(&mut self, end: usize) -> usize {
        ((self.part() * end as f64) as usize).min(end - 1)
    }

    /// One of several, each as often as its weight says.
    fn weighted<T: Copy>(&mut self, all: &[(f64, T)]) -> T {
        let sum: f64 = all.iter().map(|(weight, _)| weight).sum();
        let mut left = self.part() * sum;
        for (weight, one) in all {
            left -= weight;
            if left < 0.0 {
                return *one;
            }
        }
        all[all.len() - 1].1
    }

    /// Most are near the middle, a few are many times as long.
    fn lognormal(&mut self, median: f64, spread: f64) -> f64 {
        let (a, b) = (self.part().max(1e-12), self.part());
        let normal = (-2.0 * a.ln()).sqrt() * (std::f64::consts::TAU * b).cos();
        median * (spread * normal).exp()
    }
}

/// Tasks and devices of each, and how often: what published traces of such clusters have in common.
const SIZES: [(f64, (u32, u32)); 9] = [
    (0.08, (1, 0)),
    (0.48, (1, 1)),
    (0.12, (1, 2)),
    (0.12, (1, 4)),
    (0.14, (1, 8)),
    (0.03, (2, 8)),
    (0.02, (4, 8)),
    (0.008, (8, 8)),
    (0.002, (32, 8)),
];
const DEVICES: u32 = 8;

impl Synthetic {
    /// Makes it up: the same for the same numbers.
    pub fn trace(&self) -> Trace {
        let mut dice = Dice(self.seed);
        let mut jobs: Vec<JobLine> = (0..self.jobs).map(|_| self.job(&mut dice)).collect();
        let work: f64 = jobs.iter().map(|job| job.runs * f64::from(job.nodes * devices(job))).sum();
        // Submitted over as long as the work would take, were everything always in use.
        let span = work / f64::from(self.nodes.max(1) * DEVICES) / self.load.max(0.01);
        jobs.iter_mut().for_each(|job| job.at = (dice.part() * span).floor());
        jobs.sort_by(|a, b| a.at.total_cmp(&b.at));
        let each = u64::from(self.nodes * DEVICES / self.workspaces.max(1));
        let workspace = |number| WorkspaceLine {
            devices: Some(Quota::shared(each)),
            ..WorkspaceLine::new(format!("team-{number}"))
        };
        let model = "H100".into();
        let nodes = NodeLine { count: self.nodes, devices: DEVICES, model, ..NodeLine::new(128, 1024) };
        Trace { nodes: vec![nodes], workspaces: (0..self.workspaces.max(1)).map(workspace).collect(), jobs }
    }

    fn job(&self, dice: &mut Dice) -> JobLine {
        let (nodes, devices) = dice.weighted(&SIZES);
        // Large jobs run longer.
        let median = 900.0 * f64::from((nodes * devices).max(1)).sqrt();
        let runs = dice.lognormal(median, 1.2).clamp(10.0, 86_400.0).floor();
        let is_known = dice.part() < 0.6;
        // Who says for how long, says too much: nobody wants to be ended by the limit.
        let says = is_known.then(|| (runs * (1.0 + 2.0 * dice.part())).ceil());
        // A few teams ask for most.
        let workspace = ((dice.part() * dice.part()) * f64::from(self.workspaces)) as usize;
        let priority = dice.weighted(&[(0.2, 300), (0.7, 500), (0.1, 700)]);
        let mut measure = || if self.distinct { 0.25 + 1.5 * dice.part() } else { 1.0 };
        let (cpus, memory_gib) = (8.0 * measure(), 64.0 * measure());
        JobLine {
            at: 0.0,
            runs,
            says,
            workspace: format!("team-{workspace}"),
            user: format!("user-{workspace}-{}", dice.below(self.users.max(1) as usize)),
            nodes: nodes.min(self.nodes.max(1)),
            gpus: Some(DeviceRequest { vendor: None, model: None, count: devices }).filter(|it| it.count > 0),
            cpus: f64::from(devices.max(1)) * cpus,
            memory_gib: f64::from(devices.max(1)) * memory_gib,
            priority,
            preemptible: priority == 300,
            exclusive: false,
            saves: Some(1800.0),
        }
    }
}

fn devices(job: &JobLine) -> u32 {
    job.gpus.as_ref().map_or(0, |gpus| gpus.count)
}
