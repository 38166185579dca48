//! What workspaces and users may have: decided here, on what the change before it left, written, and told to the scheduler.

use std::collections::{BTreeMap, BTreeSet};

use muster_api::problem::Problem;
use muster_api::quota::{
    AvailableView, ChangeQuota, ChangeUserQuota, LargestView, QuotaView, ResourceView, UserQuotaView,
    WorkspaceQuotaView,
};
use muster_model::quota::{EVERYBODY, UserQuota, WorkspaceQuota};
use muster_model::spec::{FieldCode, FieldError};
use muster_scheduler::{Available, Balance, Balances, Millis, Resource, Scheduler, User, Workspace};
use muster_store::{AccountChange, Change, Quotas, Sight};

use super::Core;
use super::batch::{Answer, Batch};
use super::input::Reply;
use super::schedule::millis;

/// What is to be said of somebody's quota.
#[derive(Debug, Clone)]
pub(crate) enum QuotaChange {
    Workspace(String, ChangeQuota),
    ClearWorkspace(String),
    User(String, ChangeUserQuota),
    ClearUser(String),
}

/// Who wants to know of quotas.
#[derive(Debug, Clone)]
pub(crate) struct QuotaAsked {
    /// The workspaces that are there for them.
    pub sight: Sight,
    pub user: String,
    pub is_admin: bool,
    /// Only this workspace.
    pub only: Option<String>,
    /// For which workspace it is counted what they can get.
    pub workspace: Option<String>,
}

impl Core {
    pub(super) fn on_change_quota(&mut self, change: QuotaChange, reply: Reply<()>, batch: &mut Batch) {
        match self.decide_quota(change, batch) {
            Ok(change) => {
                self.take_quota(&change, batch);
                batch.first.push(change);
                batch.answers.push(Answer::Done(reply));
            }
            Err(problem) => drop(reply.send(Err(problem))),
        }
    }

    fn decide_quota(&self, change: QuotaChange, batch: &Batch) -> Result<Change, Problem> {
        Ok(match change {
            QuotaChange::Workspace(workspace, change) => {
                self.check_there(&workspace, batch)?;
                let before = self.quotas.workspaces.get(&workspace).cloned().unwrap_or_default();
                let quota = Some(changed(before, change).map_err(Problem::fields)?);
                Change::WorkspaceQuota { workspace, quota }
            }
            QuotaChange::ClearWorkspace(workspace) => Change::WorkspaceQuota { workspace, quota: None },
            QuotaChange::User(user, change) => {
                let UserQuota { weight, max_running } =
                    self.quotas.users.get(&user).copied().unwrap_or_default();
                let weight = change.weight.unwrap_or(weight);
                let max_running = change.max_running.or(max_running).filter(|most| *most > 0);
                let quota = UserQuota { weight, max_running };
                if let Some(error) = quota.check() {
                    return Err(Problem::fields(vec![error]));
                }
                Change::UserQuota { user, quota: Some(quota) }
            }
            QuotaChange::ClearUser(user) => Change::UserQuota { user, quota: None },
        })
    }

    /// Makes it so, here and for the scheduler. If it is not written, both are made anew from what was.
    fn take_quota(&mut self, change: &Change, batch: &mut Batch) {
        batch.quotas_before.get_or_insert_with(|| self.quotas.clone());
        match change {
            Change::WorkspaceQuota { workspace, quota } => {
                put(&mut self.quotas.workspaces, workspace, quota.clone());
                tell_workspace(&self.quotas, workspace, &mut self.scheduler);
            }
            Change::UserQuota { user, quota } => {
                put(&mut self.quotas.users, user, *quota);
                tell_user(&self.quotas, user, &mut self.scheduler);
            }
            _ => return,
        }
        self.dirty = true;
    }

    /// Whoever goes takes their quota with them: the database sees to it there.
    pub(super) fn forget_quotas(&mut self, changes: &[Change], batch: &mut Batch) {
        for change in changes {
            let gone = match change {
                Change::Account(AccountChange::RemoveWorkspace(name)) => {
                    Change::WorkspaceQuota { workspace: name.clone(), quota: None }
                }
                Change::Account(AccountChange::RemoveUser(name)) => {
                    Change::UserQuota { user: name.clone(), quota: None }
                }
                _ => continue,
            };
            self.take_quota(&gone, batch);
        }
    }

