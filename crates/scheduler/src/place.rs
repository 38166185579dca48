//! Whether a job may start now, and where.

use std::collections::BTreeMap;
use std::ops::ControlFlow;

use smallvec::SmallVec;

use crate::fit::Need;
use crate::policy::Millis;
use crate::queue::JobIx;
use crate::quota::{Dim, Verdict};
use crate::room::{KindIx, NodeIx};
use crate::run::{Offer, Seat};
use crate::state::{Class, Kind, Person, Scheduler};

/// What one job looks for a place as.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Asker {
    pub job: Option<JobIx>,
    pub workspace: u32,
    pub user: u32,
    pub group: u32,
    pub priority: u32,
    /// When it is expected to end, if it starts now.
    pub ends_at: Option<Millis>,
    /// What is reserved for others binds it.
    pub is_bound: bool,
}

/// Kinds of device that would do: few clusters have more than two.
pub(crate) type Kinds = SmallVec<[Option<KindIx>; 2]>;

/// How many nodes a gang chooses from: enough for a few whole racks, few enough on the largest cluster.
const CHOICE: usize = 512;

/// Why a job does not start.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Blocked {
    /// Its user runs as many as they may.
    User,
    /// Its workspace has as much as it may.
    Quota(Dim),
    /// Others have borrowed what is its workspace's own.
    Lent(Dim),
    /// There is no room.
    Room,
}

impl Scheduler {
    pub(crate) fn asker(&self, ix: JobIx, now: Millis) -> Asker {
        let job = &self.jobs[ix];
        Asker {
            job: Some(ix),
            workspace: job.workspace,
            user: job.user,
            group: job.group,
            priority: job.priority,
            ends_at: job.expected.map(|expected| now.saturating_add(expected)),
            is_bound: true,
        }
    }

    /// Whether somebody runs as many as they may.
    pub(crate) fn is_at_limit(&self, person: &Person) -> bool {
        person.due.max_running.or(self.max_running).is_some_and(|most| person.running >= most)
    }

    /// Looks for a way to start now.
    pub(crate) fn offer(&self, asker: &Asker) -> Result<Offer, Blocked> {
        if self.is_at_limit(&self.people[asker.user as usize]) {
            return Err(Blocked::User);
        }
        let group = &self.groups[asker.group];
        let class = &self.classes[group.class];
        if self.pools[class.pool as usize].delegates {
            return self.offer_of(asker, None, true);
        }
        let kinds = self.kinds_for(class);
        if kinds.is_empty() {
            return Err(self.allowed(asker).err().unwrap_or(Blocked::Room));
        }
        let mut why = Blocked::Room;
        for kind in kinds {
            match self.offer_of(asker, kind, false) {
                Err(blocked) if why == Blocked::Room => why = blocked,
                Err(_) => {}
                found => return found,
            }
        }
        Err(why)
    }

    /// Whether quotas and limits allow a start now, wherever that would be and with devices of whatever kind.
    pub(crate) fn allowed(&self, asker: &Asker) -> Result<(), Blocked> {
        if self.is_at_limit(&self.people[asker.user as usize]) {
            return Err(Blocked::User);
        }
        let check = |kind| match self.ledger.check(asker.workspace, &self.charge_of(asker.group, kind, &[])) {
            Verdict::Nominal | Verdict::Borrowed => Ok(()),
            Verdict::Lent(dim) => Err(Blocked::Lent(dim)),
            Verdict::Over(dim) => Err(Blocked::Quota(dim)),
        };
        let kinds = self.kinds_for(&self.classes[self.groups[asker.group].class]);
        // A model that no node has may have a quota all the same.
        if kinds.is_empty() { check(None) } else { kinds.into_iter().try_for_each(check) }
    }

    /// Looks for a way to start now with devices of one kind.
    pub(crate) fn offer_of_kind(&self, asker: &Asker, kind: Option<KindIx>) -> Result<Offer, Blocked> {
        let pool = self.classes[self.groups[asker.group].class].pool;
        self.offer_of(asker, kind, self.pools[pool as usize].delegates)
    }

