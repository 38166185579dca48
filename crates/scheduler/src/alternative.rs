//! What would let a job start now: changes to what it asks for, each one tried before it is offered.

use std::cmp::Reverse;
use std::collections::BTreeSet;

use muster_model::JobId;
use muster_model::quantity::DeviceRequest;
use serde::Serialize;

use crate::place::Asker;
use crate::policy::Millis;
use crate::queue::{JobIx, Key};
use crate::request::{Change, Plan, Request, Shape};
use crate::state::{Left, Scheduler};
use crate::why::Tier;

/// A change to a job with which it would start now.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Alternative {
    /// With these devices for each task: fewer of the same.
    Devices(DeviceRequest),
    /// With so many tasks.
    Nodes(u32),
    /// With as many devices of another model.
    Model(DeviceRequest),
    /// Without the labels that its nodes must have.
    WithoutLabels,
    /// Beside other tasks, and not on nodes of its own.
    NotAlone,
    /// With so high a priority; others may have to make room for it first.
    Priority(u32),
    /// With a word on how long it runs: no longer than this.
    Expected(Millis),
}

impl Alternative {
    /// Changes a request so.
    pub fn apply(&self, request: &mut Request) {
        match self {
            Self::Devices(devices) | Self::Model(devices) => request.need.devices = Some(devices.clone()),
            Self::Nodes(nodes) => request.shape = Shape::Gang(*nodes),
            Self::WithoutLabels => request.labels.clear(),
            Self::NotAlone => request.need.exclusive = false,
            Self::Priority(priority) => request.priority = *priority,
            Self::Expected(expected) => request.expected = Some(*expected),
        }
    }

    /// As an option of `muster run`, where it is one.
    pub fn flag(&self) -> String {
        match self {
            Self::Devices(devices) | Self::Model(devices) => format!("--gpus {devices}"),
            Self::Nodes(nodes) => format!("--nodes {nodes}"),
            Self::WithoutLabels => "no --node-label".into(),
            Self::NotAlone => "no --exclusive".into(),
            Self::Priority(priority) => format!("--priority {priority}"),
            Self::Expected(expected) => {
                let span = std::time::Duration::from_millis(*expected);
                format!("--timeout {}", muster_model::quantity::format_duration(span))
            }
        }
    }

    /// In words, after "starts now ".
    pub fn words(&self) -> String {
        match self {
            Self::Devices(devices) => format!("with --gpus {devices}"),
            Self::Nodes(nodes) => format!("with --nodes {nodes}"),
            Self::Model(devices) => format!("with devices of another model, --gpus {devices}"),
            Self::WithoutLabels => "without the labels that it asks for".into(),
            Self::NotAlone => "beside other tasks, without --exclusive".into(),
            Self::Priority(priority) => format!("with --priority {priority}, once others have made room"),
            Self::Expected(expected) => {
                let span = std::time::Duration::from_millis(*expected);
                format!("with --timeout {}", muster_model::quantity::format_duration(span))
            }
        }
    }
}

/// How many copies of the scheduler are made at most to try what was found: each costs a while on a large cluster.
const TRIALS: u32 = 4;

/// A job, what it asks for, and how much may still be tried for it.
struct Asked {
    ix: JobIx,
    request: Request,
    now: Millis,
    /// The highest priority that may be given to it.
    highest_priority: u32,
    trials: u32,
}

impl Scheduler {
    /// What would let a job start now.
    pub(crate) fn alternatives(
        &mut self,
        ix: JobIx,
        tier: Tier,
        now: Millis,
        highest_priority: u32,
    ) -> Vec<Alternative> {
        let mut asked = Asked { ix, request: self.request_of(ix), now, highest_priority, trials: TRIALS };
        let mut found: Vec<Alternative> = Vec::new();
        if let Some(devices) = asked.request.need.devices.clone() {
            let fewer = |count| Alternative::Devices(DeviceRequest { count, ..devices.clone() });
            found.extend(self.largest(&mut asked, devices.count, fewer));
            for model in self.other_models(ix, &asked.request) {
                let (vendor, model) = (None, Some(model));
                let other = Alternative::Model(DeviceRequest { vendor, model, count: devices.count });
                found.extend(Some(other).filter(|it| self.would_start(&mut asked, it)));
            }
        }
        if let Shape::Gang(size) = asked.request.shape {
            let most = self.largest_now(ix, &self.asker(ix, now)).min(size.saturating_sub(1));
            found.extend(self.largest(&mut asked, most + 1, Alternative::Nodes));
        }
        let mut simple = Vec::new();
        if !asked.request.labels.is_empty() {
            simple.push(Alternative::WithoutLabels);
        }
        if asked.request.need.exclusive {
            simple.push(Alternative::NotAlone);
        }
        simple.extend(self.in_time(ix, now).map(Alternative::Expected));
        found.extend(simple.into_iter().filter(|it| self.would_start(&mut asked, it)));
        if !matches!(tier, Tier::NeverFits | Tier::NeverAllowed | Tier::NotServed | Tier::NoNode) {
            found.extend(self.priority_for(&mut asked));
        }
        found
    }

