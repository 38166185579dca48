//! A cluster with books of its own: whatever the scheduler plans is checked against them.

use std::collections::{BTreeMap, BTreeSet};

use muster_model::node::{Capacity, Device, Vendor};
use muster_model::task::Placement;
use muster_model::{JobId, NodeId};

use crate::{
    Cause, Fate, Millis, Need, NodeState, Plan, Policy, Quota, Request, Resource, Running, Scheduler, Serves,
    Shape, Standing, User, Workspace,
};

pub(super) const POOL: &str = "pool";
/// A pool with a scheduler of its own, which has no nodes here.
pub(super) const DELEGATING: &str = "slurm";

pub(super) fn node_id(number: usize) -> NodeId {
    format!("node_n{number}").parse().unwrap()
}

/// The number of a node that was numbered.
fn number(id: &NodeId) -> usize {
    id.as_str().trim_start_matches("node_n").parse().unwrap()
}

pub(super) fn node(number: usize, cpus: u64, devices: &[(&str, u32)]) -> NodeState {
    let models = devices.iter().flat_map(|(model, count)| (0..*count).map(move |_| *model));
    let devices = models.zip(0..).map(|(model, index)| Device {
        index,
        vendor: if model.starts_with("910") { Vendor::Ascend } else { Vendor::Nvidia },
        model: model.into(),
        uuid: format!("{number}-{index}"),
        memory_bytes: 0,
        simulated: true,
        ip: None,
    });
    let devices = devices.collect();
    NodeState {
        node: node_id(number),
        pool: POOL.into(),
        capacity: Capacity { cpu_millis: cpus * 1000, memory_bytes: 64 << 30, slots: 8, devices },
        labels: BTreeMap::from([("rack".into(), format!("r{}", number / 2))]),
        usable: true,
        serves: Serves { only: None, lacks: Some(BTreeMap::new()) },
    }
}

/// A gang of somebody, each task with so many devices of any model.
pub(super) fn gang(id: u64, size: u32, devices: u32) -> Request {
    let mut request = Request::new(JobId::from_random(id), "team", "ann", POOL);
    request.place = id;
    request.shape = Shape::Gang(size);
    request.need.devices = (devices > 0).then(|| devices.to_string().parse().unwrap());
    request
}

pub(super) fn ids(plan: &Plan) -> Vec<JobId> {
    plan.starts.iter().map(|start| start.job.clone()).collect()
}

#[derive(Debug, Clone)]
pub(super) struct Runs {
    pub places: Vec<Placement>,
    /// What each counted for when it started.
    pub cpus: Vec<u64>,
    pub since: Millis,
    pub leaves_for: Option<JobId>,
    pub borrows: bool,
    pub is_delegated: bool,
}

/// What is true, kept apart from what the scheduler thinks.
pub(super) struct World {
    pub scheduler: Scheduler,
    pub policy: Policy,
    pub now: Millis,
    pub nodes: BTreeMap<NodeId, NodeState>,
    /// The CPUs that each node had at first.
    whole: Vec<u64>,
    pub requests: BTreeMap<JobId, Request>,
    pub running: BTreeMap<(JobId, u32), Runs>,
    pub quotas: BTreeMap<String, BTreeMap<Resource, Quota>>,
    pub limits: BTreeMap<String, u32>,
    pub preempted: BTreeMap<(JobId, u32), Vec<Millis>>,
    pub first_start: BTreeMap<JobId, Millis>,
    /// Elements that are over.
    pub over: BTreeMap<JobId, BTreeSet<u32>>,
    /// A quota was changed, and may be less than what is in use.
    pub is_requoted: bool,
}

