//! The queue as people see it: a page of it, in the order in which a pass looks at it.
//!
//! What it costs goes by the page and by how many lanes there are, and hardly by how many jobs wait: those of others are counted lane by
//! lane, and walked through only where they are mixed with the ones that are shown.

use std::cmp::Ordering;
use std::collections::HashMap;
use std::iter::Peekable;

use muster_model::JobId;
use serde::Serialize;

use crate::policy::Millis;
use crate::queue::{JobIx, Key, Lane, ShapeIx};
use crate::state::{Job, Left, Scheduler};
use crate::why::Tier;

/// A job that waits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Queued {
    /// The job.
    pub job: JobId,
    /// Its place among all that wait in its pool, from 1; none while it is not considered.
    pub position: Option<u64>,
    /// What stands in its way.
    pub tier: Tier,
    /// The same in a line.
    pub summary: String,
    /// How many elements wait, of a job of many.
    pub elements: Option<u64>,
    /// When it is expected to start, where something is kept for it.
    pub starts_at: Option<Millis>,
}

/// A lane, and where the walk through it is.
struct Walk<'a> {
    key: Key,
    pool: u32,
    is_shown: bool,
    length: u64,
    jobs: Peekable<Box<dyn Iterator<Item = (u64, JobIx)> + 'a>>,
}

/// What is said of one job is said of all that ask for the same on behalf of the same.
type Alike = (ShapeIx, u32, u32, u32, Option<Millis>);

impl Scheduler {
    /// The first jobs that wait, of the pools, workspaces and users that are asked for. Those that are not considered now come last.
    pub fn listing(
        &self,
        limit: usize,
        now: Millis,
        is_shown: impl Fn(&str, &str, &str) -> bool,
    ) -> Vec<Queued> {
        let mut said: HashMap<Alike, (Tier, String)> = HashMap::new();
        let mut found: Vec<(JobIx, Option<u64>)> = self.in_order(limit, now, &is_shown);
        let left = limit - found.len();
        if left > 0 {
            found.extend(self.aside(&is_shown).into_iter().take(left).map(|ix| (ix, None)));
        }
        found.into_iter().map(|(ix, position)| self.queued_view(ix, position, now, &mut said)).collect()
    }

    /// How many jobs wait, whether or not they are considered now.
    pub fn waiting(&self) -> usize {
        self.jobs.iter().filter(|(_, job)| is_waiting(job)).count()
    }

    /// Those that are considered, with their places.
    fn in_order(
        &self,
        limit: usize,
        now: Millis,
        is_shown: &impl Fn(&str, &str, &str) -> bool,
    ) -> Vec<(JobIx, Option<u64>)> {
        let mut walks = self.walks(now, is_shown);
        walks.sort_by(|a, b| rank(&a.key, &b.key));
        let mut before = vec![0_u64; self.pools.len()];
        let mut found = Vec::new();
        for alike in walks.chunk_by_mut(|a, b| rank(&a.key, &b.key) == Ordering::Equal) {
            if !alike.iter().any(|walk| walk.is_shown) {
                alike.iter().for_each(|walk| before[walk.pool as usize] += walk.length);
                continue;
            }
            self.merge(alike, limit, &mut before, &mut found);
            if found.len() >= limit {
                break;
            }
        }
        found
    }

    /// Goes through lanes between which age alone decides.
    fn merge(
        &self,
        alike: &mut [Walk],
        limit: usize,
        before: &mut [u64],
        found: &mut Vec<(JobIx, Option<u64>)>,
    ) {
        while found.len() < limit {
            let heads = alike.iter_mut().enumerate().filter(|(_, walk)| walk.is_shown);
            let heads = heads.filter_map(|(at, walk)| Some((*walk.jobs.peek()?, at)));
            let Some((head, at)) = heads.min() else { break };
            for other in alike.iter_mut().filter(|walk| !walk.is_shown) {
                while other.jobs.next_if(|job| *job < head).is_some() {
                    before[other.pool as usize] += 1;
                }
            }
            alike[at].jobs.next();
            let place = &mut before[alike[at].pool as usize];
            *place += 1;
            found.push((head.1, Some(*place)));
        }
        // Those that were not shown are before everything that comes after these lanes.
        for other in alike.iter_mut().filter(|walk| !walk.is_shown && found.len() < limit) {
            before[other.pool as usize] += other.jobs.by_ref().count() as u64;
        }
    }

