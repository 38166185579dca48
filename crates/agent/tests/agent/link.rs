//! The connection to the server: lost, refused, abused and replaced.

use std::time::{Duration, Instant};

use muster_link::message::{PROTOCOL, ReportPhase, ToAgent};
use muster_model::Reason;

use crate::node::{Node, eventually, exe, launch, prepare_with, task};
use crate::server::TOKEN;

#[tokio::test]
async fn the_hello_says_who_and_what_is_here() {
    let node = Node::with(&["device=H100:2"]).await;
    let hello = node.server.state().hellos[0].clone();
    assert_eq!((hello.protocol, hello.node.as_str()), (PROTOCOL, "node_test"));
    assert_eq!((hello.version.as_str(), hello.build.as_str()), ("0.0.0", "build"));
    assert_eq!(hello.pid, node.agent.as_ref().unwrap().id());
    assert_eq!(hello.capacity.devices.len(), 2);
    assert!(hello.capacity.devices[0].simulated && hello.capacity.memory_bytes > 0);
    assert_eq!(u64::from(hello.capacity.slots), hello.capacity.cpu_millis / 1000 * 32);
    assert!(!hello.host.is_empty() && hello.tasks.is_empty());
}

#[tokio::test]
async fn a_server_that_comes_back_is_found_at_once_and_hears_what_it_missed() {
    let mut node = Node::new().await;
    node.run(&task(0), "echo one; while ! test -e ../go; do sleep 0.01; done; echo two; exit 5").await;
    node.server.vanish();
    std::fs::write(node.task_dir(&task(0)).join("go"), "").unwrap();
    eventually("the task ended alone", || node.task_dir(&task(0)).join("exit.json").exists()).await;
    // Long enough that the pause between two tries would be noticed.
    tokio::time::sleep(Duration::from_millis(700)).await;
    let before = Instant::now();
    node.server.listen();
    node.server.connected().await;
    assert!(before.elapsed() < Duration::from_millis(200), "{:?}", before.elapsed());
    let hello = node.server.state().hellos[1].clone();
    assert!(matches!(hello.tasks[0].phase, ReportPhase::Ended { started_at: Some(_), address: Some(_), .. }));
    assert_eq!(node.server.ended(&task(0)).await.failure, Some(Reason::exited(5)));
    assert_eq!(node.server.output(&task(0)).await, b"one\ntwo\n");
    assert_eq!(node.server.state().hellos[0].incarnation, hello.incarnation);
}

#[tokio::test]
async fn a_flapping_server_gets_every_byte_once() {
    let mut node = Node::new().await;
    node.run(&task(0), "i=0; while [ $i -lt 3000 ]; do echo line $i; i=$((i+1)); done").await;
    for _ in 0..8 {
        tokio::time::sleep(Duration::from_millis(15)).await;
        node.server.vanish();
        node.server.listen();
        node.server.connected().await;
    }
    let expected: String = (0..3000).map(|number| format!("line {number}\n")).collect();
    assert_eq!(String::from_utf8(node.server.output(&task(0)).await).unwrap(), expected);
}

#[tokio::test]
async fn a_second_agent_of_the_same_directory_gives_way() {
    let node = Node::new().await;
    let second = node.command(&[]).output().unwrap();
    assert_eq!(second.status.code(), Some(i32::from(muster_agent::EXIT_ALREADY_RUNNING)));
    assert!(node.server.state().is_connected);
}

#[tokio::test]
async fn garbage_from_the_server_costs_the_connection_and_no_task() {
    let node = Node::new().await;
    node.run(&task(0), "sleep 60").await;
    let garbage: [&[u8]; 5] = [b"\n", b"not json\n", b"{\"kind\":7}\n", b"[[[[[[[[\n", &[0xff; 100_000]];
    for (count, bytes) in garbage.into_iter().enumerate() {
        node.server.send_raw([bytes, b"\n"].concat()).await;
        node.server.wait("another hello", |state| (state.hellos.len() > count + 1).then_some(())).await;
        node.server.connected().await;
    }
    let hello = node.server.state().hellos.last().unwrap().clone();
    assert!(matches!(hello.tasks[0].phase, ReportPhase::Running { address: Some(_), .. }));
}

