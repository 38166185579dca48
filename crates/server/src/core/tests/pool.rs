//! Pools, and nodes that come, go and are drained.

use std::collections::BTreeMap;

use async_trait::async_trait;
use muster_api::view::Why;
use muster_engine::{
    AgentAccount, AgentBinary, Capabilities, Engine, Error, Family, Key, Observed, Offer, StartRequest,
    Status,
};
use muster_model::pool::{HostSpec, PoolSpec};
use muster_model::task::TaskPhase;
use proptest::prelude::*;

use super::*;

/// An engine whose nodes are somebody's to configure.
pub(super) struct Far(Capabilities);

impl Far {
    pub fn new() -> Self {
        Self(Capabilities {
            name: "ssh",
            family: Family::Fleet,
            submitter_environment: false,
            in_place: false,
            images: false,
            volumes: false,
            accounts: muster_engine::Accounts::Machines,
            keeps_files: true,
            lost_after: Duration::from_secs(10),
        })
    }
}

#[async_trait]
impl Engine for Far {
    fn capabilities(&self) -> &Capabilities {
        &self.0
    }

    fn agent(&self) -> Option<AgentBinary> {
        None
    }

    fn agent_account(&self, _: &NodeId) -> AgentAccount {
        AgentAccount::Login("bob".into())
    }

    async fn nodes(&self) -> Result<Vec<Offer>, Error> {
        Ok(Vec::new())
    }

    async fn start(&self, _: &StartRequest) -> Result<Option<String>, Error> {
        Ok(None)
    }

    async fn status(&self, keys: &[Key]) -> Result<Vec<Observed>, Error> {
        Ok(keys.iter().map(|_| Status::Gone.into()).collect())
    }

    async fn stop(&self, _: &Key) -> Result<(), Error> {
        Ok(())
    }
}

fn id(host: &str) -> NodeId {
    format!("node_gpu.{host}").parse().unwrap()
}

fn spec(hosts: &[&str]) -> PoolSpec {
    let host = |name: &&str| HostSpec { destination: format!("ada@{name}"), ..HostSpec::default() };
    PoolSpec { name: "gpu".into(), hosts: hosts.iter().map(host).collect(), shared: None }
}

impl Fixture {
    /// A host of the pool `gpu`, whose agent has not come.
    pub(super) fn pool_host(&mut self) -> NodeId {
        self.put(Put::Whole, &["h1"]).unwrap();
        id("h1")
    }

    fn put(&mut self, how: Put, hosts: &[&str]) -> Result<(), Problem> {
        let (reply, mut answer) = oneshot::channel();
        self.turn(Input::PutPool(Box::new(spec(hosts)), how, reply));
        answer.try_recv().unwrap()
    }

    fn remove(&mut self, node: &str, force: bool) -> Result<(), Problem> {
        let (reply, mut answer) = oneshot::channel();
        self.turn(Input::RemoveNode { node: node.into(), force, reply });
        answer.try_recv().unwrap()
    }

    fn remove_pool(&mut self, force: bool) -> Result<(), Problem> {
        let (reply, mut answer) = oneshot::channel();
        self.turn(Input::RemovePool { pool: "gpu".into(), force, reply });
        answer.try_recv().unwrap()
    }

    fn drain(&mut self, node: &str, drained: bool) -> Result<NodeId, Problem> {
        let (reply, mut answer) = oneshot::channel();
        self.turn(Input::Drain { node: node.into(), drained, evict: false, reply });
        answer.try_recv().unwrap()
    }

    fn configure(&mut self, pools: Vec<PoolSpec>) {
        let (reply, mut answer) = oneshot::channel();
        self.turn(Input::Configure(pools, reply));
        answer.try_recv().unwrap().unwrap();
    }

    fn submit_there(&mut self, nodes: u32, retries: u32) -> JobId {
        self.submit(json!({ "command": ["true"], "on": "ssh/gpu", "nodes": nodes, "retries": retries }))
    }

    pub(super) fn why(&mut self, job: &JobId) -> Why {
        let (reply, mut answer) = oneshot::channel();
        self.turn(Input::Why(job.clone(), reply));
        answer.try_recv().unwrap().unwrap().unwrap().answer(MAX_PRIORITY, |id| Some(id.to_string()))
    }

    fn shown(&self) -> Vec<String> {
        self.core.node_views().into_iter().map(|view| view.id.to_string()).collect()
    }

