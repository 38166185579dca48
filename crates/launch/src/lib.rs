//! Launch contracts: from a gang's addresses to what every task is given.
//!
//! Pure: the same gang always gives the same answer, so it can be computed again after a crash. Every framework has a
//! module in [`contract`], every platform one in [`face`]; `base` is what every task gets whatever it runs, and
//! `network` what makes libraries use the right interface. [`detect`] finds which of them a command wants, before there
//! is a gang.

#![warn(missing_docs)]

pub mod array;
mod base;
pub mod contract;
pub mod detect;
pub mod face;
mod network;
mod plan;
pub mod rank_table;
pub mod sbatch;
mod shim;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::net::IpAddr;

use muster_model::launch::{LaunchFile, OWN_HOME, Surroundings, Work};
use muster_model::node::{Account, Device};
use muster_model::task::Address;
use muster_model::{AttemptId, JobSpec};

use rank_table::{Form, Tables};

pub use plan::{Plan, check, ports, settle, shared_port};

/// A gang that is whole: every member's address is known.
#[derive(Debug, Clone, PartialEq)]
pub struct Gang<'a> {
    /// The attempt.
    pub attempt: AttemptId,
    /// The job's name.
    pub job_name: String,
    /// The group of people it counts for.
    pub workspace: String,
    /// What was asked for, settled: see [`settle`].
    pub spec: &'a JobSpec,
    /// Whether its nodes are of the machine or site that it was submitted on, and have the submitter's directories.
    pub shares_directories: bool,
    /// The members, by rank. Never empty.
    pub members: Vec<Member>,
}

/// One member of a gang.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    /// The name of its host.
    pub host: String,
    /// Whom it runs as.
    pub account: Account,
    /// Where its peers reach it, and the ports reserved for it.
    pub address: Address,
    /// The devices it was given, in the order of their numbers, each with its number in the driver's count.
    pub devices: Vec<(u32, Device)>,
}

impl Member {
    /// Where its peers reach it.
    pub fn ip(&self) -> IpAddr {
        self.address.ip
    }

    /// One of its ports. A node that reserved too few has its task told a customary one.
    pub fn port(&self, port: Port) -> u16 {
        let (at, customary) = match port {
            Port::Master => (0, 29_500),
            Port::Ssh => match self.address.shared_port {
                Some(port) => return port,
                None => (1, 22),
            },
            Port::Process(process) => (2 + process as usize, 6170 + process as u16),
        };
        self.address.ports.get(at).copied().unwrap_or(customary)
    }
}

/// Members whose nodes are one machine, each with an agent that does not know of the other: the port that all may have is the
/// first one's, and the rest use their own.
pub fn tell_apart(members: &mut [Member]) {
    let mut taken = BTreeSet::new();
    for address in members.iter_mut().map(|member| &mut member.address) {
        address.shared_port = address.shared_port.filter(|port| taken.insert((address.ip, *port)));
    }
}

/// What a member's port is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Port {
    /// Where rank 0 gathers the others: PyTorch's master, JAX's coordinator, MindSpore's scheduler.
    Master,
    /// Where its peers start processes; the same on all members where it can be.
    Ssh,
    /// Where a process of the task, by its number, listens for the other processes. They are one after the other.
    Process(u32),
}

/// What one task is given.
#[derive(Debug, Clone, PartialEq)]
pub struct Part {
    /// Facts: variables on top of the user's, because they are not the user's to change.
    pub env: BTreeMap<String, String>,
    /// Advice: variables that are set unless the user has.
    pub defaults: BTreeMap<String, String>,
    /// Facts whose value is the path of one of the files; where that is, the node decides.
    pub paths: BTreeMap<String, String>,
    /// Files that are to be there.
    pub files: Vec<LaunchFile>,
    /// What else it finds around it.
    pub surroundings: Surroundings,
    /// What it does.
    pub work: Work,
    /// Whether members start processes on each other.
    pub peers: bool,
    /// Files, by their place among the others, that are rank tables, to be filled in when everything else is there.
    tables: Vec<(usize, Form)>,
}

impl Part {
    fn fact(&mut self, name: impl Into<String>, value: impl ToString) {
        self.env.insert(name.into(), value.to_string());
    }

    fn advice(&mut self, name: impl Into<String>, value: impl ToString) {
        self.defaults.insert(name.into(), value.to_string());
    }

    /// Whether a file is there already.
    fn has(&self, path: &str) -> bool {
        self.files.iter().any(|file| file.path == path)
    }

    /// A directory that comes first in a list such as `PATH`.
    fn front(&mut self, variable: &str, directory: &str) {
        let directories = self.surroundings.front.entry(variable.to_owned()).or_default();
        if !directories.iter().any(|path| path == directory) {
            directories.push(directory.to_owned());
        }
    }

