//! How long the database takes to have a batch on disk, and whether it does.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// The upper ends of what is told apart, in microseconds: from a fast disk to one that keeps everyone waiting.
pub(crate) const BOUNDS: [u64; 9] = [500, 1_000, 2_500, 5_000, 10_000, 50_000, 100_000, 500_000, 1_000_000];

/// Counts of commits by how long they took.
#[derive(Debug, Default)]
pub(crate) struct Commits {
    /// One for each bound, and one for what took longer.
    counts: [AtomicU64; BOUNDS.len() + 1],
    microseconds: AtomicU64,
}

impl Commits {
    pub fn count(&self, took: Duration) {
        let took = u64::try_from(took.as_micros()).unwrap_or(u64::MAX);
        let at = BOUNDS.partition_point(|bound| *bound < took);
        self.counts[at].fetch_add(1, Ordering::Relaxed);
        self.microseconds.fetch_add(took, Ordering::Relaxed);
    }

    /// How many took up to each bound, and all; and all their microseconds.
    pub fn read(&self) -> ([u64; BOUNDS.len() + 1], u64) {
        let mut sum = 0;
        let up_to = std::array::from_fn(|i| {
            sum += self.counts[i].load(Ordering::Relaxed);
            sum
        });
        (up_to, self.microseconds.load(Ordering::Relaxed))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_commit_counts_for_its_bound_and_all_above() {
        let commits = Commits::default();
        for micros in [400, 500, 501, 5_000_000] {
            commits.count(Duration::from_micros(micros));
        }
        let (up_to, microseconds) = commits.read();
        assert_eq!(up_to, [2, 3, 3, 3, 3, 3, 3, 3, 3, 4]);
        assert_eq!(microseconds, 5_001_401);
    }
}