    /// What the keeper was told, in short.
    fn told(&mut self) -> Vec<String> {
        let word = |word: Word| match word {
            Word::Join { node, machine, .. } => {
                format!("join {node} {}", machine.map(|machine| machine.destination).unwrap_or_default())
            }
            Word::Arrived(node) => format!("arrived {node}"),
            Word::Away(node) => format!("away {node}"),
            Word::Leave(node) => format!("leave {node}"),
            Word::Refused { node, .. } => format!("refused {node}"),
        };
        std::iter::from_fn(|| self.words.try_recv().ok()).map(word).collect()
    }

    /// Lets time pass, as far as timers are concerned.
    pub(super) fn later(&mut self, by: Duration) {
        let now = now() + by;
        let mut batch = Batch::default();
        self.core.on_timers(&mut batch, now);
        self.core.tend_all(&mut batch, now);
        self.core.schedule(&mut batch, now);
        self.core.commit(batch, now);
        self.core.finish_leaving(now);
    }
}

#[test]
fn hosts_are_nodes_as_soon_as_they_are_said_and_after_a_restart() {
    let mut fixture = Fixture::new();
    assert_eq!(fixture.told(), ["join node_local "]);
    fixture.put(Put::More, &["h1", "h2"]).unwrap();
    assert_eq!(fixture.told(), ["join node_gpu.h1 ada@h1", "join node_gpu.h2 ada@h2"]);
    assert_eq!(fixture.shown(), ["node_gpu.h1", "node_gpu.h2", "node_local"]);
    fixture.drain("h2", true).unwrap();
    let mut fixture = fixture.restart();
    assert_eq!(fixture.told().len(), 3);
    let _messages = fixture.connect_node(&id("h1"), "a", vec![]);
    let _other = fixture.connect_node(&id("h2"), "a", vec![]);
    let job = fixture.submit_there(2, 0);
    let places: Vec<NodeId> =
        fixture.core.jobs[&job].job.tasks.iter().map(|task| task.placement.node.clone()).collect();
    assert_eq!(places, [id("h1"), id("h1")], "what was drained stays drained");
}

#[test]
fn a_host_that_is_spoken_of_again_is_tried_at_once() {
    let mut fixture = Fixture::new();
    fixture.put(Put::More, &["h1"]).unwrap();
    let error = muster_api::view::NodeError { message: "no route".into(), may_pass: true, at: now() };
    fixture.core.parts.starts.failed(&id("h1"), error);
    assert_eq!(fixture.core.node_views()[0].error.as_ref().unwrap().message, "no route");
    fixture.told();
    fixture.put(Put::More, &["h1", "h2"]).unwrap();
    assert_eq!(fixture.told().len(), 2);
    assert!(fixture.core.parts.starts.is_open(&id("h1")), "its old answer is none any more");
}

#[test]
fn a_drained_node_gets_nothing_new_and_keeps_what_it_has() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let running = fixture.submit(json!({ "command": ["true"] }));
    assert_eq!(fixture.drain("local", true).unwrap(), node());
    let waiting = fixture.submit(json!({ "command": ["true"] }));
    assert_eq!((fixture.state(&running), fixture.state(&waiting)), (State::Starting, State::Queued));
    let why = fixture.why(&waiting);
    assert_eq!((why.code.as_str(), why.summary.as_str()), ("no_node", "this machine is drained"));
    assert!(why.help.unwrap().contains("undrain node_local"));
    fixture.drain("node_local", false).unwrap();
    assert_eq!(fixture.state(&waiting), State::Starting);
}

#[test]
fn a_job_for_a_pool_that_is_not_there_is_told_which_is_meant() {
    let mut fixture = Fixture::new();
    let ask = |fixture: &mut Fixture| {
        let refused = fixture.try_submit(json!({ "command": ["true"], "on": "ssh/gpuu" }), None).unwrap_err();
        (refused.errors[0].field.clone(), refused.errors[0].message.clone())
    };
    let (field, message) = ask(&mut fixture);
    assert_eq!(field, "on");
    assert!(message.contains("muster pool add gpuu"), "{message}");
    fixture.put(Put::Whole, &["h1"]).unwrap();
    assert!(ask(&mut fixture).1.contains("did you mean `ssh/gpu`?"));
}

