//! What every engine must do, checked on the real thing. Each engine's tests call [`run`] with a way to see agents
//! dial home; a new engine is done when this passes. It is one suite for both families: what differs is what agents are
//! started for, a node or a gang, and whether they come back.

use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use muster_model::{AttemptId, JobId, JobSpec, NodeId};

use crate::{Engine, Family, Gang, Key, Observed, Seat, StartRequest, Status};

/// What the suite needs besides the engine: somewhere agents dial home to.
#[async_trait]
pub trait Home: Send {
    /// The token agents must show.
    fn token(&self, node: &NodeId) -> String;

    /// Waits for the next agent that says hello for this node and gives its process id on its host. Those of other
    /// nodes that come meanwhile are kept for when they are asked for.
    async fn next_hello(&mut self, node: &NodeId) -> u32;

    /// Kills a node's agent without warning.
    async fn kill_agent(&mut self, node: &NodeId, pid: u32);

    /// Panics if a hostile local user of the engine's machines got anything so far. Machines that have no such user do without.
    fn check_intruder(&self) {}

    /// For a delegating engine, where its gangs go: the `gpu` of `slurm/gpu`.
    fn place(&self) -> String {
        String::new()
    }
}

/// Long enough for a loaded machine; a healthy engine needs a fraction.
const DEADLINE: Duration = Duration::from_secs(60);
/// The gangs of the suite: one agent, and as many as any engine under test has room for.
const GANGS: [u32; 2] = [1, 2];

/// Runs the suite. Panics, with what was expected, at the first thing that does not hold.
pub async fn run(engine: &dyn Engine, home: &mut dyn Home) {
    let offers = names(engine).await;
    assert!(!offers.is_empty(), "an engine under test offers a node");
    assert_eq!(names(engine).await, offers, "nodes() is stable");
    match engine.capabilities().family {
        Family::Fleet => {
            for offer in engine.nodes().await.expect("nodes() answers") {
                let node = offer.node.expect("a fleet's offer is a node");
                let request = StartRequest::node(node.clone(), home.token(&node));
                one(engine, home, &request).await;
            }
        }
        Family::Delegating => {
            for (number, size) in (1..).zip(GANGS) {
                let request = gang(home, number, size);
                one(engine, home, &request).await;
            }
            withdrawn(engine, &gang(home, 11, 1)).await;
            together(engine, home).await;
        }
    }
    strangers(engine, &home.place()).await;
    home.check_intruder();
}

/// The whole life of one key.
async fn one(engine: &dyn Engine, home: &mut dyn Home, request: &StartRequest) {
    let key = &request.key;
    assert_eq!(status(engine, key).await, Status::Gone, "nothing runs before start");
    engine.stop(key).await.expect("stopping what never ran changes nothing");

    let external = engine.start(request).await.expect("start");
    let first = hellos(home, request).await;
    let observed = until_running(engine, key).await;
    assert_eq!(observed.external, external, "it is called what start said");

    assert_eq!(
        engine.start(request).await.expect("starting again"),
        external,
        "starting again changes nothing"
    );
    assert_eq!(status(engine, key).await, Status::Running);

    for (seat, pid) in request.seats.iter().zip(&first) {
        home.kill_agent(&seat.node, *pid).await;
    }
    until_over(engine, key).await;
    match key {
        Key::Node(_) => {
            engine.start(request).await.expect("start after a crash");
            assert_ne!(first, hellos(home, request).await, "a new agent came, not the dead one");
        }
        // Whether it is tried again is a question of the job's retries, and another attempt's.
        Key::Gang { .. } => {
            assert!(external.is_some(), "another scheduler has a name for what it keeps");
            assert_eq!(observed.hosts.len(), request.seats.len(), "{observed:?}");
            engine.start(request).await.expect("starting what has ended");
            let after = status(engine, key).await;
            assert!(is_over(&after), "a gang runs once, and not again: {after:?}");
        }
    }
    engine.stop(key).await.expect("stop");
    let after = status(engine, key).await;
    assert!(is_over(&after), "stop returns when agents are gone: {after:?}");
    engine.stop(key).await.expect("stopping twice changes nothing");
}

/// A gang that is taken back before anybody has come.
async fn withdrawn(engine: &dyn Engine, request: &StartRequest) {
    engine.start(request).await.expect("start");
    engine.stop(&request.key).await.expect("stop");
    let after = status(engine, &request.key).await;
    assert!(is_over(&after), "nothing is left to run later: {after:?}");
}

