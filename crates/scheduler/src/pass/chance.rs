//! What is not worth trying, known without trying it.
//!
//! A hundred thousand jobs may wait of which no two need the same. All but few of them are passed over here: their workspaces have what
//! they may, no node has so much left, or less than that did not fit already. Whoever is passed over would not have started.

use super::Pass;
use crate::known::Known;
use crate::place::{Asker, Blocked};
use crate::policy::Backfill;
use crate::queue::{JobIx, Lane, ShapeIx};
use crate::reserve::{FIRST, Reservation};
use crate::room::Ceiling;
use crate::run::Offer;
use crate::state::{Class, Group, Scheduler};

impl Scheduler {
    /// The shapes of which something may start, or for which room is to be kept.
    pub(super) fn candidates(&mut self, pass: &mut Pass) -> Vec<ShapeIx> {
        let (mut found, mut hopeless) = (Vec::new(), Vec::new());
        for (ix, group) in self.groups.iter().filter(|(_, group)| !group.lanes.is_empty()) {
            let pool = &self.pools[group.pool as usize];
            let is_known = group.blocked_at == Some(pool.epoch);
            if is_known && self.policy.backfill != Backfill::Strict {
                continue;
            }
            if self.may_pass_over() && self.is_unmoved(ix, group, pass) {
                hopeless.push((ix, pool.epoch));
                continue;
            }
            if self.may_pass_over() && !self.may_have_any(group, pass) {
                continue;
            }
            match self.may_pass_over() && self.has_no_chance(ix, group, pass) {
                true => hopeless.push((ix, pool.epoch)),
                false => found.push(ix),
            }
        }
        for (ix, epoch) in hopeless {
            self.groups[ix].blocked_at = Some(epoch);
        }
        found
    }

    #[cfg(test)]
    fn may_pass_over(&self) -> bool {
        !self.is_thorough
    }

    #[cfg(not(test))]
    #[expect(clippy::unused_self, reason = "a test has a scheduler that tries everything")]
    fn may_pass_over(&self) -> bool {
        true
    }

    /// Whether anybody who waits in a shape may have one more, by quotas and limits.
    pub(super) fn may_have_any(&self, group: &Group, pass: &mut Pass) -> bool {
        let sum = group.bulk.sum();
        group.lanes.levels().any(|(_, workspace, lanes)| {
            let left = self.most_left(workspace, pass);
            let may_run = |lane: &Lane| {
                !self.is_at_limit(&self.people[self.members[lane.member as usize].user as usize])
            };
            sum.iter().zip(left).all(|(sum, left)| *sum <= left)
                && (!pass.any_at_limit || lanes.iter().any(may_run))
        })
    }

    /// What a workspace may still have at most, after what has started.
    fn most_left(&self, workspace: u32, pass: &mut Pass) -> [u64; 3] {
        let starts = pass.plan.starts.len();
        match &mut pass.left[workspace as usize] {
            Some((counted, left)) if *counted == starts => *left,
            left => left.insert((starts, self.ledger.at_most(workspace))).1,
        }
    }

    /// Whether a shape might be a workspace's own: what may not, certainly is not.
    pub(crate) fn may_be_own(&self, group: &Group, workspace: u32, pass: &mut Pass) -> bool {
        let sum = group.bulk.sum();
        let left = *pass.own_left[workspace as usize].get_or_insert_with(|| self.ledger.own_left(workspace));
        sum.iter().zip(left).all(|(sum, left)| *sum <= left)
    }

    /// Whether a shape did not fit, and nothing was given back since on a node that one of its tasks could be on.
    fn is_unmoved(&self, ix: ShapeIx, group: &Group, pass: &mut Pass) -> bool {
        let pool = &self.pools[group.pool as usize];
        if !pool.only_freed_since(group.blocked_at) {
            return false;
        }
        let freed = pass.freed[group.pool as usize]
            .get_or_insert_with(|| Ceiling::of(pool.freed.iter().filter_map(|node| self.nodes.get(*node))));
        !freed.may_hold(&group.bulk) && self.is_kept_before(ix, group, pass)
    }

    /// Whether room is kept for one before any of a shape, who does not start in this pass either.
    fn is_kept_before(&self, ix: ShapeIx, group: &Group, pass: &mut Pass) -> bool {
        let pool = &self.pools[group.pool as usize];
        let highest = group.lanes.highest();
        let is_kept = match self.policy.backfill {
            Backfill::Reserve => pool.reserved[FIRST].as_ref().is_some_and(|it| it.priority >= highest),
            Backfill::Strict => false,
            Backfill::Greedy => true,
        };
        let holds = |job: u32| self.jobs[job].group == ix;
        if pool.delegates || !is_kept || pool.reserved.iter().flatten().any(|it| holds(it.job)) {
            return false;
        }
        // One that starts is followed by another, for whom room is to be kept then.
        let first = pool.reserved[FIRST].as_ref().map(|it| it.job);
        let stuck = &mut pass.stuck[group.pool as usize];
        first.is_none_or(|job| *stuck.get_or_insert_with(|| self.offer(&self.asker(job, pass.now)).is_err()))
    }