#[test]
fn a_job_says_which_hosts_it_waits_for_and_why_they_are_away() {
    let mut fixture = Fixture::new();
    fixture.put(Put::Whole, &["h1", "h2", "h3"]).unwrap();
    let job = fixture.submit_there(9, 0);
    let error = muster_api::view::NodeError { message: "wrong key".into(), may_pass: false, at: now() };
    fixture.core.parts.starts.failed(&id("h2"), error);
    fixture.drain("h3", true).unwrap();
    let why = fixture.why(&job);
    assert_eq!(why.summary, "2 of the 3 hosts of pool gpu are away, 1 is drained");
    assert_eq!(why.constraint.unwrap(), "node_gpu.h2: wrong key");
    let _messages = fixture.connect_node(&id("h1"), "a", vec![]);
    let why = fixture.why(&job);
    assert_eq!(why.code, "no_node");
    assert!(why.constraint.unwrap().ends_with("(node_gpu.h2: wrong key)"));
    let _other = fixture.connect_node(&id("h3"), "a", vec![]);
    let _third = fixture.connect_node(&id("h2"), "a", vec![]);
    fixture.turn(Input::AgentGone { connection: ConnectionId(fixture.connection), node: id("h2") });
    let error = muster_api::view::NodeError { message: "wrong key".into(), may_pass: false, at: now() };
    fixture.core.parts.starts.failed(&id("h2"), error);
    let why = fixture.why(&job);
    assert_eq!(why.code, "no_capacity");
    assert!(why.constraint.as_ref().unwrap().contains("(node_gpu.h2: wrong key)"), "{why:?}");
    assert!(why.constraint.unwrap().contains("1 node has 4 slots free"));
}

#[test]
fn a_busy_host_goes_only_by_force_and_its_job_follows_the_retry_policy() {
    let mut fixture = Fixture::new();
    fixture.put(Put::Whole, &["h1", "h2"]).unwrap();
    let mut messages = fixture.connect_node(&id("h1"), "a", vec![]);
    let job = fixture.submit_there(1, 1);
    let refused = fixture.remove("gpu.h1", false).unwrap_err();
    assert_eq!(refused.code, muster_api::Code::InUse);
    assert!(refused.detail.contains(job.as_str()), "{refused:?}");
    assert_eq!(fixture.put(Put::Whole, &["h2"]).unwrap_err().code, muster_api::Code::InUse);
    all(&mut messages);
    fixture.told();

    fixture.remove("h1", true).unwrap();
    let first = task(&job, 1, 0);
    assert_eq!(
        all(&mut messages),
        [ToAgent::Stop { task: first.clone(), grace_ms: 0, reason: String::new() }]
    );
    assert_eq!(
        (fixture.state(&job), fixture.shown()),
        (State::Queued, vec!["node_gpu.h2".into(), "node_local".into()])
    );
    let told = fixture.told();
    assert_eq!(told, ["join node_gpu.h2 ada@h2"], "its agent is not stopped before what ran there has ended");
    fixture.turn(Input::AgentSaid {
        connection: ConnectionId(fixture.connection),
        node: id("h1"),
        message: ended(first, None),
    });
    assert_eq!(fixture.told(), ["leave node_gpu.h1"]);
    assert!(!fixture.core.nodes.contains_key(&id("h1")));
    let _other = fixture.connect_node(&id("h2"), "a", vec![]);
    assert_eq!(fixture.state(&job), State::Starting);
    let mut fixture = fixture.restart();
    assert_eq!(fixture.told().len(), 2, "it is forgotten for good");
}

#[test]
fn a_host_that_does_not_answer_leaves_all_the_same() {
    let mut fixture = Fixture::new();
    fixture.put(Put::Whole, &["h1"]).unwrap();
    let _messages = fixture.connect_node(&id("h1"), "a", vec![]);
    let job = fixture.submit_there(1, 0);
    fixture.told();
    fixture.remove("h1", true).unwrap();
    assert_eq!(fixture.state(&job), State::Failed);
    assert!(fixture.told().is_empty());
    let mut late = fixture.connect_node(&id("h1"), "a", vec![]);
    assert!(late.try_recv().is_err(), "nobody greets a node that leaves");
    fixture.later(Duration::from_secs(6));
    assert_eq!(fixture.told(), ["leave node_gpu.h1"]);
}

