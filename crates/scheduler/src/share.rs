//! Who has had how much: one account for each workspace, and for each user in it.
//!
//! Use is measured in devices; other resources weigh as the policy says, and of what a task holds the dominant one counts. An account
//! has a *mean*, which forgets with the policy's half-life, and what is held *now*. Both count alike: the mean alone would let
//! whoever comes first have a whole idle cluster in one pass, and what is held now alone would forget yesterday.

use crate::policy::Millis;

/// What one workspace, or one user of it, has had and has.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Account {
    pub weight: f64,
    /// The mean of what was held, as of `at`.
    mean: f64,
    at: Millis,
    held: f64,
}

impl Account {
    pub fn new(weight: f64) -> Self {
        Self { weight, mean: 0.0, at: 0, held: 0.0 }
    }

    /// The mean at a moment: it approaches what is held, by half in every half-life.
    pub fn mean(&self, now: Millis, half_life: Millis) -> f64 {
        let halvings = now.saturating_sub(self.at) as f64 / half_life as f64;
        self.held + (self.mean - self.held) * (-halvings).exp2()
    }

    /// What goes by it comes first where it is small.
    pub fn share(&self, now: Millis, half_life: Millis) -> f64 {
        (self.mean(now, half_life) + self.held) / self.weight
    }

    pub fn set_mean(&mut self, mean: f64, at: Millis) {
        (self.mean, self.at) = (mean, at);
    }

    /// More is held from now on, or less.
    pub fn hold(&mut self, change: f64, now: Millis, half_life: Millis) {
        self.mean = self.mean(now, half_life);
        self.at = self.at.max(now);
        // What adding and taking away leaves of rounding must not become a debt.
        let held = self.held + change;
        self.held = if held.abs() < 1e-9 { 0.0 } else { held };
    }

    #[cfg(test)]
    pub fn held(&self) -> f64 {
        self.held
    }
}
