//! How a task ends is told as it is, and what it is given is what it should be given.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use muster_agent::supervisor::{NotExecutable, Outcome, Status};
use muster_agent::task::{Error, await_gone};
use rustix::process::{Resource, getrlimit};
use serde_json::json;

use crate::harness::{Plan, WAYS};

fn outcome(plan: Plan) -> Outcome {
    plan.run().0.outcome
}

#[test]
fn exit_codes_are_the_tasks_own() {
    for code in [0, 1, 3, 127, 255] {
        let (exit, task) = Plan::script(&format!("exit {code}")).run();
        assert_eq!(exit.outcome, Outcome::Exited { code });
        assert_eq!(exit.status, Some(Status::Exited(code)));
        assert!(!exit.stopped && exit.survivors.is_empty());
        task.assert_gone();
    }
}

#[test]
fn signals_are_told_as_signals() {
    for (name, signal) in [("KILL", 9), ("SEGV", 11), ("TERM", 15), ("HUP", 1)] {
        assert_eq!(outcome(Plan::script(&format!("kill -{name} $$"))), Outcome::Signaled { signal });
    }
}

#[test]
fn a_missing_command_is_named() {
    for command in ["no-such-program", "./no-such-file", "/no/such/directory/program", ""] {
        assert_eq!(outcome(Plan::program(&[command])), Outcome::NotFound { command: command.to_owned() });
    }
}

#[test]
fn a_command_is_looked_up_on_the_tasks_own_path() {
    let mut plan = Plan::program(&["greet"]);
    let script = plan.cwd().join("greet");
    fs::write(&script, "#!/bin/sh\necho hello\n").unwrap();
    fs::set_permissions(&script, fs::Permissions::from_mode(0o755)).unwrap();
    plan.launch.env.insert("PATH".to_owned(), format!("/nonexistent:{}", plan.cwd().display()));
    let (exit, task) = plan.run();
    assert_eq!(exit.outcome, Outcome::Exited { code: 0 });
    assert_eq!(task.stdout(), "hello\n");
}

#[test]
fn why_a_file_cannot_be_run_is_told() {
    for (text, mode, why) in [
        ("#!/bin/sh\n", 0o644, NotExecutable::Permission),
        ("echo no first line\n", 0o755, NotExecutable::Format),
        ("#!/no/such/python -u\n", 0o755, NotExecutable::MissingInterpreter("/no/such/python".to_owned())),
    ] {
        let plan = Plan::program(&["./train.sh"]);
        let script = plan.cwd().join("train.sh");
        fs::write(&script, text).unwrap();
        fs::set_permissions(&script, fs::Permissions::from_mode(mode)).unwrap();
        assert_eq!(outcome(plan), Outcome::NotExecutable { command: "./train.sh".to_owned(), why });
    }
    let directory = Outcome::NotExecutable { command: "/tmp".to_owned(), why: NotExecutable::Directory };
    assert_eq!(outcome(Plan::program(&["/tmp"])), directory);
}

#[test]
fn a_missing_working_directory_is_named() {
    let mut plan = Plan::script("echo never");
    plan.launch.cwd = "/no/such/place".into();
    let Outcome::LaunchFailed { message } = outcome(plan) else { panic!("it was launched") };
    assert!(message.contains("/no/such/place") && message.contains("No such file"), "{message}");
}

#[test]
fn arguments_that_the_kernel_refuses_are_told() {
    let long = "x".repeat(300_000);
    let Outcome::LaunchFailed { message } = outcome(Plan::program(&["echo", &long])) else {
        panic!("it was launched")
    };
    assert!(message.contains("too long"), "{message}");
}

#[test]
fn a_failing_setup_ends_the_task() {
    let (exit, task) = Plan::script("echo never").setup("echo oh no; exit 4").run();
    assert_eq!(exit.outcome, Outcome::SetupFailed { status: Status::Exited(4) });
    assert_eq!(task.stdout(), "oh no\n");
    let killed = outcome(Plan::script("echo never").setup("kill -9 $$"));
    assert_eq!(killed, Outcome::SetupFailed { status: Status::Signaled(9) });
}

#[test]
fn what_setup_leaves_running_lives_until_the_command_ends() {
    let plan = Plan::script("kill -0 $(cat daemon) && echo it runs");
    let (exit, task) = plan.setup("setsid sleep 1000 & echo $! > daemon").run();
    assert_eq!(exit.outcome, Outcome::Exited { code: 0 });
    assert_eq!(task.stdout(), "it runs\n");
    task.assert_gone();
}

#[test]
fn a_task_that_takes_too_long_is_ended_and_has_its_grace() {
    let script = "trap 'echo saving; exit 0' TERM; sleep 1000 & wait";
    let plan = Plan::script(script).timeout(Duration::from_millis(200), Duration::from_secs(50));
    let (exit, task) = plan.run();
    assert_eq!(exit.outcome, Outcome::Timeout);
    assert_eq!(exit.status, Some(Status::Exited(0)));
    assert!(!exit.stopped);
    assert_eq!(task.stdout(), "saving\n");
    task.assert_gone();
}