#[test]
fn a_pool_that_jobs_wait_for_stays() {
    let mut fixture = Fixture::new();
    fixture.put(Put::Whole, &["h1"]).unwrap();
    let job = fixture.submit_there(1, 0);
    for force in [false, true] {
        let refused = fixture.remove_pool(force).unwrap_err();
        assert_eq!(refused.code, muster_api::Code::InUse);
        assert!(refused.detail.contains(job.as_str()));
    }
    let _messages = fixture.connect_node(&id("h1"), "a", vec![]);
    assert_eq!(fixture.remove_pool(false).unwrap_err().code, muster_api::Code::InUse);
    fixture.remove_pool(true).unwrap();
    assert_eq!(fixture.state(&job), State::Failed);
    assert!(fixture.core.pools.is_empty());
    assert_eq!(fixture.remove_pool(true).unwrap_err().code, muster_api::Code::PoolNotFound);
}

#[test]
fn what_is_configured_is_changed_in_the_configuration_alone() {
    let mut fixture = Fixture::new();
    fixture.configure(vec![spec(&["h1", "h2"])]);
    for refused in [
        fixture.put(Put::More, &["h3"]).unwrap_err(),
        fixture.remove("h1", true).unwrap_err(),
        fixture.remove_pool(true).unwrap_err(),
    ] {
        assert_eq!(refused.code, muster_api::Code::Configured);
        assert!(refused.detail.contains("config.toml"), "{refused:?}");
    }
    let _messages = fixture.connect_node(&id("h1"), "a", vec![]);
    let job = fixture.submit_there(1, 0);
    let mut fixture = fixture.restart();
    fixture.configure(vec![spec(&["h3"])]);
    assert_eq!(fixture.shown(), ["node_gpu.h1", "node_gpu.h3", "node_local"], "what has tasks stays");
    fixture.configure(vec![]);
    assert!(!fixture.core.pools["gpu"].configured, "and so does a pool with jobs, as anybody's");
    let _messages = fixture.connect_node(&id("h1"), "b", vec![]);
    assert_eq!(fixture.state(&job), State::Failed, "its records are gone");
    fixture.configure(vec![spec(&["h3"])]);
    fixture.configure(vec![]);
    assert_eq!(fixture.shown(), ["node_local"]);
}

#[test]
fn a_change_that_is_not_written_did_not_happen() {
    let mut fixture = Fixture::new();
    fixture.put(Put::Whole, &["h1"]).unwrap();
    let _messages = fixture.connect_node(&id("h1"), "a", vec![]);
    let job = fixture.submit_there(1, 0);
    let (at, mut batch) = (now(), Batch::default());
    let mut answers = Vec::new();
    let mut reply = || {
        let (reply, answer) = oneshot::channel();
        answers.push(answer);
        reply
    };
    let inputs = [
        Input::PutPool(Box::new(spec(&["h2"])), Put::More, reply()),
        Input::RemoveNode { node: "h1".into(), force: true, reply: reply() },
    ];
    inputs.into_iter().for_each(|input| fixture.core.handle(input, &mut batch, at));
    for drained in [true, false, true] {
        let input = Input::Drain { node: "local".into(), drained, evict: false, reply: oneshot::channel().0 };
        fixture.core.handle(input, &mut batch, at);
    }
    fixture.core.roll_back(batch, &Problem::new(muster_api::Code::Unavailable, "no"));
    assert!(answers.iter_mut().all(|answer| answer.try_recv().unwrap().is_err()));
    assert_eq!(fixture.shown(), ["node_gpu.h1", "node_local"]);
    assert!(!fixture.core.nodes[&node()].drained && fixture.core.leaving.is_empty());
    assert_eq!(fixture.core.jobs[&job].job.state, State::Starting);
    let report = TaskReport { task: task(&job, 1, 0), phase: ReportPhase::Preparing };
    let _messages = fixture.connect_node(&id("h1"), "a", vec![report]);
    assert!(fixture.core.nodes[&id("h1")].usable);
}

#[test]
fn who_asks_for_nodes_right_after_the_start_waits_for_them_a_moment() {
    let mut fixture = Fixture::new();
    let (reply, mut answer) = oneshot::channel();
    fixture.turn(Input::Settled(reply));
    assert!(answer.try_recv().is_err());
    let _messages = fixture.connect("a", vec![]);
    assert!(answer.try_recv().is_ok());
    let mut fixture = fixture.restart();
    let (reply, mut answer) = oneshot::channel();
    fixture.turn(Input::Settled(reply));
    fixture.core.settle(now() + Duration::from_secs(3));
    assert!(answer.try_recv().is_ok(), "and no longer than that");
}

