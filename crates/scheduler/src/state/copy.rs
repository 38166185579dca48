//! A copy of everything, but for those who wait.

use std::collections::{BTreeSet, HashMap};
use std::sync::Arc;

use muster_model::JobId;

use super::{Class, Fresh, Group, Job, Scheduler};
use crate::policy::Millis;
use crate::queue::JobIx;
use crate::slab::Slab;

/// The jobs of a copy, and what refers to them.
pub(crate) struct Waiting {
    pub jobs: Slab<Job>,
    pub groups: Slab<Group>,
    pub classes: Slab<Class>,
    pub fresh: Fresh,
    pub paused: BTreeSet<(Millis, JobIx)>,
    pub job_index: HashMap<Arc<JobId>, JobIx>,
}

impl Scheduler {
    /// A copy with other jobs.
    pub(crate) fn with_waiting(&self, waiting: Waiting) -> Self {
        let Waiting { jobs, groups, classes, fresh, paused, job_index } = waiting;
        let class_index = classes.iter().map(|(ix, class)| (class.key(), ix)).collect();
        let group_index = groups.iter().map(|(ix, group)| ((group.class, group.size), ix)).collect();
        let mut families: HashMap<Arc<str>, (u32, u32)> = HashMap::new();
        for (_, class) in classes.iter() {
            families.entry(class.family_key.clone()).or_insert((class.family, 0)).1 += 1;
        }
        let mut pools = self.pools.clone();
        pools.iter_mut().for_each(|pool| pool.waiting = 0);
        groups.iter().for_each(|(_, group)| pools[group.pool as usize].waiting += group.lanes.len());
        Self {
            policy: self.policy.clone(),
            half_life: self.half_life,
            kinds: self.kinds.clone(),
            dims: self.dims.clone(),
            pools,
            nodes: self.nodes.clone(),
            classes,
            groups,
            jobs,
            runs: self.runs.clone(),
            workspaces: self.workspaces.clone(),
            lesser: self.lesser.clone(),
            ledger: self.ledger.clone(),
            people: self.people.clone(),
            max_running: self.max_running,
            members: self.members.clone(),
            paused,
            promised: self.promised.clone(),
            leaving: self.leaving.clone(),
            fresh,
            young: self.young.clone(),
            searched_at: self.searched_at,
            searched_epoch: self.searched_epoch,
            is_out: self.is_out.clone(),
            job_index,
            node_index: self.node_index.clone(),
            class_index,
            families,
            next_family: self.next_family,
            group_index,
            names: self.names.clone(),
            member_index: self.member_index.clone(),
            domain_index: self.domain_index.clone(),
            #[cfg(test)]
            is_thorough: self.is_thorough,
        }
    }
}
