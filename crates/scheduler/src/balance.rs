//! Who may have what, and who has it: the books in a form that people read.

use std::collections::{BTreeMap, BTreeSet};

use serde::Serialize;

use crate::quota::{CPU, DEVICES, Dim, MEMORY, Quota, Resource};
use crate::state::Scheduler;

/// What a workspace may have, and has.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Balances {
    /// The workspace.
    pub workspace: String,
    /// Its part of what is fair, beside the others'.
    pub weight: f64,
    /// Each resource that has a quota or is in use.
    pub resources: Vec<Balance>,
}

/// What a workspace may have, and has, of one resource.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Balance {
    /// Of what; a model as its devices spell it.
    pub resource: Resource,
    /// What it may have; without end, if absent.
    pub quota: Option<Quota>,
    /// What it has.
    pub used: u64,
    /// What of that is not its own.
    pub borrowed: u64,
    /// What others have of its own: a part of all that is borrowed, by how much it lends beside the others.
    pub lent: u64,
    /// How much more it may have now; without end, if absent.
    pub left: Option<u64>,
}

impl Scheduler {
    /// What workspaces may have and have, by name, of those that are asked for and have something to show.
    pub fn balances(&self, is_shown: impl Fn(&str) -> bool) -> Vec<Balances> {
        let lent = self.lent();
        let mut all: Vec<Balances> = Vec::new();
        for (ix, (name, account)) in (0..).zip(&self.workspaces) {
            let dims = self.dims_of(ix);
            if is_shown(name) && !dims.is_empty() {
                let resources = dims.into_iter().map(|dim| self.balance(ix, dim, &lent)).collect();
                all.push(Balances { workspace: name.clone(), weight: account.weight, resources });
            }
        }
        all.sort_by(|a, b| a.workspace.cmp(&b.workspace));
        all
    }

    /// How many gangs and elements of a user run, or are about to.
    pub fn running_of(&self, user: &str) -> u32 {
        self.people.iter().find(|person| person.name == user).map_or(0, |person| person.running)
    }

    /// What a workspace has a quota for, or has.
    fn dims_of(&self, workspace: u32) -> BTreeSet<Dim> {
        let used = (0..self.dims.len() as Dim).filter(|dim| self.ledger.used(workspace, *dim) > 0);
        self.ledger.quotas(workspace).keys().copied().chain(used).collect()
    }

    fn balance(&self, workspace: u32, dim: Dim, lent: &BTreeMap<(u32, Dim), u64>) -> Balance {
        let quota = self.ledger.quotas(workspace).get(&dim).copied();
        let used = self.ledger.used(workspace, dim);
        Balance {
            resource: self.resource(dim),
            quota,
            used,
            borrowed: quota.map_or(0, |quota| quota.borrowed(used)),
            lent: lent.get(&(workspace, dim)).copied().unwrap_or(0),
            left: self.ledger.left(workspace, dim),
        }
    }

    /// Whose what is borrowed is. It is taken from what all leave idle, and so everybody's part goes by how much they leave. Parts
    /// are rounded so that together they are what is borrowed.
    fn lent(&self) -> BTreeMap<(u32, Dim), u64> {
        let mut lent = BTreeMap::new();
        for dim in 0..self.dims.len() as Dim {
            let of = |ix: u32| Some((ix, self.ledger.quotas(ix).get(&dim)?, self.ledger.used(ix, dim)));
            let all: Vec<_> = (0..self.workspaces.len() as u32).filter_map(of).collect();
            let borrowed: u128 = all.iter().map(|(_, quota, used)| u128::from(quota.borrowed(*used))).sum();
            let lends: u128 = all.iter().map(|(_, quota, used)| u128::from(quota.lends(*used))).sum();
            let (mut up_to, mut given) = (0_u128, 0_u128);
            for (ix, quota, used) in all.iter().filter(|_| lends > 0 && borrowed > 0) {
                up_to += u128::from(quota.lends(*used));
                let now = borrowed.min(lends) * up_to / lends;
                lent.insert((*ix, dim), u64::try_from(now - given).unwrap_or(u64::MAX));
                given = now;
            }
        }
        lent
    }

