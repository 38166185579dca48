//! Who is before whom: priority, share, age.
//!
//! The jobs of one user of a workspace and of one priority stay in the order of their age, whatever their shapes; shares move all
//! of them at once. So a pass keeps them in one row, and compares rows: what a start costs does not grow with who waits.

use std::cmp::{Ordering, Reverse};
use std::collections::BinaryHeap;

use rustc_hash::{FxHashMap, FxHashSet};

use super::Pass;
use crate::policy::{Millis, Order};
use crate::queue::{JobIx, Key, MemberIx, ShapeIx};
use crate::state::Scheduler;

/// How many short jobs of a shape are in line at a time.
const SHORT: usize = 64;

/// A user of a workspace, at a priority.
type Row = (u32, MemberIx);
/// A job by its age, and its shape.
type Entry = (u64, JobIx, ShapeIx);

/// Everybody who may still start in a pass.
#[derive(Debug, Default)]
pub(super) struct Line {
    rows: FxHashMap<Row, BinaryHeap<Reverse<Entry>>>,
    heads: BinaryHeap<Head>,
}

/// The first of a row. What is greater goes first, as a heap has it.
#[derive(Debug)]
struct Head(Key, Row);

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
        other.0.order(&self.0)
    }
}

impl Scheduler {
    /// Puts the first of each lane of some shapes in line.
    pub(super) fn line_up(&self, groups: &[ShapeIx], pass: &mut Pass) {
        let rows = &mut pass.line.rows;
        for group in groups {
            for (priority, _, lanes) in self.groups[*group].lanes.levels() {
                for lane in lanes {
                    let (place, job) = lane.first;
                    rows.entry((priority, lane.member)).or_default().push(Reverse((place, job, *group)));
                }
            }
        }
        let firsts: Vec<(Row, Entry)> =
            rows.iter().filter_map(|(row, jobs)| Some((*row, jobs.peek()?.0))).collect();
        pass.line.heads =
            firsts.into_iter().map(|(row, first)| Head(self.key_in(row, first, pass), row)).collect();
    }

    /// Takes those out of the line of whom it is known by now that they do not start, and says how many shapes are left in it. They
    /// would be passed over one by one: most of those whom what has ended could have helped are helped no more once one starts.
    pub(super) fn thin_out(&mut self, groups: &mut Vec<ShapeIx>, pass: &mut Pass) -> usize {
        let mut is_gone = vec![false; self.groups.end() as usize];
        groups.retain(|group| {
            let is_left = !pass.blocked.contains(group) && !self.is_hopeless_by_now(*group, pass);
            is_gone[*group as usize] = !is_left;
            is_left
        });
        for jobs in pass.line.rows.values_mut() {
            jobs.retain(|Reverse((_, _, group))| !is_gone[*group as usize]);
        }
        groups.len()
    }

    /// The next in line, with its shape.
    pub(super) fn next_in_line(&self, pass: &mut Pass) -> Option<(JobIx, ShapeIx)> {
        while let Some(Head(key, row)) = pass.line.heads.pop() {
            let mut jobs = pass.line.rows.remove(&row).unwrap_or_default();
            while jobs.peek().is_some_and(|Reverse(entry)| !self.is_open(row, *entry, pass)) {
                jobs.pop();
            }
            let first = jobs.peek().map(|Reverse(entry)| *entry);
            // Shares only grow in a pass, so a row is never better than it was: looking again when it comes up is enough.
            let now = first.map(|entry| self.key_in(row, entry, pass));
            let is_turn = now.is_some_and(|now| now.order(&key) != Ordering::Greater);
            if is_turn {
                jobs.pop();
            } else if let Some(now) = now {
                pass.line.heads.push(Head(now, row));
            }
            pass.line.rows.insert(row, jobs);
            if is_turn {
                return first.map(|(_, job, group)| (job, group));
            }
        }
        None
    }

    /// After one had its turn: whoever is behind it has theirs.
    pub(super) fn move_up(&self, job: JobIx, group: ShapeIx, has_started: bool, pass: &mut Pass) {
        let it = &self.jobs[job];
        let row = (it.priority, it.member);
        if has_started {
            let next = match pass.short.contains_key(&group) {
                true => self.short_ones(group, pass),
                false => self.groups[group]
                    .lanes
                    .first_of(it.priority, it.workspace, it.member)
                    .into_iter()
                    .collect(),
            };
            next.into_iter().for_each(|(place, job)| self.put_in_line(place, job, group, pass));
        }
        let first = pass.line.rows.get(&row).and_then(|jobs| jobs.peek()).map(|Reverse(entry)| *entry);
        if let Some(first) = first {
            let head = Head(self.key_in(row, first, pass), row);
            pass.line.heads.push(head);
        }
    }

    fn put_in_line(&self, place: u64, job: JobIx, group: ShapeIx, pass: &mut Pass) {
        let row = (self.jobs[job].priority, self.jobs[job].member);
        pass.line.rows.entry(row).or_default().push(Reverse((place, job, group)));
        let head = Head(self.key(job, pass), row);
        pass.line.heads.push(head);
    }

    /// From now on only those of a shape may start that are gone when what is kept for others is due; whether there are any.
    pub(super) fn admit_short(&self, group: ShapeIx, pass: &mut Pass) -> bool {
        pass.short.insert(group, FxHashSet::default());
        let all = self.short_ones(group, pass);
        all.iter().for_each(|(place, job)| self.put_in_line(*place, *job, group, pass));
        !all.is_empty()
    }

    /// Short jobs of a shape that are not in line yet.
    fn short_ones(&self, group: ShapeIx, pass: &mut Pass) -> Vec<(u64, JobIx)> {
        let pool = &self.pools[self.classes[self.groups[group].class].pool as usize];
        let until = pool.reserved.iter().flatten().filter_map(|it| it.at).max();
        let Some(longest) = until.and_then(|until| until.checked_sub(pass.now)) else { return Vec::new() };
        let admitted = pass.short.entry(group).or_default();
        let short = self.groups[group].lanes.short(longest).take(SHORT);
        short.filter(|job| admitted.insert(*job)).map(|job| (self.jobs[job].place, job)).collect()
    }

    fn is_open(&self, (_, member): Row, (_, job, group): Entry, pass: &Pass) -> bool {
        let member = &self.members[member as usize];
        // What is asked last is far apart in memory, and most are passed over before.
        !pass.blocked.contains(&group)
            && !pass.users.contains(&member.user)
            && !pass.quotas.contains(&(group, member.workspace))
            && pass.short.get(&group).is_none_or(|admitted| admitted.contains(&job))
            && !pass.closed.contains(&self.groups[group].pool)
            && self.jobs[job].is_queued
    }

    /// Where one in line stands in order now.
    fn key_in(&self, (priority, member): Row, (place, job, _): Entry, pass: &mut Pass) -> Key {
        let workspace = self.share(self.members[member as usize].workspace, pass);
        Key { priority, workspace, member: self.member_share(member, pass), place, job }
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
