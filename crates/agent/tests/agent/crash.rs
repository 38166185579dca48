//! Kills at any moment: after each, every task ran once, every byte arrived once, and nothing is left behind.

use std::fs;
use std::time::Duration;

use muster_link::message::ToAgent;
use muster_model::{Reason, TaskId};
use rustix::process::{Signal, kill_process};

use crate::life::supervisor;
use crate::node::{Node, eventually, launch, prepare, processes_with, task};

/// What a real server does: whatever was lost is said again, as soon as there is someone to hear it.
async fn drive(node: &Node, id: &TaskId, script: &str) {
    let (ready, ended) = {
        let state = node.server.state();
        let seen = state.tasks.get(id);
        (seen.is_some_and(|seen| seen.ready.is_some()), seen.is_some_and(|seen| seen.ended.is_some()))
    };
    match (ready, ended) {
        (_, true) => {}
        (false, _) => node.server.send(prepare(id)).await,
        (true, _) => node.server.send(launch(id, script)).await,
    }
}

/// A small source of chance that a failing run can be repeated with.
struct Chance(u64);

impl Chance {
    fn below(&mut self, limit: u64) -> u64 {
        self.0 = self.0.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (self.0 >> 33) % limit
    }
}

const SCRIPT: &str = "echo run >> $MUSTER_OUTPUT_DIR/runs; i=0; while [ $i -lt 200 ]; do echo line $i; \
                      i=$((i+1)); done; sleep 0.05; echo end; exit 6";

fn expected() -> String {
    (0..200).map(|number| format!("line {number}\n")).chain(["end\n".to_owned()]).collect()
}