impl World {
    pub fn new(policy: Policy, nodes: Vec<NodeState>) -> Self {
        let mut scheduler = Scheduler::new(policy.clone());
        nodes.iter().for_each(|node| scheduler.set_node(node.clone()));
        scheduler.set_pool(DELEGATING, true);
        Self {
            scheduler,
            policy,
            now: 1_000_000,
            whole: nodes.iter().map(|node| node.capacity.cpu_millis).collect(),
            nodes: nodes.into_iter().map(|node| (node.node.clone(), node)).collect(),
            requests: BTreeMap::new(),
            running: BTreeMap::new(),
            quotas: BTreeMap::new(),
            limits: BTreeMap::new(),
            preempted: BTreeMap::new(),
            first_start: BTreeMap::new(),
            over: BTreeMap::new(),
            is_requoted: false,
        }
    }

    pub fn quota(&mut self, workspace: &str, quotas: &[(Resource, Quota)]) {
        let quotas: BTreeMap<Resource, Quota> = quotas.iter().cloned().collect();
        self.quotas.insert(workspace.into(), quotas.clone());
        self.scheduler.set_workspace(workspace, Workspace { weight: 1.0, quotas });
    }

    pub fn limit(&mut self, user: &str, most: u32) {
        self.limits.insert(user.into(), most);
        self.scheduler.set_user(user, User { weight: 1.0, max_running: Some(most) });
    }

    pub fn submit(&mut self, mut request: Request) -> JobId {
        request.submitted_at = self.now;
        let id = request.job.clone();
        self.requests.insert(id.clone(), request.clone());
        self.scheduler.submit(request);
        id
    }

    pub fn cordon(&mut self, number: usize, usable: bool) {
        let node = self.nodes.get_mut(&node_id(number)).unwrap();
        node.usable = usable;
        self.scheduler.set_node(node.clone());
    }

    /// A node has half of its CPUs, or all of them again.
    /// Not one that somebody has alone: what that counts for is what the node had then, until a restart counts it anew.
    pub fn shrink(&mut self, number: usize, is_less: bool) {
        let id = node_id(number);
        let is_here = |runs: &Runs| runs.places.iter().any(|place| place.node == id);
        let is_alone = |(key, runs): (&(JobId, u32), &Runs)| {
            is_here(runs) && self.requests.get(&key.0).is_some_and(|request| request.need.exclusive)
        };
        if self.running.iter().any(is_alone) {
            return;
        }
        let whole = self.whole[number];
        let node = self.nodes.get_mut(&node_id(number)).unwrap();
        node.capacity.cpu_millis = if is_less { whole / 2 } else { whole };
        self.scheduler.set_node(node.clone());
    }

    /// What a server does that was restarted: everything that it knows is told again. Whom others were to make room for, it has
    /// forgotten.
    pub fn restart(&mut self) {
        let mut again = Scheduler::new(self.policy.clone());
        again.set_pool(DELEGATING, true);
        self.nodes.values().for_each(|node| again.set_node(node.clone()));
        for (workspace, quotas) in &self.quotas {
            again.set_workspace(workspace, Workspace { weight: 1.0, quotas: quotas.clone() });
        }
        for (user, most) in &self.limits {
            again.set_user(user, User { weight: 1.0, max_running: Some(*most) });
        }
        again.restore(&self.scheduler.usage(self.now));
        for (job, request) in &self.requests {
            let mut request = request.clone();
            if let Shape::Many { elements, .. } = &mut request.shape {
                let over = self.over.get(job);
                let is_left = |element: &u32| over.is_none_or(|over| !over.contains(element));
                let left = elements.iter().cloned().flatten().filter(is_left);
                *elements = left.map(|element| element..=element).collect();
            }
            let ended = self.preempted.iter().filter(|((id, _), _)| id == job);
            request.preempted =
                ended.flat_map(|((_, element), at)| at.iter().map(|at| (*element, *at))).collect();
            again.submit(request);
        }
        for ((job, element), run) in &self.running {
            let size = if let Shape::Gang(size) = self.requests[job].shape { size as usize } else { 1 };
            let mut placements: Vec<Option<Placement>> = run.places.iter().cloned().map(Some).collect();
            placements.resize(if run.is_delegated { 0 } else { size }, None);
            again.started(Running {
                job: job.clone(),
                element: *element,
                placements,
                started_at: run.since,
                saved_at: None,
                is_leaving: run.leaves_for.is_some(),
            });
        }
        self.scheduler = again;
    }

