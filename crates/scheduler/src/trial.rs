//! Copies of the scheduler, to try on them what would be.
//!
//! A copy of everything costs more the more jobs wait, and those behind a job do not keep it from starting. So a copy has what
//! runs, and of those who wait only who is before the job in question; all of them, where they are few.

use std::cmp::Ordering;
use std::collections::{BTreeSet, HashMap, HashSet};

use crate::policy::Millis;
use crate::queue::{JobIx, Key, Lanes};
use crate::state::{Group, Scheduler, Waiting};

/// Up to so many who wait, everybody is in a copy: then what is tried is exact.
const FEW: usize = 1000;
/// With more than these before a job, nobody knows what happens until its turn.
const BEFORE: usize = 500;

impl Scheduler {
    /// A copy for what would be if a job stood where a key says; none, if too many are before it.
    pub(crate) fn trial(&self, ix: JobIx, key: &Key, now: Millis) -> Option<Self> {
        if self.queued() <= FEW {
            return Some(self.clone());
        }
        let pool = self.pool_of(ix);
        let mut keep: HashSet<JobIx> = HashSet::from([ix]);
        keep.extend(self.pools.iter().flat_map(|pool| pool.reserved.iter().flatten()).map(|it| it.job));
        let here = self.groups.iter().filter(|(_, group)| self.classes[group.class].pool == pool);
        for (_, group) in here {
            for (priority, lane, _, _) in group.lanes.before(0) {
                match self.compare_lane(lane.member, priority, key, now) {
                    Ordering::Less => keep.extend(lane.jobs(u64::MAX)),
                    Ordering::Equal => keep.extend(lane.jobs(key.place)),
                    Ordering::Greater => {}
                }
                if keep.len() > BEFORE {
                    return None;
                }
            }
        }
        Some(self.copy_with(&keep))
    }

    pub(crate) fn pool_of(&self, ix: JobIx) -> u32 {
        self.classes[self.groups[self.jobs[ix].group].class].pool
    }

    /// A copy in which of those who wait only some do.
    fn copy_with(&self, keep: &HashSet<JobIx>) -> Self {
        let jobs = self.jobs.copy_if(|ix, job| !job.runs.is_empty() || keep.contains(&ix));
        let mut users: HashMap<u32, u32> = HashMap::new();
        jobs.iter().for_each(|(_, job)| *users.entry(job.group).or_default() += 1);
        let mut groups = self.groups.map_some(|ix, group| {
            let Group { class, size, pool, bulk, blocked_at, .. } = *group;
            let lanes = Lanes::default();
            users.get(&ix).map(|users| Group { class, size, pool, bulk, lanes, blocked_at, users: *users })
        });
        for (ix, job) in jobs.iter().filter(|(_, job)| job.is_queued) {
            groups[job.group].lanes.insert(job.ticket(ix), job.expected);
        }
        let mut classes: HashMap<u32, u32> = HashMap::new();
        groups.iter().for_each(|(_, group)| *classes.entry(group.class).or_default() += 1);
        let mut copied = self.classes.copy_if(|ix, _| classes.contains_key(&ix));
        classes.iter().for_each(|(ix, users)| copied[*ix].users = *users);
        let fresh: BTreeSet<_> =
            self.fresh.iter().filter(|(_, group)| groups.get(*group).is_some()).copied().collect();
        let paused = self.paused.iter().filter(|(_, job)| jobs.get(*job).is_some()).copied().collect();
        let job_index = jobs.iter().map(|(ix, job)| (job.id.clone(), ix)).collect();
        self.with_waiting(Waiting { jobs, groups, classes: copied, fresh, paused, job_index })
    }
}
