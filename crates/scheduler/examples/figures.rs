//! What the scheduler costs on a large cluster: passes over a full queue, placements for each second, memory for each job that
//! waits, and one answer to why a job does.
//!
//! One JSON object for each figure; `bench/scheduler.py` puts them beside what is promised. By hand:
//! `cargo run --release -p muster-scheduler --example figures [NODES JOBS]`

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use muster_model::JobId;
use muster_scheduler::simulate::{Synthetic, Trace, play};
use muster_scheduler::{Fate, Plan, Policy, Quota, Request, Running, Scheduler, Start};
use serde_json::json;

/// What is allocated just now, in bytes.
static HELD: AtomicUsize = AtomicUsize::new(0);

struct Counting;

// SAFETY: everything is passed on to the system's allocator as it is; only a counter is kept beside it.
#[expect(
    unsafe_code,
    reason = "an allocator cannot be written without it, and nothing else counts bytes exactly"
)]
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        HELD.fetch_add(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is ours.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        HELD.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: the caller's promise is ours.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static COUNTING: Counting = Counting;

/// How many jobs end, one after the other, on a full cluster.
const ENDS: usize = 500;
/// How many jobs are asked about.
const ASKED: usize = 40;

fn main() {
    let sizes: Vec<u32> = std::env::args().skip(1).map(|size| size.parse().expect("a number")).collect();
    let (nodes, jobs) = (sizes.first().copied().unwrap_or(10_000), sizes.get(1).copied().unwrap_or(100_000));
    let shared = Synthetic { nodes, jobs, workspaces: 50, users: 20, ..Synthetic::default() };
    let distinct = Synthetic { distinct: true, ..shared.clone() };
    for (world, synthetic) in [("alike", shared), ("all different", distinct)] {
        let mut trace = synthetic.trace();
        // Nobody has enough, of anything: what each may have is looked at again and again.
        for workspace in &mut trace.workspaces {
            let part = u64::from(nodes / 50).max(1);
            workspace.cpus = Some(Quota::shared(128 * part));
            workspace.memory_gib = Some(Quota::shared(1024 * part));
        }
        measure(world, &trace);
    }
}

fn measure(world: &str, trace: &Trace) {
    let mut scheduler = Scheduler::new(Policy::default());
    trace.cluster(&mut scheduler);
    let requests: Vec<Request> = trace.requests().collect();
    let before = HELD.load(Ordering::Relaxed);
    requests.iter().for_each(|request| scheduler.submit(request.clone()));
    let each = (HELD.load(Ordering::Relaxed) - before) as f64 / requests.len() as f64;
    say(world, "memory for each job that waits, bytes", each, each);
    let started = fill(world, &mut scheduler);
    restart(world, trace, &requests, &started);
    steady(world, &mut scheduler, &started);
    why(world, &scheduler, &requests, &started);
    let began = spent();
    let report = play(trace, &Policy::default(), |_, _| {});
    let rate = report.starts as f64 / (spent() - began).as_secs_f64();
    say(world, "simulated placements for each second", rate, rate);
}

/// The cluster fills up, at most so many starts for each pass; then it is full, and everybody else waits.
fn fill(world: &str, scheduler: &mut Scheduler) -> Vec<Start> {
    let (mut times, mut placed) = (Vec::new(), Vec::new());
    for at in 0.. {
        let plan = timed(scheduler, at, &mut times);
        if plan.starts.is_empty() {
            break;
        }
        placed.extend(plan.starts);
    }
    let rate = placed.len() as f64 / times.iter().sum::<f64>() * 1e3;
    say_all(world, "a pass that fills the cluster, ms", &mut times);
    say(world, "placements for each second while it fills", rate, rate);
    placed
}

/// The first pass of a server that was restarted: everything is new to it.
fn restart(world: &str, trace: &Trace, requests: &[Request], started: &[Start]) {
    let mut scheduler = Scheduler::new(Policy::default());
    trace.cluster(&mut scheduler);
    requests.iter().for_each(|request| scheduler.submit(request.clone()));
    for start in started {
        scheduler.started(Running {
            job: start.job.clone(),
            element: start.element,
            placements: start.placements.iter().cloned().map(Some).collect(),
            started_at: 0,
            saved_at: None,
            is_leaving: false,
        });
    }
    let mut times = Vec::new();
    for at in 0..3 {
        timed(&mut scheduler, 900_000 + at, &mut times);
    }
    say_all(world, "a pass after a restart, ms", &mut times);
}

fn steady(world: &str, scheduler: &mut Scheduler, started: &[Start]) {
    let mut times = Vec::new();
    let mut ended = started.iter().take(ENDS);
    for at in (1_000_000..).step_by(1000) {
        let Some(start) = ended.next() else { break };
        scheduler.ended(&start.job, start.element, Fate::Over, at);
        timed(scheduler, at, &mut times);
    }
    say_all(world, "a pass on a full cluster, one job has ended, ms", &mut times);
}

fn why(world: &str, scheduler: &Scheduler, requests: &[Request], started: &[Start]) {
    let now = 3_000_000;
    let began = spent();
    let mut copy = scheduler.clone();
    let took = (spent() - began).as_secs_f64() * 1e3;
    say(world, "a copy of everything, ms", took, took);
    let running: std::collections::HashSet<&JobId> = started.iter().map(|start| &start.job).collect();
    let waiting: Vec<&Request> = requests.iter().filter(|it| !running.contains(&it.job)).collect();
    let mut times = Vec::new();
    for request in waiting.iter().step_by((waiting.len() / ASKED).max(1)) {
        let began = spent();
        let told = copy.explain(&request.job, now);
        times.push((spent() - began).as_secs_f64() * 1e3);
        if std::env::var_os("SHOW").is_some() {
            eprintln!("{:.1} ms: {told:?}", times[times.len() - 1]);
        }
    }
    say_all(world, "why a job waits, ms", &mut times);
}

/// The time that this thread has had of a processor: nothing here waits for anything, and what else runs on the machine does not count.
fn spent() -> Duration {
    let now = rustix::time::clock_gettime(rustix::time::ClockId::ThreadCPUTime);
    Duration::new(now.tv_sec as u64, now.tv_nsec as u32)
}

fn timed(scheduler: &mut Scheduler, at: u64, times: &mut Vec<f64>) -> Plan {
    let began = spent();
    let plan = scheduler.pass(at);
    times.push((spent() - began).as_secs_f64() * 1e3);
    plan
}

fn say_all(world: &str, figure: &str, times: &mut [f64]) {
    times.sort_by(f64::total_cmp);
    say(world, figure, times[times.len() / 2], times[times.len() - 1]);
}

fn say(world: &str, figure: &str, median: f64, worst: f64) {
    println!("{}", json!({ "needs": world, "figure": figure, "median": median, "worst": worst }));
}
