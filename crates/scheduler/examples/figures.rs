//! The scheduler's three figures: one pass over a full queue, placements for each second, memory for each job that waits.
//!
//! `cargo run --release -p muster-scheduler --example figures`

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use muster_scheduler::simulate::{Synthetic, play};
use muster_scheduler::{Fate, Plan, Policy, Request, Scheduler};

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

fn main() {
    let synthetic = Synthetic::default();
    let trace = synthetic.trace();
    for name in ["no-preemption", "default"] {
        let policy = Policy::named(name).expect("a policy of that name");
        let mut scheduler = Scheduler::new(policy.clone());
        trace.cluster(&mut scheduler);
        let requests: Vec<Request> = trace.requests().collect();
        let before = HELD.load(Ordering::Relaxed);
        for request in &requests {
            scheduler.submit(request.clone());
        }
        let each = (HELD.load(Ordering::Relaxed) - before) / requests.len();
        println!(
            "policy {name}: {} nodes, {} queued jobs, {each} bytes for each",
            synthetic.nodes,
            requests.len()
        );
        fill(&mut scheduler);
        let began = Instant::now();
        let report = play(&trace, &policy, |_, _| {});
        let took = began.elapsed().as_secs_f64();
        let rate = report.starts as f64 / took;
        println!("  simulated: {} starts in {took:.1} s, {rate:.0} starts/s\n  {report:?}", report.starts);
    }
}

/// The cluster fills up, at most so many starts for each pass; then it is full, and everybody else waits.
fn fill(scheduler: &mut Scheduler) {
    let (mut times, mut placed) = (Vec::new(), Vec::new());
    for at in 0.. {
        let plan = timed(scheduler, at, &mut times);
        if plan.starts.is_empty() {
            break;
        }
        placed.extend(plan.starts);
    }
    let rate = placed.len() as f64 / times.iter().sum::<f64>() * 1e3;
    say("filling it, at most 1000 starts for each pass", &mut times);
    println!("  {} starts, {rate:.0} starts/s", placed.len());
    let mut times = Vec::new();
    for (at, start) in (1_000_000..).step_by(1000).zip(placed.iter().take(1000)) {
        scheduler.ended(&start.job, start.element, Fate::Over, at);
        timed(scheduler, at, &mut times);
    }
    say("full, one job has ended", &mut times);
}

fn timed(scheduler: &mut Scheduler, at: u64, times: &mut Vec<f64>) -> Plan {
    let began = Instant::now();
    let plan = scheduler.pass(at);
    times.push(began.elapsed().as_secs_f64() * 1e3);
    plan
}

fn say(what: &str, times: &mut [f64]) {
    times.sort_by(f64::total_cmp);
    let (median, longest) = (times[times.len() / 2], times[times.len() - 1]);
    println!("  {what}: {} passes, median {median:.3} ms, longest {longest:.3} ms", times.len());
}
