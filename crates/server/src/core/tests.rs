//! The core on its own, turn by turn: a real store, agents played by the test.

use muster_engine::local::{self, Local};
use muster_link::message::{Hello, PROTOCOL, ReportPhase, TaskReport, ToAgent, ToServer};
use muster_model::job::State;
use muster_model::node::Capacity;
use muster_model::spec::{JobSpec, MAX_PRIORITY, Target};
use muster_model::task::{Address, Outputs, TaskEnd};
use muster_store::Store;
use serde_json::json;
use tokio::sync::oneshot;

use super::*;

mod ahead;
mod array;
mod audit;
mod claim;
mod clock;
mod delegate;
mod machine;
mod member;
mod owner;
mod pool;
mod quota;
mod removal;
mod schedule;
mod workspace;

struct Fixture {
    core: Core,
    dir: tempfile::TempDir,
    connection: u64,
    words: mpsc::UnboundedReceiver<Word>,
    delegated: mpsc::UnboundedReceiver<crate::delegate::Word>,
}

/// What the core says to those who start agents, and to those who speak with other schedulers.
type Ears = (mpsc::UnboundedReceiver<Word>, mpsc::UnboundedReceiver<crate::delegate::Word>);

fn load(dir: &std::path::Path) -> (Core, Ears) {
    let (delegate, delegated) = mpsc::unbounded_channel();
    let (words_sender, words) = mpsc::unbounded_channel();
    let Store { writer, readers } = Store::open(dir).unwrap();
    let options =
        local::Options { dir: dir.join("node"), exe: "/nonexistent".into(), arguments: Vec::new(), binary };
    let parts = Parts {
        gang_key: [7; 32],
        vault: Arc::new(Vault::open(dir, None).unwrap()),
        writer,
        readers,
        engines: Arc::new(Engines::new(vec![
            Arc::new(Local::new(options)),
            Arc::new(pool::Far::new()),
            Arc::new(crate::delegate::tests::Cluster::new()),
            Arc::new(crate::delegate::tests::Cluster::named("k8s", false)),
        ])),
        logs: Arc::new(LogStore::new(
            dir.join("logs"),
            Arc::new(crate::disk::DiskFloor::new(dir.into(), Some(0))),
        )),
        metrics: Arc::new(Metrics::new()),
        commits: Arc::default(),
        news: watch::Sender::new(0),
        words: words_sender,
        delegate,
        troubles: Arc::default(),
        starts: Arc::default(),
        home: dir.into(),
        reserve: Arc::new(DiskReserve::new(dir)),
        keep: Default::default(),
        disk: Default::default(),
        accounts: None,
        owner: "me".into(),
        volumes: Vec::new(),
        policy: Default::default(),
    };
    (Core::load(parts, vec![(node(), Target::Local)]).unwrap(), (words, delegated))
}

/// What agents should run: a file that never changes.
fn binary() -> Option<muster_engine::AgentBinary> {
    Some(muster_engine::AgentBinary { path: "/bin/muster".into(), build: "build".into() })
}

fn node() -> NodeId {
    local::NODE.parse().unwrap()
}

