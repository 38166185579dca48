//! One answer for all who ask the same at the same time, remembered for a while.
//!
//! Whoever asks something else never waits for it: an account whose shell hangs holds up nobody but itself.

use std::collections::HashMap;
use std::hash::Hash;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::time::{Duration, Instant};

/// Locked for as long as somebody asks.
type Cell<T> = Arc<Mutex<Option<(Instant, T)>>>;

/// Answers by question. As many are kept as there are questions, of which there are few: a machine's accounts.
#[derive(Debug)]
pub(super) struct Cells<K, T> {
    cells: Mutex<HashMap<K, Cell<T>>>,
    /// For how long an answer counts after it has arrived.
    fresh: fn(&T) -> Duration,
}

impl<K: Eq + Hash, T: Clone> Cells<K, T> {
    pub(super) fn new(fresh: fn(&T) -> Duration) -> Self {
        Cells { cells: Mutex::default(), fresh }
    }

    /// What is known, or what `ask` says now. What it leaves is dropped when the others have their answer already.
    pub(super) fn get<L>(&self, key: K, ask: impl FnOnce() -> (T, L)) -> T {
        let cell = self.cell(key);
        let mut known = lock(&cell);
        if let Some(answer) = self.fresh(&known) {
            return answer;
        }
        let (answer, left) = ask();
        *known = Some((Instant::now(), answer.clone()));
        drop(known);
        drop(left);
        answer
    }

    /// Whether nothing is known, and nobody asks.
    pub(super) fn is_wanted(&self, key: K) -> bool {
        match self.cell(key).try_lock() {
            Ok(known) => self.fresh(&known).is_none(),
            Err(TryLockError::Poisoned(known)) => self.fresh(&known.into_inner()).is_none(),
            Err(TryLockError::WouldBlock) => false,
        }
    }

    fn cell(&self, key: K) -> Cell<T> {
        Arc::clone(lock(&self.cells).entry(key).or_default())
    }

    fn fresh(&self, known: &Option<(Instant, T)>) -> Option<T> {
        let (at, answer) = known.as_ref()?;
        (at.elapsed() < (self.fresh)(answer)).then(|| answer.clone())
    }
}

/// Whoever panicked while it asked has left the answer from before.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;
    use std::thread;

    use super::*;

    const LONG: Duration = Duration::from_secs(1000);

    #[test]
    fn whoever_asks_something_else_does_not_wait() {
        let cells = Cells::new(|_: &i32| LONG);
        let (begun, has_begun) = channel();
        let (go, may_go) = channel::<()>();
        thread::scope(|scope| {
            let cells = &cells;
            let first = scope.spawn(move || {
                cells.get("hangs", || {
                    begun.send(()).unwrap();
                    may_go.recv().unwrap();
                    (1, ())
                })
            });
            has_begun.recv().unwrap();
            assert_eq!(cells.get("another", || (2, ())), 2);
            assert!(!cells.is_wanted("hangs") && !cells.is_wanted("another") && cells.is_wanted("third"));
            // Who asks the same has the same answer, and does not ask again.
            let second = scope.spawn(move || cells.get("hangs", || (3, ())));
            go.send(()).unwrap();
            assert_eq!((first.join().unwrap(), second.join().unwrap()), (1, 1));
        });
    }

    #[test]
    fn an_answer_counts_for_as_long_as_it_is_fresh() {
        let cells = Cells::new(|answer: &i32| if *answer > 0 { LONG } else { Duration::ZERO });
        assert_eq!(cells.get("key", || (0, ())), 0);
        assert!(cells.is_wanted("key"));
        assert_eq!(cells.get("key", || (1, ())), 1);
        assert_eq!(cells.get("key", || (2, ())), 1);
    }

    #[test]
    fn what_asking_leaves_is_dropped_when_the_answer_is_there() {
        struct Left<'a>(&'a Cells<&'static str, i32>);
        impl Drop for Left<'_> {
            fn drop(&mut self) {
                assert_eq!(self.0.get("key", || (2, ())), 1);
            }
        }
        let cells = Cells::new(|_: &i32| LONG);
        assert_eq!(cells.get("key", || (1, Left(&cells))), 1);
    }
}
