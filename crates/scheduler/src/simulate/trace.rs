//! A trace as a file: one JSON object for each line, for a node, a workspace or a job.

use std::collections::BTreeMap;

use muster_model::node::{Capacity, Device, Vendor};
use muster_model::quantity::DeviceRequest;
use serde::{Deserialize, Serialize};

use crate::quota::{Quota, Resource};
use crate::request::Workspace;

/// Nodes of one make.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct NodeLine {
    /// How many there are.
    #[serde(default = "one")]
    pub count: u32,
    /// CPUs of each.
    pub cpus: u32,
    /// Memory of each, in GiB.
    pub memory_gib: u64,
    /// Devices of each.
    #[serde(default)]
    pub devices: u32,
    /// Their model.
    #[serde(default = "any_model")]
    pub model: String,
    /// How many of them share a rack.
    #[serde(default = "rack")]
    pub rack: u32,
    /// Places for tasks that ask for neither CPUs nor devices; plenty, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub slots: Option<u32>,
}

impl NodeLine {
    /// A node without devices.
    pub fn new(cpus: u32, memory_gib: u64) -> Self {
        Self { count: 1, cpus, memory_gib, devices: 0, model: any_model(), rack: rack(), slots: None }
    }
}

/// What a workspace is due.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WorkspaceLine {
    /// Its name.
    pub name: String,
    /// Its part of what is fair.
    #[serde(default = "weight")]
    pub weight: f64,
    /// Its quota of devices of all models; none, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub devices: Option<Quota>,
    /// Its quota of CPUs.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpus: Option<Quota>,
    /// Its quota of memory, in GiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory_gib: Option<Quota>,
    /// Its quotas of devices by model.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, Quota>,
}

impl WorkspaceLine {
    /// A workspace with no quota, and the usual weight.
    pub fn new(name: String) -> Self {
        Self { name, weight: weight(), devices: None, cpus: None, memory_gib: None, models: BTreeMap::new() }
    }

    /// What the scheduler is told of it.
    pub(crate) fn due(&self) -> Workspace {
        let scaled = |quota: &Quota, by: u64| Quota {
            nominal: quota.nominal.saturating_mul(by),
            borrow: quota.borrow.map(|most| most.saturating_mul(by)),
            lend: quota.lend.map(|most| most.saturating_mul(by)),
        };
        let plain = [
            (Resource::Devices, self.devices.as_ref(), 1),
            (Resource::Cpu, self.cpus.as_ref(), 1000),
            (Resource::Memory, self.memory_gib.as_ref(), 1 << 30),
        ];
        let plain = plain.into_iter().filter_map(|(of, quota, by)| Some((of, scaled(quota?, by))));
        let models = self.models.iter().map(|(model, quota)| (Resource::Model(model.clone()), *quota));
        Workspace { weight: self.weight, quotas: plain.chain(models).collect() }
    }
}

/// A job.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct JobLine {
    /// When it is submitted, in seconds.
    pub at: f64,
    /// For how long it runs, in seconds.
    pub runs: f64,
    /// For how long it says that it runs, in seconds.
    #[serde(default)]
    pub says: Option<f64>,
    /// Its workspace.
    #[serde(default = "everybody")]
    pub workspace: String,
    /// Its user.
    #[serde(default = "everybody")]
    pub user: String,
    /// How many tasks it has.
    #[serde(default = "one")]
    pub nodes: u32,
    /// Devices of each task: `8`, `H100:8`.
    #[serde(default)]
    pub gpus: Option<DeviceRequest>,
    /// CPUs of each task.
    #[serde(default)]
    pub cpus: f64,
    /// Memory of each task, in GiB.
    #[serde(default)]
    pub memory_gib: f64,
    /// Its priority.
    #[serde(default = "usual")]
    pub priority: u32,
    /// It may be ended for others.
    #[serde(default)]
    pub preemptible: bool,
    /// Each task has a node of its own.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub exclusive: bool,
    /// How often it saves what it has done, in seconds; never, if absent.
    #[serde(default)]
    pub saves: Option<f64>,
}

fn one() -> u32 {
    1
}

fn any_model() -> String {
    "gpu".into()
}

fn rack() -> u32 {
    16
}

fn weight() -> f64 {
    1.0
}

fn everybody() -> String {
    "default".into()
}

fn usual() -> u32 {
    muster_model::spec::DEFAULT_PRIORITY
}

/// One line of a trace.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Line {
    /// Nodes.
    Nodes(NodeLine),
    /// A workspace.
    Workspace(WorkspaceLine),
    /// A job.
    Job(JobLine),
}

