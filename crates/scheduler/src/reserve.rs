//! What is kept for a job that does not fit yet, so that smaller ones do not overtake it for ever.
//!
//! A pool keeps room for two jobs: the first in order, and the one that has waited longest once it has been patient. What is kept is a
//! number of places on certain nodes, from the moment when what runs there is expected to have ended. Others may use those nodes
//! in the meantime if they are known to be gone by then, or if there is enough for both. A reservation does not move while
//! its holder waits: the wait is over when what was there at first has ended.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::ControlFlow;

use rustc_hash::FxHashMap;

use crate::known::Bonds;
use crate::place::Asker;
use crate::policy::Millis;
use crate::queue::JobIx;
use crate::room::{KindIx, Left, NodeIx, RunIx};
use crate::run::{Phase, Run};
use crate::state::{Class, Scheduler};

/// Places that are kept for a job.
#[derive(Debug, Clone)]
pub(crate) struct Reservation {
    pub job: JobIx,
    pub priority: u32,
    pub kind: Option<KindIx>,
    /// How many of its tasks are to be on which node.
    pub nodes: BTreeMap<NodeIx, u32>,
    /// When it is expected to start; not known where a run's end is not.
    pub at: Option<Millis>,
    /// Runs that will have ended by then.
    pub outgoing: BTreeSet<RunIx>,
    /// The pool's count when its holder was last tried.
    pub tried_at: Option<u64>,
}

/// The reservation for the first in order, and for the one that has waited longest.
pub(crate) const FIRST: usize = 0;
pub(crate) const OLDEST: usize = 1;

/// How many ends are looked at for the first in order, which is another one soon.
const ENDS: usize = 4096;

/// Whether a reservation binds whoever asks, on the nodes that it is about.
fn binds(slot: usize, it: &Reservation, asker: &Asker) -> bool {
    let is_before = slot == OLDEST || asker.priority <= it.priority;
    let is_gone = asker.ends_at.zip(it.at).is_some_and(|(ends, at)| ends <= at);
    is_before && !is_gone && asker.job != Some(it.job)
}

/// A node as it would be when some runs have ended.
pub(crate) struct Shadow {
    left: Left,
    tasks: u32,
    pub room: u32,
}

impl Scheduler {
    /// How many tasks a node has room for beside what is reserved there; no limit, if nothing is that binds the asker.
    pub(crate) fn unreserved(
        &self,
        ix: NodeIx,
        class: &Class,
        kind: Option<KindIx>,
        asker: &Asker,
    ) -> Option<u32> {
        let reserved = self.pools[class.pool as usize].reserved.iter().enumerate();
        let all = reserved.filter_map(|(slot, it)| Some((slot, it.as_ref()?)));
        let here = all.filter(|(slot, it)| binds(*slot, it, asker) && it.nodes.contains_key(&ix));
        here.map(|(_, it)| self.spare(ix, class, kind, it)).min()
    }

    /// Which of a pool's reservations bind whoever asks.
    pub(crate) fn bonds(&self, pool: u32, asker: &Asker) -> Bonds {
        let reserved = self.pools[pool as usize].reserved.iter().enumerate();
        let binding = |(slot, it): (usize, &Option<Reservation>)| {
            let is_bound = asker.is_bound && it.as_ref().is_some_and(|it| binds(slot, it, asker));
            u8::from(is_bound) << slot
        };
        reserved.map(binding).sum()
    }

    fn spare(&self, ix: NodeIx, class: &Class, kind: Option<KindIx>, reserved: &Reservation) -> u32 {
        let node = &self.nodes[ix];
        let kept = &self.classes[self.groups[self.jobs[reserved.job].group].class].need;
        if kept.exclusive || class.need.exclusive {
            return 0;
        }
        let mut left = node.whole(kind);
        let staying = node.runs.iter().filter(|(run, _)| !reserved.outgoing.contains(run));
        let stays = staying.map(|(run, tasks)| {
            let run = &self.runs[*run];
            (&self.classes[self.groups[self.jobs[run.job].group].class].need, run.kind, *tasks)
        });
        for (need, of, tasks) in stays.chain([(kept, reserved.kind, reserved.nodes[&ix])]) {
            let tasks = u64::from(tasks);
            left.cpu = left.cpu.saturating_sub(need.cpu_millis.saturating_mul(tasks));
            left.memory = left.memory.saturating_sub(need.memory_bytes.saturating_mul(tasks));
            left.slots = left.slots.saturating_sub(u64::from(need.slots()) * tasks);
            if of == kind {
                left.devices = left.devices.saturating_sub(need.device_count() as u64 * tasks);
            }
        }
        left.room(&class.need)
    }

