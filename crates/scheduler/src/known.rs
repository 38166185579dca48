//! What is known within one pass to fit or not to fit, so that not everything is tried.
//!
//! Where tasks do not fit, more of them, or larger ones, do not either. So of all that was tried, the least that did not fit and the most
//! that did are kept: even where no two jobs need the same, few have to be tried. It holds while nothing is given back: a
//! pass only takes.

use rustc_hash::FxHashMap;

use crate::fit::Need;

/// What a shape asks for, in amounts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Bulk {
    pub cpu: u64,
    pub memory: u64,
    pub devices: u32,
    pub tasks: u32,
}

impl Bulk {
    pub fn new(need: &Need, tasks: u32) -> Self {
        Self { cpu: need.cpu_millis, memory: need.memory_bytes, devices: need.device_count() as u32, tasks }
    }

    /// Whether it is at least as much of everything.
    fn covers(&self, other: &Self) -> bool {
        self.cpu >= other.cpu
            && self.memory >= other.memory
            && self.devices >= other.devices
            && self.tasks >= other.tasks
    }

    /// What all tasks together ask for: CPUs, memory, devices.
    pub fn sum(&self) -> [u64; 3] {
        let tasks = u64::from(self.tasks);
        [self.cpu, self.memory, u64::from(self.devices)].map(|each| each.saturating_mul(tasks))
    }
}

/// What is tried: a family of needs that differ in amounts only (see [`crate::state::Class`]), and what binds whoever asks.
pub(crate) type Trial = (u32, Bonds);

/// Which of a pool's reservations one must not touch, a bit for each. Whoever is bound by more, finds less.
pub(crate) type Bonds = u8;

/// A family, a workspace, and which of a pool's reservations would be its.
pub(crate) type Keeping = (u32, u32, usize);

/// How many are remembered for each family: a few hundred are usual where everything is random.
const MOST: usize = 512;

#[derive(Debug, Clone, Default)]
pub(crate) struct Known {
    fails: FxHashMap<Trial, Vec<Bulk>>,
    fits: FxHashMap<Trial, Vec<Bulk>>,
    /// For which no room can be kept either.
    unkept: FxHashMap<Keeping, Vec<Bulk>>,
}

impl Known {
    pub fn is_failing(&self, (family, bonds): Trial, bulk: &Bulk) -> bool {
        subsets(bonds).any(|less| {
            self.fails.get(&(family, less)).is_some_and(|all| all.iter().any(|it| bulk.covers(it)))
        })
    }

    pub fn note_failing(&mut self, trial: Trial, bulk: Bulk) {
        note_least(self.fails.entry(trial).or_default(), bulk);
    }

    pub fn is_unkept(&self, what: Keeping, bulk: &Bulk) -> bool {
        self.unkept.get(&what).is_some_and(|all| all.iter().any(|it| bulk.covers(it)))
    }

    pub fn note_unkept(&mut self, what: Keeping, bulk: Bulk) {
        note_least(self.unkept.entry(what).or_default(), bulk);
    }

    pub fn is_fitting(&self, trial: Trial, bulk: &Bulk) -> bool {
        self.fits.get(&trial).is_some_and(|all| all.iter().any(|it| it.covers(bulk)))
    }

    pub fn note_fitting(&mut self, trial: Trial, bulk: Bulk) {
        let all = self.fits.entry(trial).or_default();
        all.retain(|it| !bulk.covers(it));
        if all.len() < MOST {
            all.push(bulk);
        }
    }

    /// What is kept for others is other than it was: only what holds without it is still known.
    pub fn forget_bound(&mut self) {
        self.fails.retain(|(_, bonds), _| *bonds == 0);
        self.fits.clear();
        self.unkept.clear();
    }
}

fn note_least(all: &mut Vec<Bulk>, bulk: Bulk) {
    all.retain(|it| !it.covers(&bulk));
    if all.len() < MOST {
        all.push(bulk);
    }
}

/// The bonds that are among others, none of them included.
fn subsets(bonds: Bonds) -> impl Iterator<Item = Bonds> {
    let mut next = Some(bonds);
    std::iter::from_fn(move || {
        let now = next?;
        next = now.checked_sub(1).map(|less| less & bonds);
        Some(now)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bulk(cpu: u64, tasks: u32) -> Bulk {
        Bulk::new(&Need { cpu_millis: cpu, ..Need::default() }, tasks)
    }

    #[test]
    fn what_is_more_than_did_not_fit_does_not_fit_and_what_is_less_may() {
        let mut known = Known::default();
        known.note_failing((0, 0), bulk(1000, 2));
        assert!(known.is_failing((0, 0), &bulk(1000, 2)) && known.is_failing((0, 0), &bulk(2000, 3)));
        assert!(!known.is_failing((0, 0), &bulk(2000, 1)), "fewer tasks");
        assert!(!known.is_failing((1, 0), &bulk(2000, 3)), "of another family");
        known.note_failing((0, 0), bulk(500, 1));
        assert_eq!(known.fails[&(0, 0)].len(), 1, "the least is enough");
    }

    #[test]
    fn who_is_bound_by_more_finds_less() {
        let mut known = Known::default();
        known.note_failing((0, 1), bulk(1000, 1));
        assert!(known.is_failing((0, 3), &bulk(1000, 1)));
        assert!(!known.is_failing((0, 2), &bulk(1000, 1)) && !known.is_failing((0, 0), &bulk(1000, 1)));
        known.forget_bound();
        assert!(!known.is_failing((0, 3), &bulk(1000, 1)));
    }
}
