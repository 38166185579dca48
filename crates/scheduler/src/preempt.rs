//! Ending running work for waiting work.
//!
//! Every run has a *rank*: whether it was its workspace's own when it started, then its priority. A run is ended only for a job of
//! higher rank: for a workspace that reclaims its own from one that borrows, or for a strictly higher priority where it said it may be
//! ended and its standing is no better. So with every preemption the ranks of what runs rise, and no chain of them comes back to
//! where it began. Among those that may be ended, those go that lose least: time since they started or saved, by what they hold.

mod room;

use std::collections::BTreeSet;

use muster_model::JobId;
use smallvec::smallvec;

use crate::pass::Pass;
use crate::place::{Asker, Blocked};
use crate::policy::{Millis, millis};
use crate::queue::{JobIx, Key, ShapeIx};
use crate::quota::{Charge, Dim, Verdict};
use crate::request::{Cause, Preemption};
use crate::room::{KindIx, RunIx};
use crate::run::{DAY, Offer, Phase};
use crate::state::Scheduler;

/// How many jobs that find nobody to end are looked at in one pass.
const TRIES: usize = 16;
/// How many jobs are promised a place in one pass.
const PROMISES: usize = 16;
/// How often everybody who waits is looked at, though nobody new does.
const AGAIN: Millis = 30_000;
/// How many runs are looked at for those that lose least, and how many of them are weighed.
const SEEN: usize = 4096;
const WEIGHED: usize = 128;
/// Beyond so many victims it is not tried to do with fewer.
const SPARED: usize = 64;

/// Who asks, and what may be taken for it.
struct Claimant<'a> {
    asker: &'a Asker,
    kind: Option<KindIx>,
    charge: Charge,
    /// Its workspace has a quota for something that it asks for.
    has_quota: bool,
    /// It would be its workspace's own.
    is_nominal: bool,
    now: Millis,
}

/// A way to start once some runs have ended.
struct Way {
    offer: Offer,
    victims: Vec<RunIx>,
}

impl Scheduler {
    /// Promises places to those who may have them at others' cost.
    pub(crate) fn preempt_for_waiting(&mut self, pass: &mut Pass) {
        if let Some((until, _)) = self.young.first().filter(|(until, _)| *until < Millis::MAX)
            && self.groups.iter().any(|(_, group)| !group.lanes.is_empty())
        {
            pass.next_at((*until).max(pass.now.saturating_add(AGAIN)));
        }
        let due = self.due(pass.now);
        if let Some((at, _)) = self.fresh.first() {
            pass.next_at(*at);
        }
        if self.pools.iter().all(|pool| pool.borrowing.is_empty() && pool.preemptible.is_empty()) {
            return;
        }
        let again_at = self.searched_at.map_or(0, |at| at.saturating_add(AGAIN));
        let changes = self.pools.iter().map(|pool| pool.epoch).sum();
        let mut keys = match again_at <= pass.now {
            true => {
                (self.searched_at, self.searched_epoch) = (Some(pass.now), changes);
                self.claimants(self.groups.iter().map(|(ix, _)| ix), pass)
            }
            false => {
                // What has ended since may be what was missing.
                if changes != self.searched_epoch {
                    pass.next_at(again_at);
                }
                self.claimants(due.into_iter(), pass)
            }
        };
        // No more than these are looked at in any case.
        if keys.len() > TRIES + PROMISES {
            keys.select_nth_unstable_by(TRIES + PROMISES, Key::order);
            keys.truncate(TRIES + PROMISES);
        }
        keys.sort_by(Key::order);
        let (mut tries, mut promises) = (0, 0);
        for key in keys {
            if tries >= TRIES || promises >= PROMISES {
                break;
            }
            let asker = self.asker(key.job, pass.now);
            match self.way(&asker, pass.now) {
                Some(way) => {
                    promises += 1;
                    self.promise(key.job, way, pass);
                }
                None => tries += 1,
            }
        }
        if promises > 0 {
            // The next of a lane may have its turn, too.
            self.searched_at = None;
            pass.next_at(pass.now);
        }
    }

    /// The shapes with somebody who has waited long enough by now, and was not tried yet.
    fn due(&mut self, now: Millis) -> BTreeSet<ShapeIx> {
        let mut found = BTreeSet::new();
        while let Some((at, group)) = self.fresh.first().copied().filter(|(at, _)| *at <= now) {
            self.fresh.remove(&(at, group));
            found.extend(self.groups.get(group).map(|_| group));
        }
        found
    }

