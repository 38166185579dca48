//! Supervisors and agents that are killed: nothing is lost, nothing is left, nothing runs twice.

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use muster_agent::supervisor::{Outcome, Started};
use muster_agent::task::{self, Error, Observation};
use muster_agent::tree::Preference;
use muster_link::message::Elements;
use muster_model::array::Grant;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::process::{Pid, Signal, kill_process};

use crate::harness::{Plan, Task, WAYS, supervisor, wait_for};

/// Writes numbered lines of eight bytes, 64 at a time, and after each write the count of lines into `count`. What a
/// kill cuts off is thus at most one write that was done and not counted.
const COUNTING: &str = r#"
import os
count = os.open("count", os.O_RDWR | os.O_CREAT)
number = 0
while True:
    os.write(1, b"".join(b"%07d\n" % (number + line) for line in range(64)))
    number += 64
    os.pwrite(count, b"%020d\n" % number, 0)
"#;

fn counted(task: &Task) -> usize {
    fs::read_to_string(task.cwd().join("count")).ok().and_then(|text| text.trim().parse().ok()).unwrap_or(0)
}

/// Every line is there once and in order, up to what the task counted.
fn assert_complete(task: &Task) {
    let stdout = task.stdout();
    for (number, line) in stdout.lines().enumerate() {
        assert_eq!(line, format!("{number:07}"));
    }
    let (kept, counted) = (stdout.len() / 8, counted(task));
    assert!((counted..=counted + 64).contains(&kept), "kept {kept} lines, the task wrote {counted}");
    assert_eq!(task.log().end().unwrap(), task.log().whole_end().unwrap());
}

/// A number that differs from round to round, the same in each run.
fn scatter(round: u64) -> u64 {
    (round + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) >> 33
}

#[test]
fn a_killed_supervisor_loses_no_byte_and_leaves_no_process() {
    for round in 0..24 {
        let way = WAYS[round as usize % 3];
        let mut task = Plan::with(&["python3", "-c", COUNTING], way, None).start();
        task.wait_started();
        let enough = (scatter(round) % 200_000) as usize;
        wait_for("some output", || (counted(&task) > enough).then_some(()));
        task.kill_supervisor();
        let observation = task::observe(&task.dir).unwrap();
        assert!(matches!(observation, Observation::SupervisorLost(Some(_))), "{observation:?}");
        let pipes = task.pipes.take();
        let exit = task::bury(&task.dir, pipes.as_ref()).unwrap();
        assert_eq!(exit.outcome, Outcome::SupervisorLost);
        assert_eq!(exit.log_bytes, task.log().end().unwrap());
        assert!(exit.survivors.is_empty() && !exit.stopped);
        assert_complete(&task);
        task.assert_gone();
        assert_eq!(task::observe(&task.dir).unwrap(), Observation::Ended(exit.clone()));
        assert_eq!(task::bury(&task.dir, None).unwrap(), exit);
    }
}

#[test]
fn a_new_agent_finds_the_task_and_can_save_it_too() {
    let mut task = Plan::with(&["python3", "-c", COUNTING], Preference::Auto, None).start();
    let started = task.wait_started();
    // The agent dies, and with it its hold on the pipes.
    task.pipes = None;
    let adopted = task::adopt(&task.dir).unwrap();
    assert_eq!(adopted.observation, Observation::Running(started));
    task.pipes = adopted.pipes;
    assert!(task.pipes.is_some());
    wait_for("some output", || (counted(&task) > 50_000).then_some(()));
    task.kill_supervisor();
    task::bury(&task.dir, task.pipes.take().as_ref()).unwrap();
    assert_complete(&task);
    task.assert_gone();
}