#[test]
fn a_restarted_server_gives_its_nodes_a_minute() {
    let mut fixture = Fixture::new();
    fixture.put(Put::Whole, &["h1"]).unwrap();
    let _messages = fixture.connect_node(&id("h1"), "a", vec![]);
    let job = fixture.submit_there(1, 0);
    let mut fixture = fixture.restart();
    fixture.later(Duration::from_secs(50));
    assert_eq!(fixture.state(&job), State::Starting);
    fixture.later(Duration::from_secs(61));
    assert_eq!(fixture.state(&job), State::Failed);
}

#[test]
fn a_node_is_found_by_any_name_that_is_its_own() {
    let mut fixture = Fixture::new();
    fixture.put(Put::Whole, &["h1", "h2"]).unwrap();
    for name in ["node_gpu.h1", "gpu.h1", "h1"] {
        assert_eq!(fixture.core.find_node(name).unwrap(), id("h1"), "{name}");
    }
    let missing = fixture.core.find_node("gpu.h3").unwrap_err();
    assert_eq!(missing.code, muster_api::Code::NodeNotFound);
    assert!(missing.hint.unwrap().contains("did you mean"));
    let (reply, _) = oneshot::channel();
    let other = PoolSpec { name: "cpu".into(), ..spec(&["h1"]) };
    fixture.turn(Input::PutPool(Box::new(other), Put::Whole, reply));
    assert_eq!(fixture.core.find_node("h1").unwrap_err().code, muster_api::Code::Ambiguous);
}

#[test]
fn a_drained_host_that_is_wanted_again_before_it_has_left_takes_tasks() {
    let mut fixture = Fixture::new();
    fixture.put(Put::Whole, &["h1"]).unwrap();
    let _messages = fixture.connect_node(&id("h1"), "a", vec![]);
    let first = fixture.submit_there(1, 0);
    fixture.drain("h1", true).unwrap();
    fixture.remove("h1", true).unwrap();
    assert!(fixture.core.nodes.contains_key(&id("h1")), "its task is still to end");
    fixture.put(Put::Whole, &["h1"]).unwrap();
    let connection = ConnectionId(fixture.connection);
    let message = ended(task(&first, 1, 0), None);
    fixture.turn(Input::AgentSaid { connection, node: id("h1"), message });
    let second = fixture.submit_there(1, 0);
    assert_eq!(fixture.state(&second), State::Starting);
}

/// Something that may happen to hosts and their jobs.
#[derive(Debug, Clone)]
enum Step {
    Put(Vec<bool>),
    Remove(usize, bool),
    Drain(usize, bool),
    Connect(usize),
    Lose(usize),
    Submit(u32),
    End(usize),
    Wait,
    Restart,
}

const HOSTS: [&str; 4] = ["h0", "h1", "h2", "h3"];

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let host = 0..HOSTS.len();
    let step = prop_oneof![
        2 => prop::collection::vec(any::<bool>(), HOSTS.len()).prop_map(Step::Put),
        2 => (host.clone(), any::<bool>()).prop_map(|(host, force)| Step::Remove(host, force)),
        2 => (host.clone(), any::<bool>()).prop_map(|(host, drained)| Step::Drain(host, drained)),
        5 => host.clone().prop_map(Step::Connect),
        2 => host.prop_map(Step::Lose),
        4 => (1u32..6).prop_map(Step::Submit),
        4 => (0usize..8).prop_map(Step::End),
        1 => Just(Step::Wait),
        1 => Just(Step::Restart),
    ];
    prop::collection::vec(step, 1..40)
}

/// A fixture with the connection of each host that has one.
struct World {
    fixture: Fixture,
    connections: BTreeMap<NodeId, (u64, mpsc::Receiver<ToAgent>)>,
}

impl World {
    /// Tasks that are placed and not over, by node.
    fn placed(&self) -> Vec<(NodeId, TaskId)> {
        let live =
            self.fixture.core.jobs.values().filter(|live| State::HOLDS_RESOURCES.contains(&live.job.state));
        let tasks = live.flat_map(|live| {
            let attempt = live.job.attempt_id();
            let ranks = (0..).zip(&live.job.tasks).filter(|(_, task)| task.phase != TaskPhase::Ended);
            ranks.map(move |(rank, task)| (task.placement.node.clone(), attempt.task(rank)))
        });
        tasks.collect()
    }

