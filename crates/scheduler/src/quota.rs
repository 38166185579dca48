//! What workspaces may have: nominal quotas, and what they lend each other while it lies idle.
//!
//! For each resource, what all workspaces have beyond their nominal quotas never exceeds what the others lend and do not use.
//! A workspace without a quota for a resource is not limited in it, and lends nothing of it.

use std::collections::BTreeMap;

pub use muster_model::quota::Quota;
use serde::{Deserialize, Serialize};
use smallvec::SmallVec;

/// What a quota is of.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Resource {
    /// CPUs, in thousandths.
    Cpu,
    /// Memory, in bytes.
    Memory,
    /// Devices of all models together.
    Devices,
    /// Devices of one model, whatever the case of its letters.
    Model(String),
}

/// A resource by number: those of every site first, then models as they come up.
pub(crate) type Dim = u32;
pub(crate) const CPU: Dim = 0;
pub(crate) const MEMORY: Dim = 1;
pub(crate) const DEVICES: Dim = 2;
pub(crate) const FIRST_MODEL: Dim = 3;

/// What a run counts for, by resource: CPUs, memory, devices and their model, and rarely more.
pub(crate) type Charge = SmallVec<[(Dim, u64); 4]>;

/// What a workspace's quotas say to more of something.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It is its own.
    Nominal,
    /// It is others', and they do not use it.
    Borrowed,
    /// It is its own, and others have borrowed it.
    Lent(Dim),
    /// It has enough.
    Over(Dim),
}

#[derive(Debug, Clone, Default)]
struct Books {
    quotas: BTreeMap<Dim, Quota>,
    used: BTreeMap<Dim, u64>,
}

/// Sums over all workspaces: of numbers that people write, so that they may be more than fits into one.
#[derive(Debug, Clone, Copy, Default)]
struct Total {
    borrowed: u128,
    lent_out: u128,
    lends: u128,
}

/// What every workspace has and may have.
#[derive(Debug, Clone, Default)]
pub(crate) struct Ledger {
    books: Vec<Books>,
    totals: BTreeMap<Dim, Total>,
}

impl Ledger {
    pub fn open(&mut self) {
        self.books.push(Books::default());
    }

    pub fn set(&mut self, workspace: u32, quotas: BTreeMap<Dim, Quota>) {
        let dims: Vec<Dim> = self.books[workspace as usize].quotas.keys().copied().collect();
        dims.into_iter().for_each(|dim| self.count(workspace, dim, false));
        let dims: Vec<Dim> = quotas.keys().copied().collect();
        self.books[workspace as usize].quotas = quotas;
        dims.into_iter().for_each(|dim| self.count(workspace, dim, true));
    }

    pub fn quotas(&self, workspace: u32) -> &BTreeMap<Dim, Quota> {
        &self.books[workspace as usize].quotas
    }

    pub fn used(&self, workspace: u32, dim: Dim) -> u64 {
        self.books[workspace as usize].used.get(&dim).copied().unwrap_or(0)
    }

    /// Takes a workspace's part into the totals, or out of them.
    fn count(&mut self, workspace: u32, dim: Dim, is_in: bool) {
        let Some(quota) = self.books[workspace as usize].quotas.get(&dim).copied() else { return };
        let used = self.used(workspace, dim);
        let total = self.totals.entry(dim).or_default();
        let all = [
            (&mut total.borrowed, quota.borrowed(used)),
            (&mut total.lends, quota.lends(used)),
            (&mut total.lent_out, quota.nominal.min(quota.lend.unwrap_or(u64::MAX))),
        ];
        for (sum, part) in all {
            *sum = if is_in { *sum + u128::from(part) } else { *sum - u128::from(part) };
        }
    }

    pub fn charge(&mut self, workspace: u32, charge: &Charge, is_more: bool) {
        for (dim, amount) in charge {
            self.count(workspace, *dim, false);
            let used = self.books[workspace as usize].used.entry(*dim).or_default();
            *used = if is_more { used.saturating_add(*amount) } else { used.saturating_sub(*amount) };
            self.count(workspace, *dim, true);
        }
    }

    /// Whether a workspace may have more.
    pub fn check(&self, workspace: u32, charge: &Charge) -> Verdict {
        let mut found = Verdict::Nominal;
        for (dim, amount) in charge.iter().filter(|(_, amount)| *amount > 0) {
            let Some(quota) = self.quotas(workspace).get(dim) else { continue };
            let verdict = self.check_one(workspace, *dim, quota, *amount);
            found = match (found, verdict) {
                (Verdict::Over(dim), _) | (_, Verdict::Over(dim)) => return Verdict::Over(dim),
                // What is not all its own is not reclaimed.
                (Verdict::Lent(dim), Verdict::Borrowed) | (Verdict::Borrowed, Verdict::Lent(dim)) => {
                    return Verdict::Over(dim);
                }
                (Verdict::Nominal, other) | (other, Verdict::Nominal) => other,
                (same, _) => same,
            };
        }
        found
    }

