//! The scheduler's three figures: one pass over a full queue, placements for each second, memory for each job that waits.
//!
//! `cargo run --release -p muster-scheduler --example figures`

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Instant;

use muster_scheduler::simulate::{Synthetic, play};
use muster_scheduler::{Fate, Policy, Request, Scheduler};

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
    let mut scheduler = Scheduler::new(Policy::default());
    trace.cluster(&mut scheduler);
    let before = HELD.load(Ordering::Relaxed);
    let requests: Vec<Request> = trace.requests().collect();
    let kept = HELD.load(Ordering::Relaxed);
    for request in &requests {
        scheduler.submit(request.clone());
    }
    let each = (HELD.load(Ordering::Relaxed) - kept) / requests.len();
    println!(
        "memory for each queued job: {each} bytes ({} for the request that it was told with)",
        (kept - before) / requests.len()
    );

    // The cluster fills up, at most so many starts for each pass; then it is full, and everybody else waits.
    let (mut passes, mut placed) = (Vec::new(), Vec::new());
    loop {
        let began = Instant::now();
        let plan = scheduler.pass(passes.len() as u64);
        passes.push(began.elapsed());
        if plan.starts.is_empty() {
            break;
        }
        placed.extend(plan.starts);
    }
    let longest = passes.iter().max().expect("there was one");
    println!(
        "filling {} nodes from {} queued jobs: {} starts in {} passes, the longest {:.1} ms, {:.0} placements/s",
        synthetic.nodes,
        synthetic.jobs,
        placed.len(),
        passes.len(),
        longest.as_secs_f64() * 1e3,
        placed.len() as f64 / passes.iter().map(|it| it.as_secs_f64()).sum::<f64>(),
    );
    // A full cluster: one job ends, one pass decides who is next.
    let mut full = Vec::new();
    for (at, start) in (1_000_000..).zip(placed.iter().take(200)) {
        scheduler.ended(&start.job, start.element, Fate::Over, at);
        let began = Instant::now();
        scheduler.pass(at);
        full.push(began.elapsed().as_secs_f64() * 1e3);
    }
    full.sort_by(f64::total_cmp);
    println!(
        "a pass when one of {} running jobs has ended, {} waiting: median {:.3} ms, longest {:.3} ms",
        placed.len(),
        scheduler.queued(),
        full[full.len() / 2],
        full[full.len() - 1]
    );

    for (name, load) in [("default", 1.1), ("no-preemption", 1.1)] {
        let trace = Synthetic { load, ..Synthetic::default() }.trace();
        let policy = Policy::named(name).expect("a policy of that name");
        let began = Instant::now();
        let report = play(&trace, &policy, |_, _| {});
        let took = began.elapsed().as_secs_f64();
        println!(
            "simulated with policy {name}: {} starts in {took:.1} s, {:.0} placements/s; {report:?}",
            report.starts,
            report.starts as f64 / took
        );
    }
}
