//! What every engine must do, checked on the real thing. Each engine's tests call [`run`] with a way to see agents
//! dial home; a new engine is done when this passes.

use std::time::Duration;

use async_trait::async_trait;
use muster_model::NodeId;

use crate::{AgentStatus, Engine, Family, StartRequest};

/// What the suite needs besides the engine: somewhere agents dial home to.
#[async_trait]
pub trait Home: Send {
    /// The token agents must show.
    fn token(&self, node: &NodeId) -> String;

    /// Waits for the next agent that says hello for this node and gives its process id on its host.
    async fn next_hello(&mut self, node: &NodeId) -> u32;

    /// Kills a node's agent without warning.
    async fn kill_agent(&mut self, node: &NodeId, pid: u32);
}

/// Long enough for a loaded machine; a healthy engine needs a fraction.
const DEADLINE: Duration = Duration::from_secs(30);

/// Runs the suite. Panics, with what was expected, at the first thing that does not hold.
pub async fn run(engine: &dyn Engine, home: &mut dyn Home) {
    let nodes = engine.nodes().await.expect("nodes() answers");
    assert!(!nodes.is_empty(), "an engine under test offers a node");
    assert_eq!(engine.nodes().await.expect("nodes() answers"), nodes, "nodes() is stable");
    if engine.capabilities().family == Family::Fleet {
        for node in &nodes {
            fleet(engine, home, node).await;
        }
    }
}

async fn fleet(engine: &dyn Engine, home: &mut dyn Home, node: &NodeId) {
    assert_eq!(status(engine, node).await, AgentStatus::Gone, "nothing runs before start");
    engine.stop(node).await.expect("stopping what never ran changes nothing");

    let request = StartRequest { node: node.clone(), token: home.token(node) };
    engine.start(&request).await.expect("start");
    let first = hello(home, node).await;
    assert_eq!(status(engine, node).await, AgentStatus::Running, "an agent that dialled home runs");

    engine.start(&request).await.expect("starting again changes nothing");
    assert_eq!(status(engine, node).await, AgentStatus::Running);

    home.kill_agent(node, first).await;
    until_gone(engine, node).await;
    engine.start(&request).await.expect("start after a crash");
    let second = hello(home, node).await;
    assert_ne!(first, second, "a new agent came, not the dead one");

    engine.stop(node).await.expect("stop");
    assert_eq!(status(engine, node).await, AgentStatus::Gone, "stop returns when the agent is gone");
    engine.stop(node).await.expect("stopping twice changes nothing");
}

async fn hello(home: &mut dyn Home, node: &NodeId) -> u32 {
    tokio::time::timeout(DEADLINE, home.next_hello(node)).await.expect("the agent dials home")
}

async fn status(engine: &dyn Engine, node: &NodeId) -> AgentStatus {
    engine.status(std::slice::from_ref(node)).await.expect("status() answers")[0]
}

async fn until_gone(engine: &dyn Engine, node: &NodeId) {
    let gone = async {
        while status(engine, node).await != AgentStatus::Gone {
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    };
    tokio::time::timeout(DEADLINE, gone).await.expect("a killed agent is noticed");
}
