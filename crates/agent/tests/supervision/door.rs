//! The sockets by which people and peers come into a task: open from its first step, answered when someone comes, gone
//! with it. What answers is a stand-in, see `examples/supervise.rs`.

use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::net::UnixStream;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use muster_agent::supervisor::{DOOR, Outcome};
use muster_agent::task;
use muster_agent::tree::Preference;
use muster_link::unix::socket_path;
use rustix::process::{Pid, Signal, kill_process};

use crate::footprint::memory;
use crate::harness::{Plan, Task, WAYS, is_alive, wait_for};

const LONG: Duration = Duration::from_secs(1000);
/// Waits to be told to end.
const WAITS: &str = "echo > ready; while [ ! -e go ]; do sleep 0.01; done";

/// An address of the test's own, and a port that was free on it.
fn place() -> SocketAddr {
    static NEXT: AtomicU32 = AtomicU32::new(0);
    let [_, a, b, c] = (std::process::id() * 64 + NEXT.fetch_add(1, Ordering::Relaxed)).to_be_bytes();
    let listener = TcpListener::bind((Ipv4Addr::new(127, a % 64 + 128, b, c.max(1)), 0)).unwrap();
    listener.local_addr().unwrap()
}

/// A member of a gang that waits, ended in a certain way.
fn member(way: Preference) -> Plan {
    let mut plan = Plan::script_by(way, WAITS);
    plan.launch.gang = Some(place());
    plan
}

/// What the process says that answers: its number, and by which socket the caller came.
fn told(stream: impl Read) -> (i32, u32) {
    let mut line = String::new();
    BufReader::new(stream).read_line(&mut line).unwrap();
    let (pid, socket) = line.trim_end().split_once(' ').unwrap_or_else(|| panic!("told {line:?}"));
    (pid.parse().unwrap(), socket.parse().unwrap())
}

fn knock(task: &Task) -> UnixStream {
    UnixStream::connect(socket_path(&task.dir.join(DOOR)).unwrap().as_path()).unwrap()
}

#[test]
fn both_sockets_are_open_before_the_first_step_and_only_as_long_as_the_task_lives() {
    let mut plan = Plan::script("true");
    let gang = place();
    plan.launch.gang = Some(gang);
    let reach = format!(
        "import socket; socket.create_connection(('{}', {})); socket.socket(socket.AF_UNIX).connect('task/{DOOR}')",
        gang.ip(),
        gang.port()
    );
    let (exit, task) = plan.setup(&format!("python3 -c \"{reach}\" && echo reached")).run();
    assert_eq!(exit.outcome, Outcome::Exited { code: 0 });
    assert_eq!(task.stdout(), "reached\n");
    assert!(TcpStream::connect(gang).is_err());
    TcpListener::bind(gang).unwrap();
    assert!(UnixStream::connect(socket_path(&task.dir.join(DOOR)).unwrap().as_path()).is_err());
    task.assert_gone();
}

#[test]
fn nobody_answers_until_someone_comes_and_then_one_process_for_all() {
    for way in WAYS {
        let plan = member(way);
        let gang = plan.launch.gang.unwrap();
        let mut task = plan.start();
        task.wait_file("ready");
        let step = task.wait_started().task.pid;
        let before = task.processes();
        let (pid, socket) = told(knock(&task));
        assert!(!before.contains(&pid) && task.processes().contains(&pid), "{way:?}: {before:?} {pid}");
        assert_eq!((socket, told(TcpStream::connect(gang).unwrap())), (0, (pid, 1)), "{way:?}");
        assert_eq!(told(knock(&task)), (pid, 0), "{way:?}");
        // A process of the task: it is held where the others are, and sees what they see.
        for file in ["cgroup", "mountinfo"] {
            let of = |pid| fs::read_to_string(format!("/proc/{pid}/{file}")).unwrap();
            assert_eq!(of(pid), of(step), "{way:?} {file}");
        }
        assert_eq!(fs::read_link(format!("/proc/{pid}/cwd")).unwrap(), fs::canonicalize(task.cwd()).unwrap());
        fs::write(task.cwd().join("go"), "").unwrap();
        assert_eq!(task.wait().outcome, Outcome::Exited { code: 0 });
    }
}

#[test]
fn one_that_is_killed_has_a_successor() {
    let task = member(Preference::Auto).start();
    task.wait_file("ready");
    let (first, _) = told(knock(&task));
    kill_process(Pid::from_raw(first).unwrap(), Signal::KILL).unwrap();
    wait_for("it to be gone", || (!is_alive(first)).then_some(()));
    let (second, _) = told(knock(&task));
    assert_ne!(first, second);
    assert!(is_alive(second));
}

