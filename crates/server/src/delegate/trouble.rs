//! Which schedulers do not answer.

use std::collections::HashMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

use muster_model::spec::Target;

/// Which schedulers do not answer, and why: for whoever shows jobs that wait there.
#[derive(Debug, Default)]
pub(crate) struct Troubles(Mutex<HashMap<Target, String>>);

impl Troubles {
    pub fn get(&self, target: &Target) -> Option<String> {
        self.lock().get(target).cloned()
    }

    pub(super) fn set(&self, target: &Target, trouble: Option<&str>) {
        let mut troubles = self.lock();
        match trouble {
            Some(message) => {
                if troubles.insert(target.clone(), message.to_owned()).is_none() {
                    tracing::warn!(%target, error = message, "the scheduler does not answer");
                }
            }
            None => {
                if troubles.remove(target).is_some() {
                    tracing::info!(%target, "the scheduler answers again");
                }
            }
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<Target, String>> {
        // The map is right after every single step.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}
