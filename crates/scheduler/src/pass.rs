//! One pass: who starts now, what is kept for whom, and who makes room.
//!
//! The order is priority, then fair share between workspaces and between the users of one, then age. Priority comes first because
//! people set it to be obeyed; share before age, because age alone gives the queue to whoever submits most. A pass
//! goes through *shapes*, not jobs (see [`crate::queue`]), so what it costs grows with what changes and not with who waits.

use std::cmp::{Ordering, Reverse};
use std::collections::{BinaryHeap, HashSet};
use std::ops::ControlFlow;

use crate::place::Blocked;
use crate::policy::{Backfill, Millis, Order, millis};
use crate::queue::{JobIx, Key, MemberIx, ShapeIx};
use crate::request::{Plan, Standing, Start};
use crate::reserve::{FIRST, OLDEST, Reservation};
use crate::room::RunIx;
use crate::run::{Offer, Phase};
use crate::state::{Pool, Scheduler};

/// How many short jobs are looked at before one is taken to overtake.
const SHORT: usize = 64;
/// How many jobs are looked at for the one that has waited longest.
const OLD: usize = 8;

/// What one pass knows.
pub(crate) struct Pass {
    pub now: Millis,
    pub plan: Plan,
    shares: Vec<Option<f64>>,
    members: Vec<Option<f64>>,
    users: HashSet<u32>,
    quotas: HashSet<(ShapeIx, u32)>,
    /// Pools in which nobody may overtake.
    closed: HashSet<u32>,
    /// Shapes of which only short jobs may start, and of which nothing may.
    short: HashSet<ShapeIx>,
    blocked: HashSet<ShapeIx>,
}

impl Pass {
    pub fn next_at(&mut self, at: Millis) {
        self.plan.next_at = Some(self.plan.next_at.map_or(at, |next| next.min(at)));
    }
}

/// The first of a shape. What is greater goes first, as a heap has it.
struct Head(Key, ShapeIx);

impl PartialEq for Head {
    fn eq(&self, other: &Self) -> bool {
        self.cmp(other) == Ordering::Equal
    }
}

impl Eq for Head {}

impl PartialOrd for Head {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Head {
    fn cmp(&self, other: &Self) -> Ordering {
        other.0.order(&self.0).then_with(|| other.1.cmp(&self.1))
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
            shares: vec![None; self.workspaces.len()],
            members: vec![None; self.members.len()],
            users: HashSet::new(),
            quotas: HashSet::new(),
            closed: HashSet::new(),
            short: HashSet::new(),
            blocked: HashSet::new(),
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
        pass.plan.starts.push(Start { job: job.id.clone(), element: run.element, placements });
        pass.shares[job.workspace as usize] = None;
        pass.members[job.member as usize] = None;
    }

