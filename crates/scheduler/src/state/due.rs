//! What workspaces and users are due, and what they have had.

use super::Scheduler;
use crate::policy::Millis;
use crate::queue::JobIx;
use crate::quota::{CPU, DEVICES, MEMORY, Resource};
use crate::request::{Usage, User, Workspace};

impl Scheduler {
    /// Says what a workspace is due.
    pub fn set_workspace(&mut self, name: &str, due: Workspace) {
        let ix = self.workspace(name);
        self.workspaces[ix as usize].1.weight = due.weight.max(f64::MIN_POSITIVE);
        let quotas = due.quotas.into_iter().map(|(resource, quota)| {
            let dim = match resource {
                Resource::Cpu => CPU,
                Resource::Memory => MEMORY,
                Resource::Devices => DEVICES,
                Resource::Model(model) => self.dim(&model),
            };
            (dim, quota)
        });
        let quotas = quotas.collect();
        // What was promised by the old quotas may be more than the new ones allow, also where it was borrowed of this workspace.
        let promised: Vec<JobIx> = self.promised.iter().map(|run| self.runs[*run].job).collect();
        promised.into_iter().for_each(|job| self.break_promise(job));
        self.ledger.set(ix, quotas);
        self.mark_borrowers(ix);
        self.pools.iter_mut().for_each(|pool| pool.epoch += 1);
    }

    /// Says what a user is due.
    pub fn set_user(&mut self, name: &str, due: User) {
        let ix = self.user(name);
        let weight = due.weight.max(f64::MIN_POSITIVE);
        self.people[ix as usize].due = due;
        for member in self.members.iter_mut().filter(|member| member.user == ix) {
            member.account.weight = weight;
        }
    }

    /// Says how many gangs, or elements of jobs of many, whoever has no limit of their own may run at once.
    pub fn set_max_running(&mut self, most: Option<u32>) {
        self.max_running = most;
    }

    /// What everybody has used, to be kept.
    pub fn usage(&self, now: Millis) -> Vec<Usage> {
        let workspaces = self.workspaces.iter().map(|(name, account)| (name.clone(), None, account));
        let members = self.members.iter().map(|member| {
            let user = self.people[member.user as usize].name.clone();
            (self.workspaces[member.workspace as usize].0.clone(), Some(user), &member.account)
        });
        let used = workspaces.chain(members).map(|(workspace, user, account)| Usage {
            workspace,
            user,
            mean: account.mean(now, self.half_life),
            at: now,
        });
        // What is as good as forgotten is not worth a line.
        used.filter(|usage| usage.mean > 1e-6).collect()
    }

    /// What everybody had used, when the scheduler is made anew; before runs are told.
    pub fn restore(&mut self, usage: &[Usage]) {
        for used in usage {
            let workspace = self.workspace(&used.workspace);
            let account = match &used.user {
                Some(user) => {
                    let user = self.user(user);
                    let member = self.member(workspace, user);
                    &mut self.members[member as usize].account
                }
                None => &mut self.workspaces[workspace as usize].1,
            };
            account.set_mean(used.mean, used.at);
        }
    }
}
