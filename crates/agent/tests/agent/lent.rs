//! Agents on places that another scheduler has lent.

use std::fs;
use std::process::Stdio;

use muster_link::leftover::{Entry, Found, Kind};
use muster_model::Reason;
use rustix::process::{Pid, Signal, kill_process};

use crate::node::{Node, eventually, processes_with, task};

#[tokio::test]
async fn a_task_whose_place_is_taken_has_its_grace_and_is_evicted() {
    let mut node = Node::with(&["lent=now"]).await;
    let script = "trap 'echo saved $SLURM_JOB_ID; exit 0' TERM; echo up; while :; do sleep 0.05; done";
    node.run(&task(0), script).await;
    let started = node.task_dir(&task(0)).join("log");
    eventually("its first line", || started.exists() && node.log_bytes(&task(0)) > 0).await;
    let agent = node.agent.as_ref().map(Pid::from_child).unwrap();
    kill_process(agent, Signal::TERM).unwrap();
    assert_eq!(node.server.ended(&task(0)).await.failure, Some(Reason::Evicted));
    // The shell also says what became of its children.
    let output = String::from_utf8(node.server.output(&task(0)).await).unwrap();
    assert!(output.starts_with("up\n") && output.contains("saved 17\n"), "{output}");
    assert!(node.agent_exit().await.success(), "nobody waits on somebody else's machine");
}

#[tokio::test]
async fn what_ended_by_itself_was_not_evicted() {
    let mut node = Node::with(&["lent=now"]).await;
    node.run(&task(0), "exit 4").await;
    assert_eq!(node.server.ended(&task(0)).await.failure, Some(Reason::exited(4)));
    let agent = node.agent.as_ref().map(Pid::from_child).unwrap();
    kill_process(agent, Signal::TERM).unwrap();
    assert!(node.agent_exit().await.success());
}

#[tokio::test]
async fn salvage_tells_what_was_not_told_and_ends_what_still_runs() {
    let mut node = Node::with(&["lent=now"]).await;
    node.run(&task(0), "exit 6").await;
    node.server.ended(&task(0)).await;
    node.run(&task(1), "echo up; sleep 600").await;
    node.kill_agent();
    node.start_agent(&["lent=salvage"]);
    node.server.connected().await;
    assert_eq!(node.server.ended(&task(1)).await.failure, Some(Reason::Evicted));
    assert_eq!(node.server.ended(&task(0)).await.failure, Some(Reason::exited(6)));
    let dir = node.task_dir(&task(1));
    eventually("nothing runs any more", || processes_with(&dir).is_empty()).await;
}

/// A node of a place whose files go with it, and the file that has what its agent prints.
async fn pod(options: &[&str]) -> (Node, std::path::PathBuf) {
    let mut node = Node::with(&["lent=pod"]).await;
    node.kill_agent();
    let printed = node.home.path().join("printed");
    let mut command = node.command(&[&["lent=pod"], options].concat());
    node.agent = Some(command.stdout(Stdio::from(fs::File::create(&printed).unwrap())).spawn().unwrap());
    node.server.connected().await;
    (node, printed)
}

fn put_back(node: &Node, files: &[Entry]) {
    fs::remove_dir_all(node.dir()).unwrap();
    for entry in files {
        let path = node.dir().join(&entry.path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        match entry.kind {
            Kind::Directory => fs::create_dir_all(path).unwrap(),
            Kind::File | Kind::Program => fs::write(path, &entry.content).unwrap(),
            Kind::Link => panic!("nobody made a link"),
        }
    }
}

#[tokio::test]
async fn what_no_server_came_for_is_printed_and_told_from_there() {
    let (mut node, printed) = pod(&[]).await;
    let go = node.home.path().join("go");
    let script =
        format!("echo before; while ! test -e {}; do sleep 0.05; done; echo after; exit 5", go.display());
    node.run(&task(0), &script).await;
    node.server.vanish();
    fs::write(&go, "").unwrap();
    let dir = node.task_dir(&task(0));
    eventually("it is over", || {
        fs::read_to_string(dir.join("record")).is_ok_and(|text| text.contains("ended"))
    })
    .await;
    let agent = node.agent.as_ref().map(Pid::from_child).unwrap();
    kill_process(agent, Signal::TERM).unwrap();
    assert!(node.agent_exit().await.success(), "its task was over when the place was taken");
    let mut found = Found::default();
    fs::read_to_string(&printed).unwrap().lines().for_each(|line| found.line(line));
    put_back(&node, &found.files().expect("everything is printed"));
    node.server.listen();
    node.start_agent(&["lent=salvage"]);
    assert_eq!(node.server.ended(&task(0)).await.failure, Some(Reason::exited(5)));
    assert_eq!(String::from_utf8(node.server.output(&task(0)).await).unwrap(), "before\nafter\n");
}

#[tokio::test]
async fn a_place_that_is_taken_too_soon_is_not_left_as_if_all_were_done() {
    let (mut node, _) = pod(&[]).await;
    node.run(&task(0), "sleep 600").await;
    kill_process(node.agent.as_ref().map(Pid::from_child).unwrap(), Signal::TERM).unwrap();
    assert_eq!(node.server.ended(&task(0)).await.failure, Some(Reason::Evicted));
    assert_eq!(node.agent_exit().await.code(), Some(143));
}

#[tokio::test]
async fn who_hears_neither_the_server_nor_the_scheduler_ends_its_task() {
    let scheduler = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let fence = format!("fence=1500,{}", scheduler.local_addr().unwrap());
    let (mut node, printed) = pod(&[&fence]).await;
    node.run(&task(0), "sleep 600").await;
    // It was asked when the agent began; its backlog has who has asked.
    drop(scheduler);
    node.server.vanish();
    assert_eq!(node.agent_exit().await.code(), Some(143));
    assert!(processes_with(&node.task_dir(&task(0))).is_empty());
    assert!(fs::read_to_string(printed).unwrap().contains("muster-left 1 record 1/1 "));
}
