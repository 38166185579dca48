//! Tasks from their preparation to their end.

use std::collections::HashSet;
use std::fs;

use muster_link::message::{Launch, ToAgent};
use muster_model::launch::{Process, Work};
use muster_model::{AttemptId, ErrorLine, JobId, Reason, TaskId};
use rustix::process::{Pid, Signal, kill_process};

use crate::node::{
    Node, eventually, launch, launch_with, prepare, prepare_with, processes_with, program, task,
};

fn sorted(bytes: &[u8]) -> Vec<u8> {
    let mut bytes = bytes.to_vec();
    bytes.sort_unstable();
    bytes
}

#[tokio::test]
async fn a_task_goes_from_prepared_to_ended_and_its_whole_output_arrives() {
    let node = Node::new().await;
    node.run(&task(0), "echo out; echo err >&2; printf '\\377\\000end'; exit 3").await;
    let end = node.server.ended(&task(0)).await;
    let error = ErrorLine::new("err");
    assert_eq!(end.failure, Some(Reason::ExitCode { exit_code: 3, error }));
    let output = node.server.output(&task(0)).await;
    assert_eq!(sorted(&output), sorted(b"out\nerr\n\xff\x00end"));
    assert_eq!(node.server.state().tasks[&task(0)].times, [1, 1, 1]);
}

#[tokio::test]
async fn a_task_has_what_was_promised_to_it() {
    let node = Node::with(&["device=H100:4"]).await;
    node.server.send(prepare_with(&task(0), |prepare| prepare.devices = vec![1, 3])).await;
    node.server.ready(&task(0)).await;
    let script = "echo $CUDA_VISIBLE_DEVICES $MUSTER_TASK_ID $PYTHONUNBUFFERED $GIVEN; pwd; \
                  echo kept > $MUSTER_OUTPUT_DIR/result; test -n \"$HOME\" && echo ${TMPDIR-none}";
    let given = |launch: &mut Launch| _ = launch.env.insert("GIVEN".into(), "x y".into());
    node.server.send(launch_with(&task(0), script, given)).await;
    let output = String::from_utf8(node.server.output(&task(0)).await).unwrap();
    let work = node.task_dir(&task(0)).join("work");
    assert_eq!(output, format!("1,3 {} 1 x y\n{}\nnone\n", task(0), work.display()));
    assert_eq!(fs::read(node.task_dir(&task(0)).join("output/result")).unwrap(), b"kept\n");
}

#[tokio::test]
async fn every_kind_of_end_is_told_as_what_it_is() {
    let node = Node::new().await;
    let with =
        |rank, script: &str, change: fn(&mut Launch)| (task(rank), launch_with(&task(rank), script, change));
    let cases = [
        (with(0, "exit 0", |_| {}), None),
        (with(1, "kill -SEGV $$", |_| {}), Some(Reason::Signal { signal: 11 })),
        (
            with(2, "sleep 60", |launch| launch.timeout_ms = Some(50)),
            Some(Reason::Timeout { limit_ms: 50, set_by: Default::default() }),
        ),
        (
            with(3, "", |launch| launch.work = program("no-such-program")),
            Some(Reason::CommandNotFound { command: "no-such-program".into() }),
        ),
        (
            with(4, "", |launch| launch.work = program("/etc/passwd")),
            Some(Reason::CommandNotExecutable { command: "/etc/passwd".into() }),
        ),
        (
            with(5, "echo never", |launch| {
                launch.setup = Some(vec!["sh".into(), "-c".into(), "exit 4".into()])
            }),
            Some(Reason::SetupFailed { exit_code: 4 }),
        ),
    ];
    for ((id, launch), _) in &cases {
        node.prepare(id).await;
        node.server.send(launch.clone()).await;
    }
    for ((id, _), failure) in cases {
        assert_eq!(node.server.ended(&id).await.failure, failure, "{id}");
    }
}