#[test]
fn one_that_cannot_answer_is_tried_again_now_and_then_and_the_task_does_not_mind() {
    let mut plan = member(Preference::Auto);
    plan.launch.env.insert("INSIDE_FAILS".into(), "1".into());
    let mut task = plan.start();
    task.wait_file("ready");
    let began = Instant::now();
    let _waiting = knock(&task);
    let tries = || fs::read_to_string(task.dir.join("inside.log")).unwrap_or_default().lines().count();
    wait_for("a third try", || (tries() >= 3).then_some(()));
    assert!(began.elapsed() > Duration::from_millis(1500), "three tries in {:?}", began.elapsed());
    fs::write(task.cwd().join("go"), "").unwrap();
    assert_eq!(task.wait().outcome, Outcome::Exited { code: 0 });
    task.assert_gone();
}

#[test]
fn the_end_of_the_task_is_its_end() {
    for way in WAYS {
        let mut task = member(way).start();
        task.wait_file("ready");
        let (pid, _) = told(knock(&task));
        let began = Instant::now();
        fs::write(task.cwd().join("go"), "").unwrap();
        let exit = task.wait();
        assert_eq!(exit.outcome, Outcome::Exited { code: 0 }, "{way:?}");
        assert!(exit.survivors.is_empty() && !is_alive(pid), "{way:?}");
        assert!(began.elapsed() < Duration::from_secs(5), "{way:?}: {:?}", began.elapsed());
        task.assert_gone();
    }
}

#[test]
fn a_stop_is_its_end_and_does_not_wait_for_it() {
    for way in WAYS {
        let plan = member(way);
        let gang = plan.launch.gang.unwrap();
        let mut task = plan.start();
        task.wait_file("ready");
        let (pid, _) = told(TcpStream::connect(gang).unwrap());
        let began = Instant::now();
        task::stop(&task.dir, LONG, "stopped_by_user").unwrap();
        let exit = task.wait();
        assert_eq!((&exit.outcome, exit.stopped), (&Outcome::Signaled { signal: 15 }, true), "{way:?}");
        assert!(!is_alive(pid), "{way:?}");
        assert!(began.elapsed() < Duration::from_secs(5), "{way:?}: {:?}", began.elapsed());
        assert!(TcpStream::connect(gang).is_err());
        task.assert_gone();
    }
}

#[test]
fn a_killed_supervisor_does_not_leave_it_behind() {
    for way in WAYS {
        let mut task = member(way).start();
        task.wait_file("ready");
        let (pid, _) = told(knock(&task));
        task.kill_supervisor();
        let pipes = task.pipes.take();
        assert_eq!(task::bury(&task.dir, pipes.as_ref()).unwrap().outcome, Outcome::SupervisorLost);
        assert!(!is_alive(pid), "{way:?}");
        task.assert_gone();
    }
}

#[test]
fn a_port_that_someone_has_fails_the_task_and_is_named() {
    let mut plan = Plan::script("echo never");
    let taken = TcpListener::bind((IpAddr::from([127, 0, 0, 1]), 0)).unwrap();
    let address = taken.local_addr().unwrap();
    plan.launch.gang = Some(address);
    let (exit, task) = plan.run();
    let Outcome::LaunchFailed { message } = &exit.outcome else { panic!("{:?}", exit.outcome) };
    assert!(message.contains(&address.to_string()) && message.contains("in use"), "{message}");
    assert_eq!(task.stdout(), "");
    task.assert_gone();
}

#[test]
fn steps_do_not_inherit_the_sockets() {
    let mut plan = Plan::script("ls -l /proc/self/fd | grep -c socket");
    plan.launch.gang = Some(place());
    let (_, task) = plan.run();
    assert_eq!(task.stdout(), "0\n");
}

#[test]
fn a_flood_of_callers_costs_one_process_and_nothing_of_the_supervisors() {
    let plan = member(Preference::Auto);
    let gang = plan.launch.gang.unwrap();
    let task = plan.start();
    task.wait_file("ready");
    task.wait_started();
    let supervisor = task.child.id();
    let before = (memory(supervisor, "Private_Dirty"), open_files(supervisor), task.processes().len());
    let mut held: Vec<Box<dyn Read>> = Vec::new();
    for number in 0..400 {
        let (door, gang) = (knock(&task), TcpStream::connect(gang).unwrap());
        if number % 4 == 0 {
            held.extend([Box::new(door) as Box<dyn Read>, Box::new(gang)]);
        }
    }
    let (pid, _) = told(knock(&task));
    let after = (memory(supervisor, "Private_Dirty"), open_files(supervisor));
    println!("supervisor: {} kB before, {} kB after 800 callers", before.0, after.0);
    assert!(is_alive(pid) && task.processes().len() <= before.2 + 1);
    assert!(after.0 < before.0 + 128 && after.0 < 1024, "{} kB before, {} kB after", before.0, after.0);
    assert_eq!(after.1, before.1, "it holds nobody");
}

fn open_files(pid: u32) -> usize {
    fs::read_dir(format!("/proc/{pid}/fd")).unwrap().count()
}