    /// Nobody of a shape is bound by less than this one would be.
    fn least_bound(ix: ShapeIx, group: &Group, pass: &Pass) -> Asker {
        Asker {
            job: None,
            workspace: 0,
            user: 0,
            group: ix,
            priority: group.lanes.highest(),
            ends_at: group.lanes.shortest().map(|length| pass.now.saturating_add(length)),
            is_bound: true,
        }
    }

    /// Whether nobody of a shape starts any more in this pass, by what is known of it without trying.
    pub(super) fn is_hopeless_by_now(&mut self, ix: ShapeIx, pass: &mut Pass) -> bool {
        let group = &self.groups[ix];
        if pass.short.contains_key(&ix) || !self.may_pass_over() {
            return false;
        }
        if !self.may_have_any(group, pass) {
            return true;
        }
        let is_hopeless = self.is_kept_before(ix, group, pass)
            && self.is_known_to_fail(&Self::least_bound(ix, group, pass), pass);
        if is_hopeless {
            self.groups[ix].blocked_at = Some(self.pools[group.pool as usize].epoch);
        }
        is_hopeless
    }

    /// Whether there is no room for any of a shape, and nothing is to be kept for it either.
    fn has_no_chance(&self, ix: ShapeIx, group: &Group, pass: &mut Pass) -> bool {
        if !self.is_kept_before(ix, group, pass) {
            return false;
        }
        let class = &self.classes[group.class];
        let asker = Self::least_bound(ix, group, pass);
        if self.is_known_to_fail(&asker, pass) {
            return true;
        }
        let trial = (class.family, self.bonds(class.pool, &asker));
        let bulk = group.bulk;
        if self.known(class.pool, pass).is_fitting(trial, &bulk) {
            return false;
        }
        let mut kinds = self.kinds_for(class).into_iter();
        let fits = kinds.any(|kind| self.seats(class, group.size, kind, &asker).is_some());
        match fits {
            true => self.known(class.pool, pass).note_fitting(trial, bulk),
            false => self.known(class.pool, pass).note_failing(trial, bulk),
        }
        !fits
    }

    /// What is known of a pool by now.
    fn known<'a>(&self, pool: u32, pass: &'a mut Pass) -> &'a mut Known {
        let (epoch, known) = &mut pass.known[pool as usize];
        if *epoch != self.pools[pool as usize].epoch {
            *epoch = self.pools[pool as usize].epoch;
            known.forget_bound();
        }
        known
    }

    fn is_known_to_fail(&self, asker: &Asker, pass: &mut Pass) -> bool {
        let group = &self.groups[asker.group];
        let class = &self.classes[group.class];
        if self.pools[class.pool as usize].delegates || !self.may_pass_over() {
            return false;
        }
        if !self.is_below_ceiling(class, pass) {
            return true;
        }
        let trial = (class.family, self.bonds(class.pool, asker));
        self.known(class.pool, pass).is_failing(trial, &group.bulk)
    }

    /// Whether any node might have room for one task.
    fn is_below_ceiling(&self, class: &Class, pass: &mut Pass) -> bool {
        let need = &class.need;
        // Whole nodes are not in the order that the ceiling is made of.
        if need.exclusive {
            return true;
        }
        let room = &self.pools[class.pool as usize].room;
        self.matching_kinds(class).any(|kind| {
            let ceiling = pass.ceilings.entry((class.pool, kind, need.slots() > 0));
            ceiling.or_insert_with(|| room.ceiling(need, kind)).may_fit(need, kind)
        })
    }

    /// As [`Scheduler::offer`], without looking for what is known not to be there.
    pub(super) fn quick_offer(&self, asker: &Asker, pass: &mut Pass) -> Result<Offer, Blocked> {
        let group = &self.groups[asker.group];
        let class = &self.classes[group.class];
        // Whole nodes count whole, so what a quota says of them depends on where they would be.
        if !class.need.exclusive && self.is_known_to_fail(asker, pass) {
            return Err(self.allowed(asker).err().unwrap_or(Blocked::Room));
        }
        let offer = self.offer(asker);
        if matches!(offer, Err(Blocked::Room)) {
            let trial = (class.family, self.bonds(class.pool, asker));
            self.known(class.pool, pass).note_failing(trial, group.bulk);
        }
        offer
    }

    /// The room that is kept for a job, if any can be.
    pub(super) fn keep_for(&self, job: JobIx, slot: usize, pass: &mut Pass) -> Option<Reservation> {
        let group = &self.groups[self.jobs[job].group];
        let class = &self.classes[group.class];
        let bulk = group.bulk;
        let what = (class.family, self.jobs[job].workspace, slot);
        if self.may_pass_over() && self.known(class.pool, pass).is_unkept(what, &bulk) {
            return None;
        }
        let found = if self.fits_ever(job) { self.reservation(job, slot, pass.now) } else { None };
        if found.is_none() {
            self.known(class.pool, pass).note_unkept(what, bulk);
        }
        found
    }
}