    /// Who may have what and who has what; and what tells beside the core what somebody can get now.
    pub(super) fn quota_view(&mut self, asked: &QuotaAsked) -> (QuotaView, Offers) {
        let is_shown =
            |name: &str| asked.sight.has(name) && asked.only.as_deref().is_none_or(|only| only == name);
        let mut workspaces: Vec<WorkspaceQuotaView> =
            self.scheduler.balances(is_shown).into_iter().map(workspace_view).collect();
        workspaces.iter_mut().for_each(|one| self.spell(one));
        let user = |(name, quota): (&String, &UserQuota)| UserQuotaView {
            user: name.clone(),
            weight: quota.weight,
            max_running: quota.max_running,
            running: self.scheduler.running_of(name),
        };
        let sees = |(name, _): &(&String, &UserQuota)| {
            *name != EVERYBODY && (asked.is_admin || **name == asked.user)
        };
        let users = self.quotas.users.iter().filter(sees).map(user).collect();
        let max_running = self.quotas.users.get(EVERYBODY).and_then(|quota| quota.max_running);
        let workspace = asked.workspace.clone();
        let view = QuotaView { workspaces, users, max_running, workspace, available: Vec::new() };
        (view, self.offers(asked))
    }

    /// Models as they were written where the quota was set.
    fn spell(&self, view: &mut WorkspaceQuotaView) {
        let Some(quota) = self.quotas.workspaces.get(&view.workspace) else { return };
        for it in &mut view.resources {
            if let Some(model) = quota.models.keys().find(|model| model.eq_ignore_ascii_case(&it.resource)) {
                it.resource.clone_from(model);
            }
        }
    }

    fn offers(&mut self, asked: &QuotaAsked) -> Offers {
        self.tell_nodes();
        let places: BTreeSet<String> =
            self.nodes.values().filter(|node| node.is_shown()).map(|node| node.target.to_string()).collect();
        Offers {
            scheduler: asked.workspace.is_some().then(|| self.scheduler.clone()),
            places,
            workspace: asked.workspace.clone().unwrap_or_default(),
            user: asked.user.clone(),
            at: millis(super::now()),
        }
    }
}

/// What somebody can get now. Many sizes are tried, which on a large cluster takes longer than the core may stand still.
#[derive(Debug)]
pub(crate) struct Offers {
    scheduler: Option<Scheduler>,
    places: BTreeSet<String>,
    workspace: String,
    user: String,
    at: Millis,
}

impl Offers {
    pub fn find(self) -> Vec<AvailableView> {
        let Some(mut scheduler) = self.scheduler else { return Vec::new() };
        let mut all = Vec::new();
        for on in self.places {
            let found = scheduler.available(&on, &self.workspace, &self.user, self.at);
            all.extend(found.into_iter().map(|one| available_view(&on, one)));
        }
        all
    }
}

/// Tells a scheduler that is made anew.
pub(super) fn tell(quotas: &Quotas, scheduler: &mut Scheduler) {
    quotas.workspaces.keys().for_each(|name| tell_workspace(quotas, name, scheduler));
    quotas.users.keys().for_each(|name| tell_user(quotas, name, scheduler));
}

fn tell_workspace(quotas: &Quotas, name: &str, scheduler: &mut Scheduler) {
    scheduler.set_workspace(name, due(quotas.workspaces.get(name).cloned().unwrap_or_default()));
}

fn tell_user(quotas: &Quotas, name: &str, scheduler: &mut Scheduler) {
    let UserQuota { weight, max_running } = quotas.users.get(name).copied().unwrap_or_default();
    match name {
        EVERYBODY => scheduler.set_max_running(max_running),
        name => scheduler.set_user(name, User { weight, max_running }),
    }
}

fn put<T>(all: &mut BTreeMap<String, T>, name: &str, value: Option<T>) {
    match value {
        Some(value) => drop(all.insert(name.to_owned(), value)),
        None => drop(all.remove(name)),
    }
}

