//! What a site decides about its queue: who goes first, what may be taken from whom, for how long what is remembered.
//!
//! It is data, read by the scheduler and never changed by it, so that two of them can be compared on the same work.

use std::collections::BTreeMap;
use std::time::Duration;

use muster_model::quantity::duration_text;
use serde::{Deserialize, Serialize};

/// A moment or a span in milliseconds. What zero is, the caller decides: the scheduler has no clock.
pub type Millis = u64;

/// Who goes first among jobs of one priority.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Order {
    /// The workspace, and in it the user, that has had the least of what is due to it; then age.
    FairShare,
    /// Age alone.
    Age,
}

/// What starts behind a job that does not fit yet.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Backfill {
    /// What does not keep it waiting longer.
    Reserve,
    /// Nothing.
    Strict,
    /// Whatever fits, as long as it may take.
    Greedy,
}

/// How a queue is kept.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Policy {
    /// Who goes first among jobs of one priority.
    pub order: Order,
    /// After this time, what somebody has used counts half.
    #[serde(with = "duration_text")]
    pub half_life: Duration,
    /// What starts behind a job that does not fit yet.
    pub backfill: Backfill,
    /// Whoever has waited for room this long gets the next that is enough, before everybody else.
    #[serde(with = "duration_text")]
    pub patience: Duration,
    /// Whether running work may be ended for waiting work.
    pub preemption: bool,
    /// Whoever may have others' place waits this long first, for what ends by itself.
    #[serde(with = "duration_text")]
    pub preempt_after: Duration,
    /// Nothing is ended for others before it has run this long.
    #[serde(with = "duration_text")]
    pub min_run_time: Duration,
    /// A job is ended for others at most this often in 24 hours.
    pub preemptions_per_day: u32,
    /// Node labels that say what is close to what, the closest first. A gang stays within one value, if it can.
    pub topology: Vec<String>,
    /// How many CPUs weigh as much as one device.
    pub cpus_per_device: f64,
    /// How much memory, in GiB, weighs as much as one device.
    pub memory_gib_per_device: f64,
    /// What a device of a model weighs; 1, if it is not listed.
    pub device_weights: BTreeMap<String, f64>,
    /// How many starts one pass plans at most: the caller has to write them down in one go.
    pub starts_per_pass: usize,
}

impl Default for Policy {
    fn default() -> Self {
        Self {
            order: Order::FairShare,
            // A week: long enough to remember who had the cluster over the weekend.
            half_life: Duration::from_secs(7 * 24 * 3600),
            backfill: Backfill::Reserve,
            patience: Duration::from_secs(3600),
            preemption: true,
            // On a large cluster something ends every few seconds, and nothing is lost by that.
            preempt_after: Duration::from_secs(30),
            // Loading a model and its data takes minutes: less than this would only be lost.
            min_run_time: Duration::from_secs(600),
            preemptions_per_day: 4,
            topology: vec!["switch".into(), "rack".into()],
            // What machines with accelerators have for each of them.
            cpus_per_device: 16.0,
            memory_gib_per_device: 128.0,
            device_weights: BTreeMap::new(),
            starts_per_pass: 1000,
        }
    }
}

/// Policies that have a name, for comparing.
const NAMED: [&str; 5] = ["default", "fifo", "greedy", "by-age", "no-preemption"];

impl Policy {
    /// The names that [`Policy::named`] knows.
    pub fn names() -> &'static [&'static str] {
        &NAMED
    }

    /// The policy of a name: `fifo` lets nobody overtake, `greedy` lets everybody, `by-age` forgets what was used.
    pub fn named(name: &str) -> Option<Self> {
        let default = Self::default();
        Some(match name {
            "default" => default,
            "fifo" => Self { order: Order::Age, backfill: Backfill::Strict, preemption: false, ..default },
            "greedy" => Self { order: Order::Age, backfill: Backfill::Greedy, preemption: false, ..default },
            "by-age" => Self { order: Order::Age, ..default },
            "no-preemption" => Self { preemption: false, ..default },
            _ => return None,
        })
    }

    /// What cannot be meant, as field and reason.
    pub fn check(&self) -> Result<(), (&'static str, String)> {
        let positive = |field, value: f64| match value.is_finite() && value > 0.0 {
            true => Ok(()),
            false => Err((field, format!("`{value}` is not above 0"))),
        };
        positive("cpus_per_device", self.cpus_per_device)?;
        positive("memory_gib_per_device", self.memory_gib_per_device)?;
        self.device_weights.values().try_for_each(|weight| positive("device_weights", *weight))?;
        if self.half_life.is_zero() {
            return Err(("half_life", "`0s` would forget everything at once; write for example 7d".into()));
        }
        if self.starts_per_pass == 0 {
            return Err(("starts_per_pass", "`0` would start nothing; write at least 1".into()));
        }
        Ok(())
    }

    pub(crate) fn weight_of(&self, model: &str) -> f64 {
        let named = self.device_weights.iter().find(|(name, _)| name.eq_ignore_ascii_case(model));
        named.map_or(1.0, |(_, weight)| *weight)
    }
}

pub(crate) fn millis(span: Duration) -> Millis {
    u64::try_from(span.as_millis()).unwrap_or(u64::MAX)
}

/// The scale of all priorities, 1 to 1000.
const SCALE: std::ops::RangeInclusive<u32> = 1..=1000;

/// A priority of PAI DLC, 1 to 9, on our scale: 1 becomes 100, the usual 5 our usual 500, 9 becomes 900. What is beyond 9
/// stays for whoever runs the cluster.
pub fn priority_from_dlc(priority: u32) -> u32 {
    priority.clamp(1, 9) * 100
}

/// A priority of Apulis, 1 to 1000, is ours.
pub fn priority_from_apulis(priority: u32) -> u32 {
    priority.clamp(*SCALE.start(), *SCALE.end())
}
