//! One pass: who starts now, what is kept for whom, and who makes room.
//!
//! The order is priority, then fair share between workspaces and between the users of one, then age. Priority comes first because
//! people set it to be obeyed; share before age, because age alone gives the queue to whoever submits most. A pass
//! goes through *shapes*, not jobs (see [`crate::queue`]), so what it costs grows with what changes and not with who waits.

mod chance;
mod keep;
mod order;

use muster_model::JobId;
use rustc_hash::{FxHashMap, FxHashSet};

use self::order::Line;
use crate::known::Known;
use crate::place::{Asker, Blocked};
use crate::policy::{Backfill, Millis};
use crate::queue::{JobIx, ShapeIx};
use crate::request::{Plan, Standing, Start};
use crate::reserve::{FIRST, OLDEST};
use crate::room::{Ceiling, KindIx, RunIx};
use crate::run::{Offer, Phase};
use crate::state::{Pool, Scheduler};

/// After so many that were considered in vain, all that are in line are looked at once. Clusters of tests are small.
const IN_VAIN: usize = if cfg!(test) { 1 } else { 32 };

/// What one pass knows.
pub(crate) struct Pass {
    pub now: Millis,
    pub plan: Plan,
    line: Line,
    shares: Vec<Option<f64>>,
    members: Vec<Option<f64>>,
    users: FxHashSet<u32>,
    /// Whether anybody ran as many as they may when it began.
    any_at_limit: bool,
    quotas: FxHashSet<(ShapeIx, u32)>,
    /// Pools in which nobody may overtake.
    closed: FxHashSet<u32>,
    /// Shapes of which only short jobs may start, with those that are in line; and shapes of which nothing may.
    short: FxHashMap<ShapeIx, FxHashSet<JobIx>>,
    blocked: FxHashSet<ShapeIx>,
    /// For whom nothing is kept any more, since they could not start where it was; nor is it kept for them again in this pass,
    /// or each would lead to the next for ever.
    dropped: FxHashSet<JobIx>,
    /// Room is kept for another than when it began: everybody is looked at again, by the next one.
    is_unsettled: bool,
    /// Pools in which the first for whom room was kept has started.
    vacated: FxHashSet<usize>,
    /// Of each pool, what is known to fit or not, with the pool's count then.
    known: Vec<(u64, Known)>,
    /// Of each pool, what nodes have left on which something was given back; and whether the first for whom room is kept does
    /// not start now.
    freed: Vec<Option<Ceiling>>,
    stuck: Vec<Option<bool>>,
    ceilings: FxHashMap<(u32, Option<KindIx>, bool), Ceiling>,
    /// At most so much more may each workspace have, after so many starts; and so much as its own: CPUs, memory, devices.
    left: Vec<Option<(usize, [u64; 3])>>,
    own_left: Vec<Option<[u64; 3]>>,
}

impl Pass {
    pub fn next_at(&mut self, at: Millis) {
        self.plan.next_at = Some(self.plan.next_at.map_or(at, |next| next.min(at)));
    }
}

impl Scheduler {
    /// Decides what starts now. Everything in the plan is so for the scheduler from now on.
    pub fn pass(&mut self, now: Millis) -> Plan {
        self.wake(now);
        self.ripen(now);
        let mut pass = self.new_pass(now);
        self.start_promised(&mut pass);
        self.start_reserved(OLDEST, &mut pass);
        if self.start_waiting(&mut pass) {
            // Higher priorities came before it, and the same were bound by what is kept for it.
            self.start_reserved(FIRST, &mut pass);
            if self.policy.backfill == Backfill::Reserve {
                self.reserve_for_oldest(&mut pass);
            }
            if self.policy.preemption {
                self.preempt_for_waiting(&mut pass);
            }
        } else {
            pass.next_at(now);
        }
        if let Some((until, _)) = self.paused.first() {
            pass.next_at(*until);
        }
        pass.plan
    }

    pub(crate) fn new_pass(&self, now: Millis) -> Pass {
        Pass {
            now,
            plan: Plan::default(),
            line: Line::default(),
            shares: vec![None; self.workspaces.len()],
            members: vec![None; self.members.len()],
            users: FxHashSet::default(),
            any_at_limit: self.people.iter().any(|person| self.is_at_limit(person)),
            quotas: FxHashSet::default(),
            closed: FxHashSet::default(),
            short: FxHashMap::default(),
            blocked: FxHashSet::default(),
            dropped: FxHashSet::default(),
            is_unsettled: false,
            vacated: FxHashSet::default(),
            known: self.pools.iter().map(|pool| (pool.epoch, Known::default())).collect(),
            freed: vec![None; self.pools.len()],
            stuck: vec![None; self.pools.len()],
            ceilings: FxHashMap::default(),
            left: vec![None; self.workspaces.len()],
            own_left: vec![None; self.workspaces.len()],
        }
    }

    /// Whoever was to wait until now is considered again.
    fn wake(&mut self, now: Millis) {
        while let Some((until, job)) = self.paused.first().copied().filter(|(until, _)| *until <= now) {
            self.paused.remove(&(until, job));
            self.jobs[job].standing = Standing::Ready;
            self.queue(job);
        }
    }