#[test]
fn a_new_agent_does_not_disturb_the_end() {
    let plan = Plan::script("echo > ready; read line < go; echo bye; exit 5");
    rustix::fs::mkfifoat(rustix::fs::CWD, plan.cwd().join("go"), rustix::fs::Mode::RWXU).unwrap();
    let mut task = plan.start();
    task.wait_file("ready");
    task.pipes = task::adopt(&task.dir).unwrap().pipes;
    fs::write(task.cwd().join("go"), "now\n").unwrap();
    let exit = task.wait();
    assert_eq!(exit.outcome, Outcome::Exited { code: 5 });
    assert_eq!(task.stdout(), "bye\n");
    let adopted = task::adopt(&task.dir).unwrap();
    assert_eq!(adopted.observation, Observation::Ended(exit));
    assert!(adopted.pipes.is_none());
}

#[test]
fn output_is_saved_through_the_task_if_agent_and_supervisor_die_together() {
    let mut task =
        Plan::script("trap '' PIPE; echo kept; echo > ready; while :; do sleep 1000; done").start();
    task.wait_file("ready");
    wait_for("the first record", || (task.log().whole_end().unwrap() > 0).then_some(()));
    task.pipes = None;
    task.kill_supervisor();
    let adopted = task::adopt(&task.dir).unwrap();
    assert!(matches!(adopted.observation, Observation::SupervisorLost(Some(_))), "{:?}", adopted.observation);
    assert!(adopted.pipes.is_some());
    task::bury(&task.dir, adopted.pipes.as_ref()).unwrap();
    assert_eq!(task.stdout(), "kept\n");
    task.assert_gone();
}

/// Writes when it is told to, and waits.
const WRITES_WHEN_TOLD: &str =
    "echo > ready; read line < go; echo kept; echo kept too >&2; echo > wrote; while :; do sleep 1000; done";

/// Kills supervisor and agent together when the task has written into its pipes and nothing was saved of it.
fn kill_both_before_anything_is_saved(task: &mut Task) {
    task.wait_file("ready");
    kill_process(Pid::from_child(&task.child), Signal::STOP).unwrap();
    fs::write(task.cwd().join("go"), "now\n").unwrap();
    task.wait_file("wrote");
    task.pipes = None;
    task.kill_supervisor();
}

fn make_fifo(plan: &Plan) {
    rustix::fs::mkfifoat(rustix::fs::CWD, plan.cwd().join("go"), rustix::fs::Mode::RWXU).unwrap();
}

#[test]
fn output_is_saved_if_agent_and_supervisor_die_before_the_start_is_written_down() {
    for (way, is_adopted) in WAYS.into_iter().flat_map(|way| [(way, true), (way, false)]) {
        let plan = Plan::script_by(way, WRITES_WHEN_TOLD);
        make_fifo(&plan);
        // The supervisor cannot write `started.json`, as if it never came to it.
        let obstacle = plan.dir().join(".started.json.new");
        fs::create_dir_all(&obstacle).unwrap();
        let mut task = plan.start();
        kill_both_before_anything_is_saved(&mut task);
        fs::remove_dir(obstacle).unwrap();
        assert_eq!(task::observe(&task.dir).unwrap(), Observation::SupervisorLost(None));
        let pipes = if is_adopted { task::adopt(&task.dir).unwrap().pipes } else { None };
        assert_eq!(pipes.is_some(), is_adopted);
        task::bury(&task.dir, pipes.as_ref()).unwrap();
        assert_eq!(task.output(), [b"kept\n".to_vec(), b"kept too\n".to_vec()], "{way:?}");
        task.assert_gone();
    }
}

#[test]
fn output_of_an_element_is_saved_if_agent_and_supervisor_die_before_its_process_is_written_down() {
    for way in WAYS {
        let mut plan = Plan::script_by(way, WRITES_WHEN_TOLD);
        let grants = vec![Grant { number: 1, places: "0".parse().unwrap(), last: true }];
        plan.launch.elements = Some(Elements { array: "0".parse().unwrap(), grants });
        fs::create_dir_all(plan.dir().join("output")).unwrap();
        make_fifo(&plan);
        let mut task = plan.start();
        let started = task.wait_started();
        kill_both_before_anything_is_saved(&mut task);
        // An element of less than a tenth of a second is nowhere written down.
        let before = Started { task: started.supervisor, ..started };
        fs::write(task.dir.join("started.json"), serde_json::to_vec(&before).unwrap()).unwrap();
        let adopted = task::adopt(&task.dir).unwrap();
        task::bury(&task.dir, adopted.pipes.as_ref()).unwrap();
        assert_eq!(task.output(), [b"kept\n".to_vec(), b"kept too\n".to_vec()], "{way:?}");
        task.assert_gone();
    }
}