#[tokio::test]
async fn the_command_goes_on_in_the_shell_of_its_setup() {
    let node = Node::new().await;
    let words = |words: &[&str]| {
        let argv = words.iter().map(|word| (*word).to_owned()).collect();
        Work::Run(vec![Process::new(argv)])
    };
    let process = |rank: &str| Process {
        argv: vec!["/bin/sh".into(), "-c".into(), "echo $X $RANK in $PWD".into()],
        env: [("RANK".into(), rank.to_owned())].into(),
        dir: None,
    };
    let (line, several) = (["/bin/sh", "-c", "f; echo from the line; false; echo never"], vec![process("0")]);
    let cases = [
        ("f() { echo $X; }; X=1; set -e", words(&line), "1\nfrom the line\n", Some(Reason::exited(1))),
        ("mkdir d; cd d; export X=2", words(&["sh", "-c", "echo $X; basename $PWD"]), "2\nd\n", None),
        ("export X=3", Work::Run([several, vec![process("1")]].concat()), "", None),
        ("exit 0", words(&["echo", "alone"]), "alone\n", None),
        (
            "export PATH=$PATH:/nowhere",
            words(&["no-such-program"]),
            "",
            Some(Reason::CommandNotFound { command: "no-such-program".into() }),
        ),
    ];
    for (rank, (setup, work, expected, failure)) in (0..).zip(cases) {
        let id = task(rank);
        node.prepare(&id).await;
        let change = |launch: &mut Launch| {
            launch.setup = Some(vec!["/bin/sh".into(), "-c".into(), setup.into()]);
            launch.work = work;
        };
        node.server.send(launch_with(&id, "", change)).await;
        let output = String::from_utf8(node.server.output(&id).await).unwrap();
        assert_eq!(node.server.ended(&id).await.failure, failure, "{setup}: {output}");
        if rank == 2 {
            assert!(output.contains("3 0 in ") && output.contains("3 1 in "), "{output}");
        } else {
            assert_eq!(output, expected, "{setup}");
        }
    }
}

#[tokio::test]
async fn a_stop_is_answered_in_every_phase() {
    let node = Node::new().await;
    let stop = |rank| ToAgent::Stop { task: task(rank), grace_ms: 2000, reason: String::new() };
    // Not known.
    node.server.send(stop(0)).await;
    let end = node.server.ended(&task(0)).await;
    assert_eq!((end.failure, end.log_bytes), (Some(Reason::StoppedByUser), Some(0)));
    // Being prepared, with a bundle that the server never gives.
    let (bundle, _) = node.raw_bundle(b"", b"nobody has this", 100);
    node.server.state().chunks.clear();
    node.server.send(prepare_with(&task(1), |prepare| prepare.bundle = Some(bundle))).await;
    node.server.send(stop(1)).await;
    assert_eq!(node.server.ended(&task(1)).await.failure, Some(Reason::StoppedByUser));
    // Ready. A launch that comes late changes nothing.
    node.prepare(&task(2)).await;
    node.server.send(stop(2)).await;
    node.launch(&task(2), "echo ran").await;
    assert_eq!(node.server.ended(&task(2)).await.failure, Some(Reason::StoppedByUser));
    assert!(!node.server.state().tasks[&task(2)].started);
    // Just launched.
    node.prepare(&task(3)).await;
    node.launch(&task(3), "sleep 60").await;
    node.server.send(stop(3)).await;
    let failure = node.server.ended(&task(3)).await.failure;
    assert!(matches!(failure, Some(Reason::Signal { .. } | Reason::StoppedByUser)), "{failure:?}");
    // Running. It says goodbye in its own way.
    node.run(&task(4), "trap 'echo bye; exit 7' TERM; echo up; while :; do sleep 0.01; done 2>&-").await;
    eventually("the trap is set", || node.log_bytes(&task(4)) > 0).await;
    node.server.send(stop(4)).await;
    assert_eq!(node.server.ended(&task(4)).await.failure, Some(Reason::exited(7)));
    let output = node.server.output(&task(4)).await;
    assert!(
        output.starts_with(b"up\n") && output.ends_with(b"bye\n"),
        "{}",
        String::from_utf8_lossy(&output)
    );
    // Ended.
    node.server.send(stop(4)).await;
    let twice = |state: &crate::server::State| (state.tasks[&task(4)].times[2] == 2).then_some(());
    node.server.wait("the end again", twice).await;
}

#[tokio::test]
async fn a_task_that_will_not_end_is_killed_with_all_its_children() {
    let node = Node::new().await;
    node.run(&task(0), "trap '' TERM; setsid sh -c 'trap \"\" TERM; sleep 61' & echo up; sleep 62").await;
    eventually("output", || node.log_bytes(&task(0)) > 0).await;
    node.server.send(ToAgent::Stop { task: task(0), grace_ms: 100, reason: String::new() }).await;
    assert_eq!(node.server.ended(&task(0)).await.failure, Some(Reason::Signal { signal: 9 }));
    eventually("only the agent is left", || node.processes().len() == 1).await;
}