    fn take(mut self, step: &Step) -> Self {
        match step {
            Step::Put(chosen) => {
                let hosts: Vec<&str> =
                    HOSTS.iter().zip(chosen).filter(|(_, is)| **is).map(|(host, _)| *host).collect();
                drop(self.fixture.put(Put::Whole, &hosts));
            }
            Step::Remove(host, force) => drop(self.fixture.remove(HOSTS[*host], *force)),
            Step::Drain(host, drained) => drop(self.fixture.drain(HOSTS[*host], *drained)),
            Step::Connect(host) => {
                let node = id(HOSTS[*host]);
                let mine = self.placed().into_iter().filter(|(at, _)| *at == node);
                let reports = mine.map(|(_, task)| TaskReport {
                    task,
                    phase: ReportPhase::Running { at: now(), address: None },
                });
                let reports = reports.collect();
                let messages = self.fixture.connect_node(&node, "a", reports);
                self.connections.insert(node, (self.fixture.connection, messages));
            }
            Step::Lose(host) => {
                if let Some((connection, _)) = self.connections.remove(&id(HOSTS[*host])) {
                    let connection = ConnectionId(connection);
                    self.fixture.turn(Input::AgentGone { connection, node: id(HOSTS[*host]) });
                }
            }
            Step::Submit(nodes) => {
                let spec = json!({ "command": ["true"], "on": "ssh/gpu", "nodes": nodes, "retries": 1 });
                drop(self.fixture.try_submit(spec, None));
            }
            Step::End(nth) => {
                let placed = self.placed();
                if let Some((node, task)) = placed.get(*nth)
                    && let Some((connection, _)) = self.connections.get(node)
                {
                    self.fixture.turn(Input::AgentSaid {
                        connection: ConnectionId(*connection),
                        node: node.clone(),
                        message: ended(task.clone(), None),
                    });
                }
            }
            Step::Wait => self.fixture.later(Duration::from_secs(70)),
            Step::Restart => {
                return Self { fixture: self.fixture.restart(), connections: BTreeMap::new() };
            }
        }
        self
    }

    /// What holds after every step.
    fn check(&self, before: &[(NodeId, TaskId)]) {
        let core = &self.fixture.core;
        let pools = core.parts.readers.pools().unwrap();
        assert_eq!(core.pools.values().cloned().collect::<Vec<_>>(), pools, "memory is what is on disk");
        let hosts = pools.iter().flat_map(|pool| &pool.hosts).map(|host| host.node.to_string());
        let mut wanted: Vec<String> = hosts.chain(["node_local".into()]).collect();
        wanted.sort();
        assert_eq!(self.fixture.shown(), wanted, "the nodes are those that are wanted");
        let drained = core.parts.readers.drained().unwrap();
        for (node, task) in self.placed() {
            let at = core.nodes.get(&node).unwrap_or_else(|| panic!("{task} is on {node}, which is gone"));
            assert!(at.tasks.contains(&task) && at.leaves_at.is_none(), "{task} on {node}");
            if !before.contains(&(node.clone(), task.clone())) {
                assert!(!drained.contains(&node), "{task} was given to {node}, which is drained");
            }
        }
        for (id, node) in &core.nodes {
            assert_eq!(u32::try_from(node.tasks.len()).unwrap(), core.scheduler.used(&node.id).slots, "{id}");
            assert_eq!(node.drained, drained.contains(id), "{id}");
        }
        // What the scheduler was told step by step is what it would be told all at once.
        let anew = core.scheduler_anew(&[], now());
        core.nodes.keys().for_each(|id| assert_eq!(core.scheduler.used(id), anew.used(id), "{id}"));
        if core.untold.jobs.is_empty() && core.untold.nodes.is_empty() {
            assert_eq!(core.scheduler.running(), anew.running());
            core.jobs.keys().for_each(|id| assert_eq!(core.scheduler.knows(id), anew.knows(id), "{id}"));
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 24, ..ProptestConfig::default() })]

    #[test]
    fn nodes_follow_their_pools_and_no_task_is_where_it_must_not_be(steps in steps()) {
        let mut world = World { fixture: Fixture::new(), connections: BTreeMap::new() };
        for step in &steps {
            let before = world.placed();
            world = world.take(step);
            world.check(&before);
        }
    }
}
