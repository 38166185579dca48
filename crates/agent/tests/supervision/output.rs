//! What a task writes is kept: every byte, once, in order.

use std::fs::{self, OpenOptions};
use std::time::{Duration, Instant};

use muster_agent::supervisor::Outcome;
use muster_link::log::Stream;

use crate::harness::{Disk, Plan, wait_for};

#[test]
fn bytes_of_any_kind_come_through_exactly() {
    let plan = Plan::script("cat input; cat input >&2");
    let bytes: Vec<u8> =
        (0..1_000_003u32).map(|number| (number.wrapping_mul(2_654_435_761) >> 13) as u8).collect();
    fs::write(plan.cwd().join("input"), &bytes).unwrap();
    let (exit, task) = plan.run();
    assert_eq!(exit.outcome, Outcome::Exited { code: 0 });
    assert!(task.output() == [bytes.clone(), bytes]);
    assert_eq!(exit.log_bytes, task.log().end().unwrap());
}

#[test]
fn stdout_and_stderr_are_kept_apart_and_in_order() {
    let (_, task) = Plan::script("for i in 1 2 3; do echo out $i; echo err $i >&2; done").run();
    assert_eq!(
        task.output().map(|bytes| String::from_utf8(bytes).unwrap()),
        ["out 1\nout 2\nout 3\n", "err 1\nerr 2\nerr 3\n"]
    );
    let records = task.records();
    assert!(records.is_sorted_by_key(|record| record.time_micros));
    assert!(records.iter().any(|record| record.stream == Stream::Stderr));
}

#[test]
fn sixty_four_megabytes_at_full_speed_arrive_whole() {
    // 8,100,000 lines of eight bytes: more than any pipe, and several segments.
    let began = Instant::now();
    let (exit, task) = Plan::program(&["seq", "-f", "%07.0f", "0", "8099999"]).run();
    let took = began.elapsed();
    assert_eq!(exit.outcome, Outcome::Exited { code: 0 });
    let [stdout, stderr] = task.output();
    assert_eq!((stdout.len(), stderr.len()), (64_800_000, 0));
    for (number, line) in stdout.chunks_exact(8).enumerate() {
        assert!(line == format!("{number:07}\n").as_bytes(), "line {number}");
    }
    let segments = task.log().starts().unwrap().len();
    assert!((7..=9).contains(&segments), "{segments}");
    println!("64.8 MB of output in {took:?}, {} records", task.records().len());
}

#[test]
fn a_full_disk_holds_the_task_up_and_loses_nothing() {
    let plan = Plan::script("seq 1 600000; echo err >&2; exit 3");
    fs::create_dir(plan.dir()).unwrap();
    let disk = Disk::mount(&plan.dir(), 1);
    let mut task = plan.start();
    task.wait_started();
    wait_for("the disk to be full", || disk.is_full().then_some(()));
    disk.grow(64);
    let exit = task.wait();
    assert_eq!(exit.outcome, Outcome::Exited { code: 3 });
    let expected: String = (1..=600_000).map(|number| format!("{number}\n")).collect();
    assert!(task.output() == [expected.into_bytes(), b"err\n".to_vec()]);
}

#[test]
fn a_script_that_opens_its_streams_again_does_not_cut_the_log() {
    let (_, task) =
        Plan::script("echo one; echo two >/dev/stdout; echo three >>/dev/stdout; echo four").run();
    assert_eq!(task.stdout(), "one\ntwo\nthree\nfour\n");
}

/// asyncio takes a stdout that is readable for one whose reader has gone, and drops what is still to be written.
const ASYNCIO: &str = "\
import asyncio, select, sys

async def main():
    loop = asyncio.get_running_loop()
    protocol = asyncio.streams.FlowControlMixin
    transport, protocol = await loop.connect_write_pipe(protocol, sys.stdout)
    writer = asyncio.StreamWriter(transport, protocol, None, loop)
    for number in range(5):
        writer.write(b'line %d\\n' % number)
        await writer.drain()
        await asyncio.sleep(0.02)

readable, _, _ = select.select([1, 2], [], [], 0)
print('readable:', readable, file=sys.stderr)
asyncio.run(main())
";

#[test]
fn the_streams_of_a_program_can_be_written_and_not_read() {
    let (exit, task) = Plan::program(&["python3", "-c", ASYNCIO]).run();
    assert_eq!(exit.outcome, Outcome::Exited { code: 0 });
    let [stdout, stderr] = task.output().map(|bytes| String::from_utf8(bytes).unwrap());
    assert_eq!(stderr, "readable: []\n");
    assert_eq!(stdout, "line 0\nline 1\nline 2\nline 3\nline 4\n");
}

#[test]
fn output_between_two_steps_and_after_is_one_log() {
    let (_, task) = Plan::script("echo command").setup("echo setup").run();
    assert_eq!(task.stdout(), "setup\ncommand\n");
}

#[test]
fn whoever_else_holds_the_pipe_cannot_hold_up_the_end() {
    let plan = Plan::script("echo started > ready; read line < go; echo bye");
    rustix::fs::mkfifoat(rustix::fs::CWD, plan.cwd().join("go"), rustix::fs::Mode::RWXU).unwrap();
    let mut task = plan.start();
    task.wait_file("ready");
    let started = task.wait_started();
    // As a process would that has left the tree and the cgroup.
    let held = OpenOptions::new().write(true).open(format!("/proc/{}/fd/1", started.task.pid)).unwrap();
    fs::write(task.cwd().join("go"), "now\n").unwrap();
    let began = Instant::now();
    let exit = task.wait();
    assert_eq!(exit.outcome, Outcome::Exited { code: 0 });
    assert_eq!(task.stdout(), "bye\n");
    assert!(began.elapsed() < Duration::from_secs(20), "{:?}", began.elapsed());
    drop(held);
}
