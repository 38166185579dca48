//! Logs on their way to the server: what may go goes, what may not stays, and none of it is kept in memory.

use std::fs;

use muster_link::log::{SEGMENT_BYTES, SegmentDir};
use muster_link::message::ToAgent;

use crate::node::{Node, eventually, task};

const OUTPUT: u64 = 6 * SEGMENT_BYTES;

fn segments(node: &Node) -> Vec<u64> {
    SegmentDir::new(node.task_dir(&task(0)).join("log")).starts().unwrap()
}

/// The memory of the agent that is nobody else's.
fn memory_bytes(node: &Node) -> u64 {
    let status = fs::read_to_string(format!("/proc/{}/status", node.agent.as_ref().unwrap().id())).unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("RssAnon:")).unwrap();
    line.split_whitespace().next().unwrap().parse::<u64>().unwrap() * 1024
}

async fn print_and_wait(node: &Node) {
    node.run(&task(0), &format!("head -c {OUTPUT} /dev/zero; exec sleep 60")).await;
}

#[tokio::test]
async fn what_the_server_has_is_let_go_while_the_task_runs() {
    let node = Node::new().await;
    print_and_wait(&node).await;
    node.server.wait("the output", |state| (state.log_bytes > OUTPUT).then_some(())).await;
    eventually("old segments are gone", || segments(&node).len() <= 2).await;
    assert!(memory_bytes(&node) < 16 << 20, "{}", memory_bytes(&node));
    node.server.send(ToAgent::Stop { task: task(0), grace_ms: 1000, reason: String::new() }).await;
    let output = node.server.output(&task(0)).await;
    assert!(output.len() as u64 == OUTPUT && output.iter().all(|byte| *byte == 0));
}

#[tokio::test]
async fn what_the_server_does_not_confirm_stays_and_nothing_is_hoarded() {
    let mut node = Node::new().await;
    node.server.state().deaf = true;
    print_and_wait(&node).await;
    node.server.wait("the output", |state| (state.log_bytes > OUTPUT).then_some(())).await;
    assert_eq!(segments(&node)[0], 0);
    assert!(memory_bytes(&node) < 16 << 20, "{}", memory_bytes(&node));
    // A server that comes back with less than it had gets the rest again.
    let copy = crate::server::log_dir(node.home.path(), &task(0));
    node.server.vanish();
    fs::remove_dir_all(copy.path()).unwrap();
    node.server.state().deaf = false;
    node.server.listen();
    eventually("old segments are gone", || segments(&node).len() <= 2).await;
    eventually("all is there again", || copy.end().unwrap() == node.log_bytes(&task(0))).await;
}

#[tokio::test]
async fn a_quiet_task_is_heard_at_once_when_it_speaks() {
    let node = Node::new().await;
    let script = "i=0; while sleep 0.01; do test -e ../ask$i && echo word && i=$((i+1)); done";
    node.run(&task(0), script).await;
    for number in 0..20_u64 {
        let before = std::time::Instant::now();
        fs::write(node.task_dir(&task(0)).join(format!("ask{number}")), "").unwrap();
        let heard = |state: &crate::server::State| (state.log_bytes > number * 21).then_some(());
        node.server.wait("the word", heard).await;
        assert!(before.elapsed().as_millis() < 1000, "{:?}", before.elapsed());
    }
    node.server.send(ToAgent::Stop { task: task(0), grace_ms: 0, reason: String::new() }).await;
    node.server.ended(&task(0)).await;
}