    /// A variable that names a file, or a directory with files in it.
    fn path(&mut self, name: impl Into<String>, path: &str) {
        self.paths.insert(name.into(), path.to_owned());
    }

    fn file(&mut self, path: impl Into<String>, content: impl Into<String>) {
        self.put(LaunchFile { path: path.into(), content: content.into(), executable: false });
    }

    /// A file that is a rank table.
    fn table(&mut self, path: impl Into<String>, form: Form) {
        self.tables.push((self.files.len(), form));
        self.file(path, "");
    }

    fn program(&mut self, path: impl Into<String>, content: impl Into<String>) {
        self.put(LaunchFile { path: path.into(), content: content.into(), executable: true });
    }

    /// A framework and a platform may have the same file; whoever comes last knows better.
    fn put(&mut self, file: LaunchFile) {
        self.files.retain(|other| other.path != file.path);
        self.files.push(file);
    }
}

/// The devices with these numbers, each with its number as its driver counts: every maker's driver counts from 0, and a
/// node counts on.
pub fn given(node: &[Device], numbers: &[u32]) -> Vec<(u32, Device)> {
    let first = |vendor| {
        node.iter().filter(|device| device.vendor == vendor).map(|device| device.index).min().unwrap_or(0)
    };
    let mut given: Vec<_> = node
        .iter()
        .filter(|device| numbers.contains(&device.index))
        .map(|device| (device.index - first(device.vendor), device.clone()))
        .collect();
    given.sort_by_key(|(_, device)| device.index);
    given
}

/// The names under which a member is known to the others: by its number, as DLWorkspace has it, and as everyone outside
/// calls it, by the job's name and by its id.
pub fn names(gang: &Gang, rank: u32) -> Vec<String> {
    let mut names = vec![format!("worker-{rank}"), format!("ib-worker-{rank}")];
    names.extend((rank == 0).then(|| "ps-0".to_owned()));
    names.extend([&gang.job_name, &gang.attempt.job.to_string()].map(|job| format!("task{rank}.{job}")));
    for name in gang.spec.faces.iter().flatten().flat_map(|face| face::names(*face, gang, rank)) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    names
}

/// Every member's part, by rank. Those of a large gang are better asked for one by one, with [`Parts`].
pub fn parts(gang: &Gang) -> Vec<Part> {
    let parts = Parts::of(gang);
    (0..).zip(&gang.members).map(|(rank, _)| parts.part(rank)).collect()
}

/// The parts of a gang's members, each made when it is asked for: every one tells of the whole gang, so all at once are
/// large.
#[derive(Debug)]
pub struct Parts<'a> {
    gang: &'a Gang<'a>,
    plan: Plan,
    tables: Tables,
}

impl<'a> Parts<'a> {
    /// Those of a gang.
    pub fn of(gang: &'a Gang<'a>) -> Self {
        Self::with(gang, Plan::of(gang.spec))
    }

    fn with(gang: &'a Gang<'a>, plan: Plan) -> Self {
        Self { gang, plan, tables: Tables::default() }
    }

    /// A member's.
    pub fn part(&self, rank: u32) -> Part {
        let mut part = part(self.gang, &self.plan, rank);
        for (at, form) in part.tables.drain(..) {
            part.files[at].content = self.tables.get(self.gang, form).to_owned();
        }
        part
    }
}

fn part(gang: &Gang, plan: &Plan, rank: u32) -> Part {
    let mut part = Part {
        env: BTreeMap::new(),
        defaults: BTreeMap::new(),
        paths: BTreeMap::new(),
        files: Vec::new(),
        surroundings: Surroundings::default(),
        work: Work::Run(vec![plan.process(&gang.spec.command)]),
        peers: false,
        tables: Vec::new(),
    };
    base::add(gang, rank, &mut part);
    network::add(gang, rank, &mut part);
    contract::add(gang, plan, rank, &mut part);
    for face in gang.spec.faces.iter().flatten() {
        face::add(*face, gang, rank, &mut part);
    }
    if gang.spec.own_home {
        part.surroundings.home = Some(OWN_HOME.to_owned());
    }
    if plan.waits(rank) {
        part.work = Work::Wait;
    }
    // Whoever waits for what another one starts here must be reached by it, whatever the contract.
    part.peers = gang.spec.peers.unwrap_or(part.peers || plan.leader && plan.nodes > 1);
    // A file at /job makes the agent show the task a tree of its own. What a script puts into / on a machine stays on its host.
    if part.peers && !plan.idle {
        contract::add_hostfile(gang, plan, &mut part);
    }
    part
}