    /// A run started: where it will be gone in time, it is in nobody's way.
    pub(crate) fn note_outgoing(&mut self, ix: RunIx) {
        let run = &self.runs[ix];
        let Some(ends_at) = run.ends_at else { return };
        for reserved in self.pools[run.pool as usize].reserved.iter_mut().flatten() {
            let is_there = run.seats.iter().flatten().any(|seat| reserved.nodes.contains_key(&seat.node));
            if is_there && reserved.at.is_some_and(|at| ends_at <= at) {
                reserved.outgoing.insert(ix);
            }
        }
    }

    /// Nothing is kept for a job any more.
    pub(crate) fn unreserve(&mut self, job: JobIx) {
        let pool = self.classes[self.groups[self.jobs[job].group].class].pool;
        let pool = &mut self.pools[pool as usize];
        for slot in &mut pool.reserved {
            if slot.as_ref().is_some_and(|it| it.job == job) {
                *slot = None;
                pool.epoch += 1;
            }
        }
    }

    /// A node takes nothing new: what was kept there is kept elsewhere.
    pub(crate) fn unreserve_on(&mut self, node: NodeIx) {
        let pool = &mut self.pools[self.nodes[node].pool as usize];
        for slot in &mut pool.reserved {
            if slot.as_ref().is_some_and(|it| it.nodes.contains_key(&node)) {
                *slot = None;
                pool.epoch += 1;
            }
        }
    }

    /// The earliest places that a job can have, by what is expected; none, if there are none at all.
    pub(crate) fn reservation(&self, job: JobIx, slot: usize, now: Millis) -> Option<Reservation> {
        let group = &self.groups[self.jobs[job].group];
        let class = &self.classes[group.class];
        // Who has waited longest is in nobody else's way; everybody else is in theirs.
        let other = self.pools[class.pool as usize].reserved[OLDEST].as_ref();
        let other = other.filter(|it| slot == FIRST && it.job != job);
        let found = self.kinds_for(class).into_iter().filter_map(|kind| {
            self.reservation_of(job, (class, group.size), kind, (other, slot == OLDEST), now)
        });
        found.min_by_key(|it| (it.at.is_none(), it.at, it.kind))
    }

    fn reservation_of(
        &self,
        job: JobIx,
        (class, size): (&Class, u32),
        kind: Option<KindIx>,
        (other, is_oldest): (Option<&Reservation>, bool),
        now: Millis,
    ) -> Option<Reservation> {
        let pool = &self.pools[class.pool as usize];
        let may_use = |ix: NodeIx| {
            let node = &self.nodes[ix];
            node.is_present
                && node.state.usable
                && class.admits(node)
                && other.is_none_or(|it| !it.nodes.contains_key(&ix))
        };
        let mut shadows: FxHashMap<NodeIx, Shadow> = FxHashMap::default();
        let mut total = 0u64;
        pool.room.visit(&class.need, kind, 1, |ix| {
            if may_use(ix) {
                let shadow = self.shadow(ix, class, kind, size);
                total += u64::from(shadow.room);
                shadows.insert(ix, shadow);
            }
            ControlFlow::Continue(())
        });
        let mut walked = Vec::new();
        // Whoever has waited longest gets a place whatever it costs to find it.
        let most = if is_oldest { usize::MAX } else { ENDS };
        for (at, run) in self.endings(class.pool, now).take(most) {
            if total >= u64::from(size) {
                break;
            }
            let need = &self.classes[self.groups[self.jobs[self.runs[run].job].group].class].need;
            let of_kind = self.runs[run].kind == kind;
            for seat in self.runs[run].seats.iter().flatten().filter(|seat| may_use(seat.node)) {
                let shadow =
                    shadows.entry(seat.node).or_insert_with(|| self.shadow(seat.node, class, kind, size));
                total -= u64::from(shadow.room);
                shadow.give_back(need, of_kind, self.nodes[seat.node].whole(kind));
                shadow.room = self.room_of(seat.node, class, shadow).min(size);
                total += u64::from(shadow.room);
            }
            walked.push((at, run));
        }
        let mut rooms: Vec<(NodeIx, u32)> =
            shadows.iter().filter(|(_, it)| it.room > 0).map(|(ix, it)| (*ix, it.room)).collect();
        rooms.sort_unstable();
        let nodes: BTreeMap<NodeIx, u32> = self.choose(&rooms, size, &[])?.into_iter().collect();
        let is_there = |run: &Run| run.seats.iter().flatten().any(|seat| nodes.contains_key(&seat.node));
        walked.retain(|(_, run)| is_there(&self.runs[*run]));
        let at = walked.iter().map(|(at, _)| *at).try_fold(now, |most, at| Some(most.max(at?)));
        let outgoing = walked.into_iter().map(|(_, run)| run).collect();
        let priority = self.jobs[job].priority;
        Some(Reservation { job, priority, kind, nodes, at, outgoing, tried_at: None })
    }