    fn offer_of(&self, asker: &Asker, kind: Option<KindIx>, delegates: bool) -> Result<Offer, Blocked> {
        let group = &self.groups[asker.group];
        let class = &self.classes[group.class];
        let judge = |seats: &[Seat]| {
            let charge = self.charge_of(asker.group, kind, seats);
            match self.ledger.check(asker.workspace, &charge) {
                Verdict::Nominal => Ok((charge, false)),
                Verdict::Borrowed => Ok((charge, true)),
                Verdict::Lent(dim) => Err(Blocked::Lent(dim)),
                Verdict::Over(dim) => Err(Blocked::Quota(dim)),
            }
        };
        // Asked before there is a place, which costs more to find; a whole node is only known once it is found.
        let early = judge(&[])?;
        if delegates {
            return Ok(Offer { kind, seats: Vec::new(), charge: early.0, borrows: early.1 });
        }
        let Some(seats) = self.seats(class, group.size, kind, asker) else {
            // Whole nodes count whole: one that may not have even the smallest does not wait for room.
            if class.need.exclusive {
                judge(&self.smallest(class, group.size, kind))?;
            }
            return Err(Blocked::Room);
        };
        let (charge, borrows) = if class.need.exclusive { judge(&seats)? } else { early };
        Ok(Offer { kind, seats, charge, borrows })
    }

    /// The smallest nodes that would do, whoever has them.
    fn smallest(&self, class: &Class, size: u32, kind: Option<KindIx>) -> Vec<Seat> {
        let nodes = self.pools[class.pool as usize].nodes.iter().copied();
        let mut nodes: Vec<NodeIx> = nodes
            .filter(|ix| class.admits(&self.nodes[*ix]) && self.nodes[*ix].whole(kind).room(&class.need) > 0)
            .collect();
        nodes.sort_by_key(|ix| (self.nodes[*ix].state.capacity.devices.len(), *ix));
        let seat = |node| Seat { node, devices: Vec::new() };
        nodes.into_iter().take(size as usize).map(seat).collect()
    }

    /// The kinds of device that would do, those of which the fewest are left first; one answer, if none are asked for.
    pub(crate) fn kinds_for(&self, class: &Class) -> Kinds {
        let room = &self.pools[class.pool as usize].room;
        let mut kinds: Kinds = self.matching_kinds(class).collect();
        kinds.sort_by_key(|kind| (kind.map(|kind| room.free(kind)), *kind));
        kinds
    }

    /// The same, as they come.
    pub(crate) fn matching_kinds(&self, class: &Class) -> impl Iterator<Item = Option<KindIx>> {
        let request = class.need.devices.as_ref();
        let fitting = move |kind: &Kind| {
            request.is_some_and(|request| {
                request.vendor.is_none_or(|vendor| vendor == kind.vendor)
                    && request.model.as_ref().is_none_or(|model| model.eq_ignore_ascii_case(&kind.model))
            })
        };
        let none = request.is_none().then_some(None);
        let kinds = (0..).zip(&self.kinds).filter(move |(_, kind)| fitting(kind)).map(|(ix, _)| Some(ix));
        none.into_iter().chain(kinds)
    }

    /// How many tasks of a class a node has room for.
    pub(crate) fn room_on(&self, ix: NodeIx, class: &Class, kind: Option<KindIx>, asker: &Asker) -> u32 {
        let node = &self.nodes[ix];
        if !node.is_open() || !class.admits(node) {
            return 0;
        }
        let room = node.left(kind).room(&class.need);
        if room == 0 || !asker.is_bound {
            return room;
        }
        self.unreserved(ix, class, kind, asker).map_or(room, |spare| spare.min(room))
    }