/// What is replayed.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Trace {
    /// The cluster.
    pub nodes: Vec<NodeLine>,
    /// Who shares it.
    pub workspaces: Vec<WorkspaceLine>,
    /// What they run, in the order of submission.
    pub jobs: Vec<JobLine>,
}

/// What is wrong with a trace.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum TraceError {
    /// A line cannot be read.
    #[error("line {line}: {message}")]
    Line {
        /// Its number.
        line: usize,
        /// What is wrong.
        message: String,
    },
    /// There are no nodes to run on.
    #[error(
        "it has no line of nodes, such as {{\"nodes\": {{\"count\": 4, \"cpus\": 64, \"memory_gib\": 512, \"devices\": 8}}}}"
    )]
    NoNodes,
    /// There are no jobs.
    #[error("it has no line of a job, such as {{\"job\": {{\"at\": 0, \"runs\": 3600, \"gpus\": \"8\"}}}}")]
    NoJobs,
}

impl Trace {
    /// Reads a trace that is one file.
    pub fn parse(text: &str) -> Result<Self, TraceError> {
        let mut trace = Self::default();
        trace.read(text)?;
        trace.complete()
    }

    /// Adds what a file says: one JSON object for each line, empty lines passed over.
    pub fn read(&mut self, text: &str) -> Result<(), TraceError> {
        for (line, text) in (1..).zip(text.lines()).filter(|(_, text)| !text.trim().is_empty()) {
            let wrong = |message: String| TraceError::Line { line, message };
            let read = serde_json::from_str(text).map_err(|error| wrong(error.to_string()))?;
            self.add(read).map_err(wrong)?;
        }
        Ok(())
    }

    /// Adds what a line says, or tells what is wrong with it.
    pub fn add(&mut self, line: Line) -> Result<(), String> {
        match line {
            Line::Nodes(nodes) => self.nodes.push(nodes),
            Line::Workspace(workspace) => self.workspaces.push(workspace),
            Line::Job(job) => self.jobs.push(checked(job)?),
        }
        Ok(())
    }

    /// The trace in the order of submission, if it has what it takes to be played.
    pub fn complete(mut self) -> Result<Self, TraceError> {
        self.jobs.sort_by(|a, b| a.at.total_cmp(&b.at));
        match (self.nodes.is_empty(), self.jobs.is_empty()) {
            (true, _) => Err(TraceError::NoNodes),
            (_, true) => Err(TraceError::NoJobs),
            _ => Ok(self),
        }
    }

    /// Writes a trace as it is read.
    pub fn lines(&self) -> impl Iterator<Item = Line> {
        let nodes = self.nodes.iter().cloned().map(Line::Nodes);
        let workspaces = self.workspaces.iter().cloned().map(Line::Workspace);
        nodes.chain(workspaces).chain(self.jobs.iter().cloned().map(Line::Job))
    }
}

/// A century, in seconds: what lasts longer is a mistake.
const LONGEST: f64 = 100.0 * 365.0 * 86_400.0;

fn checked(job: JobLine) -> Result<JobLine, String> {
    let spans = [("at", Some(job.at)), ("runs", Some(job.runs)), ("says", job.says), ("saves", job.saves)];
    for (field, value) in spans {
        if let Some(value) = value.filter(|value| !(0.0..=LONGEST).contains(value)) {
            return Err(format!("`{field}` is {value}; it is a number of seconds from 0 on"));
        }
    }
    for (field, value) in [("cpus", job.cpus), ("memory_gib", job.memory_gib)] {
        if !(0.0..=1e9).contains(&value) {
            return Err(format!("`{field}` is {value}; it is a number from 0 on"));
        }
    }
    if job.nodes == 0 {
        return Err("`nodes` is 0; a job has at least 1 task".into());
    }
    Ok(job)
}

impl NodeLine {
    /// What one of them has.
    pub(crate) fn capacity(&self) -> Capacity {
        let vendor = if self.model.starts_with("910") { Vendor::Ascend } else { Vendor::Nvidia };
        let device = |index| Device {
            index,
            vendor,
            model: self.model.clone(),
            uuid: String::new(),
            memory_bytes: 0,
            simulated: true,
            ip: None,
        };
        Capacity {
            cpu_millis: u64::from(self.cpus) * 1000,
            memory_bytes: self.memory_gib.saturating_mul(1 << 30),
            slots: self.slots.unwrap_or(self.cpus.saturating_mul(32)),
            devices: (0..self.devices).map(device).collect(),
        }
    }

    /// Whether its labels or its devices are those of another line does not matter: nodes are numbered through.
    pub(crate) fn labels(&self, number: u32) -> BTreeMap<String, String> {
        BTreeMap::from([("rack".to_owned(), (number / self.rack.max(1)).to_string())])
    }
}