impl Fixture {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let (core, (words, delegated)) = load(dir.path());
        Self { core, dir, connection: 0, words, delegated }
    }

    /// What a killed server leaves, started again.
    fn restart(self) -> Self {
        let Self { core, dir, connection, words, delegated } = self;
        drop((core, words, delegated));
        let (core, (words, delegated)) = load(dir.path());
        Self { core, dir, connection, words, delegated }
    }

    fn connect(&mut self, incarnation: &str, tasks: Vec<TaskReport>) -> mpsc::Receiver<ToAgent> {
        self.connect_node(&node(), incarnation, tasks)
    }

    fn connect_node(
        &mut self,
        node: &NodeId,
        incarnation: &str,
        tasks: Vec<TaskReport>,
    ) -> mpsc::Receiver<ToAgent> {
        self.connect_build(node, "build", incarnation, tasks)
    }

    fn connect_build(
        &mut self,
        node: &NodeId,
        build: &str,
        incarnation: &str,
        tasks: Vec<TaskReport>,
    ) -> mpsc::Receiver<ToAgent> {
        self.connection += 1;
        let (outbox, messages) = mpsc::channel(100);
        let hello = self.hello(node, build, incarnation, tasks);
        let connection = ConnectionId(self.connection);
        self.turn(Input::AgentConnected { connection, hello: Box::new(hello), outbox, is_tcp: false });
        messages
    }

    fn hello(&self, node: &NodeId, build: &str, incarnation: &str, tasks: Vec<TaskReport>) -> Hello {
        Hello {
            protocol: PROTOCOL,
            version: "1".into(),
            build: build.into(),
            node: node.clone(),
            incarnation: incarnation.into(),
            pid: 1,
            host: "host".into(),
            capacity: Capacity { cpu_millis: 4000, memory_bytes: 1 << 30, slots: 4, devices: Vec::new() },
            account: Default::default(),
            tasks,
        }
    }

    fn turn(&mut self, input: Input) {
        self.core.turn(std::iter::once(input));
    }

    fn say(&mut self, message: ToServer) {
        self.turn(Input::AgentSaid { connection: ConnectionId(self.connection), node: node(), message });
    }

    fn try_submit(&mut self, spec: serde_json::Value, key: Option<(&str, &str)>) -> Result<JobId, Problem> {
        self.try_submit_as("me", spec, key)
    }

    fn try_submit_as(
        &mut self,
        owner: &str,
        spec: serde_json::Value,
        key: Option<(&str, &str)>,
    ) -> Result<JobId, Problem> {
        let (reply, mut answer) = oneshot::channel();
        let submission = Submission {
            spec: JobSpec::from_value(spec).unwrap(),
            owner: owner.into(),
            bundle: None,
            source: None,
            environment: None,
            idempotency: key.map(|(key, digest)| (key.into(), digest.into())),
            sight: muster_store::Sight::All,
        };
        self.turn(Input::Submit(Box::new(submission), reply));
        answer.try_recv().unwrap()
    }

    fn submit(&mut self, spec: serde_json::Value) -> JobId {
        self.try_submit(spec, None).unwrap()
    }

    fn state(&self, job: &JobId) -> State {
        self.core.parts.readers.job(job).unwrap().unwrap().job.state
    }
}

fn address(last: u8) -> Address {
    Address::new([127, 64, 0, last], vec![4000 + u16::from(last)])
}

fn task(job: &JobId, attempt: u32, rank: u32) -> TaskId {
    AttemptId { job: job.clone(), number: attempt }.task(rank)
}

fn ended(task: TaskId, failure: Option<muster_model::Reason>) -> ToServer {
    ToServer::Ended { task, end: TaskEnd::new(failure, Some(0)), at: now() }
}

fn all(messages: &mut mpsc::Receiver<ToAgent>) -> Vec<ToAgent> {
    std::iter::from_fn(|| messages.try_recv().ok()).collect()
}

/// Whether a node may forget a task of a job that is over.
fn forgets(messages: &[ToAgent], task: &TaskId) -> bool {
    messages.contains(&ToAgent::Forget { task: task.clone(), continues: false })
}

#[test]
fn a_gang_is_launched_when_its_last_member_is_ready() {
    let mut fixture = Fixture::new();
    let mut messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({ "nodes": 2, "command": ["true"], "env": { "A": "1", "RANK": "7" } }));
    let prepares = all(&mut messages).into_iter().filter(|m| matches!(m, ToAgent::Prepare(_))).count();
    assert_eq!((prepares, fixture.state(&job)), (2, State::Starting));
    fixture.say(ToServer::Ready { task: task(&job, 1, 1), address: address(2) });
    assert!(all(&mut messages).is_empty());
    fixture.say(ToServer::Ready { task: task(&job, 1, 0), address: address(1) });
    let launches = all(&mut messages);
    assert_eq!(launches.len(), 2);
    for (rank, launch) in launches.iter().enumerate() {
        let ToAgent::Launch(launch) = launch else { panic!("{launch:?}") };
        assert_eq!(launch.env["MASTER_ADDR"], "127.64.0.1");
        assert_eq!(launch.env["RANK"], rank.to_string(), "the platform's facts are not the user's to change");
        assert_eq!(launch.env["A"], "1");
    }
}

#[test]
fn a_restarted_server_goes_on_where_the_gang_is() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({ "nodes": 2, "command": ["true"] }));
    fixture.say(ToServer::Ready { task: task(&job, 1, 0), address: address(1) });
    let mut fixture = fixture.restart();
    let report = TaskReport { task: task(&job, 1, 0), phase: ReportPhase::Ready { address: address(1) } };
    let mut messages = fixture.connect("a", vec![report]);
    let repeated = all(&mut messages);
    assert!(
        matches!(&repeated[..], [ToAgent::Welcome { .. }, ToAgent::Prepare(p)] if p.task.rank == 1),
        "only the member that never heard of it is asked again: {repeated:?}"
    );
    fixture.say(ToServer::Ready { task: task(&job, 1, 1), address: address(2) });
    assert_eq!(all(&mut messages).len(), 2, "both are launched");
}