    /// The most below a number with which a job would start. Where some fit, fewer do.
    fn largest(
        &mut self,
        asked: &mut Asked,
        below: u32,
        make: impl Fn(u32) -> Alternative,
    ) -> Option<Alternative> {
        let (mut low, mut high) = (0, below);
        while low + 1 < high {
            let middle = low + (high - low) / 2;
            if self.is_offered(asked, &make(middle)) { low = middle } else { high = middle }
        }
        (1..=low).rev().take(2).map(&make).find(|it| self.would_start(asked, it))
    }

    /// A job that waits, as it was submitted.
    pub(crate) fn request_of(&self, ix: JobIx) -> Request {
        let job = &self.jobs[ix];
        let group = &self.groups[job.group];
        let class = &self.classes[group.class];
        Request {
            job: JobId::clone(&job.id),
            workspace: self.workspaces[job.workspace as usize].0.clone(),
            user: self.people[job.user as usize].name.clone(),
            pool: self.pools[class.pool as usize].name.clone(),
            priority: job.priority,
            preemptible: job.preemptible,
            submitted_at: job.submitted_at,
            place: job.place,
            expected: job.expected,
            shape: match &job.left {
                Left::Gang => Shape::Gang(group.size),
                Left::Many { elements, at_once } => {
                    Shape::Many { elements: elements.clone(), at_once: *at_once }
                }
            },
            need: class.need.clone(),
            prefer: job.prefer.clone(),
            exclude: class.exclude.clone(),
            labels: class.labels.clone(),
            standing: job.standing.clone(),
            preempted: job.preempted.clone(),
        }
    }

    /// Whether there would be a place for a job if it were otherwise.
    fn is_offered(&mut self, asked: &Asked, change: &Alternative) -> bool {
        let mut changed = asked.request.clone();
        change.apply(&mut changed);
        let size = if let Shape::Gang(size) = changed.shape { size } else { 1 };
        let group = self.group(&changed, size);
        let ends_at = changed.expected.map(|expected| asked.now.saturating_add(expected));
        let asker = Asker { group, ends_at, priority: changed.priority, ..self.asker(asked.ix, asked.now) };
        let is_offered = self.offer(&asker).is_ok();
        self.release_group(group);
        is_offered
    }

    /// Whether a job would start with the next pass if it were otherwise. What waits beside it does not start in either case, or it
    /// would have; but what is kept for the job itself, others might then have, so for such a one a whole pass is tried.
    fn would_start(&mut self, asked: &mut Asked, change: &Alternative) -> bool {
        let is_offered = self.is_offered(asked, change);
        if !is_offered || !self.is_reserved_for(asked.ix) {
            return is_offered;
        }
        let mut changed = asked.request.clone();
        change.apply(&mut changed);
        let id = changed.job.clone();
        let plan = self.tried(asked, changed.priority, |trial| {
            trial.withdraw(&changed.job);
            trial.submit(changed);
        });
        plan.is_some_and(|plan| plan.starts.iter().any(|start| start.job == id))
    }

    /// What comes of passes over a copy in which something about a job is otherwise; none, if too much would have to be copied.
    fn tried(&self, asked: &mut Asked, priority: u32, change: impl FnOnce(&mut Self)) -> Option<Plan> {
        asked.trials = asked.trials.checked_sub(1)?;
        let key = self.key(asked.ix, &mut self.new_pass(asked.now));
        let mut trial = self.trial(asked.ix, &Key { priority, ..key }, asked.now)?;
        change(&mut trial);
        Some(trial.settle(asked.now))
    }

