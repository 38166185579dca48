//! Points in time of many things, with one bound for all of them together.

use std::collections::{HashMap, VecDeque};
use std::hash::Hash;
use std::mem::size_of;
use std::time::{Duration, Instant};

/// What a name takes beyond its place: more than any text of an id, with what the allocator adds.
const NAME: usize = 64;

/// Points of things named by a `K`. The oldest go first, whosever they are.
#[derive(Debug)]
pub(super) struct History<K, T> {
    budget: usize,
    keep: Duration,
    bytes: usize,
    /// Whose point is the oldest, the next oldest, and so on: all points, in the order in which they came.
    order: VecDeque<(Instant, K)>,
    points: HashMap<K, VecDeque<(usize, T)>>,
}

impl<K: Clone + Eq + Hash, T: Clone> History<K, T> {
    pub fn new(budget: usize, keep: Duration) -> Self {
        Self { budget, keep, bytes: 0, order: VecDeque::new(), points: HashMap::new() }
    }

    /// Adds a point that takes so many bytes, and drops what there is no more room or time for.
    pub fn push(&mut self, key: K, point: T, bytes: usize, now: Instant) {
        let bytes = bytes + Self::overhead();
        self.bytes += bytes;
        self.order.push_back((now, key.clone()));
        self.points.entry(key).or_default().push_back((bytes, point));
        while self.bytes > self.budget || self.is_oldest_over(now) {
            self.drop_oldest();
        }
    }

    /// The newest points of one thing that are wanted, at most so many, the oldest first.
    pub fn newest(&self, key: &K, limit: usize, is_wanted: impl Fn(&T) -> bool) -> Vec<T> {
        let all = self.points.get(key).into_iter().flatten().map(|(_, point)| point);
        let mut newest: Vec<T> =
            all.rev().take_while(|point| is_wanted(point)).take(limit).cloned().collect();
        newest.reverse();
        newest
    }

    /// What a point takes besides itself: its place in both queues, and at worst a name and a queue of its own.
    const fn overhead() -> usize {
        2 * (size_of::<(Instant, K)>() + NAME) + size_of::<usize>() + size_of::<VecDeque<(usize, T)>>()
    }

    fn is_oldest_over(&self, now: Instant) -> bool {
        self.order.front().is_some_and(|(at, _)| now.duration_since(*at) > self.keep)
    }

    fn drop_oldest(&mut self) {
        let Some((_, key)) = self.order.pop_front() else {
            self.bytes = 0;
            return;
        };
        let Some(points) = self.points.get_mut(&key) else { return };
        if let Some((bytes, _)) = points.pop_front() {
            self.bytes -= bytes;
        }
        if points.is_empty() {
            self.points.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const BUDGET: usize = 4096;

    fn stored(history: &History<u32, u64>) -> usize {
        history.points.values().flatten().map(|(bytes, _)| bytes).sum()
    }

    proptest! {
        #[test]
        fn it_never_exceeds_its_bound_and_keeps_the_newest(
            points in proptest::collection::vec((0_u32..20, 0_usize..6000, 0_u64..10), 1..400),
        ) {
            let mut history = History::new(BUDGET, Duration::from_secs(60));
            let mut now = Instant::now();
            let mut all: Vec<(u32, u64)> = Vec::new();
            for (number, (key, bytes, pause)) in (0_u64..).zip(points) {
                now += Duration::from_secs(pause);
                history.push(key, number, bytes, now);
                all.push((key, number));
                prop_assert!(history.bytes <= BUDGET);
                prop_assert_eq!(history.bytes, stored(&history));
                prop_assert_eq!(history.order.len(), history.points.values().map(VecDeque::len).sum::<usize>());
                prop_assert!(history.points.values().all(|points| !points.is_empty()));
                let oldest = history.order.front().map(|(at, _)| now.duration_since(*at));
                prop_assert!(oldest.is_none_or(|age| age <= Duration::from_secs(60)));
            }
            // What is left is the end of what came, without a gap.
            let tail = &all[all.len() - history.order.len()..];
            for key in 0..20 {
                let expected: Vec<u64> = tail.iter().filter(|(of, _)| *of == key).map(|(_, it)| *it).collect();
                prop_assert_eq!(history.newest(&key, usize::MAX, |_| true), expected);
            }
        }
    }
}