#[test]
fn a_task_that_an_earlier_boot_began_is_known_although_its_start_was_not_written_down() {
    let plan = Plan::script("echo > ready; read line < go");
    make_fifo(&plan);
    let mut task = plan.start();
    task.wait_file("ready");
    task.wait_started();
    task.kill_supervisor();
    let (launch, started) = (task.dir.join("launch.json"), task.dir.join("started.json"));
    let (launched, begun) = (fs::read_to_string(&launch).unwrap(), fs::read_to_string(&started).unwrap());
    let mut earlier: serde_json::Value = serde_json::from_str(&launched).unwrap();
    earlier["supervision"]["boot_id"] = "another".into();
    fs::remove_file(&started).unwrap();
    fs::write(&launch, earlier.to_string()).unwrap();
    assert_eq!(task::observe(&task.dir).unwrap(), Observation::Rebooted);
    fs::write(launch, launched).unwrap();
    fs::write(started, begun).unwrap();
}

#[test]
fn a_child_that_is_not_its_program_yet_counts_as_a_supervisor() {
    let mut task = Plan::script("echo > ready; exec sleep 1000").start();
    task.wait_file("ready");
    let started = task.wait_started();
    let locks = |pid: i32| {
        let entries = fs::read_dir(format!("/proc/{pid}/fd")).unwrap().flatten();
        let links = entries.filter_map(|entry| fs::read_link(entry.path()).ok());
        links.filter(|link| *link == task.dir.join("supervisor.log")).count()
    };
    // One is its stderr, which a child replaces before it is its program; the other one goes only then.
    assert_eq!((locks(started.supervisor.pid), locks(started.task.pid)), (2, 0));
    task.kill_supervisor();
}

/// Holds nothing but its standard streams, and waits.
const CLOSES_ALL: &str = "\
import os, signal
signal.signal(signal.SIGPIPE, signal.SIG_IGN)
os.closerange(3, 4096)
with open('go') as go:
    go.read()
print('kept', flush=True)
with open('ready', 'w') as ready:
    ready.write('yes\\n')
signal.pause()
";

#[test]
fn what_a_program_wrote_that_closed_its_descriptors_is_saved_while_it_lives() {
    let plan = Plan::program(&["python3", "-c", CLOSES_ALL]);
    make_fifo(&plan);
    let mut task = plan.start();
    task.wait_started();
    // From here on its output stays in the pipe.
    kill_process(Pid::from_child(&task.child), Signal::STOP).unwrap();
    fs::write(task.cwd().join("go"), "now\n").unwrap();
    task.wait_file("ready");
    task.pipes = None;
    task.kill_supervisor();
    let adopted = task::adopt(&task.dir).unwrap();
    assert!(adopted.pipes.is_some());
    task::bury(&task.dir, adopted.pipes.as_ref()).unwrap();
    assert_eq!(task.stdout(), "kept\n");
    task.assert_gone();
}

#[test]
fn what_an_agent_could_not_save_before_it_died_is_there_for_the_next_one() {
    for way in WAYS {
        let script = "echo > ready; read line < go; echo kept; echo > wrote; while :; do sleep 1000; done";
        let plan = Plan::script_by(way, script);
        rustix::fs::mkfifoat(rustix::fs::CWD, plan.cwd().join("go"), rustix::fs::Mode::RWXU).unwrap();
        let mut task = plan.start();
        task.wait_file("ready");
        task.kill_supervisor();
        fs::write(task.cwd().join("go"), "now\n").unwrap();
        task.wait_file("wrote");
        // The first agent cannot write into the log, and dies over it.
        let (log, away) = (task.dir.join("log"), task.dir.join("away"));
        fs::rename(&log, &away).unwrap();
        fs::write(&log, "").unwrap();
        assert!(task::bury(&task.dir, task.pipes.take().as_ref()).is_err());
        fs::remove_file(&log).unwrap();
        fs::rename(&away, &log).unwrap();
        let adopted = task::adopt(&task.dir).unwrap();
        task::bury(&task.dir, adopted.pipes.as_ref()).unwrap();
        assert_eq!(task.stdout(), "kept\n", "{way:?}");
        task.assert_gone();
    }
}

