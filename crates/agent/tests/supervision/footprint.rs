//! What a supervisor costs. The figures that count are of a release build, and are printed by any.

use std::fs;
use std::time::Instant;

use crate::harness::Plan;

/// The sum of a field of `/proc/PID/smaps`, in kilobytes.
pub fn memory(pid: u32, field: &str) -> u64 {
    let maps = fs::read_to_string(format!("/proc/{pid}/smaps")).unwrap();
    let values = maps.lines().filter_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    values.map(|value| value.trim().trim_end_matches(" kB").parse::<u64>().unwrap()).sum()
}

#[test]
fn a_supervisor_is_small_and_has_one_thread() {
    let task = Plan::script("seq 1 2000000; echo > ready; exec sleep 1000").start();
    task.wait_file("ready");
    let pid = task.child.id();
    let dirty = memory(pid, "Private_Dirty");
    println!("supervisor: {dirty} kB private dirty, {} kB private clean", memory(pid, "Private_Clean"));
    assert_eq!(fs::read_dir(format!("/proc/{pid}/task")).unwrap().count(), 1);
    // Unoptimised code touches more than what is shipped; this only catches a buffer or a runtime.
    assert!(dirty < 2048, "{dirty} kB");
}

#[test]
fn a_task_starts_quickly() {
    let mut times: Vec<_> = (0..20)
        .map(|_| {
            let plan = Plan::script("exec sleep 1000");
            let began = Instant::now();
            let task = plan.start();
            let spawned = began.elapsed();
            task.wait_started();
            (began.elapsed(), spawned)
        })
        .collect();
    times.sort();
    let (started, spawned) = times[times.len() / 2];
    println!(
        "start() returns after {spawned:?}, the program runs after {started:?} (median of {})",
        times.len()
    );
    assert!(started.as_millis() < 1000, "{started:?}");
}