#[test]
fn what_ended_while_the_server_was_away_is_counted_once() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({ "nodes": 1, "command": ["true"] }));
    fixture.say(ToServer::Ready { task: task(&job, 1, 0), address: address(1) });
    let mut fixture = fixture.restart();
    let end = TaskEnd::new(None, Some(0));
    let phase = ReportPhase::Ended { end, at: now(), started_at: Some(now()), address: None };
    let report = TaskReport { task: task(&job, 1, 0), phase };
    let mut messages = fixture.connect("a", vec![report.clone()]);
    assert_eq!(fixture.state(&job), State::Succeeded);
    assert!(forgets(&all(&mut messages), &report.task));
    let mut messages = fixture.connect("a", vec![report.clone()]);
    assert!(forgets(&all(&mut messages), &report.task), "a lost answer is given again");
    assert_eq!(fixture.state(&job), State::Succeeded);
}

#[test]
fn a_node_that_lost_its_records_has_lost_its_tasks() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({ "nodes": 1, "command": ["true"] }));
    let _messages = fixture.connect("b", vec![]);
    assert_eq!(fixture.state(&job), State::Failed);
}

#[test]
fn nothing_new_starts_beside_a_task_that_was_given_up() {
    let mut fixture = Fixture::new();
    let stale = task(&JobId::from_random(9), 1, 0);
    let report = TaskReport { task: stale.clone(), phase: ReportPhase::Running { at: now(), address: None } };
    let mut messages = fixture.connect("a", vec![report]);
    assert!(all(&mut messages).contains(&ToAgent::Stop {
        task: stale.clone(),
        grace_ms: 0,
        reason: String::new()
    }));
    let job = fixture.submit(json!({ "nodes": 1, "command": ["true"] }));
    assert_eq!(fixture.state(&job), State::Queued);
    fixture.say(ended(stale, None));
    assert_eq!(fixture.state(&job), State::Starting);
}

#[test]
fn the_same_request_makes_one_job() {
    let mut fixture = Fixture::new();
    let spec = || json!({ "nodes": 1, "command": ["true"] });
    let first = fixture.try_submit(spec(), Some(("key", "digest"))).unwrap();
    assert_eq!(fixture.try_submit(spec(), Some(("key", "digest"))).unwrap(), first);
    let other = fixture.try_submit(spec(), Some(("key", "another"))).unwrap_err();
    assert_eq!(other.code, muster_api::Code::IdempotencyConflict);
    let mut fixture = fixture.restart();
    assert_eq!(fixture.try_submit(spec(), Some(("key", "digest"))).unwrap(), first);
}

#[test]
fn what_can_never_fit_is_refused_with_what_would() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let refused = fixture.try_submit(json!({ "nodes": 5, "command": ["true"] }), None).unwrap_err();
    assert_eq!(refused.errors[0].field, "nodes");
    assert!(refused.errors[0].message.contains("--nodes 4"), "{refused:?}");
    let refused =
        fixture.try_submit(json!({ "command": ["true"], "resources": { "gpus": "1" } }), None).unwrap_err();
    assert_eq!(refused.errors[0].field, "resources.gpus");
}

#[test]
fn an_agent_of_another_build_is_asked_to_change_over() {
    let mut fixture = Fixture::new();
    let asked = |messages: &[ToAgent]| messages.contains(&ToAgent::Upgrade { path: "/bin/muster".into() });
    assert!(!asked(&all(&mut fixture.connect("a", Vec::new()))));
    assert!(asked(&all(&mut fixture.connect_build(&node(), "older", "a", Vec::new()))));
}

#[test]
fn a_gang_that_does_not_fit_waits_whole_and_starts_when_it_does() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let first = fixture.submit(json!({ "nodes": 3, "command": ["true"] }));
    let second = fixture.submit(json!({ "nodes": 2, "command": ["true"] }));
    assert_eq!(fixture.state(&second), State::Queued);
    let (reply, mut answer) = oneshot::channel();
    fixture.turn(Input::Why(second.clone(), reply));
    assert_eq!(
        answer.try_recv().unwrap().unwrap().unwrap().answer(MAX_PRIORITY, |id| Some(id.to_string())).code,
        "no_capacity"
    );
    fixture.say(ended(task(&first, 1, 2), None));
    assert_eq!(fixture.state(&second), State::Starting, "one place came free, and two is all it needs");
}

