//! Whom nodes serve: under which account a job's tasks run, which volumes they have, and where that can be.

use std::sync::Arc;

use muster_engine::{Accounts, NO_ACCOUNT};
use muster_link::message::GivenVolume;
use muster_model::spec::{FieldCode, FieldError, JobSpec, Target};
use muster_scheduler::Need;

use super::Core;
use super::live::{Live, Node};
use super::workspace::workspace_of;
use crate::accounts::Accounts as PeopleAccounts;
use crate::engines::Engines;
use crate::volume::Volume;

/// How many nodes are named one by one.
const NAMED: usize = 3;

/// The account of the machine that somebody's tasks run under; none where it is the agent's. So it is for whoever runs the
/// server, on the server's own machine, and where every other gang is its owner's.
pub(crate) fn account_of(
    accounts: Option<&PeopleAccounts>,
    engines: &Engines,
    operator: &str,
    owner: &str,
    target: &Target,
) -> Option<String> {
    let accounts = accounts?;
    let of_engine = &engines.get(target.engine())?.capabilities().accounts;
    if *of_engine == Accounts::Containers {
        return None;
    }
    let is_operators_place = *target == Target::Local || *of_engine == Accounts::Owners;
    match accounts.look(|directory| directory.user(owner).map(|user| user.account.clone())) {
        // People choose their names, and an admin which account of the machines is theirs: the one is not the other's word.
        Some(mapped) => Some(mapped.unwrap_or_default()),
        None if is_operators_place && owner == operator => None,
        None => Some(owner.to_owned()),
    }
}

impl Core {
    /// What a job needs of a node.
    pub(super) fn need_of(&self, owner: &str, spec: &JobSpec) -> Need {
        let volumes = self.wanted(spec).iter().map(|volume| volume.name().to_owned()).collect();
        Need { account: self.account_of(owner, &spec.on), volumes, ..Need::from(spec) }
    }

    fn account_of(&self, owner: &str, target: &Target) -> Option<String> {
        let parts = &self.parts;
        account_of(parts.accounts.as_deref(), &parts.engines, &parts.owner, owner, target)
    }

    /// The account that a gang is handed over under, of the one that its tasks run under.
    pub(super) fn submission_account(&self, target: &Target, account: Option<String>) -> Option<String> {
        let engine = self.parts.engines.get(target.engine())?;
        account.filter(|_| engine.capabilities().accounts == Accounts::Owners)
    }

    /// The volumes that a job's tasks have.
    fn wanted(&self, spec: &JobSpec) -> &[Volume] {
        if spec.without_volumes { &[] } else { &self.parts.volumes }
    }

    /// Why a job cannot have its owner's part of a volume. People choose their names when they sign up, so a name leads to
    /// nobody's files before an admin has said which account is theirs. A host checks the directory's owner besides; a
    /// container cannot.
    pub(super) fn personal_volume_obstacle(&self, owner: &str, spec: &JobSpec) -> Option<String> {
        let accounts = self.parts.accounts.as_ref()?;
        let volume = self.wanted(spec).iter().find(|volume| volume.is_personal())?;
        let is_unmapped =
            accounts.look(|directory| directory.user(owner).is_some_and(|user| user.account.is_none()));
        is_unmapped.then(|| {
            format!(
                "volume `{}` is personal, and no admin has said yet which account `{owner}` is; an admin can: \
                 `muster user set {owner} --account ACCOUNT`; or use --without-volumes",
                volume.name()
            )
        })
    }

    /// A job's part of each volume that it has.
    pub(super) fn volumes_of(&self, live: &Live) -> Vec<GivenVolume> {
        let workspace = workspace_of(&live.spec);
        self.wanted(&live.spec).iter().map(|volume| volume.given(&live.owner, workspace)).collect()
    }

    /// Whether an engine sees to volumes before there is an agent.
    pub(super) fn mounts_itself(&self, target: &Target) -> bool {
        self.parts.engines.get(target.engine()).is_some_and(|engine| engine.capabilities().volumes)
    }

    /// A volume of the server's is had in parts: nobody names it to have all of it.
    pub(super) fn check_volumes(&self, spec: &JobSpec) -> Vec<FieldError> {
        let is_ours = |name: &str| self.parts.volumes.iter().any(|volume| volume.name() == name);
        let named = (0..).zip(&spec.volumes).filter(|(_, volume)| is_ours(&volume.name));
        let wrong = named.map(|(index, volume): (usize, _)| {
            let message = format!(
                "`{}` is a volume of the server's, and every task has its part of it; leave it out",
                volume.name
            );
            FieldError::new(format!("volumes[{index}].name"), FieldCode::InvalidValue, message)
        });
        wrong.collect()
    }

