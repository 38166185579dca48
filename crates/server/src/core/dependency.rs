//! Jobs that wait for the ends of others.
//!
//! A job that was tried once has waited. So what a job still waits for follows from its spec and from how those jobs are, and
//! is stored nowhere. The end of a job and what it means for those that wait for it are written together.

use muster_model::job::{Event, State};
use muster_model::spec::{After, FieldCode, FieldError, JobSpec};
use muster_model::{JobId, Reason, Timestamp};

use super::Core;
use super::batch::Batch;
use super::live::Live;

impl Core {
    /// How a job is, whether or not it is over; none if it was removed.
    fn state_of(&self, id: &JobId) -> Option<State> {
        match self.jobs.get(id) {
            Some(live) => Some(live.job.state),
            None => match self.parts.readers.job(id) {
                Ok(row) => row.map(|row| row.job.state),
                Err(error) => {
                    tracing::error!(job = %id, %error, "a job that others wait for cannot be looked up");
                    // Whoever waits, waits on: that can be mended, and a start cannot.
                    Some(State::Suspended)
                }
            },
        }
    }

    /// Whether a job is what was waited for. One that was removed had ended well, or nobody would wait for it any more.
    fn is_met(&self, after: &After) -> Option<bool> {
        let Ok(id) = after.job.parse::<JobId>() else { return Some(true) };
        self.state_of(&id).map_or(Some(true), |state| after.on.is_met_by(state))
    }

    /// What is wrong with a job that could never start.
    pub(super) fn check_after(&self, spec: &JobSpec) -> Vec<FieldError> {
        let missed = (0..).zip(&spec.after).filter(|(_, after)| self.is_met(after) == Some(false));
        let wrong = |(index, after): (usize, &After)| {
            let message = format!(
                "{}, so it would never start; `{}:any` starts whatever became of it",
                self.ended_otherwise(after),
                after.job
            );
            FieldError::new(format!("after[{index}]"), FieldCode::InvalidValue, message)
        };
        missed.map(wrong).collect()
    }

    fn ended_otherwise(&self, after: &After) -> String {
        let state = after.job.parse().ok().and_then(|id| self.state_of(&id));
        let state = state.map_or("gone", State::as_str);
        format!("{} has {state}, and was to {}", after.job, after.on.verb())
    }

    /// Takes note of what a job waits for, where it has not been tried yet.
    pub(super) fn wait_for_others(&mut self, live: &mut Live) {
        if live.job.attempt > 0 {
            return;
        }
        let unmet = live.spec.after.iter().filter(|after| self.is_met(after) != Some(true));
        live.after = unmet.cloned().collect();
        for id in live.after.iter().filter_map(|after| after.job.parse::<JobId>().ok()) {
            // One that ended while nobody looked is looked at again.
            if self.state_of(&id).is_some_and(State::is_terminal) {
                self.over.insert(id.clone());
            }
            self.dependants.entry(id).or_default().insert(live.job.id.clone());
        }
    }

    /// What the ends of this batch mean for those that wait for them. An end may bring others with it.
    pub(super) fn follow_dependencies(&mut self, batch: &mut Batch, now: Timestamp) {
        while let Some(id) = self.over.pop_first() {
            for waiting in self.dependants.remove(&id).unwrap_or_default() {
                self.follow_dependency(&waiting, batch, now);
            }
        }
    }

    fn follow_dependency(&mut self, id: &JobId, batch: &mut Batch, now: Timestamp) {
        let Some(live) = self.jobs.get(id).filter(|live| !live.job.state.is_terminal()) else { return };
        let missed = live.after.iter().find(|after| self.is_met(after) == Some(false));
        if let Some(after) = missed {
            let reason = Reason::DependencyFailed { message: self.ended_otherwise(after) };
            return self.apply_quietly(id, Event::GiveUp { reason }, batch, now);
        }
        let unmet: Vec<After> =
            live.after.iter().filter(|after| self.is_met(after).is_none()).cloned().collect();
        if let Some(live) = self.jobs.get_mut(id) {
            batch.remember(live);
            live.after = unmet;
            self.untold.jobs.insert(id.clone());
            self.dirty = true;
        }
    }
}