#[test]
fn runaways_of_a_task_without_supervisor_are_found() {
    for way in WAYS {
        let script =
            "(setsid sh -c 'trap \"\" TERM; echo > ready; while :; do sleep 1000; done' &); exec sleep 1000";
        let mut task = Plan::script_by(way, script).start();
        task.wait_file("ready");
        task.wait_started();
        assert!(task.processes().len() >= 2);
        task.kill_supervisor();
        let exit = task::bury(&task.dir, task.pipes.take().as_ref()).unwrap();
        assert!(exit.survivors.is_empty());
        task.assert_gone();
    }
}

#[test]
fn a_stop_is_remembered_by_whoever_buries() {
    let mut task = Plan::script("trap '' TERM; echo > ready; while :; do sleep 1000; done").start();
    task.wait_file("ready");
    task::stop(&task.dir, Duration::from_secs(1000), "stopped_by_user").unwrap();
    task.kill_supervisor();
    assert!(task::bury(&task.dir, task.pipes.take().as_ref()).unwrap().stopped);
}

#[test]
fn a_task_is_observed_from_before_its_start_to_after_its_end() {
    let plan = Plan::script("echo > ready; exec sleep 1000");
    let dir = plan.dir();
    assert_eq!(task::observe(&dir).unwrap(), Observation::NotStarted);
    assert!(matches!(task::bury(&plan.cwd().join("nowhere"), None), Err(Error::Io { .. })));
    let launch = plan.launch.clone();
    let mut task = plan.start();
    let first = task::observe(&dir).unwrap();
    assert!(matches!(first, Observation::Starting | Observation::Running(_)), "{first:?}");
    task.wait_file("ready");
    let started = task.wait_started();
    assert_eq!(started.supervisor, task.supervisor());
    assert!(started.task.is_alive());
    assert!(matches!(task::start(&supervisor(), &dir, &launch), Err(Error::Supervised { .. })));
    assert!(matches!(task::bury(&dir, None), Err(Error::Supervised { .. })));
    task::stop(&dir, Duration::ZERO, "stopped_by_user").unwrap();
    task.wait();
    assert!(matches!(task::start(&supervisor(), &dir, &launch), Err(Error::AlreadyStarted { .. })));
}

#[test]
fn a_start_that_was_cut_off_before_the_supervisor_may_be_repeated() {
    let plan = Plan::script("echo hello");
    let failed = task::start("/no/such/binary".as_ref(), &plan.dir(), &plan.launch);
    assert!(matches!(failed, Err(Error::Io { .. })));
    // A start of another test in this process may hold a copy of the lock between its fork and its exec.
    wait_for("it to count as not started", || {
        (task::observe(&plan.dir()).unwrap() == Observation::NotStarted).then_some(())
    });
    assert!(matches!(task::bury(&plan.dir(), None), Err(Error::NotStarted { .. })));
    assert_eq!(plan.run().1.stdout(), "hello\n");
}

/// The process that supervises, or waits to supervise, the task in this directory.
fn supervisor_of(dir: &Path) -> Option<i32> {
    let pids = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = pids.filter_map(|entry| entry.file_name().to_str()?.parse::<i32>().ok());
    let words = format!("\0supervise\0{}\0", dir.display());
    pids.find(|pid| {
        fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|line| line.ends_with(&words))
    })
}