    /// The first of each shape, workspace and priority that may take something from somebody, and has waited long enough.
    fn claimants(&self, groups: impl Iterator<Item = ShapeIx>, pass: &mut Pass) -> Vec<Key> {
        let any_borrows = self.pools.iter().any(|pool| !pool.borrowing.is_empty());
        let Some(since) = pass.now.checked_sub(millis(self.policy.preempt_after)) else { return Vec::new() };
        let mut found = Vec::new();
        for ix in groups {
            let group = &self.groups[ix];
            let pool = &self.pools[self.classes[group.class].pool as usize];
            let least = pool.preemptible.first().map(|(priority, _, _)| *priority);
            for (priority, workspace, lanes) in group.lanes.levels() {
                let is_higher = least.is_some_and(|least| least < priority);
                let mut may_reclaim = || any_borrows && self.may_reclaim(ix, workspace, pass);
                if !is_higher && !may_reclaim() {
                    continue;
                }
                let due = lanes.iter().filter(|lane| self.jobs[lane.first.1].submitted_at <= since);
                found.extend(due.map(|lane| self.key(lane.first.1, pass)).min_by(Key::order));
            }
        }
        found
    }

    /// Whether a shape would be a workspace's own.
    fn may_reclaim(&self, group: ShapeIx, workspace: u32, pass: &mut Pass) -> bool {
        if self.ledger.quotas(workspace).is_empty() || !self.may_be_own(&self.groups[group], workspace, pass)
        {
            return false;
        }
        let class = &self.classes[self.groups[group].class];
        let own = |kind| {
            let charge = self.charge_of(group, kind, &[]);
            matches!(self.ledger.check(workspace, &charge), Verdict::Nominal | Verdict::Lent(_))
        };
        let delegates = self.pools[class.pool as usize].delegates;
        if delegates { own(None) } else { self.kinds_for(class).into_iter().any(own) }
    }

    /// Whether somebody would have a place if others made room.
    pub(crate) fn has_way(&mut self, asker: &Asker, now: Millis) -> bool {
        self.way(asker, now).is_some()
    }

    fn way(&mut self, asker: &Asker, now: Millis) -> Option<Way> {
        if matches!(self.offer(asker), Ok(_) | Err(Blocked::User)) {
            return None;
        }
        let class = &self.classes[self.groups[asker.group].class];
        let kinds = match self.pools[class.pool as usize].delegates {
            true => smallvec![None],
            false => self.kinds_for(class),
        };
        kinds.into_iter().find_map(|kind| self.way_of(asker, kind, now))
    }

    /// Tries with runs really taken out, and puts all of them back.
    fn way_of(&mut self, asker: &Asker, kind: Option<KindIx>, now: Millis) -> Option<Way> {
        let charge = self.charge_of(asker.group, kind, &[]);
        let mut out = Vec::new();
        let has_quota = self.has_quota(asker.workspace, &charge);
        let mut claimant = Claimant { asker, kind, charge, has_quota, is_nominal: false, now };
        let found = self.search(&mut claimant, &mut out);
        out.iter().for_each(|run| self.put_back(*run));
        found.map(|offer| Way { offer, victims: out })
    }

    fn search(&mut self, claimant: &mut Claimant, out: &mut Vec<RunIx>) -> Option<Offer> {
        let workspace = claimant.asker.workspace;
        let verdict = self.ledger.check(workspace, &claimant.charge);
        if let Verdict::Lent(dim) | Verdict::Over(dim) = verdict {
            self.take_quota(claimant, verdict, dim, out);
        }
        claimant.is_nominal = match self.ledger.check(workspace, &claimant.charge) {
            Verdict::Nominal => true,
            Verdict::Borrowed => false,
            Verdict::Lent(_) | Verdict::Over(_) => return None,
        };
        if out.iter().any(|run| self.cause(claimant, *run).is_none()) {
            return None;
        }
        if self.fitting(claimant).is_none() && !self.take_room(claimant, out) {
            return None;
        }
        self.spare_some(claimant, out);
        if out.is_empty() { None } else { self.fitting(claimant) }
    }

    /// The offer that there is with what is out now.
    fn fitting(&self, claimant: &Claimant) -> Option<Offer> {
        let Claimant { asker, kind, is_nominal, .. } = claimant;
        let offer = self.offer_of_kind(asker, *kind).ok()?;
        // One that would be less than it was taken for has no right to what was taken.
        (offer.borrows != *is_nominal).then_some(offer)
    }

    /// Why a run may be ended for somebody; none, if it may not.
    fn cause(&self, claimant: &Claimant, ix: RunIx) -> Option<Cause> {
        let run = &self.runs[ix];
        let job = &self.jobs[run.job];
        let is_lower = job.preemptible && job.priority < claimant.asker.priority;
        if is_lower && (claimant.is_nominal || run.borrows) {
            return Some(Cause::Priority);
        }
        let is_other = job.workspace != claimant.asker.workspace;
        let is_owner = claimant.is_nominal && claimant.has_quota;
        (is_owner && is_other && run.borrows).then_some(Cause::Reclaim)
    }

