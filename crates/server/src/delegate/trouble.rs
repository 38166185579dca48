//! Which schedulers do not answer.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use super::GangTarget;

/// Which schedulers do not answer, and why: for whoever shows jobs that wait there.
#[derive(Debug, Default)]
pub(crate) struct Troubles(Mutex<HashMap<GangTarget, String>>);

impl Troubles {
    pub fn get(&self, target: &GangTarget) -> Option<String> {
        self.lock().get(target).cloned()
    }

    pub(super) fn set(&self, target: &GangTarget, trouble: Option<&str>) {
        let mut troubles = self.lock();
        match trouble {
            Some(message) => {
                if troubles.insert(target.clone(), message.to_owned()).is_none() {
                    tracing::warn!(target = %target.target, account = target.account, error = message, "the scheduler does not answer");
                }
            }
            None => {
                if troubles.remove(target).is_some() {
                    tracing::info!(target = %target.target, account = target.account, "the scheduler answers again");
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<GangTarget, String>> {
        // The map is right after every single step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