    pub(crate) fn resource(&self, dim: Dim) -> Resource {
        match dim {
            CPU => Resource::Cpu,
            MEMORY => Resource::Memory,
            DEVICES => Resource::Devices,
            model => {
                let spelled = self.kinds.iter().find(|kind| kind.dim == model).map(|kind| &kind.model);
                Resource::Model(spelled.unwrap_or(&self.dims[model as usize]).clone())
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use muster_model::JobId;

    use super::*;
    use crate::{Policy, Request, Workspace};

    /// On a pool of somebody else's scheduler, where quotas alone decide.
    fn scheduler(quotas: &[(&str, Quota)]) -> Scheduler {
        let mut scheduler = Scheduler::new(Policy::default());
        scheduler.set_pool("slurm", true);
        for (name, quota) in quotas {
            let quotas = [(Resource::Cpu, *quota)].into();
            scheduler.set_workspace(name, Workspace { weight: 2.0, quotas });
        }
        scheduler
    }

    fn run(scheduler: &mut Scheduler, number: u64, workspace: &str, cpus: u64) {
        let mut request = Request::new(JobId::from_random(number), workspace, "ann", "slurm");
        request.need.cpu_millis = cpus;
        request.place = number;
        scheduler.submit(request);
        scheduler.pass(1);
    }

    fn figures(scheduler: &Scheduler) -> Vec<(String, u64, u64, u64, Option<u64>)> {
        let one = |it: Balances| {
            let Balance { used, borrowed, lent, left, .. } = it.resources[0].clone();
            (it.workspace, used, borrowed, lent, left)
        };
        scheduler.balances(|_| true).into_iter().map(one).collect()
    }

    #[test]
    fn what_is_borrowed_is_what_the_others_have_lent() {
        let mut scheduler =
            scheduler(&[("a", Quota::shared(10)), ("b", Quota::shared(10)), ("c", Quota::shared(20))]);
        run(&mut scheduler, 1, "a", 10);
        run(&mut scheduler, 2, "a", 7);
        let all = figures(&scheduler);
        assert_eq!(all[0], ("a".into(), 17, 7, 0, Some(23)));
        assert_eq!((all[1].3, all[2].3), (2, 5), "by what they lend, and together what is borrowed");
        assert_eq!(scheduler.running_of("ann"), 2);
        assert_eq!(scheduler.running_of("nobody"), 0);
    }

    #[test]
    fn what_is_used_without_a_quota_is_shown_and_nothing_is_not() {
        let mut scheduler = scheduler(&[("a", Quota::fixed(1))]);
        run(&mut scheduler, 1, "b", 3);
        scheduler.set_workspace("empty", Workspace::default());
        assert_eq!(figures(&scheduler), [("a".into(), 0, 0, 0, Some(1)), ("b".into(), 3, 0, 0, None)]);
        assert_eq!(scheduler.balances(|name| name == "b").len(), 1);
    }

    #[test]
    fn whoever_has_no_limit_of_their_own_has_everybodys() {
        let mut scheduler = scheduler(&[]);
        scheduler.set_max_running(Some(1));
        scheduler.set_user("bob", crate::User { weight: 1.0, max_running: Some(2) });
        for number in 0..6 {
            let user = if number % 2 == 0 { "ann" } else { "bob" };
            let mut request = Request::new(JobId::from_random(number), "default", user, "slurm");
            request.place = number;
            scheduler.submit(request);
        }
        scheduler.pass(1);
        assert_eq!((scheduler.running_of("ann"), scheduler.running_of("bob")), (1, 2));
        let why = scheduler.explain(&JobId::from_random(2), 1).unwrap();
        assert_eq!((why.tier.code(), why.constraint.as_str()), ("user_limit", "1 of 1 run"));
    }
}