    /// A place for each task, or none at all.
    pub(crate) fn seats(
        &self,
        class: &Class,
        size: u32,
        kind: Option<KindIx>,
        asker: &Asker,
    ) -> Option<Vec<Seat>> {
        let prefer: &[_] = asker.job.map_or(&[], |job| &self.jobs[job].prefer);
        let prefer: Vec<NodeIx> = prefer.iter().filter_map(|id| self.node_index.get(id).copied()).collect();
        let room = &self.pools[class.pool as usize].room;
        if prefer.is_empty() && (size == 1 || !class.need.exclusive) {
            let mut found = None;
            room.visit(&class.need, kind, size, |ix| match self.room_on(ix, class, kind, asker) >= size {
                false => ControlFlow::Continue(()),
                true => {
                    found = Some(ix);
                    ControlFlow::Break(())
                }
            });
            if found.is_some() || size == 1 {
                return found.map(|ix| self.sit(&class.need, kind, &[(ix, size)]));
            }
        }
        let (mut all, mut sum) = (Vec::new(), 0u64);
        room.visit(&class.need, kind, 1, |ix| {
            let room = self.room_on(ix, class, kind, asker).min(size);
            if room > 0 {
                all.push((ix, room));
                sum += u64::from(room);
            }
            let is_enough = sum >= u64::from(size) && all.len() >= CHOICE.max(2 * size as usize);
            if is_enough && prefer.is_empty() { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        });
        let chosen = self.choose(&all, size, &prefer)?;
        Some(by_habit(self.sit(&class.need, kind, &chosen), &prefer))
    }

    /// Which of the nodes with room a gang takes: those it had, or one, or those of one rack, or as few as possible.
    pub(crate) fn choose(
        &self,
        all: &[(NodeIx, u32)],
        size: u32,
        prefer: &[NodeIx],
    ) -> Option<Vec<(NodeIx, u32)>> {
        let sum = |nodes: &[(NodeIx, u32)]| nodes.iter().map(|(_, room)| u64::from(*room)).sum::<u64>();
        if sum(all) < u64::from(size) {
            return None;
        }
        if !prefer.is_empty() {
            let (own, strange): (Vec<_>, Vec<_>) = all.iter().partition(|(ix, _)| prefer.contains(ix));
            let from_own = u32::try_from(sum(&own)).unwrap_or(u32::MAX).min(size);
            let mut chosen = few(&own, from_own);
            chosen.extend(few(&strange, size - from_own));
            return Some(chosen);
        }
        for level in 0..self.policy.topology.len() {
            let mut domains: BTreeMap<u32, Vec<(NodeIx, u32)>> = BTreeMap::new();
            for (ix, room) in all {
                if let Some(domain) = self.nodes[*ix].domains[level] {
                    domains.entry(domain).or_default().push((*ix, *room));
                }
            }
            let enough = domains.values().filter(|nodes| sum(nodes) >= u64::from(size));
            if let Some(nodes) = enough.min_by_key(|nodes| sum(nodes)) {
                return Some(few(nodes, size));
            }
        }
        Some(few(all, size))
    }

    /// The devices of each task on the nodes it was given.
    fn sit(&self, need: &Need, kind: Option<KindIx>, chosen: &[(NodeIx, u32)]) -> Vec<Seat> {
        let mut seats = Vec::new();
        for (ix, tasks) in chosen {
            let mut before = Vec::new();
            for _ in 0..*tasks {
                let devices = self.nodes[*ix].choose(need, kind, &before);
                before.extend_from_slice(&devices);
                seats.push(Seat { node: *ix, devices });
            }
        }
        seats
    }
}

/// As few nodes as possible: the roomiest first, and the last one that is just enough.
pub(crate) fn few(nodes: &[(NodeIx, u32)], size: u32) -> Vec<(NodeIx, u32)> {
    let mut sorted = nodes.to_vec();
    sorted.sort_by_key(|(_, room)| std::cmp::Reverse(*room));
    let (mut chosen, mut missing) = (Vec::new(), size);
    let mut rest = &sorted[..];
    while missing > 0 && !rest.is_empty() {
        let enough = rest.partition_point(|(_, room)| *room >= missing);
        match enough.checked_sub(1).map(|at| rest[at].1) {
            Some(least) => {
                let at = rest.partition_point(|(_, room)| *room > least);
                chosen.push((rest[at].0, missing));
                missing = 0;
            }
            None => {
                chosen.push(rest[0]);
                missing -= rest[0].1;
                rest = &rest[1..];
            }
        }
    }
    chosen
}

/// Gives every rank the node that it prefers, if that is among those the gang has; the rest follows in order.
fn by_habit(mut seats: Vec<Seat>, prefer: &[NodeIx]) -> Vec<Seat> {
    if prefer.is_empty() {
        return seats;
    }
    let own: Vec<Option<Seat>> = (0..seats.len())
        .map(|rank| {
            let at = seats.iter().position(|seat| prefer.get(rank) == Some(&seat.node))?;
            Some(seats.remove(at))
        })
        .collect();
    let mut rest = seats.into_iter();
    own.into_iter().filter_map(|seat| seat.or_else(|| rest.next())).collect()
}