#[tokio::test]
async fn saying_everything_twice_changes_nothing() {
    let node = Node::new().await;
    let script = "echo once >> $MUSTER_OUTPUT_DIR/runs; echo once";
    for message in [prepare(&task(0)), launch(&task(0), script)] {
        for _ in 0..3 {
            node.server.send(message.clone()).await;
        }
        node.server.ready(&task(0)).await;
    }
    assert_eq!(node.server.output(&task(0)).await, b"once\n");
    for _ in 0..2 {
        node.server.send(launch(&task(0), script)).await;
        node.server.send(prepare(&task(0))).await;
    }
    let repeated = |state: &crate::server::State| (state.tasks[&task(0)].times[2] > 2).then_some(());
    node.server.wait("the end again", repeated).await;
    assert_eq!(fs::read(node.task_dir(&task(0)).join("output/runs")).unwrap(), b"once\n");
    for _ in 0..2 {
        node.server.send(ToAgent::Forget { task: task(0), continues: false }).await;
        node.server.send(ToAgent::Remove { job: task(0).attempt.job }).await;
    }
    eventually("it is removed", || !node.task_dir(&task(0)).exists()).await;
}

#[tokio::test]
async fn a_forgotten_task_keeps_its_files_and_nothing_else() {
    let mut node = Node::new().await;
    node.run(&task(0), "echo log; echo work > file; echo output > $MUSTER_OUTPUT_DIR/file").await;
    node.server.output(&task(0)).await;
    node.server.send(ToAgent::Forget { task: task(0), continues: false }).await;
    let dir = node.task_dir(&task(0));
    let left = || -> HashSet<String> {
        fs::read_dir(&dir).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    };
    let kept = ["forgotten", "work", "output"].map(str::to_owned).into();
    eventually("only files are left", || left() == kept).await;
    assert_eq!(fs::read(dir.join("work/file")).unwrap(), b"work\n");
    assert_eq!(fs::read(dir.join("output/file")).unwrap(), b"output\n");
    node.restart_agent().await;
    assert_eq!(node.server.state().hellos.last().unwrap().tasks, []);
    // Whoever asks for it again hears that it is over.
    let before = node.server.ended(&task(0)).await;
    node.server.state().tasks.clear();
    node.server.send(prepare(&task(0))).await;
    assert_eq!(node.server.ended(&task(0)).await, before);
    node.server.send(ToAgent::Remove { job: task(0).attempt.job }).await;
    eventually("all is gone", || !dir.exists()).await;
}

/// A machine that was stopped and started.
#[tokio::test]
async fn a_later_attempt_goes_on_in_the_directory_of_an_earlier_one_if_it_is_to() {
    let node = Node::new().await;
    let attempt = |number| AttemptId { number, ..task(0).attempt }.task(0);
    let goes_on = |task: &TaskId| prepare_with(task, |prepare| prepare.goes_on = true);
    for (number, script, said) in
        [(1, "echo one > notes; echo made", "made\n"), (3, "cat notes; echo more > more", "one\n")]
    {
        let task = attempt(number);
        node.server.send(goes_on(&task)).await;
        node.server.ready(&task).await;
        node.server.send(launch(&task, script)).await;
        node.server.ended(&task).await;
        assert_eq!(node.server.output(&task).await, said.as_bytes());
    }
    assert!(!node.task_dir(&attempt(1)).join("work").exists(), "it is in one place");
    // Any other job begins anew.
    let fresh = attempt(4);
    node.run(&fresh, "ls").await;
    node.server.ended(&fresh).await;
    assert_eq!(node.server.output(&fresh).await, b"");
}

#[tokio::test]
async fn removing_a_job_ends_what_runs_of_it_and_of_no_other() {
    let node = Node::new().await;
    let other: TaskId = AttemptId { job: JobId::from_random(getrandom::u64().unwrap()), number: 1 }.task(0);
    for id in [&task(0), &task(1), &other] {
        node.prepare(id).await;
    }
    node.run(&task(2), "sleep 60").await;
    node.run(&other, "exec sleep 60").await;
    node.server.send(ToAgent::Remove { job: task(0).attempt.job }).await;
    eventually("the job is gone", || (0..3).all(|rank| !node.task_dir(&task(rank)).exists())).await;
    assert_eq!(node.processes().len(), 3, "the agent, and the other job's supervisor and task");
    assert!(node.task_dir(&other).exists());
}