    fn is_reserved_for(&self, ix: JobIx) -> bool {
        let pool = self.classes[self.groups[self.jobs[ix].group].class].pool;
        self.pools[pool as usize].reserved.iter().flatten().any(|it| it.job == ix)
    }

    /// How many tasks of a job's gang would fit now.
    pub(crate) fn largest_now(&self, ix: JobIx, asker: &Asker) -> u32 {
        let group = &self.groups[self.jobs[ix].group];
        let class = &self.classes[group.class];
        let mut most = 0u64;
        for kind in self.kinds_for(class) {
            let mut room = 0u64;
            self.pools[class.pool as usize].room.visit(&class.need, kind, 1, |node| {
                room += u64::from(self.room_on(node, class, kind, asker).min(group.size));
                std::ops::ControlFlow::Continue(())
            });
            most = most.max(room);
        }
        u32::try_from(most).unwrap_or(u32::MAX)
    }

    /// Models of the job's pool that it does not ask for.
    fn other_models(&self, ix: JobIx, request: &Request) -> BTreeSet<String> {
        let pool = self.classes[self.groups[self.jobs[ix].group].class].pool;
        let asked = request.need.devices.as_ref().and_then(|devices| devices.model.clone());
        let Some(asked) = asked else { return BTreeSet::new() };
        let kinds = self.pools[pool as usize].nodes.iter().flat_map(|node| &self.nodes[*node].devices);
        let models = kinds.map(|devices| self.kinds[devices.kind as usize].model.clone());
        models.filter(|model| !model.eq_ignore_ascii_case(&asked)).collect()
    }

    /// For how long a job could run before what is kept for others is due.
    fn in_time(&self, ix: JobIx, now: Millis) -> Option<Millis> {
        let pool = self.classes[self.groups[self.jobs[ix].group].class].pool;
        let others = self.pools[pool as usize].reserved.iter().flatten().filter(|it| it.job != ix);
        let longest = others.filter_map(|it| it.at).max()?.checked_sub(now)?;
        // Nobody's job is over in less than a minute.
        let longest = longest / 60_000 * 60_000;
        (longest > 0 && self.jobs[ix].expected.is_none_or(|expected| expected > longest)).then_some(longest)
    }

    /// The least priority of a few with which a job would start, or be promised a place.
    fn priority_for(&mut self, asked: &mut Asked) -> Option<Alternative> {
        let (ix, now) = (asked.ix, asked.now);
        let own = self.jobs[ix].priority;
        let pool = &self.pools[self.pool_of(ix) as usize];
        let mut above = BTreeSet::new();
        let mut next = pool.preemptible.range((own, Reverse(Millis::MAX), 0)..).next();
        while let Some((priority, _, _)) = next {
            above.insert(*priority);
            next = pool.preemptible.range((priority + 1, Reverse(Millis::MAX), 0)..).next();
        }
        above.extend(pool.reserved.iter().flatten().map(|it| it.priority));
        let highest = asked.highest_priority;
        let above: Vec<u32> =
            above.into_iter().filter(|it| *it >= own && *it < highest).map(|it| it + 1).collect();
        let few = above.iter().take(3).chain(above.last().filter(|_| above.len() > 3));
        let likely: Vec<u32> = few.copied().filter(|it| self.is_likely(ix, *it, now)).collect();
        let id = self.jobs[ix].id.clone();
        likely.into_iter().take(2).map(Alternative::Priority).find(|it| {
            let Alternative::Priority(priority) = it else { return false };
            let plan = self.tried(asked, *priority, |trial| trial.change(&id, Change::Priority(*priority)));
            plan.is_some_and(|plan| {
                plan.starts.iter().any(|start| start.job == *id)
                    || plan.preemptions.iter().any(|it| it.by == *id)
            })
        })
    }

    /// Whether a job would find a place with another priority, beside others or in theirs.
    fn is_likely(&mut self, ix: JobIx, priority: u32, now: Millis) -> bool {
        let asker = Asker { priority, ..self.asker(ix, now) };
        self.offer(&asker).is_ok() || self.policy.preemption && self.has_way(&asker, now)
    }
}