    fn start(&mut self, job: JobIx, offer: Offer, pass: &mut Pass) {
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
                Err(_) => self.unreserve(job),
            }
            if slot == FIRST {
                // What is not kept any more may let somebody start who was passed over already.
                pass.next_at(pass.now);
            }
        }
    }

    /// Goes through the queue in order; whether to its end.
    fn start_waiting(&mut self, pass: &mut Pass) -> bool {
        let may_start = |group: &crate::state::Group| {
            let pool = self.classes[group.class].pool;
            let is_known = group.blocked_at == Some(self.pools[pool as usize].epoch);
            !group.lanes.is_empty() && (!is_known || self.policy.backfill == Backfill::Strict)
        };
        let groups: Vec<ShapeIx> =
            self.groups.iter().filter(|(_, group)| may_start(group)).map(|(ix, _)| ix).collect();
        let groups: Vec<ShapeIx> = groups.into_iter().filter(|ix| !self.has_no_chance(*ix)).collect();
        let mut heads: BinaryHeap<Head> =
            groups.into_iter().filter_map(|ix| Some(Head(self.head(ix, pass)?, ix))).collect();
        while let Some(Head(key, group)) = heads.pop() {
            if pass.plan.starts.len() >= self.policy.starts_per_pass {
                return false;
            }
            // Shares only grow in a pass, so a head is never better than it was: looking again when it comes up is enough.
            let Some(now) = self.head(group, pass) else { continue };
            if now.order(&key) == Ordering::Greater {
                heads.push(Head(now, group));
                continue;
            }
            self.consider(now.job, group, pass);
            heads.extend(self.head(group, pass).map(|key| Head(key, group)));
        }
        true
    }

    /// Whether there is plainly no room for a shape, and nothing is to be kept for it either: known without asking whose turn it
    /// would be.
    fn has_no_chance(&mut self, ix: ShapeIx) -> bool {
        let group = &self.groups[ix];
        let class = &self.classes[group.class];
        let pool = &self.pools[class.pool as usize];
        let highest = group.lanes.heads().next().map_or(0, |ticket| ticket.priority);
        let is_kept = match self.policy.backfill {
            Backfill::Reserve => pool.reserved[FIRST].as_ref().is_some_and(|it| it.priority >= highest),
            Backfill::Strict => false,
            Backfill::Greedy => true,
        };
        if pool.delegates || !is_kept {
            return false;
        }
        let has_any = self.kinds_for(class).into_iter().any(|kind| {
            let mut found = false;
            pool.room.visit(&class.need, kind, 1, |node| {
                let node = &self.nodes[node];
                found = class.admits(node) && node.left(kind).room(&class.need) > 0;
                if found { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
            });
            found
        });
        if !has_any {
            self.groups[ix].blocked_at =
                Some(self.pools[self.classes[self.groups[ix].class].pool as usize].epoch);
        }
        !has_any
    }

    fn consider(&mut self, job: JobIx, group: ShapeIx, pass: &mut Pass) {
        let asker = self.asker(job, pass.now);
        match self.offer(&asker) {
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
                let open = crate::place::Asker { is_bound: false, ..self.asker(job, pass.now) };
                let is_there = !pass.short.contains(&group) && self.offer(&open).is_ok();
                if is_there && pass.short.insert(group) && self.head(group, pass).is_some() {
                    return;
                }
            }
        }
        pass.blocked.insert(group);
        self.groups[group].blocked_at = Some(self.pools[pool as usize].epoch);
    }

    fn reserve_for_first(&mut self, job: JobIx, pass: &mut Pass) {
        let pool = self.classes[self.groups[self.jobs[job].group].class].pool as usize;
        let priority = self.jobs[job].priority;
        let holder = self.pools[pool].reserved[FIRST].as_ref();
        let is_oldest = self.pools[pool].reserved[OLDEST].as_ref().is_some_and(|it| it.job == job);
        if is_oldest || holder.is_some_and(|it| it.priority >= priority) || !self.fits_ever(job) {
            return;
        }
        if holder.is_some() {
            // What was kept for another may let somebody start who was passed over already.
            pass.next_at(pass.now);
            self.pools[pool].epoch += 1;
        }
        self.pools[pool].reserved[FIRST] = self.reservation(job, FIRST, pass.now);
    }

    /// Whoever has waited longest, and long enough, is served before everybody else.
    fn reserve_for_oldest(&mut self, pass: &mut Pass) {
        let patience = millis(self.policy.patience);
        for pool in 0..self.pools.len() {
            if self.pools[pool].delegates || self.pools[pool].reserved[OLDEST].is_some() {
                continue;
            }
            let here = self.groups.iter().filter(|(_, group)| {
                group.blocked_at.is_some() && self.classes[group.class].pool as usize == pool
            });
            let mut old: Vec<(u64, JobIx)> =
                here.flat_map(|(_, group)| group.lanes.oldest().take(2)).collect();
            old.sort_unstable();
            let is_due = |job: &JobIx| self.jobs[*job].submitted_at.saturating_add(patience) <= pass.now;
            let old: Vec<JobIx> = old.into_iter().map(|(_, job)| job).filter(is_due).take(OLD).collect();
            let is_blocked = |job: &JobIx| {
                self.fits_ever(*job) && matches!(self.offer(&self.asker(*job, pass.now)), Err(Blocked::Room))
            };
            let Some(job) = old.into_iter().find(is_blocked) else { continue };
            let is_first = self.pools[pool].reserved[FIRST].as_ref().is_some_and(|it| it.job == job);
            self.pools[pool].reserved[OLDEST] = match is_first {
                true => self.pools[pool].reserved[FIRST].take(),
                false => self.reservation(job, OLDEST, pass.now),
            };
            let [first, oldest] = &mut self.pools[pool].reserved;
            let overlaps = |first: &Reservation, oldest: &Reservation| {
                first.nodes.keys().any(|node| oldest.nodes.contains_key(node))
            };
            if first.as_ref().zip(oldest.as_ref()).is_some_and(|(first, oldest)| overlaps(first, oldest)) {
                *first = None;
            }
            if self.pools[pool].reserved[OLDEST].is_some() {
                // What was kept for another may be all that it waited for.
                self.pools[pool].epoch += 1;
                pass.next_at(pass.now);
            }
        }
    }

    /// Whether a job would fit if nothing else ran and every node were there.
    pub(crate) fn fits_ever(&self, job: JobIx) -> bool {
        let group = &self.groups[self.jobs[job].group];
        self.largest_ever(group.class) >= group.size
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

    /// The first of a shape that may still start in this pass.
    fn head(&self, group: ShapeIx, pass: &mut Pass) -> Option<Key> {
        let pool = self.classes[self.groups[group].class].pool;
        if pass.closed.contains(&pool) || pass.blocked.contains(&group) {
            return None;
        }
        if pass.short.contains(&group) {
            return self.short_head(group, pass);
        }
        let mut best: Option<Key> = None;
        for (priority, workspace, lanes) in self.groups[group].lanes.levels() {
            if best.is_some_and(|best| best.priority != priority) {
                break;
            }
            let share = self.share(workspace, pass);
            if best.is_some_and(|best| share > best.workspace) || pass.quotas.contains(&(group, workspace)) {
                continue;
            }
            for lane in lanes {
                if pass.users.contains(&self.members[lane.member as usize].user) {
                    continue;
                }
                let (place, job) = lane.first;
                let member = self.member_share(lane.member, pass);
                let key = Key { priority, workspace: share, member, place, job };
                if best.is_none_or(|best| key.order(&best) == Ordering::Less) {
                    best = Some(key);
                }
            }
        }
        best
    }

    fn short_head(&self, group: ShapeIx, pass: &mut Pass) -> Option<Key> {
        let pool = &self.pools[self.classes[self.groups[group].class].pool as usize];
        let until = pool.reserved.iter().flatten().filter_map(|it| it.at).max()?;
        let longest = until.checked_sub(pass.now)?;
        let short: Vec<JobIx> = self.groups[group].lanes.short(longest).take(SHORT).collect();
        let open = short.into_iter().filter(|job| !self.is_passed(group, self.jobs[*job].member, pass));
        let open: Vec<JobIx> = open.collect();
        open.into_iter().map(|job| self.key(job, pass)).min_by(Key::order)
    }

    fn is_passed(&self, group: ShapeIx, member: MemberIx, pass: &Pass) -> bool {
        let member = &self.members[member as usize];
        pass.users.contains(&member.user) || pass.quotas.contains(&(group, member.workspace))
    }

    /// Where a job stands in order now.
    pub(crate) fn key(&self, ix: JobIx, pass: &mut Pass) -> Key {
        let job = &self.jobs[ix];
        let workspace = self.share(job.workspace, pass);
        let member = self.member_share(job.member, pass);
        Key { priority: job.priority, workspace, member, place: job.place, job: ix }
    }

    fn share(&self, workspace: u32, pass: &mut Pass) -> f64 {
        if self.policy.order == Order::Age {
            return 0.0;
        }
        let account = &self.workspaces[workspace as usize].1;
        *pass.shares[workspace as usize].get_or_insert_with(|| account.share(pass.now, self.half_life))
    }

    fn member_share(&self, member: MemberIx, pass: &mut Pass) -> f64 {
        if self.policy.order == Order::Age {
            return 0.0;
        }
        let account = &self.members[member as usize].account;
        *pass.members[member as usize].get_or_insert_with(|| account.share(pass.now, self.half_life))
    }

    /// Where a lane stands in order now, beside a job.
    pub(crate) fn compare_lane(&self, member: MemberIx, priority: u32, than: &Key, now: Millis) -> Ordering {
        let it = &self.members[member as usize];
        let (mut workspace, mut share) = (0.0, 0.0);
        if self.policy.order == Order::FairShare {
            workspace = self.workspaces[it.workspace as usize].1.share(now, self.half_life);
            share = it.account.share(now, self.half_life);
        }
        Reverse(priority)
            .cmp(&Reverse(than.priority))
            .then_with(|| workspace.total_cmp(&than.workspace))
            .then_with(|| share.total_cmp(&than.member))
    }
}
