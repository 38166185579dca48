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
    pub priority: Reverse<u32>,
    pub member: MemberIx,
    pub place: u64,
    pub job: JobIx,
}

/// Jobs by their age.
type ByPlace = BTreeSet<(u64, JobIx)>;

/// The jobs of one shape.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lanes {
    lanes: BTreeMap<(Reverse<u32>, MemberIx), ByPlace>,
    by_place: ByPlace,
    /// Those of which it is known for how long they run.
    by_length: BTreeSet<(Millis, JobIx)>,
}

impl Lanes {
    pub fn insert(&mut self, ticket: Ticket, length: Option<Millis>) {
        let entry = (ticket.place, ticket.job);
        self.lanes.entry((ticket.priority, ticket.member)).or_default().insert(entry);
        self.by_place.insert(entry);
        self.by_length.extend(length.map(|length| (length, ticket.job)));
    }

    pub fn remove(&mut self, ticket: Ticket, length: Option<Millis>) {
        let entry = (ticket.place, ticket.job);
        if let Some(lane) = self.lanes.get_mut(&(ticket.priority, ticket.member)) {
            lane.remove(&entry);
            if lane.is_empty() {
                self.lanes.remove(&(ticket.priority, ticket.member));
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

    /// The first of each lane, the highest priorities first.
    pub fn heads(&self) -> impl Iterator<Item = Ticket> {
        self.lanes.iter().filter_map(|((priority, member), lane)| {
            let (place, job) = *lane.first()?;
            Some(Ticket { priority: *priority, member: *member, place, job })
        })
    }

    /// The lanes, with how many wait in each, and how many of them before a place.
    pub fn before(&self, place: u64) -> impl Iterator<Item = (u32, MemberIx, usize, usize)> {
        self.lanes.iter().map(move |((priority, member), lane)| {
            (priority.0, *member, lane.len(), lane.range(..(place, 0)).count())
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
