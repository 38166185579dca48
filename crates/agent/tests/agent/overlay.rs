//! Working directories that show a tree of the cache: what tasks do to them, and what is left when someone is killed.

use std::fs;

use muster_link::message::ToAgent;
use muster_model::{BundleId, Reason};
use rustix::process::{Signal, kill_process};

use crate::life::supervisor;
use crate::node::{Node, directory, eventually, file, prepare_with, task};

fn bundle(node: &Node) -> BundleId {
    let entries = [
        (directory("code", 0o755), b"".as_slice()),
        (file("code/module", 0o644, 1_600_000_000, b"old\n"), b"old\n"),
        (file("run.sh", 0o755, 1_600_000_000, b"#!/bin/sh\necho ran\n"), b"#!/bin/sh\necho ran\n"),
    ];
    node.bundle(&entries, 1000).0
}

async fn ready(node: &Node, rank: u32) {
    let bundle = bundle(node);
    node.server.send(prepare_with(&task(rank), |prepare| prepare.bundle = Some(bundle.clone()))).await;
    node.server.ready(&task(rank)).await;
}

/// What a program may do to its own files.
const CHANGE: &str = "./run.sh; pwd; mv code moved && cat moved/module; echo new > moved/module; ln run.sh again; \
                      rm run.sh; chmod 600 again; mkdir code; ls -A code; stat -c %a again; cat moved/module";

#[tokio::test]
async fn a_task_does_with_its_files_what_it_likes_however_they_came_to_be() {
    for options in [&["overlays=always"], &["overlays=never"]] {
        let node = Node::with(options).await;
        for rank in 0..2 {
            ready(&node, rank).await;
            node.launch(&task(rank), CHANGE).await;
            let work = node.task_dir(&task(rank)).join("work");
            let expected = format!("ran\n{}\nold\n600\nnew\n", work.display());
            let output = String::from_utf8(node.server.output(&task(rank)).await).unwrap();
            assert_eq!(output, expected, "{options:?}");
        }
        assert!(!mounts().contains(node.dir().to_str().unwrap()), "nothing is mounted on the machine");
        let has_overlay = node.task_dir(&task(0)).join("upper").exists();
        assert!(options != &["overlays=never"] || !has_overlay);
        let tree = node.dir().join("cache/bundles").join(bundle(&node).as_str()).join("tree");
        assert_eq!(fs::read(tree.join("code/module")).unwrap(), b"old\n");
    }
}

fn mounts() -> String {
    fs::read_to_string("/proc/self/mounts").unwrap()
}

#[tokio::test]
async fn a_mount_that_fails_at_the_last_moment_is_a_copy() {
    let node = Node::with(&["overlays=always"]).await;
    ready(&node, 0).await;
    let dir = node.task_dir(&task(0));
    assert!(dir.join("upper").exists(), "this test mounts an overlay: run it as root");
    fs::remove_dir(dir.join("scratch")).unwrap();
    node.launch(&task(0), CHANGE).await;
    let expected = format!("ran\n{}\nold\n600\nnew\n", dir.join("work").display());
    assert_eq!(String::from_utf8(node.server.output(&task(0)).await).unwrap(), expected);
    assert!(!dir.join("upper").exists() && dir.join("work/moved/module").exists());
}

#[tokio::test]
async fn whoever_is_killed_the_files_stay_with_the_task_and_nothing_stays_mounted() {
    let mut node = Node::with(&["overlays=always"]).await;
    ready(&node, 0).await;
    let script = "setsid sh -c 'echo child > child; exec sleep 1000' & echo 1 > first; while [ ! -e child ]; do sleep 0.01; done; echo up; \
                  exec sleep 1000";
    node.launch(&task(0), script).await;
    node.server.started(&task(0)).await;
    let shows = node.task_dir(&task(0)).join("upper").exists();
    let files = node.task_dir(&task(0)).join(if shows { "upper" } else { "work" });
    eventually("the task has written", || files.join("child").exists()).await;
    node.restart_agent().await;
    kill_process(supervisor(&node), Signal::KILL).unwrap();
    assert_eq!(node.server.ended(&task(0)).await.failure, Some(Reason::SupervisorLost));
    assert_eq!(node.server.output(&task(0)).await, b"up\n");
    assert_eq!(fs::read(files.join("first")).unwrap(), b"1\n");
    assert!(!mounts().contains(node.dir().to_str().unwrap()));
    node.server.send(ToAgent::Remove { job: task(0).attempt.job }).await;
    eventually("the task is gone", || !node.task_dir(&task(0)).exists()).await;
}