    fn check_one(&self, workspace: u32, dim: Dim, quota: &Quota, amount: u64) -> Verdict {
        let used = self.used(workspace, dim);
        let after = used.saturating_add(amount);
        if after > quota.most() {
            return Verdict::Over(dim);
        }
        let total = self.totals.get(&dim).copied().unwrap_or_default();
        let moved = |sum: u128, of: fn(&Quota, u64) -> u64| {
            sum - u128::from(of(quota, used)) + u128::from(of(quota, after))
        };
        let borrowed = moved(total.borrowed, Quota::borrowed);
        let lends = moved(total.lends, Quota::lends);
        let is_nominal = after <= quota.nominal;
        // One that touches nothing of what others have is not kept waiting by a quota that was cut.
        let is_apart = is_nominal && lends == total.lends;
        match (is_nominal, is_apart || borrowed <= lends) {
            (true, true) => Verdict::Nominal,
            (true, false) => Verdict::Lent(dim),
            (false, true) => Verdict::Borrowed,
            (false, false) => Verdict::Over(dim),
        }
    }

    /// Whether a workspace has more of something than is its own.
    pub fn borrows(&self, workspace: u32, dim: Dim) -> bool {
        self.quotas(workspace).get(&dim).is_some_and(|quota| self.used(workspace, dim) > quota.nominal)
    }

    /// Whether a workspace has more than is its own of anything in a charge.
    pub fn borrows_any(&self, workspace: u32, charge: &Charge) -> bool {
        charge.iter().any(|(dim, amount)| *amount > 0 && self.borrows(workspace, *dim))
    }

    /// The first resource of which a workspace could never have so much, though everybody else lent all they may.
    pub fn never(&self, workspace: u32, charge: &Charge) -> Option<(Dim, u64)> {
        charge.iter().find_map(|(dim, amount)| {
            let quota = self.quotas(workspace).get(dim)?;
            let own = quota.nominal.min(quota.lend.unwrap_or(u64::MAX));
            let others = self.totals.get(dim).map_or(0, |total| total.lent_out - u128::from(own));
            let most = quota.most().min(quota.nominal.saturating_add(at_most(others)));
            (*amount > most).then_some((*dim, most))
        })
    }

    /// The most that a workspace may have now beside what it has, of CPUs, memory and devices.
    pub fn at_most(&self, workspace: u32) -> [u64; 3] {
        [CPU, MEMORY, DEVICES].map(|dim| self.left(workspace, dim).unwrap_or(u64::MAX))
    }

    /// The same, of what is its own.
    pub fn own_left(&self, workspace: u32) -> [u64; 3] {
        [CPU, MEMORY, DEVICES].map(|dim| {
            let quota = self.quotas(workspace).get(&dim);
            quota.map_or(u64::MAX, |quota| quota.nominal.saturating_sub(self.used(workspace, dim)))
        })
    }

    /// How much more of a resource a workspace may have now; without end, if it has no quota for it.
    pub fn left(&self, workspace: u32, dim: Dim) -> Option<u64> {
        let quota = self.quotas(workspace).get(&dim)?;
        let used = self.used(workspace, dim);
        let total = self.totals.get(&dim).copied().unwrap_or_default();
        let others_lend = total.lends - u128::from(quota.lends(used));
        let others_borrowed = total.borrowed - u128::from(quota.borrowed(used));
        let room = at_most(others_lend.saturating_sub(others_borrowed));
        // What others have of its own is not there now; what it does not lend is.
        let lent = at_most(others_borrowed.saturating_sub(others_lend)).min(quota.lend.unwrap_or(u64::MAX));
        let own = quota.nominal.saturating_sub(lent);
        let most = own.saturating_add(room.min(quota.borrow.unwrap_or(u64::MAX)));
        Some(most.saturating_sub(used))
    }
}

fn at_most(sum: u128) -> u64 {
    u64::try_from(sum).unwrap_or(u64::MAX)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn quota() -> impl Strategy<Value = (Quota, u64)> {
        let bound = || proptest::option::of(0..12_u64);
        ((0..12_u64, bound(), bound()), 0..16_u64)
            .prop_map(|((nominal, borrow, lend), used)| (Quota { nominal, borrow, lend }, used))
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(2000))]

        /// Whatever the others have, and though quotas were cut meanwhile.
        #[test]
        fn what_is_left_is_the_most_that_may_be_had(all in prop::collection::vec(quota(), 1..4)) {
            let mut ledger = Ledger::default();
            for (ix, (quota, used)) in (0..).zip(&all) {
                ledger.open();
                ledger.set(ix, [(CPU, *quota)].into());
                ledger.charge(ix, &[(CPU, *used)][..].into(), true);
            }
            for workspace in 0..all.len() as u32 {
                let may = |amount: &u64| {
                    matches!(ledger.check(workspace, &[(CPU, *amount)][..].into()), Verdict::Nominal | Verdict::Borrowed)
                };
                let most = (1..64).take_while(may).last().unwrap_or(0);
                prop_assert_eq!(ledger.left(workspace, CPU), Some(most));
            }
        }
    }
}
