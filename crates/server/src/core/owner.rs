//! Whether the owner of a job may still run it.
//!
//! People leave, and their jobs stay in the queue, in backoff or suspended. So the right to run a job is checked before every
//! attempt, before every lane and every further element of an array, and again when a task is launched, because that is when
//! secrets are opened. What runs already goes on until it ends or somebody stops it.

use muster_api::problem::{Code, Problem};
use muster_model::account::{User, UserState};
use muster_model::job::Event;
use muster_model::{JobId, Reason, Timestamp};
use muster_scheduler::{Fate, Start};

use super::Core;
use super::batch::Batch;
use super::live::Live;
use super::schedule::millis;
use super::workspace::workspace_of;

impl Core {
    /// Why the owner of a job may not run it any more. `None` where people have no accounts.
    pub(super) fn owner_obstacle(&self, live: &Live) -> Option<String> {
        let accounts = self.parts.accounts.as_ref()?;
        accounts.look(|directory| {
            // The operator submits at the server's own socket and needs no account. Nobody can sign up under that name.
            let is_active = |user: &User| user.state == UserState::Active;
            match live.owner == self.parts.owner && directory.user(&live.owner).is_none_or(is_active) {
                true => None,
                false => directory.run_obstacle(&live.owner, workspace_of(&live.spec)),
            }
        })
    }

    /// Why a job must not start now.
    pub(super) fn start_obstacle(&self, live: &Live) -> Option<Reason> {
        if let Some(message) = self.owner_obstacle(live) {
            return Some(Reason::OwnerNotAllowed { message });
        }
        // Refused at submission; only a job of an older server can come this far.
        let message = self.personal_volume_obstacle(&live.owner, &live.spec)?;
        Some(Reason::PrepareFailed { message })
    }

    /// Fails a job that the scheduler wanted to start. Lanes of an array that run already go on; the job fails after the last.
    pub(super) fn refuse_start(&mut self, start: &Start, reason: Reason, batch: &mut Batch, now: Timestamp) {
        let Start { job, element, .. } = start;
        tracing::warn!(%job, reason = reason.message(), "job not started");
        self.scheduler.ended(job, *element, Fate::Over, millis(now));
        self.untold.jobs.insert(job.clone());
        if self.jobs.get(job).is_some_and(|live| live.job.is_waiting()) {
            self.apply_quietly(job, Event::GiveUp { reason }, batch, now);
        }
    }

    /// Refuses to start one task of a job whose owner may not run it any more.
    pub(super) fn check_owner(&self, id: &JobId) -> Result<(), Problem> {
        let obstacle = self.jobs.get(id).and_then(|live| self.start_obstacle(live));
        obstacle.map_or(Ok(()), |reason| {
            let problem = Problem::new(Code::Forbidden, reason.message());
            Err(match reason.hint(1) {
                Some(hint) => problem.hint(hint),
                None => problem,
            })
        })
    }
}