#[test]
fn a_retry_is_a_new_attempt_in_a_new_batch() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({ "nodes": 1, "command": ["false"], "retries": 1 }));
    let failure = || Some(muster_model::Reason::exited(3));
    fixture.say(ended(task(&job, 1, 0), failure()));
    assert_eq!(fixture.state(&job), State::Queued);
    fixture.core.turn(std::iter::empty());
    assert_eq!(fixture.state(&job), State::Starting);
    fixture.say(ended(task(&job, 1, 0), None));
    assert_eq!(fixture.state(&job), State::Starting, "a word of the first attempt changes nothing");
    fixture.say(ended(task(&job, 2, 0), failure()));
    assert_eq!(fixture.state(&job), State::Failed);
    assert_eq!(fixture.core.parts.readers.attempts(&job).unwrap().len(), 2);
}

#[test]
fn tasks_of_a_node_that_stays_away_are_given_up() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({ "nodes": 1, "command": ["true"] }));
    fixture.turn(Input::AgentGone { connection: ConnectionId(1), node: node() });
    let later = now() + Duration::from_secs(3600);
    let mut batch = Batch::default();
    fixture.core.on_timers(&mut batch, later);
    fixture.core.commit(batch, later);
    assert_eq!(fixture.state(&job), State::Failed);
}

fn collected(task: TaskId) -> ToServer {
    let bundle = muster_model::BundleId::from_digest(&"a".repeat(64)).unwrap();
    ToServer::Outputs { task, outputs: Outputs::Collected { bundle, files: 1, bytes: 3 } }
}

/// A job that was asked for outputs and ran to its end, as far as its node is concerned.
fn run_with_outputs(fixture: &mut Fixture) -> TaskId {
    let job = fixture.submit(json!({ "command": ["true"], "outputs": ["*.pt"] }));
    let task = task(&job, 1, 0);
    fixture.say(ToServer::Ready { task: task.clone(), address: address(1) });
    fixture.say(ToServer::Started { task: task.clone(), at: now() });
    fixture.say(ended(task.clone(), None));
    task
}

#[test]
fn a_node_forgets_a_task_only_after_its_outputs_are_here() {
    let mut fixture = Fixture::new();
    let mut messages = fixture.connect("a", vec![]);
    let task = run_with_outputs(&mut fixture);
    let said = all(&mut messages);
    assert!(said.iter().any(|m| matches!(m, ToAgent::Prepare(p) if p.outputs == ["*.pt"])));
    assert!(!forgets(&said, &task));
    let (reply, _) = oneshot::channel();
    let id = muster_model::BundleId::from_digest(&"a".repeat(64)).unwrap();
    fixture.turn(Input::PutBundle(id, "muster bundle 1\n".into(), reply));
    fixture.say(collected(task.clone()));
    assert!(forgets(&all(&mut messages), &task));
    let readers = &fixture.core.parts.readers;
    let stored = readers.outputs(&task.attempt.job, 1).unwrap();
    assert!(matches!(stored[&0], Outputs::Collected { files: 1, bytes: 3, .. }), "{stored:?}");
    let events = readers.events(Some(&task.attempt.job), 0, 100).unwrap();
    assert_eq!(events.iter().filter(|event| event.kind == "outputs").count(), 1);
}

#[test]
fn outputs_are_taken_that_come_along_with_the_news_that_their_task_ran() {
    let mut fixture = Fixture::new();
    let mut messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({ "command": ["true"], "outputs": ["*.pt"] }));
    let task = task(&job, 1, 0);
    fixture.say(ToServer::Ready { task: task.clone(), address: address(1) });
    let (reply, _) = oneshot::channel();
    let id = muster_model::BundleId::from_digest(&"a".repeat(64)).unwrap();
    fixture.turn(Input::PutBundle(id, "muster bundle 1\n".into(), reply));
    // A server that was busy hears all of it at once, and from an agent that is new some of it twice.
    let connection = ConnectionId(fixture.connection);
    let said = [
        ToServer::Started { task: task.clone(), at: now() },
        ended(task.clone(), None),
        collected(task.clone()),
        collected(task.clone()),
    ];
    let said = said.map(|message| Input::AgentSaid { connection, node: node(), message });
    fixture.core.turn(said.into_iter());
    assert!(forgets(&all(&mut messages), &task));
    let readers = &fixture.core.parts.readers;
    let stored = readers.outputs(&job, 1).unwrap();
    assert!(matches!(stored.get(&0), Some(Outputs::Collected { .. })), "{stored:?}");
    let events = readers.events(Some(&job), 0, 100).unwrap();
    assert_eq!(events.iter().filter(|event| event.kind == "outputs").count(), 1);
}