#[test]
fn a_supervisor_that_gets_no_task_goes_and_leaves_no_trace() {
    let plan = Plan::script("echo hello");
    let waiting = task::await_launch(&supervisor(), &plan.dir()).unwrap();
    assert_eq!(task::observe(&plan.dir()).unwrap(), Observation::NotStarted);
    let second = task::await_launch(&supervisor(), &plan.dir());
    assert!(matches!(second, Err(Error::Supervised { .. })), "only one may wait: {second:?}");
    drop(waiting);
    wait_for("it to go", || supervisor_of(&plan.dir()).is_none().then_some(()));
    assert!(matches!(task::bury(&plan.dir(), None), Err(Error::NotStarted { .. })));
    assert_eq!(plan.run().1.stdout(), "hello\n");
}

#[test]
fn a_task_whose_waiting_supervisor_was_killed_can_have_another() {
    let plan = Plan::script("echo hello");
    let waiting = task::await_launch(&supervisor(), &plan.dir()).unwrap();
    let pid = wait_for("it to wait", || supervisor_of(&plan.dir()));
    kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL).unwrap();
    wait_for("it to be gone", || supervisor_of(&plan.dir()).is_none().then_some(()));
    assert!(matches!(waiting.launch(&plan.dir(), &plan.launch), Err(Error::Io { .. })));
    assert_eq!(plan.run().1.stdout(), "hello\n");
}

#[test]
fn a_task_of_an_earlier_boot_is_known_as_such() {
    // It is one process to its end and waits in its shell: one that is just becoming another program has no environment
    // for a moment, by which its processes are counted here.
    let plan = Plan::script("echo before; echo > ready; read line < go");
    rustix::fs::mkfifoat(rustix::fs::CWD, plan.cwd().join("go"), rustix::fs::Mode::RWXU).unwrap();
    let mut task = plan.start();
    task.wait_file("ready");
    let started = task.wait_started();
    wait_for("the first record", || (task.log().whole_end().unwrap() > 0).then_some(()));
    task.kill_supervisor();
    let survivors = task.processes();
    let earlier = Started { boot_id: "another".to_owned(), ..started.clone() };
    fs::write(task.dir.join("started.json"), serde_json::to_vec(&earlier).unwrap()).unwrap();
    assert_eq!(task::observe(&task.dir).unwrap(), Observation::Rebooted);
    // What has these numbers now is not the task, and must not be touched.
    assert!(survivors.contains(&started.task.pid));
    let exit = task::bury(&task.dir, None).unwrap();
    assert_eq!(exit.outcome, Outcome::SupervisorLost);
    assert_eq!(task.processes(), survivors);
    assert_eq!(task.stdout(), "before\n");
    fs::remove_file(task.dir.join("exit.json")).unwrap();
    fs::write(task.dir.join("started.json"), serde_json::to_vec(&started).unwrap()).unwrap();
}

#[test]
fn the_death_of_a_supervisor_is_an_event() {
    let task = Plan::script("echo > ready; exec sleep 1000").start();
    task.wait_file("ready");
    let mut task = task;
    let by_process = task::watch(&task.dir, Some(task.supervisor())).unwrap();
    let by_control = task::watch(&task.dir, None).unwrap();
    let events = |patience: Duration| {
        let mut fds = [PollFd::new(&by_process, PollFlags::IN), PollFd::new(&by_control, PollFlags::empty())];
        let mut seen = [false, false];
        let deadline = Instant::now() + patience;
        while !(seen[0] && seen[1]) && Instant::now() < deadline {
            poll(&mut fds, Some(&Timespec { tv_sec: 0, tv_nsec: 10_000_000 })).unwrap();
            seen = [0, 1].map(|index| seen[index] || !fds[index].revents().is_empty());
        }
        seen
    };
    assert_eq!(events(Duration::from_millis(20)), [false, false]);
    task.kill_supervisor();
    assert_eq!(events(Duration::from_secs(10)), [true, true]);
}

#[test]
fn the_files_of_a_newer_version_are_refused() {
    let (exit, task) = Plan::script("true").run();
    let mut json = serde_json::to_value(&exit).unwrap();
    json["format"] = 2.into();
    fs::write(task.dir.join("exit.json"), json.to_string()).unwrap();
    assert!(matches!(task::observe(&task.dir), Err(Error::Io { .. })));
}