    /// A pass, with everything that it decides checked and taken over.
    pub fn pass(&mut self) -> Plan {
        let plan = self.scheduler.pass(self.now);
        for start in &plan.starts {
            self.take(start.job.clone(), start.element, start.placements.clone());
        }
        for preemption in &plan.preemptions {
            self.check_victim(preemption);
        }
        self.check();
        plan
    }

    fn take(&mut self, job: JobId, element: u32, places: Vec<Placement>) {
        let request = self.requests.get(&job).expect("only what was submitted starts");
        assert_eq!(request.standing, Standing::Ready, "{job} is not to be considered");
        let size = if let Shape::Gang(size) = request.shape { size } else { 1 };
        let is_delegated = request.pool == DELEGATING;
        let expected = if is_delegated { 0 } else { size };
        assert_eq!(places.len(), expected as usize, "a gang is whole or absent");
        let mut models = BTreeSet::new();
        for place in &places {
            let node = &self.nodes[&place.node];
            assert!(node.usable && node.pool == request.pool, "{job} is on {}", place.node);
            assert!(!request.exclude.contains(&place.node));
            assert!(request.labels.iter().all(|(key, value)| node.labels.get(key) == Some(value)));
            let devices = place.devices.iter().map(|index| {
                node.capacity.devices.iter().find(|it| it.index == *index).expect("a device that is there")
            });
            let devices: Vec<&Device> = devices.collect();
            models.extend(devices.iter().map(|device| device.model.clone()));
            let asked = request.need.devices.as_ref();
            if request.need.exclusive {
                assert_eq!(devices.len(), node.capacity.devices.len());
            } else {
                assert_eq!(devices.len(), asked.map_or(0, |it| it.count as usize));
                assert!(asked.is_none_or(|it| devices.iter().all(|device| device.satisfies(it))));
            }
        }
        assert!(models.len() <= 1 || request.need.exclusive, "a gang's devices are of one model");
        for place in &places {
            let node = &self.nodes[&place.node];
            let here: u64 = self.claimed(&node.node, |need| need.cpu_millis);
            let own =
                places.iter().filter(|it| it.node == place.node).count() as u64 * request.need.cpu_millis;
            assert!(own == 0 || here + own <= node.capacity.cpu_millis, "CPUs of {}", place.node);
        }
        let before = self.used();
        let whole = request.need.exclusive;
        let each = |place: &Placement| self.nodes[&place.node].capacity.cpu_millis;
        let cpus = places.iter().map(|it| if whole { each(it) } else { request.need.cpu_millis }).collect();
        let runs = Runs { places, cpus, since: self.now, leaves_for: None, borrows: false, is_delegated };
        assert!(self.running.insert((job.clone(), element), runs).is_none(), "{job} runs already");
        self.first_start.entry(job.clone()).or_insert(self.now);
        let (after, workspace) = (self.used(), self.requests[&job].workspace.clone());
        let quotas = self.quotas.get(&workspace).cloned().unwrap_or_default();
        let more = |resource: &Resource| {
            let key = (workspace.clone(), resource.clone());
            after.get(&key).copied().unwrap_or(0) > before.get(&key).copied().unwrap_or(0)
        };
        let beyond = quotas.iter().any(|(resource, quota)| {
            let key = (workspace.clone(), resource.clone());
            more(resource) && after.get(&key).copied().unwrap_or(0) > quota.nominal
        });
        for (resource, quota) in quotas.iter().filter(|(resource, _)| more(resource)) {
            let used = after.get(&(workspace.clone(), resource.clone())).copied().unwrap_or(0);
            assert!(used <= quota.most(), "{workspace} gets {used} of {resource:?}");
        }
        self.running.get_mut(&(job, element)).unwrap().borrows = beyond;
    }

