//! For whom room is kept: the first in order that does not fit, and whoever has waited longest.

use std::cmp::Reverse;
use std::collections::BinaryHeap;

use super::Pass;
use crate::place::Blocked;
use crate::policy::{Millis, millis};
use crate::queue::{JobIx, Key};
use crate::reserve::{FIRST, OLDEST, Reservation};
use crate::state::{Group, Pool, Scheduler};

/// How many are asked for the first that finds no room: those before it wait for something else.
const ASKED: usize = 64;

impl Scheduler {
    /// Keeps room for the first in order that found none. Where that was kept until just now for one who has started, this need
    /// not be whoever is looked at next, or those of one user would follow each other for ever.
    pub(super) fn reserve_for_first(&mut self, job: JobIx, pass: &mut Pass) {
        let pool = self.classes[self.groups[self.jobs[job].group].class].pool as usize;
        let is_free = pass.vacated.contains(&pool) && self.pools[pool].reserved[FIRST].is_none();
        let first = if is_free { self.first_without_room(pool, pass) } else { None };
        let job = first.unwrap_or(job);
        let priority = self.jobs[job].priority;
        let holder = self.pools[pool].reserved[FIRST].as_ref();
        let is_oldest = self.pools[pool].reserved[OLDEST].as_ref().is_some_and(|it| it.job == job);
        let is_kept = holder.is_some_and(|it| it.priority >= priority);
        if is_oldest || is_kept {
            return;
        }
        let had_one = holder.is_some();
        let Some(kept) = self.keep_for(job, FIRST, pass) else { return };
        self.pools[pool].reserved[FIRST] = Some(kept);
        if had_one {
            // What was kept for another may let somebody start who was passed over already.
            pass.is_unsettled = true;
            self.pools[pool].epoch += 1;
        }
    }

    /// The first in order that finds no room now. All are asked, since not all are looked at in every pass.
    fn first_without_room(&self, pool: usize, pass: &mut Pass) -> Option<JobIx> {
        let here = self.groups.iter().filter(|(_, group)| self.classes[group.class].pool as usize == pool);
        let lanes = here.flat_map(|(_, group)| group.lanes.levels()).flat_map(|(_, _, lanes)| lanes);
        let jobs: Vec<JobIx> = lanes.map(|lane| lane.first.1).collect();
        let mut keys: Vec<Key> = jobs.into_iter().map(|job| self.key(job, pass)).collect();
        keys.sort_unstable_by(Key::order);
        let oldest = self.pools[pool].reserved[OLDEST].as_ref().map(|it| it.job);
        let finds_none = |job: &JobIx| {
            Some(*job) != oldest
                && self.fits_ever(*job)
                && matches!(self.offer(&self.asker(*job, pass.now)), Err(Blocked::Room))
        };
        keys.into_iter().take(ASKED).map(|key| key.job).find(finds_none)
    }

    /// Whoever has waited longest, and long enough, is served before everybody else.
    pub(super) fn reserve_for_oldest(&mut self, pass: &mut Pass) {
        let Some(since) = pass.now.checked_sub(millis(self.policy.patience)) else { return };
        for pool in 0..self.pools.len() {
            if self.pools[pool].delegates || self.pools[pool].reserved[OLDEST].is_some() {
                continue;
            }
            let Some(kept) = self.longest_waiting(pool as u32, since, pass) else { continue };
            let Pool { reserved: [first, oldest], epoch, .. } = &mut self.pools[pool];
            let overlaps = |it: &Reservation| it.nodes.keys().any(|node| kept.nodes.contains_key(node));
            if first.as_ref().is_some_and(|it| it.job == kept.job || overlaps(it)) {
                *first = None;
            }
            *oldest = Some(kept);
            // What was kept for another may be all that somebody waited for.
            *epoch += 1;
            pass.next_at(pass.now);
        }
    }

    /// What is kept for whoever has waited longest for room, since before a moment. Who could not have it anyway, for whatever
    /// reason, is passed over: nobody waits behind what never starts.
    fn longest_waiting(&self, pool: u32, since: Millis, pass: &mut Pass) -> Option<Reservation> {
        let is_due = |(_, job): &(u64, JobIx)| self.jobs[*job].submitted_at <= since;
        let here = |group: &&Group| group.blocked_at.is_some() && self.classes[group.class].pool == pool;
        let groups = self.groups.iter().map(|(_, group)| group).filter(here);
        // Who may not have it by a quota does not wait for room.
        let groups = groups.filter(|group| self.may_have_any(group, pass));
        let mut old: BinaryHeap<Reverse<(u64, JobIx)>> =
            groups.flat_map(|group| group.lanes.oldest()).filter(is_due).map(Reverse).collect();
        while let Some(Reverse((_, job))) = old.pop() {
            if pass.dropped.contains(&job)
                || !matches!(self.quick_offer(&self.asker(job, pass.now), pass), Err(Blocked::Room))
            {
                continue;
            }
            let first = self.pools[pool as usize].reserved[FIRST].as_ref();
            // What is kept for it already does not move.
            if let Some(kept) = first.filter(|it| it.job == job) {
                return Some(kept.clone());
            }
            if let Some(kept) = self.keep_for(job, OLDEST, pass) {
                return Some(kept);
            }
        }
        None
    }

    /// Whether a job would fit if nothing else ran and every node were there.
    pub(crate) fn fits_ever(&self, job: JobIx) -> bool {
        let group = &self.groups[self.jobs[job].group];
        let class = &self.classes[group.class];
        let pool = &self.pools[class.pool as usize];
        // Most fit on the first nodes that are looked at.
        self.matching_kinds(class).any(|kind| {
            let mut missing = group.size;
            pool.nodes.iter().map(|ix| &self.nodes[*ix]).any(|node| {
                if class.admits(node) {
                    missing = missing.saturating_sub(node.whole(kind).room(&class.need));
                }
                missing == 0
            })
        })
    }

    /// How many tasks of a class there would be room for if nothing else ran.
    pub(crate) fn largest_ever(&self, class: u32) -> u32 {
        let class = &self.classes[class];
        let pool = &self.pools[class.pool as usize];
        let most = |kind| {
            let nodes = pool.nodes.iter().map(|ix| &self.nodes[*ix]).filter(|node| class.admits(node));
            nodes.map(|node| u64::from(node.whole(kind).room(&class.need))).sum::<u64>()
        };
        if let Some((_, known)) = class.most.get().filter(|(layout, _)| *layout == pool.layout) {
            return known;
        }
        let most = self.kinds_for(class).into_iter().map(most).max().unwrap_or(0);
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        class.most.set(Some((pool.layout, most)));
        most
    }
}