/// Several gangs, asked for in one call: each has its own answer.
async fn together(engine: &dyn Engine, home: &mut dyn Home) {
    let (one, other) = (gang(home, 21, 1), gang(home, 22, 1));
    let unknown = gang(home, 23, 1).key;
    let external = engine.start(&one).await.expect("start");
    let another = engine.start(&other).await.expect("start");
    for request in [&one, &other] {
        hellos(home, request).await;
        until_running(engine, &request.key).await;
    }
    let keys = [other.key.clone(), unknown, one.key.clone()];
    let observed = engine.status(&keys).await.expect("status() answers");
    let states: Vec<_> = observed.iter().map(|observed| &observed.status).collect();
    assert_eq!(states, [&Status::Running, &Status::Gone, &Status::Running], "answers are in the order asked");
    assert_eq!((&observed[0].external, &observed[2].external), (&another, &external));
    assert_ne!(external, another, "two gangs are two things");
    engine.stop(&one.key).await.expect("stop");
    assert_eq!(status(engine, &other.key).await, Status::Running, "only what was meant is stopped");
    engine.stop(&other.key).await.expect("stop");
    let observed = engine.status(&keys).await.expect("status() answers");
    assert!(observed.iter().all(|observed| is_over(&observed.status)), "{observed:?}");
}

/// A question about many that are nobody's is answered, and quickly.
async fn strangers(engine: &dyn Engine, place: &str) {
    let stranger = |job| {
        let attempt = AttemptId { job: JobId::from_random(job), number: 9 };
        Key::Gang { attempt, place: place.to_owned(), account: None }
    };
    let keys: Vec<Key> = (0..500).map(stranger).collect();
    let asked = tokio::time::timeout(DEADLINE, engine.status(&keys)).await;
    let observed = asked.expect("many cost no more than one").expect("status() answers");
    assert_eq!(observed, vec![Observed::from(Status::Gone); keys.len()]);
}

fn gang(home: &dyn Home, number: u32, size: u32) -> StartRequest {
    let job = JobId::from_random(0xc0f0_12ad);
    let seat = |rank| {
        let name = format!("node_suite.{}.{number}.{rank}", job.as_str().trim_start_matches(JobId::PREFIX));
        let node: NodeId = name.parse().expect("a node id");
        Seat { token: home.token(&node), node }
    };
    let spec = serde_json::json!({ "nodes": size, "command": ["true"], "resources": { "cpus": 1 } });
    let spec = JobSpec::from_value(spec).expect("a spec");
    StartRequest {
        key: Key::Gang {
            attempt: AttemptId { job: job.clone(), number },
            place: home.place(),
            account: None,
        },
        seats: (0..size).map(seat).collect(),
        gang: Some(Gang {
            name: "conformance".into(),
            place: home.place(),
            spec: Arc::new(spec),
            volumes: Vec::new(),
        }),
    }
}

async fn names(engine: &dyn Engine) -> Vec<String> {
    let offers = engine.nodes().await.expect("nodes() answers");
    offers.into_iter().map(|offer| offer.name).collect()
}

/// The processes of all agents of a request, by rank.
async fn hellos(home: &mut dyn Home, request: &StartRequest) -> Vec<u32> {
    let mut pids = Vec::new();
    for seat in &request.seats {
        let hello = tokio::time::timeout(DEADLINE, home.next_hello(&seat.node)).await;
        pids.push(hello.expect("the agent dials home"));
    }
    pids
}

async fn observe(engine: &dyn Engine, key: &Key) -> Observed {
    engine.status(std::slice::from_ref(key)).await.expect("status() answers").remove(0)
}

async fn status(engine: &dyn Engine, key: &Key) -> Status {
    observe(engine, key).await.status
}

fn is_over(status: &Status) -> bool {
    match status {
        Status::Gone | Status::Ended(_) => true,
        Status::Running | Status::Waiting(_) | Status::Unanswered(_) => false,
    }
}

/// Agents may have dialled home before their scheduler says that they run.
async fn until_running(engine: &dyn Engine, key: &Key) -> Observed {
    let running = async {
        loop {
            let observed = observe(engine, key).await;
            assert!(!is_over(&observed.status), "agents that dialled home run: {observed:?}");
            if observed.status == Status::Running {
                return observed;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, running).await.expect("agents that dialled home are said to run")
}

async fn until_over(engine: &dyn Engine, key: &Key) {
    let over = async {
        while !is_over(&status(engine, key).await) {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, over).await.expect("that agents were killed is noticed");
}