    /// What all tasks on a node have of something.
    fn claimed(&self, node: &NodeId, of: impl Fn(&Need) -> u64) -> u64 {
        let runs = self.running.iter();
        let tasks = |run: &Runs| run.places.iter().filter(|place| place.node == *node).count() as u64;
        runs.map(|((job, _), run)| tasks(run) * of(&self.requests[job].need)).sum()
    }

    fn check_victim(&mut self, preemption: &crate::Preemption) {
        let key = (preemption.job.clone(), preemption.element);
        let victim = &self.requests[&preemption.job];
        let by = &self.requests[&preemption.by];
        let run = self.running.get_mut(&key).expect("only what runs is ended");
        assert!(run.leaves_for.is_none(), "nobody is ended twice");
        match preemption.cause {
            Cause::Priority => assert!(victim.preemptible && victim.priority < by.priority),
            Cause::Reclaim => {
                assert!(victim.workspace != by.workspace && self.quotas.contains_key(&by.workspace))
            }
        }
        let least = self.policy.min_run_time.as_millis() as u64;
        assert!(run.since + least <= self.now, "everybody has their least time");
        run.leaves_for = Some(preemption.by.clone());
        let times = self.preempted.entry(key).or_default();
        times.push(self.now);
        let day = times.iter().filter(|at| **at + 24 * 3_600_000 > self.now).count();
        assert!(day <= self.policy.preemptions_per_day as usize, "nobody is ended too often");
    }

    pub fn end(&mut self, key: &(JobId, u32), fate: Fate) {
        self.running.remove(key).expect("it ran");
        if fate == Fate::Over {
            self.over.entry(key.0.clone()).or_default().insert(key.1);
        }
        self.scheduler.ended(&key.0, key.1, fate, self.now);
        let is_gang = matches!(self.requests[&key.0].shape, Shape::Gang(_));
        if fate == Fate::Over && is_gang {
            self.requests.remove(&key.0);
        }
    }

    /// Whoever was told to leave has left, and waits again.
    pub fn leave(&mut self) -> usize {
        let leaving = self.running.iter().filter(|(_, run)| run.leaves_for.is_some());
        let leaving: Vec<(JobId, u32)> = leaving.map(|(key, _)| key.clone()).collect();
        leaving.iter().for_each(|key| self.end(key, Fate::Again));
        leaving.len()
    }

    /// What each workspace has of each resource.
    pub fn used(&self) -> BTreeMap<(String, Resource), u64> {
        let mut used = BTreeMap::new();
        for ((job, _), run) in &self.running {
            let request = &self.requests[job];
            let mut add = |resource: Resource, amount: u64| {
                *used.entry((request.workspace.clone(), resource)).or_insert(0) += amount;
            };
            if run.is_delegated {
                let size = if let Shape::Gang(size) = request.shape { u64::from(size) } else { 1 };
                let devices = request.need.device_count() as u64 * size;
                add(Resource::Cpu, request.need.cpu_millis * size);
                add(Resource::Memory, request.need.memory_bytes * size);
                add(Resource::Devices, devices);
                if let Some(model) = request.need.devices.as_ref().and_then(|it| it.model.as_ref()) {
                    add(Resource::Model(model.to_ascii_lowercase()), devices);
                }
            }
            for (place, cpus) in run.places.iter().zip(&run.cpus) {
                let node = &self.nodes[&place.node];
                let whole = request.need.exclusive;
                let memory = if whole { node.capacity.memory_bytes } else { request.need.memory_bytes };
                add(Resource::Memory, memory);
                add(Resource::Cpu, *cpus);
                add(Resource::Devices, place.devices.len() as u64);
                for index in &place.devices {
                    let device = node.capacity.devices.iter().find(|it| it.index == *index).unwrap();
                    add(Resource::Model(device.model.to_ascii_lowercase()), 1);
                }
            }
        }
        used
    }