#[tokio::test]
async fn a_removal_is_confirmed_once_nothing_is_left_of_the_job() {
    let node = Node::new().await;
    let job = task(0).attempt.job;
    let confirmed = |state: &crate::server::State| state.removed.contains(&job).then_some(());
    node.run(&task(0), "exec sleep 60").await;
    node.server.send(ToAgent::Remove { job: job.clone() }).await;
    node.server.wait("the confirmation", confirmed).await;
    assert!(!node.task_dir(&task(0)).exists());
    let unknown = JobId::from_random(getrandom::u64().unwrap());
    node.server.send(ToAgent::Remove { job: unknown.clone() }).await;
    let confirmed = |state: &crate::server::State| state.removed.contains(&unknown).then_some(());
    node.server.wait("the confirmation of a job that was never here", confirmed).await;
}

#[tokio::test]
async fn a_live_task_is_not_forgotten() {
    let node = Node::new().await;
    node.run(&task(0), "exec sleep 60").await;
    node.server.send(ToAgent::Forget { task: task(0), continues: false }).await;
    node.server.send(prepare(&task(0))).await;
    let again = |state: &crate::server::State| (state.tasks[&task(0)].times[1] == 2).then_some(());
    node.server.wait("started again", again).await;
    node.server.send(ToAgent::Stop { task: task(0), grace_ms: 0, reason: String::new() }).await;
    node.server.ended(&task(0)).await;
}

#[tokio::test]
async fn sixty_four_tasks_run_at_once_each_with_its_own_address() {
    let node = Node::new().await;
    for rank in 0..64 {
        node.server.send(prepare_with(&task(rank), |prepare| prepare.ports = 2)).await;
    }
    let (mut addresses, mut ports) = (HashSet::new(), HashSet::new());
    for rank in 0..64 {
        let address = node.server.ready(&task(rank)).await;
        assert!(addresses.insert(address.ip));
        assert!(address.ports.into_iter().all(|port| ports.insert(port)));
    }
    for rank in 0..64 {
        node.launch(&task(rank), &format!("echo task {rank}; head -c 100000 /dev/zero")).await;
    }
    for rank in 0..64 {
        let output = node.server.output(&task(rank)).await;
        assert_eq!(node.server.ended(&task(rank)).await.failure, None);
        assert_eq!(output, [format!("task {rank}\n").as_bytes(), &[0; 100_000]].concat());
    }
    eventually("no supervisor is left", || node.processes().len() == 1).await;
    assert_eq!(zombies(node.agent.as_ref().unwrap().id()), 0);
}

/// How many dead children a process has not taken note of.
fn zombies(parent: u32) -> usize {
    let stat = |pid: i32| fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let pids =
        fs::read_dir("/proc").unwrap().filter_map(|entry| entry.unwrap().file_name().to_str()?.parse().ok());
    pids.filter(|pid| stat(*pid).contains(&format!(") Z {parent} "))).count()
}

#[tokio::test]
async fn a_task_whose_supervisor_is_killed_is_ended_and_what_it_wrote_is_kept() {
    let node = Node::new().await;
    node.run(&task(0), "echo before; sleep 60").await;
    eventually("output", || node.log_bytes(&task(0)) > 0).await;
    kill_process(supervisor(&node), Signal::KILL).unwrap();
    assert_eq!(node.server.ended(&task(0)).await.failure, Some(Reason::SupervisorLost));
    assert_eq!(node.server.output(&task(0)).await, b"before\n");
    eventually("only the agent is left", || node.processes().len() == 1).await;
}

/// The only supervisor of a node.
pub fn supervisor(node: &Node) -> Pid {
    let is_supervisor = |pid: &Pid| {
        let line = fs::read(format!("/proc/{}/cmdline", pid.as_raw_nonzero())).unwrap_or_default();
        line.split(|byte| *byte == 0).nth(1) == Some(b"supervise")
    };
    let found: Vec<_> = processes_with(&node.dir()).into_iter().filter(is_supervisor).collect();
    assert_eq!(found.len(), 1);
    found[0]
}