    pub(crate) fn shadow(&self, ix: NodeIx, class: &Class, kind: Option<KindIx>, size: u32) -> Shadow {
        let node = &self.nodes[ix];
        let left = node.left(kind);
        let room = if node.is_open() { left.room(&class.need).min(size) } else { 0 };
        Shadow { left, tasks: node.tasks(), room }
    }

    /// How many tasks fit into a node as it would be.
    pub(crate) fn room_of(&self, ix: NodeIx, class: &Class, shadow: &Shadow) -> u32 {
        let is_alone = shadow.tasks > 0 && self.nodes[ix].is_alone();
        if is_alone { 0 } else { shadow.left.room(&class.need) }
    }

    /// A run's tasks on a node end, as it would be.
    pub(crate) fn give_back_on(&self, ix: NodeIx, run: RunIx, kind: Option<KindIx>, shadow: &mut Shadow) {
        let of = &self.runs[run];
        let need = &self.classes[self.groups[self.jobs[of.job].group].class].need;
        let tasks = self.nodes[ix].runs.iter().find(|(it, _)| *it == run).map_or(0, |(_, tasks)| *tasks);
        for _ in 0..tasks {
            shadow.give_back(need, of.kind == kind, self.nodes[ix].whole(kind));
        }
    }

    /// Runs of a pool in the order in which they are expected to end; those of which nothing is known last.
    fn endings(&self, number: u32, now: Millis) -> impl Iterator<Item = (Option<Millis>, RunIx)> {
        let pool = &self.pools[number as usize];
        let is_leaving = |ix: &RunIx| self.runs[*ix].phase == Phase::Leaving;
        let here = move |ix: &RunIx| self.runs[*ix].pool == number;
        let leaving = self.leaving.iter().copied().filter(here).map(move |ix| (Some(now), ix));
        let known = pool.ends.iter().map(move |(at, ix)| (Some((*at).max(now)), *ix));
        let unknown = std::iter::once_with(move || {
            let open =
                |ix: &RunIx| self.runs[*ix].phase == Phase::Running && self.runs[*ix].ends_at.is_none();
            let mut all: Vec<RunIx> = pool.runs.iter().copied().filter(open).collect();
            all.sort_by_key(|ix| (self.runs[*ix].started_at, *ix));
            all
        });
        let unknown = unknown.flatten().map(|ix| (None, ix));
        leaving.chain(known.filter(move |(_, ix)| !is_leaving(ix))).chain(unknown)
    }
}

impl Shadow {
    fn give_back(&mut self, need: &crate::fit::Need, of_kind: bool, whole: Left) {
        self.tasks -= 1;
        self.left.is_empty = self.tasks == 0;
        if self.tasks == 0 {
            self.left = whole;
            return;
        }
        self.left.cpu = (self.left.cpu + need.cpu_millis).min(whole.cpu);
        self.left.memory = (self.left.memory + need.memory_bytes).min(whole.memory);
        self.left.slots = (self.left.slots + u64::from(need.slots())).min(whole.slots);
        if of_kind {
            self.left.devices = (self.left.devices + need.device_count() as u64).min(whole.devices);
        }
    }
}
