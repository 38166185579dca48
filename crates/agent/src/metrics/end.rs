//! What a task has used in the end: what was measured, and what the kernel says of its dead.

use std::time::Duration;

use jiff::Timestamp;
use muster_model::metrics::Usage;

use super::rate;
use crate::supervisor::Spent;

/// Shorter lives are taken to be this long, or the smallest command would have used a whole machine.
const LEAST_LIFE: Duration = Duration::from_millis(10);

/// The last word. The kernel has counted CPU time to the end, and also of tasks that were over before they could be
/// measured.
pub(crate) fn at_end(
    measured: Option<&Usage>,
    spent: Option<Spent>,
    started_at: Option<Timestamp>,
    ended_at: Timestamp,
) -> Option<Usage> {
    let (Some(spent), Some(started_at)) = (spent, started_at) else { return measured.cloned() };
    let mut usage = measured.cloned().unwrap_or_default();
    let life = Duration::try_from(ended_at.duration_since(started_at)).unwrap_or_default().max(LEAST_LIFE);
    usage.cpu_milliseconds = usage.cpu_milliseconds.max(spent.cpu_milliseconds);
    usage.mean_cpu_millis = rate(0, usage.cpu_milliseconds, life.as_secs_f64());
    usage.peak_cpu_millis = usage.peak_cpu_millis.max(usage.mean_cpu_millis);
    usage.peak_memory_bytes = usage.peak_memory_bytes.max(spent.largest_process_bytes);
    Some(usage)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SPENT: Spent = Spent { cpu_milliseconds: 3000, largest_process_bytes: 500 };
    const START: Timestamp = Timestamp::UNIX_EPOCH;

    #[test]
    fn the_kernel_s_count_completes_what_was_measured() {
        let measured = Usage {
            samples: 2,
            cpu_milliseconds: 2500,
            mean_cpu_millis: 900,
            peak_cpu_millis: 1000,
            peak_memory_bytes: 900,
            ..Usage::default()
        };
        let usage =
            at_end(Some(&measured), Some(SPENT), Some(START), START + Duration::from_secs(4)).unwrap();
        assert_eq!((usage.cpu_milliseconds, usage.mean_cpu_millis), (3000, 750));
        assert_eq!((usage.peak_cpu_millis, usage.peak_memory_bytes, usage.samples), (1000, 900, 2));
        assert_eq!(at_end(Some(&measured), None, Some(START), START), Some(measured));
    }

    #[test]
    fn a_task_that_nobody_measured_has_what_the_kernel_counted_and_one_that_never_ran_has_nothing() {
        let usage = at_end(None, Some(SPENT), Some(START), START + Duration::from_secs(2)).unwrap();
        assert_eq!((usage.samples, usage.mean_cpu_millis, usage.peak_memory_bytes), (0, 1500, 500));
        assert_eq!((usage.mean_memory_bytes, usage.peak_processes), (None, None));
        assert_eq!(at_end(None, None, Some(START), START), None);
        assert_eq!(at_end(None, Some(SPENT), None, START), None);
    }
}