#[test]
fn outputs_that_come_after_a_restart_are_taken_once_and_only_from_their_node() {
    let mut fixture = Fixture::new();
    let _messages = fixture.connect("a", vec![]);
    let task = run_with_outputs(&mut fixture);
    let mut fixture = fixture.restart();
    let end = TaskEnd::new(None, Some(0));
    let phase = ReportPhase::Ended { end, at: now(), started_at: Some(now()), address: None };
    let mut messages = fixture.connect("a", vec![TaskReport { task: task.clone(), phase }]);
    assert!(!forgets(&all(&mut messages), &task));
    for _ in 0..2 {
        fixture.say(collected(task.clone()));
    }
    assert!(forgets(&all(&mut messages), &task));
    let readers = &fixture.core.parts.readers;
    let stored = readers.outputs(&task.attempt.job, 1).unwrap();
    assert!(
        matches!(&stored[&0], Outputs::Failed { message } if message.contains("does not have")),
        "a bundle that is not here is not promised: {stored:?}"
    );
    let events = readers.events(Some(&task.attempt.job), 0, 100).unwrap();
    assert_eq!(events.iter().filter(|event| event.kind == "outputs").count(), 1);
}

#[test]
fn what_never_ran_owes_no_outputs() {
    let mut fixture = Fixture::new();
    let mut messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({ "command": ["true"], "outputs": ["*"] }));
    let failure = Some(muster_model::Reason::SetupFailed { exit_code: 1 });
    fixture.say(ended(task(&job, 1, 0), failure));
    assert!(forgets(&all(&mut messages), &task(&job, 1, 0)));
}

#[test]
fn the_second_attempt_is_told_of_the_first() {
    let mut fixture = Fixture::new();
    let mut messages = fixture.connect("a", vec![]);
    let job = fixture.submit(json!({ "command": ["false"], "retries": 1 }));
    fixture.say(ended(task(&job, 1, 0), Some(muster_model::Reason::exited(3))));
    fixture.core.turn(std::iter::empty());
    let previous: Vec<_> = all(&mut messages)
        .into_iter()
        .filter_map(
            |message| if let ToAgent::Prepare(prepare) = message { Some(prepare.previous) } else { None },
        )
        .collect();
    assert_eq!(previous, [None, Some(task(&job, 1, 0))]);
}

#[test]
fn a_task_of_a_job_that_is_gone_is_forgotten_at_once() {
    let mut fixture = Fixture::new();
    let stranger = task(&JobId::from_random(9), 1, 0);
    let end = TaskEnd::new(None, Some(1 << 20));
    let phase = ReportPhase::Ended { end, at: now(), started_at: None, address: None };
    let mut messages = fixture.connect("a", vec![TaskReport { task: stranger.clone(), phase }]);
    assert!(forgets(&all(&mut messages), &stranger));
}

#[test]
fn a_bundle_is_not_removed_from_under_a_job_of_the_same_batch() {
    let mut fixture = Fixture::new();
    let id = muster_model::BundleId::from_digest(&"a".repeat(64)).unwrap();
    let (reply, _) = oneshot::channel();
    fixture.turn(Input::PutBundle(id.clone(), "muster bundle 1\n".into(), reply));
    let (reply, mut removed) = oneshot::channel();
    let remove = Input::RemoveBundles { unused_since: now() + Duration::from_secs(60), limit: 10, reply };
    let (reply, mut submitted) = oneshot::channel();
    let submission = Submission {
        spec: JobSpec::from_value(json!({ "command": ["true"] })).unwrap(),
        owner: "me".into(),
        bundle: Some(id),
        source: None,
        environment: None,
        idempotency: None,
        sight: muster_store::Sight::All,
    };
    fixture.core.turn([remove, Input::Submit(Box::new(submission), reply)].into_iter());
    assert!(submitted.try_recv().unwrap().is_ok());
    assert_eq!(removed.try_recv().unwrap(), Ok(0));
}