    fn has_quota(&self, workspace: u32, charge: &Charge) -> bool {
        let quotas = self.ledger.quotas(workspace);
        charge.iter().any(|(dim, _)| quotas.contains_key(dim))
    }

    /// Takes out runs whose quota is in the way: of those who borrowed, or of the same workspace's lesser work.
    fn take_quota(&mut self, claimant: &mut Claimant, verdict: Verdict, dim: Dim, out: &mut Vec<RunIx>) {
        claimant.is_nominal = true;
        let is_lent = matches!(verdict, Verdict::Lent(_));
        let counts = |ix: &RunIx| self.runs[*ix].charge.iter().any(|(it, amount)| *it == dim && *amount > 0);
        let borrowing = self.pools.iter().flat_map(|pool| &pool.borrowing).map(|(_, ix)| *ix);
        let own = self.lesser[claimant.asker.workspace as usize].iter().map(|(_, _, ix)| *ix);
        let all = borrowing.filter(|_| is_lent).take(SEEN).chain(own.filter(|_| !is_lent).take(SEEN));
        let all = all.filter(|ix| counts(ix) && self.cause(claimant, *ix).is_some());
        let mut victims: Vec<RunIx> = all.take(WEIGHED).collect();
        let of = |charge: &Charge| charge.iter().find(|(it, _)| *it == dim).map_or(0, |(_, amount)| *amount);
        let left = self.ledger.left(claimant.asker.workspace, dim).unwrap_or(u64::MAX);
        let most = victims.iter().fold(left, |sum, ix| sum.saturating_add(of(&self.runs[*ix].charge)));
        // Though all of them went, it would not be enough.
        if most < of(&claimant.charge) {
            return;
        }
        self.sort_by_loss(&mut victims, claimant.now);
        for ix in victims {
            if !matches!(
                self.ledger.check(claimant.asker.workspace, &claimant.charge),
                Verdict::Lent(_) | Verdict::Over(_)
            ) {
                return;
            }
            let workspace = self.jobs[self.runs[ix].job].workspace;
            if !is_lent || self.ledger.borrows(workspace, dim) {
                self.take_out(ix);
                out.push(ix);
            }
        }
    }

    fn sort_by_loss(&self, runs: &mut [RunIx], now: Millis) {
        runs.sort_by(|a, b| {
            let (a, b) = ((&self.runs[*a], *a), (&self.runs[*b], *b));
            a.0.loses(now).total_cmp(&b.0.loses(now)).then_with(|| a.1.cmp(&b.1))
        });
    }

    /// Puts back whoever is not in the way after all, those that would lose most first.
    fn spare_some(&mut self, claimant: &Claimant, out: &mut Vec<RunIx>) {
        let mut by_loss = out.clone();
        self.sort_by_loss(&mut by_loss, claimant.now);
        for run in by_loss.into_iter().rev().take(SPARED) {
            self.put_back(run);
            if self.fitting(claimant).is_some() {
                out.retain(|it| *it != run);
            } else {
                self.take_out(run);
            }
        }
    }

    fn take_out(&mut self, ix: RunIx) {
        self.lift(ix);
        self.ledger.charge(self.jobs[self.runs[ix].job].workspace, &self.runs[ix].charge, false);
        self.is_out.insert(ix);
    }

    fn put_back(&mut self, ix: RunIx) {
        self.lay(ix);
        self.ledger.charge(self.jobs[self.runs[ix].job].workspace, &self.runs[ix].charge, true);
        self.is_out.remove(&ix);
    }

    /// From now on the victims leave, and what they leave is the job's.
    fn promise(&mut self, job: JobIx, way: Way, pass: &mut Pass) {
        let asker = self.asker(job, pass.now);
        let Way { offer, victims } = way;
        let (kind, charge, is_nominal) = (offer.kind, offer.charge.clone(), !offer.borrows);
        let has_quota = self.has_quota(asker.workspace, &charge);
        let claimant = Claimant { asker: &asker, kind, charge, has_quota, is_nominal, now: pass.now };
        for ix in &victims {
            let cause = self.cause(&claimant, *ix).unwrap_or(Cause::Reclaim);
            let run = &mut self.runs[*ix];
            run.phase = Phase::Leaving;
            let loses = run.loses(pass.now);
            let (victim, element) = (run.job, run.element);
            self.unlist(*ix);
            self.leaving.insert(*ix);
            let victim = &mut self.jobs[victim];
            victim.preempted.retain(|(_, at)| at.saturating_add(DAY) > pass.now);
            victim.preempted.push((element, pass.now));
            let (id, by) = (JobId::clone(&victim.id), JobId::clone(&self.jobs[job].id));
            pass.plan.preemptions.push(Preemption { job: id, element, by, cause, loses });
        }
        self.seat(job, offer, Phase::Promised(victims.into_iter().collect()), pass.now);
    }
}