#[tokio::test]
async fn what_only_a_newer_agent_would_understand_is_answered() {
    let node = Node::new().await;
    for line in [
        "{\"kind\":\"teleport\",\"to\":\"mars\"}\n",
        "{\"kind\":\"stop\",\"task\":\"../../etc/passwd\",\"grace_ms\":1}\n",
        "{\"kind\":\"prepare\",\"task\":\"task0.job_0123456789.1\"}\n",
        "{\"kind\":\"unsupported\",\"what\":\"x\"}\n",
    ] {
        node.server.send_raw(line.as_bytes().to_vec()).await;
    }
    let answered =
        |state: &crate::server::State| (state.unsupported.len() == 3).then(|| state.unsupported.clone());
    assert_eq!(node.server.wait("answers", answered).await, ["teleport", "stop", "prepare"]);
    assert_eq!(node.server.state().hellos.len(), 1);
}

#[tokio::test]
async fn requests_that_make_no_sense_end_the_task_and_not_the_agent() {
    let node = Node::new().await;
    let cases: [fn(&mut muster_link::message::Prepare); 4] = [
        |prepare| prepare.ports = u32::MAX,
        |prepare| prepare.in_place = Some("relative".into()),
        |prepare| prepare.in_place = Some("/no/such/directory".into()),
        |prepare| prepare.in_place = Some("/etc/passwd".into()),
    ];
    for (rank, change) in (0..).zip(cases) {
        node.server.send(prepare_with(&task(rank), change)).await;
        let failure = node.server.ended(&task(rank)).await.failure;
        assert!(
            matches!(&failure, Some(Reason::PrepareFailed { message }) if !message.is_empty()),
            "{failure:?}"
        );
    }
    // Launched without having been prepared: whatever was here is lost.
    node.server.send(launch(&task(9), "true")).await;
    let lost = Some(Reason::NodeLost { node: "node_test".into() });
    assert_eq!(node.server.ended(&task(9)).await.failure, lost);
}

#[tokio::test]
async fn a_shutdown_waits_for_the_last_task() {
    let mut node = Node::new().await;
    node.run(&task(0), "sleep 60").await;
    node.server.send(ToAgent::Shutdown).await;
    node.server.send(ToAgent::Stop { task: task(0), grace_ms: 0, reason: String::new() }).await;
    node.server.ended(&task(0)).await;
    node.server.send(ToAgent::Shutdown).await;
    assert!(node.agent_exit().await.success());
}

#[tokio::test]
async fn an_agent_without_task_and_server_ends_by_itself() {
    let mut node = Node::with(&["orphan_ms=150"]).await;
    node.run(&task(0), "while ! test -e ../go; do sleep 0.01; done").await;
    node.server.vanish();
    tokio::time::sleep(Duration::from_millis(400)).await;
    assert!(node.agent.as_mut().unwrap().try_wait().unwrap().is_none(), "it has a task");
    std::fs::write(node.task_dir(&task(0)).join("go"), "").unwrap();
    assert!(node.agent_exit().await.success());
}

#[tokio::test]
async fn an_upgrade_replaces_the_agent_under_running_tasks() {
    let mut node = Node::new().await;
    node.run(&task(0), "echo one; while ! test -e ../go; do sleep 0.01; done; echo two").await;
    node.server.send(ToAgent::Upgrade { path: "/no/such/binary".into() }).await;
    node.server.send(ToAgent::Upgrade { path: "/etc/passwd".into() }).await;
    node.server.wait("the old one again", |state| (state.hellos.len() == 2).then_some(())).await;
    node.server.connected().await;
    let new = node.home.path().join("muster-new");
    std::fs::copy(exe(), &new).unwrap();
    node.server.send(ToAgent::Upgrade { path: new.to_str().unwrap().into() }).await;
    node.server.wait("the new one", |state| (state.hellos.len() == 3).then_some(())).await;
    node.server.connected().await;
    let pid = node.agent.as_mut().unwrap().id();
    assert_eq!(std::fs::read_link(format!("/proc/{pid}/exe")).unwrap(), new);
    let hello = node.server.state().hellos[2].clone();
    let phase = &hello.tasks[0].phase;
    assert!(matches!(phase, ReportPhase::Running { .. } | ReportPhase::Ready { .. }), "{phase:?}");
    std::fs::write(node.task_dir(&task(0)).join("go"), "").unwrap();
    assert_eq!(node.server.output(&task(0)).await, b"one\ntwo\n");
    eventually("no supervisor is left", || node.processes().len() == 1).await;
}

#[tokio::test]
async fn the_token_is_nowhere_but_in_its_file() {
    let node = Node::new().await;
    node.run(&task(0), "sleep 60").await;
    for pid in node.processes() {
        for name in ["cmdline", "environ"] {
            let text = std::fs::read(format!("/proc/{}/{name}", pid.as_raw_nonzero())).unwrap();
            assert!(!text.windows(TOKEN.len()).any(|window| window == TOKEN.as_bytes()));
        }
    }
}