    /// Nothing is given twice, and nobody has more than they may.
    pub fn check(&self) {
        for node in self.nodes.values() {
            let (mut cpu, mut memory, mut slots, mut tasks, mut alone) = (0, 0, 0, 0, 0);
            let mut devices = Vec::new();
            for ((job, _), run) in &self.running {
                let need = &self.requests[job].need;
                for place in run.places.iter().filter(|place| place.node == node.node) {
                    cpu += need.cpu_millis;
                    memory += need.memory_bytes;
                    slots += need.slots();
                    tasks += 1;
                    alone += usize::from(need.exclusive);
                    devices.extend(place.devices.iter().copied());
                }
            }
            // What shrinks under what runs there is nobody's fault; nothing new comes there then.
            let had = self.whole[number(&node.node)];
            assert!(cpu <= had, "CPUs of {}", node.node);
            assert!(memory <= node.capacity.memory_bytes && slots <= node.capacity.slots);
            assert!(alone == 0 || tasks == 1, "somebody is beside one that has {} alone", node.node);
            let all = devices.len();
            devices.sort_unstable();
            devices.dedup();
            assert_eq!(devices.len(), all, "a device of {} is given twice", node.node);
        }
        if !self.is_requoted {
            self.check_quotas();
        }
        for (user, most) in &self.limits {
            let theirs = self.running.keys().filter(|(job, _)| self.requests[job].user == *user).count();
            assert!(theirs <= *most as usize, "{user} runs {theirs} of {most}");
        }
        for (job, request) in &self.requests {
            if let Shape::Many { at_once, .. } = request.shape {
                let runs = self.running.keys().filter(|(id, _)| id == job).count();
                assert!(runs <= at_once as usize, "{job} runs {runs} of {at_once} at once");
            }
        }
    }

    fn check_quotas(&self) {
        let used = self.used();
        let resources: BTreeSet<&Resource> = self.quotas.values().flat_map(|it| it.keys()).collect();
        for resource in resources {
            let (mut borrowed, mut lent) = (0, 0);
            for (workspace, quotas) in &self.quotas {
                let Some(quota) = quotas.get(resource) else { continue };
                let used = used.get(&(workspace.clone(), resource.clone())).copied().unwrap_or(0);
                assert!(used <= quota.most(), "{workspace} has {used} of {resource:?}");
                borrowed += used.saturating_sub(quota.nominal);
                lent += quota.nominal.saturating_sub(used).min(quota.lend.unwrap_or(u64::MAX));
            }
            assert!(borrowed <= lent, "{borrowed} of {resource:?} are borrowed, and {lent} lent");
        }
    }

    /// Everything ends, and nothing is left of it.
    pub fn finish(mut self) {
        let running: Vec<(JobId, u32)> = self.running.keys().cloned().collect();
        for key in running {
            self.end(&key, Fate::Over);
        }
        let waiting: Vec<JobId> = self.requests.keys().cloned().collect();
        waiting.iter().for_each(|job| self.scheduler.withdraw(job));
        self.scheduler.assert_empty();
    }
}

impl Scheduler {
    fn assert_empty(&self) {
        assert_eq!((self.jobs.len(), self.runs.len(), self.groups.len(), self.classes.len()), (0, 0, 0, 0));
        assert!(self.promised.is_empty() && self.leaving.is_empty() && self.is_out.is_empty());
        assert_eq!(self.queued(), 0);
        assert!(self.nodes.iter().all(|(_, node)| node.is_untouched()));
        for pool in &self.pools {
            assert!(
                pool.reserved.iter().all(Option::is_none) && pool.runs.is_empty() && pool.ends.is_empty()
            );
            assert!(pool.preemptible.is_empty() && pool.borrowing.is_empty());
            assert!(self.lesser.iter().all(|runs| runs.is_empty()) && self.young.is_empty());
        }
        for workspace in 0..self.workspaces.len() as u32 {
            assert!((0..self.dims.len() as u32).all(|dim| self.ledger.used(workspace, dim) == 0));
        }
        assert!(self.people.iter().all(|person| person.running == 0));
        assert!(self.members.iter().all(|member| member.account.held() == 0.0));
    }
}