#[test]
fn a_timeout_counts_setup_and_kills_what_will_not_end() {
    let plan = Plan::script("echo never").setup("trap '' TERM; while :; do sleep 1000; done");
    let (exit, task) = plan.timeout(Duration::from_millis(200), Duration::from_millis(100)).run();
    assert_eq!(exit.outcome, Outcome::Timeout);
    assert_eq!(exit.status, Some(Status::Signaled(9)));
    task.assert_gone();
}

#[test]
fn the_end_of_the_command_is_the_end_of_all_it_started() {
    for way in WAYS {
        let script =
            "setsid sh -c 'trap \"\" TERM; while :; do sleep 1000; done' & (setsid sleep 1000 &) ; exit 3";
        let (exit, task) = Plan::script_by(way, script).run();
        assert_eq!(exit.outcome, Outcome::Exited { code: 3 }, "{way:?}");
        task.assert_gone();
    }
}

#[test]
fn the_environment_is_exactly_the_given_one() {
    let mut plan = Plan::program(&["env"]);
    plan.launch.env.insert("GREETING".to_owned(), "héllo\nworld".to_owned());
    let mut expected: Vec<String> =
        plan.launch.env.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let (_, task) = plan.run();
    expected.push(String::new());
    assert_eq!(task.stdout(), expected.join("\n"));
}

#[test]
fn a_task_starts_as_from_a_fresh_shell() {
    let (_, task) = Plan::program(&["grep", "-E", "^Sig(Blk|Ign)", "/proc/self/status"]).run();
    // The C library's `posix_spawn` ignores its own two signals, 32 and 33, in every process it starts.
    let signals = task.stdout().replace("0000000180000000", "0000000000000000");
    assert_eq!(signals, "SigBlk:\t0000000000000000\nSigIgn:\t0000000000000000\n");
    let (_, task) = Plan::program(&["ls", "-lU", "/proc/self/fd"]).run();
    let listing = task.stdout();
    let links: Vec<&str> =
        listing.lines().filter_map(|line| line.split_once(" -> ").map(|(_, target)| target)).collect();
    assert_eq!(links.len(), 6, "{listing}");
    assert_eq!(links[0], "/dev/null");
    assert!(
        links[1].starts_with("pipe:") && links[2].starts_with("pipe:") && links[1] != links[2],
        "{listing}"
    );
    assert!(links[3].starts_with("/proc/"), "{listing}");
    // Its own pipes once more, which it only holds.
    assert_eq!(links[4..], links[1..3], "{listing}");
    let (_, task) = Plan::program(&["cut", "-d ", "-f1,5,6", "/proc/self/stat"]).run();
    let ids = task.stdout();
    let ids: Vec<&str> = ids.split_ascii_whitespace().collect();
    assert!(ids[0] == ids[1] && ids[1] == ids[2], "{ids:?}");
}

/// The numbers of a program's descriptors under a limit; number 3 is that of the listing itself.
fn descriptors_under(limit: u64) -> Vec<u32> {
    let kinds = [
        Resource::Cpu,
        Resource::Fsize,
        Resource::Data,
        Resource::Stack,
        Resource::Core,
        Resource::Rss,
        Resource::Nproc,
    ];
    let present = kinds.map(getrlimit).map(|limit| json!({"soft": limit.current, "hard": limit.maximum}));
    let limits = present.into_iter().chain([json!({"soft": limit, "hard": limit})]).collect();
    let mut plan = Plan::program(&["ls", "-U", "/proc/self/fd"]);
    plan.launch.limits = serde_json::from_value(limits).unwrap();
    let (exit, task) = plan.run();
    assert_eq!(exit.outcome, Outcome::Exited { code: 0 });
    task.stdout().lines().map(|line| line.parse().unwrap()).collect()
}

#[test]
fn a_program_holds_its_pipes_under_numbers_that_it_may_have() {
    assert_eq!(descriptors_under(4096), [0, 1, 2, 3, 248, 249]);
    assert_eq!(descriptors_under(64), [0, 1, 2, 3, 62, 63]);
    assert_eq!(descriptors_under(12), [0, 1, 2, 3]);
}

#[test]
fn the_mask_for_new_files_is_the_given_one() {
    let mut plan = Plan::script("umask");
    plan.launch.umask = Some(0o027);
    assert_eq!(plan.run().1.stdout(), "0027\n");
}

#[test]
fn files_with_the_environment_are_for_their_owner_alone() {
    let (_, task) = Plan::script("true").run();
    for name in ["launch.json", "started.json", "exit.json", "supervisor.log", "log/00000000000000000000.seg"]
    {
        let mode = fs::metadata(task.dir.join(name)).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "{name}");
    }
}

#[test]
fn a_supervisor_is_gone_when_its_process_is() {
    let mut task = Plan::script("sleep 1000").start();
    task.wait_started();
    assert!(matches!(await_gone(&task.dir), Err(Error::Supervised { .. })));
    task.kill_supervisor();
    await_gone(&task.dir).unwrap();
}
