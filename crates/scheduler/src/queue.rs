//! Who waits, by what they wait for.
//!
//! Jobs that need the same things in the same number are of one *shape*: where one of them does not fit, none does. So a pass looks at
//! shapes, of which there are few, and not at jobs, of which there are many. In a shape, each user of a workspace has a *lane* for
//! each priority, where age alone decides.

use std::cmp::{Ordering, Reverse};

use smallvec::SmallVec;

use crate::policy::Millis;
use crate::sorted::Sorted;

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

/// The jobs of one user of a workspace, of one priority.
#[derive(Debug, Clone)]
pub(crate) struct Lane {
    pub member: MemberIx,
    /// The first of them, beside the others because it alone is looked at again and again.
    pub first: (u64, JobIx),
    all: Sorted<(u64, JobIx)>,
}

impl Lane {
    /// Its jobs before a place.
    pub fn jobs(&self, place: u64) -> impl Iterator<Item = JobIx> {
        self.all.range(..(place, 0)).map(|(_, job)| job)
    }
}

/// The lanes of one workspace and one priority.
#[derive(Debug, Clone)]
struct Level {
    priority: Reverse<u32>,
    workspace: u32,
    lanes: Vec<Lane>,
}

impl Lane {
    pub fn len(&self) -> usize {
        self.all.len()
    }

    /// The longest waiting first.
    pub fn oldest(&self) -> impl Iterator<Item = (u64, JobIx)> {
        self.all.range(..)
    }
}

/// The jobs of one shape.
#[derive(Debug, Clone, Default)]
pub(crate) struct Lanes {
    /// By priority, the highest first, and workspace. Most have one for ever, which is looked at in every pass.
    levels: SmallVec<[Level; 1]>,
    /// Those of which it is known for how long they run.
    by_length: Sorted<(Millis, JobIx)>,
    len: usize,
}

impl Lanes {
    pub fn insert(&mut self, ticket: Ticket, length: Option<Millis>) {
        let entry = (ticket.place, ticket.job);
        let at = self.at((Reverse(ticket.priority), ticket.workspace)).unwrap_or_else(|at| {
            let level = Level {
                priority: Reverse(ticket.priority),
                workspace: ticket.workspace,
                lanes: Vec::with_capacity(1),
            };
            self.levels.insert(at, level);
            at
        });
        let lanes = &mut self.levels[at].lanes;
        match lanes.iter_mut().find(|lane| lane.member == ticket.member) {
            Some(lane) => {
                lane.all.insert(entry);
                lane.first = lane.first.min(entry);
            }
            None => lanes.push(Lane { member: ticket.member, first: entry, all: Sorted::One(entry) }),
        }
        if let Some(length) = length {
            self.by_length.insert((length, ticket.job));
        }
        self.len += 1;
    }

    pub fn remove(&mut self, ticket: Ticket, length: Option<Millis>) {
        let entry = (ticket.place, ticket.job);
        if let Ok(at) = self.at((Reverse(ticket.priority), ticket.workspace)) {
            let lanes = &mut self.levels[at].lanes;
            for lane in lanes.iter_mut().filter(|lane| lane.member == ticket.member) {
                lane.all.remove(&entry);
                lane.first = lane.all.first().unwrap_or(lane.first);
            }
            lanes.retain(|lane| lane.all.len() > 0);
            if lanes.is_empty() {
                self.levels.remove(at);
            }
        }
        if let Some(length) = length {
            self.by_length.remove(&(length, ticket.job));
        }
        self.len -= 1;
    }

    fn at(&self, key: (Reverse<u32>, u32)) -> Result<usize, usize> {
        self.levels.binary_search_by_key(&key, |level| (level.priority, level.workspace))
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    pub fn len(&self) -> usize {
        self.len
    }

    /// The lanes of each workspace by priority, the highest first.
    pub fn levels(&self) -> impl Iterator<Item = (u32, u32, &[Lane])> {
        self.levels.iter().map(|level| (level.priority.0, level.workspace, &level.lanes[..]))
    }

    /// The first of one lane.
    pub fn first_of(&self, priority: u32, workspace: u32, member: MemberIx) -> Option<(u64, JobIx)> {
        let at = self.at((Reverse(priority), workspace)).ok()?;
        self.levels[at].lanes.iter().find(|lane| lane.member == member).map(|lane| lane.first)
    }

    /// The highest priority of all.
    pub fn highest(&self) -> u32 {
        self.levels.first().map_or(0, |level| level.priority.0)
    }

    /// The least time that one of them is known to run; none, if that is known of none.
    pub fn shortest(&self) -> Option<Millis> {
        self.by_length.first().map(|(length, _)| length)
    }

    /// The lanes, with how many wait in each, and how many of them before a place.
    pub fn before(&self, place: u64) -> impl Iterator<Item = (u32, &Lane, usize, usize)> {
        self.levels().flat_map(move |(priority, _, lanes)| {
            lanes.iter().map(move |lane| {
                // Counting is for those only who have anybody on both sides.
                let before = if lane.first.0 < place { lane.all.range(..(place, 0)).count() } else { 0 };
                (priority, lane, lane.all.len(), before)
            })
        })
    }

    /// Those that run no longer than this, the shortest first.
    pub fn short(&self, longest: Millis) -> impl Iterator<Item = JobIx> {
        self.by_length.range(..=(longest, JobIx::MAX)).map(|(_, job)| job)
    }

    /// The longest waiting of each lane.
    pub fn oldest(&self) -> impl Iterator<Item = (u64, JobIx)> {
        self.levels.iter().flat_map(|level| &level.lanes).map(|lane| lane.first)
    }
}
