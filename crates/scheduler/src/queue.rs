//! Who waits, by what they wait for.
//!
//! Jobs that need the same things in the same number are of one *shape*: where one of them does not fit, none does. So a pass looks at
//! shapes, of which there are few, and not at jobs, of which there are many. In a shape, each user of a workspace has a *lane* for
//! each priority, where age alone decides.

use std::cmp::{Ordering, Reverse};
use std::collections::{BTreeMap, BTreeSet};

use crate::policy::Millis;

pub(crate) type JobIx = u32;
pub(crate) type ShapeIx = u32;
/// A user in a workspace.
pub(crate) type MemberIx = u32;

/// Where a job stands among others: what is less goes first.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Key {
    pub priority: u32,
    pub workspace: f64,
    pub member: f64,
    pub place: u64,
    pub job: JobIx,
}

impl Key {
    pub fn order(&self, other: &Self) -> Ordering {
        Reverse(self.priority)
            .cmp(&Reverse(other.priority))
            .then_with(|| self.workspace.total_cmp(&other.workspace))
            .then_with(|| self.member.total_cmp(&other.member))
            .then_with(|| (self.place, self.job).cmp(&(other.place, other.job)))
    }
}

/// A job's part of its lane.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Ticket {
    pub priority: u32,
    pub workspace: u32,
    pub member: MemberIx,
    pub place: u64,
    pub job: JobIx,
}

/// Jobs by their age.
type ByPlace = BTreeSet<(u64, JobIx)>;

/// The jobs of one user of a workspace, of one priority.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    pub member: MemberIx,
    /// The first of them, beside the others because it alone is looked at again and again.
    pub first: (u64, JobIx),
    all: ByPlace,
}

/// The jobs of one shape.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lanes {
    lanes: BTreeMap<(Reverse<u32>, u32), Vec<Lane>>,
    by_place: ByPlace,
    /// Those of which it is known for how long they run.
    by_length: BTreeSet<(Millis, JobIx)>,
}

impl Lanes {
    pub fn insert(&mut self, ticket: Ticket, length: Option<Millis>) {
        let entry = (ticket.place, ticket.job);
        let lanes = self.lanes.entry((Reverse(ticket.priority), ticket.workspace)).or_default();
        match lanes.iter_mut().find(|lane| lane.member == ticket.member) {
            Some(lane) => {
                lane.all.insert(entry);
                lane.first = lane.first.min(entry);
            }
            None => lanes.push(Lane { member: ticket.member, first: entry, all: [entry].into() }),
        }
        self.by_place.insert(entry);
        self.by_length.extend(length.map(|length| (length, ticket.job)));
    }

    pub fn remove(&mut self, ticket: Ticket, length: Option<Millis>) {
        let entry = (ticket.place, ticket.job);
        let key = (Reverse(ticket.priority), ticket.workspace);
        if let Some(lanes) = self.lanes.get_mut(&key) {
            for lane in lanes.iter_mut().filter(|lane| lane.member == ticket.member) {
                lane.all.remove(&entry);
                lane.first = lane.all.first().copied().unwrap_or(lane.first);
            }
            lanes.retain(|lane| !lane.all.is_empty());
            if lanes.is_empty() {
                self.lanes.remove(&key);
            }
        }
        self.by_place.remove(&entry);
        if let Some(length) = length {
            self.by_length.remove(&(length, ticket.job));
        }
    }

    pub fn is_empty(&self) -> bool {
        self.by_place.is_empty()
    }

    pub fn len(&self) -> usize {
        self.by_place.len()
    }

    /// The lanes of each workspace by priority, the highest first.
    pub fn levels(&self) -> impl Iterator<Item = (u32, u32, &[Lane])> {
        self.lanes.iter().map(|((priority, workspace), lanes)| (priority.0, *workspace, &lanes[..]))
    }

    /// The first of each lane, the highest priorities first.
    pub fn heads(&self) -> impl Iterator<Item = Ticket> {
        self.levels().flat_map(|(priority, workspace, lanes)| {
            lanes.iter().map(move |lane| {
                let (place, job) = lane.first;
                Ticket { priority, workspace, member: lane.member, place, job }
            })
        })
    }

    /// The lanes, with how many wait in each, and how many of them before a place.
    pub fn before(&self, place: u64) -> impl Iterator<Item = (u32, MemberIx, usize, usize)> {
        self.levels().flat_map(move |(priority, _, lanes)| {
            lanes.iter().map(move |lane| {
                (priority, lane.member, lane.all.len(), lane.all.range(..(place, 0)).count())
            })
        })
    }

    /// Those that run no longer than this, the shortest first.
    pub fn short(&self, longest: Millis) -> impl Iterator<Item = JobIx> {
        self.by_length.range(..=(longest, JobIx::MAX)).map(|(_, job)| *job)
    }

    /// The longest waiting first.
    pub fn oldest(&self) -> impl Iterator<Item = (u64, JobIx)> {
        self.by_place.iter().copied()
    }
}