/// What a workspace may have after a change, or all that is wrong with it.
fn changed(before: WorkspaceQuota, change: ChangeQuota) -> Result<WorkspaceQuota, Vec<FieldError>> {
    let mut quota = WorkspaceQuota {
        weight: change.weight.unwrap_or(before.weight),
        cpu_millis: change.cpu_millis.or(before.cpu_millis),
        memory_bytes: change.memory_bytes.or(before.memory_bytes),
        gpus: change.gpus.or(before.gpus),
        models: before.models,
    };
    for (model, one) in change.models {
        quota.set_model(model, one);
    }
    let mut errors = Vec::new();
    for (at, resource) in change.unlimited.iter().enumerate() {
        if !quota.lift(resource) {
            let shown: String = resource.chars().take(70).collect();
            let message = format!(
                "`{shown}` is nothing that has a quota; there are cpu_millis, memory_bytes, gpus and models such as H100"
            );
            errors.push(FieldError::new(format!("unlimited[{at}]"), FieldCode::InvalidValue, message));
        }
    }
    errors.extend(quota.check());
    if errors.is_empty() { Ok(quota) } else { Err(errors) }
}

/// The same, as the scheduler has it.
fn due(quota: WorkspaceQuota) -> Workspace {
    let WorkspaceQuota { weight, cpu_millis, memory_bytes, gpus, models } = quota;
    let plain = [(Resource::Cpu, cpu_millis), (Resource::Memory, memory_bytes), (Resource::Devices, gpus)];
    let plain = plain.into_iter().filter_map(|(resource, quota)| Some((resource, quota?)));
    let models = models.into_iter().map(|(model, quota)| (Resource::Model(model), quota));
    Workspace { weight, quotas: plain.chain(models).collect() }
}

fn workspace_view(of: Balances) -> WorkspaceQuotaView {
    let Balances { workspace, weight, resources } = of;
    let resource = |it: Balance| ResourceView {
        resource: match it.resource {
            Resource::Cpu => "cpu_millis".into(),
            Resource::Memory => "memory_bytes".into(),
            Resource::Devices => "gpus".into(),
            Resource::Model(model) => model,
        },
        nominal: it.quota.map(|quota| quota.nominal),
        borrow: it.quota.and_then(|quota| quota.borrow),
        lend: it.quota.and_then(|quota| quota.lend),
        used: it.used,
        borrowed: it.borrowed,
        lent: it.lent,
        left: it.left,
    };
    WorkspaceQuotaView { workspace, weight, resources: resources.into_iter().map(resource).collect() }
}

fn available_view(on: &str, of: Available) -> AvailableView {
    let Available { model, all, free, quota_left, largest } = of;
    let largest = largest.map(|(nodes, gpus)| LargestView { nodes, gpus });
    AvailableView { on: on.to_owned(), model, all, free, quota_left, largest }
}

#[cfg(test)]
mod tests {
    use muster_model::quota::Quota;

    use super::*;

    #[test]
    fn what_is_absent_of_a_change_stays_and_what_is_unlimited_goes() {
        let first = ChangeQuota {
            gpus: Some(Quota::shared(16)),
            models: [("H100".to_owned(), Quota::fixed(8))].into(),
            ..ChangeQuota::default()
        };
        let quota = changed(WorkspaceQuota::default(), first).unwrap();
        let second = ChangeQuota {
            weight: Some(2.0),
            unlimited: vec!["gpus".into(), "a100".into()],
            ..ChangeQuota::default()
        };
        let quota = changed(quota, second).unwrap();
        assert_eq!((quota.weight, quota.gpus, quota.models.len()), (2.0, None, 1));
        let wrong = ChangeQuota {
            weight: Some(-1.0),
            unlimited: vec!["no such thing".into()],
            ..ChangeQuota::default()
        };
        let fields: Vec<String> =
            changed(quota, wrong).unwrap_err().into_iter().map(|error| error.field).collect();
        assert_eq!(fields, ["unlimited[0]", "weight"]);
    }
}