#[tokio::test]
async fn an_agent_killed_at_any_moment_loses_nothing_and_runs_nothing_twice() {
    for seed in 0..12 {
        let mut chance = Chance(seed);
        let mut node = Node::new().await;
        let ids: Vec<_> = (0..3).map(task).collect();
        for _ in 0..4 {
            for _ in 0..chance.below(3) {
                for id in &ids {
                    drive(&node, id, SCRIPT).await;
                }
                tokio::time::sleep(Duration::from_micros(chance.below(6000))).await;
            }
            if chance.below(3) == 0 {
                node.server.vanish();
                node.kill_agent();
                node.server.listen();
            } else {
                node.kill_agent();
            }
            node.start_agent(&[]);
            node.server.connected().await;
        }
        for id in &ids {
            while node.server.state().tasks.get(id).is_none_or(|seen| seen.ended.is_none()) {
                drive(&node, id, SCRIPT).await;
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
            assert_eq!(node.server.ended(id).await.failure, Some(Reason::exited(6)), "seed {seed}");
            let output = String::from_utf8(node.server.output(id).await).unwrap();
            assert_eq!(output, expected(), "seed {seed}");
            assert_eq!(fs::read(node.task_dir(id).join("output/runs")).unwrap(), b"run\n", "seed {seed}");
        }
        eventually("only the agent is left", || node.processes().len() == 1).await;
    }
}

#[tokio::test]
async fn agent_and_supervisor_killed_together_end_the_task_and_keep_its_output() {
    for seed in 0..6 {
        let mut chance = Chance(seed);
        let mut node = Node::new().await;
        let script = "i=0; while :; do echo line $i; i=$((i+1)); done";
        node.run(&task(0), script).await;
        tokio::time::sleep(Duration::from_micros(chance.below(20_000))).await;
        let supervisor = supervisor(&node);
        if chance.below(2) == 0 {
            kill_process(supervisor, Signal::KILL).unwrap();
            node.kill_agent();
        } else {
            node.kill_agent();
            kill_process(supervisor, Signal::KILL).unwrap();
        }
        node.start_agent(&[]);
        node.server.connected().await;
        assert_eq!(node.server.ended(&task(0)).await.failure, Some(Reason::SupervisorLost), "seed {seed}");
        let output = String::from_utf8(node.server.output(&task(0)).await).unwrap();
        let count = output.lines().count();
        for (number, line) in output.lines().enumerate() {
            let whole = format!("line {number}");
            let is_cut = number + 1 == count && whole.starts_with(line);
            assert!(line == whole || is_cut, "seed {seed}: {line} for {whole}");
        }
        eventually("only the agent is left", || node.processes().len() == 1).await;
    }
}

#[tokio::test]
async fn what_a_task_wrote_outlives_agent_and_supervisor_killed_together() {
    let mut node = Node::new().await;
    let script = "i=0; while :; do echo line $i; echo $i >> $MUSTER_OUTPUT_DIR/written; i=$((i+1)); done";
    node.run(&task(0), script).await;
    let written = node.task_dir(&task(0)).join("output/written");
    let count = || fs::read_to_string(&written).map_or(0, |text| text.lines().count());
    let supervisor = supervisor(&node);
    // From here on its output stays in the pipe.
    kill_process(supervisor, Signal::STOP).unwrap();
    let stopped_at = count();
    eventually("it writes on", || count() > stopped_at + 50).await;
    node.kill_agent();
    kill_process(supervisor, Signal::KILL).unwrap();
    eventually("the supervisor is gone", || !node.processes().contains(&supervisor)).await;
    let killed_at = count();
    eventually("it writes on, or is gone", || count() > killed_at || node.processes().is_empty()).await;
    node.start_agent(&[]);
    node.server.connected().await;
    assert_eq!(node.server.ended(&task(0)).await.failure, Some(Reason::SupervisorLost));
    let output = String::from_utf8(node.server.output(&task(0)).await).unwrap();
    let expected: String = (0..count()).map(|number| format!("line {number}\n")).collect();
    assert!(output.starts_with(&expected), "{} lines of {}", output.lines().count(), count());
}

#[tokio::test]
async fn a_task_without_any_server_is_told_in_full_to_the_next_one() {
    let mut node = Node::new().await;
    node.prepare(&task(0)).await;
    node.launch(&task(0), SCRIPT).await;
    eventually("it runs", || node.task_dir(&task(0)).join("started.json").exists()).await;
    node.server.vanish();
    node.kill_agent();
    eventually("it ended alone", || node.task_dir(&task(0)).join("exit.json").exists()).await;
    node.start_agent(&[]);
    tokio::time::sleep(Duration::from_millis(50)).await;
    node.kill_agent();
    node.server.listen();
    node.start_agent(&[]);
    assert_eq!(node.server.ended(&task(0)).await.failure, Some(Reason::exited(6)));
    assert_eq!(String::from_utf8(node.server.output(&task(0)).await).unwrap(), expected());
}

#[tokio::test]
async fn a_stop_survives_the_agent_that_was_told() {
    for seed in 0..6 {
        let mut node = Node::new().await;
        node.run(&task(0), "exec sleep 60").await;
        node.server.send(ToAgent::Stop { task: task(0), grace_ms: 1000, reason: String::new() }).await;
        tokio::time::sleep(Duration::from_micros(Chance(seed).below(3000))).await;
        node.kill_agent();
        node.start_agent(&[]);
        node.server.connected().await;
        node.server.send(ToAgent::Stop { task: task(0), grace_ms: 1000, reason: String::new() }).await;
        assert_eq!(node.server.ended(&task(0)).await.failure, Some(Reason::Signal { signal: 15 }));
    }
}

#[tokio::test]
async fn a_removal_that_was_cut_short_can_be_asked_for_again() {
    for seed in 0..6 {
        let mut node = Node::new().await;
        for rank in 0..4 {
            node.run(&task(rank), "exec sleep 60").await;
        }
        node.server.send(ToAgent::Remove { job: task(0).attempt.job }).await;
        tokio::time::sleep(Duration::from_micros(Chance(seed).below(8000))).await;
        node.restart_agent().await;
        node.server.send(ToAgent::Remove { job: task(0).attempt.job }).await;
        eventually("all is gone", || (0..4).all(|rank| !node.task_dir(&task(rank)).exists())).await;
        eventually("only the agent is left", || processes_with(&node.dir()).len() == 1).await;
    }
}

#[tokio::test]
async fn tasks_of_before_a_restart_of_the_machine_are_lost_with_it() {
    let mut node = Node::new().await;
    node.run(&task(0), "echo before; exec sleep 60").await;
    node.prepare(&task(1)).await;
    eventually("output", || node.log_bytes(&task(0)) > 0).await;
    node.kill_agent();
    // As a restart would leave it: no process, and another boot in every file.
    processes_with(&node.dir()).into_iter().for_each(|pid| kill_process(pid, Signal::KILL).unwrap());
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").unwrap();
    for path in [node.dir().join("agent.json"), node.task_dir(&task(0)).join("started.json")] {
        let text = fs::read_to_string(&path).unwrap();
        assert!(text.contains(boot.trim()));
        fs::write(&path, text.replace(boot.trim(), "another boot")).unwrap();
    }
    node.server.state().tasks.clear();
    node.start_agent(&[]);
    node.server.connected().await;
    for rank in 0..2 {
        let lost = Some(Reason::NodeLost { node: "node_test".into() });
        assert_eq!(node.server.ended(&task(rank)).await.failure, lost);
    }
    assert_eq!(node.server.output(&task(0)).await, b"before\n");
}
