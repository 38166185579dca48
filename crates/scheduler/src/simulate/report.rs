//! What is measured while a trace is played.

use std::collections::BTreeMap;

use serde::Serialize;

use super::trace::JobLine;
use crate::policy::Millis;

/// How long jobs waited for their first start, in seconds.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Waits {
    /// Half of them waited no longer.
    pub p50: f64,
    /// Nine of ten waited no longer.
    pub p90: f64,
    /// All but one in a hundred waited no longer.
    pub p99: f64,
    /// Nobody waited longer.
    pub max: f64,
}

/// What came of a policy.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Report {
    /// How many jobs there were.
    pub jobs: usize,
    /// How many of them were over at the end; the others never started, see `never`.
    pub over: usize,
    /// How many starts there were, those after a preemption included.
    pub starts: u64,
    /// When the last job was over, in seconds.
    pub span: f64,
    /// The part of all device time that was used while anything was there to be done.
    pub utilisation: f64,
    /// How long all jobs waited.
    pub waits: Waits,
    /// How long those of several nodes waited.
    pub gang_waits: Waits,
    /// Jain's index over what workspaces that wanted more had, by weight, while anybody waited: 1 is fair, 1/n is one for all.
    pub fairness: f64,
    /// How often a run was ended for another.
    pub preemptions: u64,
    /// The part of all device time that was lost by that.
    pub lost: f64,
    /// What came of it for each workspace, by name.
    pub workspaces: BTreeMap<String, WorkspaceReport>,
    /// Jobs that never started, by the reason, the most first.
    pub never: Vec<NeverStarted>,
}

/// What came of a policy for one workspace.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct WorkspaceReport {
    /// How many jobs it had.
    pub jobs: usize,
    /// How many of them were over at the end.
    pub over: usize,
    /// How long its jobs waited.
    pub waits: Waits,
    /// Devices that it used, times hours.
    pub device_hours: f64,
    /// How often a run of it was ended for another.
    pub preemptions: u64,
}

/// Jobs that never started, for one reason.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct NeverStarted {
    /// How many there are.
    pub jobs: usize,
    /// The workspace of them.
    pub workspace: String,
    /// The code of the reason, as `why` has it.
    pub code: &'static str,
    /// The reason, in numbers.
    pub reason: String,
}

#[derive(Debug, Default)]
struct Team {
    weight: f64,
    held: f64,
    waiting: u64,
    /// Device time while it, too, had jobs that waited.
    used: f64,
    wanted: f64,
    /// All of its device time.
    device_seconds: f64,
    jobs: usize,
    over: usize,
    preemptions: u64,
    waits: Vec<f64>,
}

impl Team {
    fn report(mut self) -> WorkspaceReport {
        WorkspaceReport {
            jobs: self.jobs,
            over: self.over,
            waits: percentiles(&mut self.waits),
            device_hours: self.device_seconds / 3600.0,
            preemptions: self.preemptions,
        }
    }
}

/// Keeps the figures while time goes on.
pub(super) struct Meter {
    devices: f64,
    now: Millis,
    last_over: Millis,
    held: f64,
    waiting: u64,
    running: u64,
    used: f64,
    there: f64,
    lost: f64,
    starts: u64,
    preemptions: u64,
    over: usize,
    waits: Vec<f64>,
    gang_waits: Vec<f64>,
    teams: BTreeMap<String, Team>,
}

fn held_by(job: &JobLine) -> f64 {
    f64::from(job.nodes) * job.gpus.as_ref().map_or(0.0, |gpus| f64::from(gpus.count))
}

impl Meter {
    pub fn new(devices: u64, weights: BTreeMap<String, f64>) -> Self {
        let team = |weight| Team { weight, ..Team::default() };
        Self {
            devices: devices as f64,
            now: 0,
            last_over: 0,
            held: 0.0,
            waiting: 0,
            running: 0,
            used: 0.0,
            there: 0.0,
            lost: 0.0,
            starts: 0,
            preemptions: 0,
            over: 0,
            waits: Vec::new(),
            gang_waits: Vec::new(),
            teams: weights.into_iter().map(|(name, weight)| (name, team(weight))).collect(),
        }
    }

    /// Time goes on with everything as it is.
    pub fn advance(&mut self, now: Millis) {
        let seconds = (now - self.now) as f64 / 1000.0;
        self.now = now;
        self.used += self.held * seconds;
        if self.waiting > 0 {
            self.there += self.devices * seconds;
        } else {
            self.there += self.held * seconds;
        }
        for team in self.teams.values_mut() {
            team.device_seconds += team.held * seconds;
            if team.waiting > 0 {
                team.used += team.held * seconds;
                team.wanted += seconds;
            }
        }
    }

    pub fn arrives(&mut self, job: &JobLine) {
        self.team(job).jobs += 1;
        self.waits_again(job);
    }

    fn waits_again(&mut self, job: &JobLine) {
        self.waiting += 1;
        self.team(job).waiting += 1;
    }

    fn team(&mut self, job: &JobLine) -> &mut Team {
        let team = self.teams.entry(job.workspace.clone());
        team.or_insert_with(|| Team { weight: 1.0, ..Team::default() })
    }

    pub fn starts(&mut self, job: &JobLine, is_first: bool, now: Millis) {
        self.starts += 1;
        self.waiting -= 1;
        self.running += 1;
        let held = held_by(job);
        self.held += held;
        let team = self.team(job);
        team.held += held;
        team.waiting -= 1;
        if is_first {
            let waited = now as f64 / 1000.0 - job.at;
            team.waits.push(waited);
            self.waits.push(waited);
            if job.nodes > 1 {
                self.gang_waits.push(waited);
            }
        }
    }

    pub fn stops(&mut self, job: &JobLine) {
        self.running -= 1;
        let held = held_by(job);
        self.held -= held;
        self.team(job).held -= held;
    }

    pub fn ends(&mut self, job: &JobLine) {
        self.over += 1;
        self.last_over = self.now;
        self.team(job).over += 1;
    }

    pub fn preempted(&mut self, job: &JobLine, lost: Millis) {
        self.preemptions += 1;
        self.lost += lost as f64 / 1000.0 * held_by(job);
        self.team(job).preemptions += 1;
        self.waits_again(job);
    }

    pub fn over(&self) -> usize {
        self.over
    }

    pub fn report(mut self, jobs: usize, never: Vec<NeverStarted>) -> Report {
        let part = |some: f64, all: f64| if all > 0.0 { some / all } else { 0.0 };
        let means = self.teams.values().filter(|team| team.wanted > 0.0);
        let means: Vec<f64> = means.map(|team| team.used / team.wanted / team.weight).collect();
        Report {
            jobs,
            over: self.over,
            starts: self.starts,
            span: self.last_over as f64 / 1000.0,
            utilisation: part(self.used, self.there),
            waits: percentiles(&mut self.waits),
            gang_waits: percentiles(&mut self.gang_waits),
            fairness: jain(&means),
            preemptions: self.preemptions,
            lost: part(self.lost, self.used),
            workspaces: self.teams.into_iter().map(|(name, team)| (name, team.report())).collect(),
            never,
        }
    }
}

fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    if squares > 0.0 { sum * sum / (shares.len() as f64 * squares) } else { 1.0 }
}

fn percentiles(waits: &mut [f64]) -> Waits {
    waits.sort_by(f64::total_cmp);
    let at = |part: f64| match waits.len() {
        0 => 0.0,
        count => waits[((count - 1) as f64 * part).round() as usize],
    };
    Waits { p50: at(0.5), p90: at(0.9), p99: at(0.99), max: at(1.0) }
}
