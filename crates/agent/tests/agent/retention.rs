//! What a node keeps of tasks that are over, and what it lets go.

use std::fs;

use muster_link::message::{Keep, ToAgent};
use muster_model::{AttemptId, TaskId};

use crate::node::{Node, eventually, file, launch, prepare_with, task};

fn attempt(number: u32) -> TaskId {
    AttemptId { job: task(0).attempt.job, number }.task(0)
}

async fn over(node: &Node, id: &TaskId, script: &str, continues: bool) {
    node.run(id, script).await;
    node.server.output(id).await;
    node.server.send(ToAgent::Forget { task: id.clone(), continues }).await;
    let forgotten = node.task_dir(id).join("forgotten");
    eventually("the task is forgotten", || forgotten.exists()).await;
}

async fn collect(node: &Node, keep: Keep) -> u64 {
    node.server.state().keep = keep;
    // A new welcome says it; the pass that it makes is over before the one that is asked for.
    let before = node.server.state().collected.len();
    node.server.send(ToAgent::Collect).await;
    node.server.wait("an answer", |state| state.collected.get(before).copied()).await
}

#[tokio::test]
async fn a_task_finds_the_output_of_the_attempt_before_and_no_other() {
    let node = Node::new().await;
    over(
        &node,
        &attempt(1),
        "echo ${MUSTER_PREVIOUS_OUTPUT_DIR-none}; echo 7 > $MUSTER_OUTPUT_DIR/step",
        true,
    )
    .await;
    assert_eq!(node.server.output(&attempt(1)).await, b"none\n");
    let previous = |prepare: &mut muster_link::message::Prepare| prepare.previous = Some(attempt(1));
    node.server.send(prepare_with(&attempt(2), previous)).await;
    node.server.ready(&attempt(2)).await;
    node.launch(&attempt(2), "cat $MUSTER_PREVIOUS_OUTPUT_DIR/step").await;
    assert_eq!(node.server.output(&attempt(2)).await, b"7\n");
    // One whose attempt before was on another node is told nothing, whatever its submitter had set.
    let elsewhere = |prepare: &mut muster_link::message::Prepare| prepare.previous = Some(attempt(7));
    node.server.send(prepare_with(&attempt(8), elsewhere)).await;
    node.server.ready(&attempt(8)).await;
    let script = "echo ${MUSTER_PREVIOUS_OUTPUT_DIR-none}";
    let wrong = |launch: &mut muster_link::message::Launch| {
        launch.env.insert("MUSTER_PREVIOUS_OUTPUT_DIR".into(), "/of/someone/else".into());
    };
    node.server.send(crate::node::launch_with(&attempt(8), script, wrong)).await;
    assert_eq!(node.server.output(&attempt(8)).await, b"none\n");
}

#[tokio::test]
async fn files_beyond_the_bounds_go_but_for_those_that_another_attempt_may_want() {
    let mut node = Node::new().await;
    let write = "head -c 300000 /dev/zero > $MUSTER_OUTPUT_DIR/big";
    over(&node, &attempt(1), write, true).await;
    let other: TaskId = "task0.job_zzzzzzzzzz.1".parse().unwrap_or_else(|_| task(5));
    over(&node, &other, write, false).await;
    assert_eq!(collect(&node, Keep::default()).await, 0);
    let small = Keep { files_bytes: 1000, ..Keep::default() };
    node.server.state().keep = small.clone();
    node.restart_agent().await;
    eventually("what nobody will want is gone", || !node.task_dir(&other).exists()).await;
    assert!(node.task_dir(&attempt(1)).join("output/big").exists());
    // The next attempt uses it, and may use it as long as it lives, also when its job is known to be over.
    node.server.send(prepare_with(&attempt(2), |prepare| prepare.previous = Some(attempt(1)))).await;
    node.server.ready(&attempt(2)).await;
    node.server.send(launch(&attempt(2), "echo > $MUSTER_OUTPUT_DIR/a; exec sleep 100")).await;
    node.server.started(&attempt(2)).await;
    assert_eq!(collect(&node, small.clone()).await, 0);
    assert!(node.task_dir(&attempt(1)).exists());
    node.server.send(ToAgent::Stop { task: attempt(2), grace_ms: 0, reason: String::new() }).await;
    node.server.ended(&attempt(2)).await;
    node.server.send(ToAgent::Forget { task: attempt(2), continues: false }).await;
    eventually("all of it is gone", || !node.task_dir(&attempt(1)).exists()).await;
}

#[tokio::test]
async fn a_bundle_stays_as_long_as_a_working_directory_shows_it() {
    let mut node = Node::with(&["overlays=always"]).await;
    node.server.state().keep = Keep { bundles_bytes: 10, ..Keep::default() };
    let bytes = vec![7; 5000];
    let (bundle, _) = node.bundle(&[(file("a", 0o644, 0, &bytes), &bytes)], 1000);
    let bundle_dir = node.dir().join("cache/bundles").join(bundle.as_str());
    node.server.send(prepare_with(&task(0), |prepare| prepare.bundle = Some(bundle))).await;
    node.server.ready(&task(0)).await;
    node.launch(&task(0), "echo > new").await;
    node.server.output(&task(0)).await;
    let shows = node.task_dir(&task(0)).join("upper").exists();
    node.server.send(ToAgent::Forget { task: task(0), continues: false }).await;
    let forgotten = node.task_dir(&task(0)).join("forgotten");
    eventually("the task is forgotten", || forgotten.exists()).await;
    node.restart_agent().await;
    node.server.send(ToAgent::Collect).await;
    node.server.wait("an answer", |state| state.collected.first().copied()).await;
    assert_eq!(bundle_dir.exists(), shows, "a copy needs no bundle any more");
    node.server.send(ToAgent::Remove { job: task(0).attempt.job }).await;
    eventually("the task is gone", || !node.task_dir(&task(0)).exists()).await;
    eventually("the bundle goes with its last task", || !bundle_dir.exists()).await;
    assert!(fs::read_dir(node.dir().join("tasks")).unwrap().next().is_none());
}