    fn walks(&self, now: Millis, is_shown: &impl Fn(&str, &str, &str) -> bool) -> Vec<Walk<'_>> {
        let mut pass = self.new_pass(now);
        let mut walks = Vec::new();
        for (_, group) in self.groups.iter() {
            let pool = self.classes[group.class].pool;
            for lane in group.lanes.levels().flat_map(|(_, _, lanes)| lanes) {
                let member = &self.members[lane.member as usize];
                let names = (&self.pools[pool as usize].name, &self.workspaces[member.workspace as usize].0);
                let user = &self.people[member.user as usize].name;
                walks.push(Walk {
                    key: self.key(lane.first.1, &mut pass),
                    pool,
                    is_shown: is_shown(names.0, names.1, user),
                    length: lane.len() as u64,
                    jobs: oldest(lane).peekable(),
                });
            }
        }
        walks
    }

    /// Those that are not considered now: whoever is promised a place first, then by age.
    fn aside(&self, is_shown: &impl Fn(&str, &str, &str) -> bool) -> Vec<JobIx> {
        let is_one = |job: &Job| {
            let pool = self.classes[self.groups[job.group].class].pool;
            let workspace = &self.workspaces[job.workspace as usize].0;
            let user = &self.people[job.user as usize].name;
            is_waiting(job) && !job.is_queued && is_shown(&self.pools[pool as usize].name, workspace, user)
        };
        let aside = self.jobs.iter().filter(|(_, job)| is_one(job));
        let mut aside: Vec<(bool, u64, JobIx)> =
            aside.map(|(ix, job)| (!job.is_promised, job.place, ix)).collect();
        aside.sort_unstable();
        aside.into_iter().map(|(_, _, ix)| ix).collect()
    }

    fn queued_view(
        &self,
        ix: JobIx,
        position: Option<u64>,
        now: Millis,
        said: &mut HashMap<Alike, (Tier, String)>,
    ) -> Queued {
        let job = &self.jobs[ix];
        let pool = self.classes[self.groups[job.group].class].pool;
        let kept = self.pools[pool as usize].reserved.iter().flatten().find(|it| it.job == ix);
        let tell = || {
            let (tier, summary, _, _) = self.words(ix, now);
            (tier, summary)
        };
        let alike = (job.group, job.workspace, job.user, job.priority, job.expected);
        // What is kept for one is not kept for those like it.
        let (tier, summary) = match position.is_some() && kept.is_none() {
            true => said.entry(alike).or_insert_with(tell).clone(),
            false => tell(),
        };
        Queued {
            job: (*job.id).clone(),
            position,
            tier,
            summary,
            elements: elements(job),
            starts_at: kept.and_then(|it| it.at),
        }
    }
}

/// What is between lanes, but for the age of their jobs.
fn rank(a: &Key, b: &Key) -> Ordering {
    let at = |key: &Key| Key { place: 0, job: 0, ..*key };
    at(a).order(&at(b))
}

fn oldest(lane: &Lane) -> Box<dyn Iterator<Item = (u64, JobIx)> + '_> {
    Box::new(lane.oldest())
}

/// Whether nothing of it runs, or something of it still waits for its turn.
fn is_waiting(job: &Job) -> bool {
    job.is_queued || job.is_promised || job.runs.is_empty()
}