    /// What is wrong with a job that no node would ever serve.
    pub(super) fn check_served(&self, target: &Target, need: &Need) -> Option<FieldError> {
        if self.is_delegated(target) {
            return self.check_delegated(target, need);
        }
        let refused = self.refusals(target, need)?;
        let field = if need.volumes.is_empty() { "on" } else { "volumes" };
        let help = help(need);
        Some(FieldError::new(
            field,
            FieldCode::NotSupported,
            format!("{target} cannot have it: {refused}; {help}"),
        ))
    }

    /// An agent in somebody else's allocation is that account's, and mounts nothing. What a cluster has, it says itself.
    fn check_delegated(&self, target: &Target, need: &Need) -> Option<FieldError> {
        let engine = self.parts.engines.get(target.engine())?;
        let submitter = match &engine.capabilities().accounts {
            Accounts::Submitter(named) => Some(named.as_deref().unwrap_or(&self.parts.owner)),
            Accounts::Owners | Accounts::Machines | Accounts::Containers => None,
        };
        let account = need.account.as_deref();
        if account == Some("") && engine.capabilities().accounts == Accounts::Owners {
            return Some(FieldError::new("on", FieldCode::NotSupported, NO_ACCOUNT));
        }
        if account.is_some() && engine.capabilities().accounts == Accounts::Machines {
            let message = format!(
                "the account that tasks on {target} run under is not known; the operator can name it: \
                 slurm.login = \"ACCOUNT@HOST\" in config.toml"
            );
            return Some(FieldError::new("on", FieldCode::NotSupported, message));
        }
        if let (Some(account), Some(submitter)) = (account, submitter)
            && account != submitter
        {
            let whose = if account.is_empty() {
                "you have no account".into()
            } else {
                format!("yours is `{account}`")
            };
            let message =
                format!("tasks on {target} run under the account `{submitter}`, and {whose}; {}", help(need));
            return Some(FieldError::new("on", FieldCode::NotSupported, message));
        }
        let moved = self.parts.volumes.iter().find(|volume| volume.is_elsewhere());
        let moved = moved
            .filter(|_| engine.capabilities().accounts != Accounts::Containers && !need.volumes.is_empty())?;
        let message = format!(
            "tasks on {target} cannot have volume `{}`: it is seen at another path than machines have it at, and nothing can be \
             mounted there; {}",
            moved.name(),
            help(need)
        );
        Some(FieldError::new("volumes", FieldCode::NotSupported, message))
    }

    /// The nodes of a target that people know.
    pub(super) fn nodes_of(&self, target: &Target) -> impl Iterator<Item = &Node> + Clone {
        self.nodes.values().filter(move |node| node.target == *target && node.is_shown())
    }

    /// Why each node of a target does not serve a job; none if one does, or may.
    pub(super) fn refusals(&self, target: &Target, need: &Need) -> Option<String> {
        let why = |node: &Node| Some(format!("{}: {}", self.name_of(&node.id), node.serves.obstacle(need)?));
        let refused = self.nodes_of(target).map(why).collect::<Option<Vec<_>>>();
        let mut refused = refused.filter(|all| !all.is_empty())?;
        let more = refused.len().saturating_sub(NAMED);
        refused.truncate(NAMED);
        let more = if more > 0 { format!("; and {more} more") } else { String::new() };
        Some(format!("{}{more}", refused.join("; ")))
    }

    /// Somebody was refused: have nodes look again for what they lack, so that who has seen to it need not say so.
    pub(super) fn look_again(&mut self, spec: &JobSpec) {
        let welcome = self.welcome();
        let lacking = |node: &&mut Node| node.serves.lacks.as_ref().is_some_and(|lacks| !lacks.is_empty());
        for node in self.nodes.values_mut().filter(|node| node.target == spec.on).filter(lacking) {
            node.send(welcome.clone());
        }
    }

    /// Somebody has another account: what waits of theirs is looked at anew.
    pub(super) fn renew(&mut self, owner: &str) {
        let theirs = self.jobs.values().filter(|live| live.owner == owner);
        let theirs: Vec<_> =
            theirs.map(|live| (live.job.id.clone(), self.need_of(owner, &live.spec))).collect();
        for (id, need) in theirs {
            if let Some(live) = self.jobs.get_mut(&id) {
                live.need = Arc::new(need);
                self.untold.jobs.insert(id);
            }
        }
        self.dirty = true;
    }
}

fn help(need: &Need) -> &'static str {
    match need.volumes.is_empty() {
        true => {
            "choose another place with --on, or have an admin say which account is yours: `muster user set NAME --account ACCOUNT`"
        }
        false => "choose another place with --on, or use --without-volumes",
    }
}