    fn start_promised(&mut self, pass: &mut Pass) {
        let is_ready =
            |ix: &RunIx| matches!(&self.runs[*ix].phase, Phase::Promised(waits) if waits.is_empty());
        let ready: Vec<RunIx> = self.promised.iter().copied().filter(is_ready).collect();
        for ix in ready {
            self.begin(ix, pass.now);
            self.note_outgoing(ix);
            self.say_start(ix, pass);
        }
    }

    fn say_start(&self, ix: RunIx, pass: &mut Pass) {
        let run = &self.runs[ix];
        let job = &self.jobs[run.job];
        let seats = run.seats.iter().flatten();
        let placements = seats.map(|seat| self.placement(seat.node, &seat.devices)).collect();
        pass.plan.starts.push(Start { job: JobId::clone(&job.id), element: run.element, placements });
        pass.shares[job.workspace as usize] = None;
        pass.members[job.member as usize] = None;
    }

    fn start(&mut self, job: JobIx, offer: Offer, pass: &mut Pass) {
        let pool = self.classes[self.groups[self.jobs[job].group].class].pool as usize;
        if self.pools[pool].reserved[FIRST].as_ref().is_some_and(|it| it.job == job) {
            pass.vacated.insert(pool);
        }
        let ix = self.seat(job, offer, Phase::Running, pass.now);
        self.note_outgoing(ix);
        self.say_start(ix, pass);
    }

    /// Those for whom room is kept start as soon as there is enough.
    fn start_reserved(&mut self, slot: usize, pass: &mut Pass) {
        for pool in 0..self.pools.len() {
            let Pool { reserved, epoch, .. } = &self.pools[pool];
            let Some(kept) = reserved[slot].as_ref().filter(|it| it.tried_at != Some(*epoch)) else {
                continue;
            };
            let job = kept.job;
            match self.offer(&self.asker(job, pass.now)) {
                Ok(offer) => self.start(job, offer, pass),
                Err(Blocked::Room) => {
                    let Pool { reserved, epoch, .. } = &mut self.pools[pool];
                    reserved[slot].iter_mut().for_each(|it| it.tried_at = Some(*epoch));
                    continue;
                }
                // Nothing is kept for one that could not start anyway.
                Err(_) => {
                    pass.dropped.insert(job);
                    self.unreserve(job);
                }
            }
            if slot == FIRST {
                // What is not kept any more may let somebody start who was passed over already.
                pass.next_at(pass.now);
            }
        }
    }

    /// Goes through the queue in order; whether to its end.
    fn start_waiting(&mut self, pass: &mut Pass) -> bool {
        let counts: Vec<u64> = self.pools.iter().map(|pool| pool.epoch).collect();
        let mut groups = self.candidates(pass);
        self.line_up(&groups, pass);
        let (mut in_vain, mut patience) = (0, IN_VAIN);
        while let Some((job, group)) = self.next_in_line(pass) {
            if pass.plan.starts.len() >= self.policy.starts_per_pass {
                return false;
            }
            let before = pass.plan.starts.len();
            self.consider(job, group, pass);
            let has_started = pass.plan.starts.len() > before;
            if pass.is_unsettled {
                return false;
            }
            self.move_up(job, group, has_started, pass);
            in_vain += usize::from(!has_started);
            if in_vain > patience {
                patience = (self.thin_out(&mut groups, pass) / 16).max(IN_VAIN);
                in_vain = 0;
            }
        }
        for (pool, count) in self.pools.iter_mut().zip(counts) {
            pool.freed.clear();
            (pool.base, pool.releases) = (count, 0);
        }
        true
    }

    fn consider(&mut self, job: JobIx, group: ShapeIx, pass: &mut Pass) {
        let asker = self.asker(job, pass.now);
        match self.quick_offer(&asker, pass) {
            Ok(offer) => self.start(job, offer, pass),
            Err(Blocked::User) => drop(pass.users.insert(asker.user)),
            Err(Blocked::Quota(_) | Blocked::Lent(_)) => drop(pass.quotas.insert((group, asker.workspace))),
            Err(Blocked::Room) => self.on_no_room(job, group, pass),
        }
    }

    fn on_no_room(&mut self, job: JobIx, group: ShapeIx, pass: &mut Pass) {
        let pool = self.classes[self.groups[group].class].pool;
        match self.policy.backfill {
            Backfill::Strict => drop(pass.closed.insert(pool)),
            Backfill::Greedy => {}
            Backfill::Reserve => {
                self.reserve_for_first(job, pass);
                let open = Asker { is_bound: false, ..self.asker(job, pass.now) };
                let is_there = !pass.short.contains_key(&group) && self.quick_offer(&open, pass).is_ok();
                if is_there && self.admit_short(group, pass) {
                    return;
                }
            }
        }
        pass.blocked.insert(group);
        self.groups[group].blocked_at = Some(self.pools[pool as usize].epoch);
    }
}
