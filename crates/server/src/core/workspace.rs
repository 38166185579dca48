//! That no job, and no secret, is ever of a workspace that is gone.
//!
//! Who removes a workspace and who puts something into it are both here, one after the other, so that one of them finds the other: no
//! look at either from outside could.

use muster_api::problem::{Code, Problem};
use muster_model::JobId;
use muster_model::spec::{FieldCode, FieldError, JobSpec};
use muster_store::{AccountChange, Change, JobFilter};

use super::Core;
use super::batch::{Answer, Batch};
use super::input::{Reply, Then};
use super::submit::DEFAULT_WORKSPACE;

impl Core {
    /// Rows that somebody else has decided on.
    pub(super) fn on_write(
        &mut self,
        changes: Vec<Change>,
        then: Option<Then>,
        reply: Reply<()>,
        batch: &mut Batch,
    ) {
        for change in &changes {
            let checked = match change {
                Change::Account(AccountChange::RemoveWorkspace(name)) => self.check_empty(name),
                Change::Secret(row) => self.check_there(&row.workspace, batch),
                _ => Ok(()),
            };
            if let Err(problem) = checked {
                return drop(reply.send(Err(problem)));
            }
        }
        batch.gone_workspaces.extend(changes.iter().filter_map(|change| match change {
            Change::Account(AccountChange::RemoveWorkspace(name)) => Some(name.clone()),
            _ => None,
        }));
        self.forget_quotas(&changes, batch);
        batch.first.extend(changes);
        batch.answers.push(Answer::Written(reply, then));
    }

    /// That a workspace has no jobs, also none that is in this batch.
    fn check_empty(&self, name: &str) -> Result<(), Problem> {
        let live = self.jobs.values().find(|live| workspace_of(&live.spec) == name);
        let job = match live {
            Some(live) => Some(live.job.id.clone()),
            None => self.any_job(name)?,
        };
        let Some(job) = job else { return Ok(()) };
        let what = format!("{name} has jobs, {job} among them, which nobody would see any more");
        Err(Problem::new(Code::InUse, what).hint("`muster rm` removes jobs that are over"))
    }

    fn any_job(&self, workspace: &str) -> Result<Option<JobId>, Problem> {
        let filter = JobFilter { workspace: Some(workspace.to_owned()), ..JobFilter::default() };
        let found = self.parts.readers.jobs(&filter, 1).map_err(|error| super::query::internal(&error))?;
        Ok(found.into_iter().next().map(|row| row.id))
    }

    /// That a job's workspace is still there.
    pub(super) fn check_workspace(&self, spec: &JobSpec, batch: &Batch) -> Result<(), Problem> {
        self.check_there(workspace_of(spec), batch)
    }

    /// That a workspace is still there, where people share the server; elsewhere it is only a name.
    pub(super) fn check_there(&self, name: &str, batch: &Batch) -> Result<(), Problem> {
        let Some(accounts) = &self.parts.accounts else { return Ok(()) };
        let is_there = accounts.look(|directory| directory.workspace(name).is_some());
        if is_there && !batch.gone_workspaces.contains(name) {
            return Ok(());
        }
        let message = format!("there is no workspace `{name}`; `muster workspace ls` lists yours");
        Err(Problem::fields(vec![FieldError::new("workspace", FieldCode::InvalidValue, message)]))
    }
}

/// The workspace that a job is of.
pub(super) fn workspace_of(spec: &JobSpec) -> &str {
    spec.workspace.as_deref().unwrap_or(DEFAULT_WORKSPACE)
}