fn elements(job: &Job) -> Option<u64> {
    let Left::Many { elements, .. } = &job.left else { return None };
    Some(elements.iter().map(|range| u64::from(range.end() - range.start()) + 1).sum())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Policy, Request, Shape, Standing};

    /// Nothing starts here: there is no node.
    fn scheduler(jobs: &[(u64, &str, &str, &str, u32)]) -> Scheduler {
        let mut scheduler = Scheduler::new(Policy::default());
        for (number, pool, workspace, user, priority) in jobs {
            scheduler.submit(request(*number, pool, workspace, user, *priority));
        }
        scheduler
    }

    fn request(number: u64, pool: &str, workspace: &str, user: &str, priority: u32) -> Request {
        let mut request = Request::new(JobId::from_random(number), workspace, user, pool);
        (request.priority, request.place) = (priority, number);
        // Of two shapes, so that lanes are mixed.
        request.need.cpu_millis = 1000 + number % 2;
        request
    }

    fn numbers(all: &[Queued], known: u64) -> Vec<(u64, Option<u64>)> {
        let number = |job: &JobId| (0..known).find(|number| JobId::from_random(*number) == *job).unwrap();
        all.iter().map(|it| (number(&it.job), it.position)).collect()
    }

    #[test]
    fn the_page_is_in_the_order_of_the_pass_and_places_are_those_of_the_pool() {
        let scheduler = scheduler(&[
            (0, "local", "a", "ann", 500),
            (1, "local", "a", "bob", 500),
            (2, "ssh/gpu", "a", "ann", 500),
            (3, "local", "b", "ann", 700),
            (4, "local", "a", "ann", 500),
        ]);
        let all = numbers(&scheduler.listing(10, 1, |_, _, _| true), 5);
        let place = |number| (number, Some(if number == 2 { 1 } else { [2, 3, 0, 1, 4][number as usize] }));
        assert_eq!(all, [3, 0, 1, 2, 4].map(place));
        let few = numbers(&scheduler.listing(2, 1, |_, _, _| true), 5);
        assert_eq!(few, all[..2]);
        let bobs = numbers(&scheduler.listing(10, 1, |_, _, user| user == "bob"), 5);
        assert_eq!(bobs, [(1, Some(3))], "others' jobs count");
        let b = numbers(&scheduler.listing(10, 1, |pool, _, _| pool == "ssh/gpu"), 5);
        assert_eq!(b, [(2, Some(1))]);
        assert_eq!(scheduler.waiting(), 5);
    }

    #[test]
    fn places_agree_with_what_is_said_of_each_job() {
        let users = ["ann", "bob", "cyd"];
        let jobs: Vec<(u64, &str, &str, &str, u32)> = (0..60)
            .map(|n: u64| {
                (
                    n,
                    "local",
                    ["a", "b"][(n / 3 % 2) as usize],
                    users[(n % 3) as usize],
                    400 + (n % 5) as u32 * 10,
                )
            })
            .collect();
        let mut scheduler = scheduler(&jobs);
        for user in users {
            for one in scheduler.clone().listing(100, 1, |_, _, name| name == user) {
                let ahead = scheduler.explain(&one.job, 1).unwrap().ahead.unwrap() as u64;
                assert_eq!(one.position, Some(ahead + 1), "{}", one.job);
            }
        }
    }

    #[test]
    fn those_that_are_not_considered_come_last_and_say_why() {
        let mut scheduler = scheduler(&[(0, "local", "a", "ann", 500), (1, "local", "a", "ann", 500)]);
        let mut held = request(2, "local", "a", "ann", 900);
        held.standing = Standing::Held;
        scheduler.submit(held);
        let mut array = request(3, "local", "a", "ann", 500);
        array.shape = Shape::Many { elements: vec![1..=3, 7..=7], at_once: 2 };
        scheduler.submit(array);
        let all = scheduler.listing(10, 1, |_, _, _| true);
        let said: Vec<(Tier, Option<u64>)> = all.iter().map(|it| (it.tier, it.elements)).collect();
        let none = (Tier::NoNode, None);
        assert_eq!(said, [none, none, (Tier::NoNode, Some(4)), (Tier::Held, None)]);
        assert_eq!(all[3].position, None);
    }
}
