//! What would let a job start now: changes to what it asks for, each one tried before it is offered.

use std::collections::BTreeSet;

use muster_model::spec::MAX_PRIORITY;
use serde::Serialize;

use crate::place::Asker;
use crate::policy::Millis;
use crate::queue::JobIx;
use crate::request::{Request, Shape};
use crate::state::{Left, Scheduler};
use crate::why::Tier;

/// A change to a job with which it would start now.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Alternative {
    /// With so many devices for each task.
    Devices(u32),
    /// With so many tasks.
    Nodes(u32),
    /// With devices of another model.
    Model(String),
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
            Self::Devices(count) => {
                if let Some(devices) = &mut request.need.devices {
                    devices.count = *count;
                }
            }
            Self::Nodes(nodes) => request.shape = Shape::Gang(*nodes),
            Self::Model(model) => {
                if let Some(devices) = &mut request.need.devices {
                    (devices.model, devices.vendor) = (Some(model.clone()), None);
                }
            }
            Self::WithoutLabels => request.labels.clear(),
            Self::NotAlone => request.need.exclusive = false,
            Self::Priority(priority) => request.priority = *priority,
            Self::Expected(expected) => request.expected = Some(*expected),
        }
    }

    /// In words, after "starts now ".
    pub fn words(&self) -> String {
        match self {
            Self::Devices(count) => format!("with --gpus {count}"),
            Self::Nodes(nodes) => format!("with --nodes {nodes}"),
            Self::Model(model) => format!("with devices of model {model}"),
            Self::WithoutLabels => "without the labels that it asks for".into(),
            Self::NotAlone => "beside other tasks, without --exclusive".into(),
            Self::Priority(priority) => format!("with --priority {priority}, once others have made room"),
            Self::Expected(expected) => {
                let span = std::time::Duration::from_millis(*expected);
                format!("with a time limit of {}", muster_model::quantity::format_duration(span))
            }
        }
    }
}

impl Scheduler {
    /// What would let a job start now.
    pub(crate) fn alternatives(&mut self, ix: JobIx, tier: Tier, now: Millis) -> Vec<Alternative> {
        let request = self.request_of(ix);
        let mut found: Vec<Alternative> = Vec::new();
        let largest = |this: &mut Self, most: u32, make: fn(u32) -> Alternative| {
            (1..most).rev().map(make).find(|it| this.would_start(ix, &request, it, now))
        };
        if let Some(devices) = &request.need.devices {
            found.extend(largest(self, devices.count, Alternative::Devices));
            for model in self.other_models(ix, &request) {
                let other = Alternative::Model(model);
                found.extend(Some(other).filter(|it| self.would_start(ix, &request, it, now)));
            }
        }
        if let Shape::Gang(size) = request.shape {
            let asker = self.asker(ix, now);
            let most = self.largest_now(ix, &asker).min(size.saturating_sub(1));
            found.extend(largest(self, most + 1, Alternative::Nodes));
        }
        let mut simple = Vec::new();
        if !request.labels.is_empty() {
            simple.push(Alternative::WithoutLabels);
        }
        if request.need.exclusive {
            simple.push(Alternative::NotAlone);
        }
        simple.extend(self.in_time(ix, now).map(Alternative::Expected));
        found.extend(simple.into_iter().filter(|it| self.would_start(ix, &request, it, now)));
        if !matches!(tier, Tier::NeverFits | Tier::NeverAllowed | Tier::NotServed | Tier::NoNode) {
            found.extend(self.priority_for(ix, now));
        }
        found
    }

    /// A job that waits, as it was submitted.
    pub(crate) fn request_of(&self, ix: JobIx) -> Request {
        let job = &self.jobs[ix];
        let group = &self.groups[job.group];
        let class = &self.classes[group.class];
        Request {
            job: job.id.clone(),
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

    /// Whether a job would start with the next pass if it were otherwise. What waits beside it does not start in either case, or it
    /// would have; but what is kept for the job itself, others might then have, so for such a one a whole pass is tried.
    fn would_start(&mut self, ix: JobIx, request: &Request, change: &Alternative, now: Millis) -> bool {
        let mut changed = request.clone();
        change.apply(&mut changed);
        let size = if let Shape::Gang(size) = changed.shape { size } else { 1 };
        let group = self.group(&changed, size);
        let ends_at = changed.expected.map(|expected| now.saturating_add(expected));
        let asker = Asker { group, ends_at, priority: changed.priority, ..self.asker(ix, now) };
        let is_offered = self.offer(&asker).is_ok();
        self.release_group(group);
        if !is_offered || !self.is_reserved_for(ix) {
            return is_offered;
        }
        let mut trial = self.clone();
        trial.withdraw(&changed.job);
        trial.submit(changed.clone());
        trial.pass(now).starts.iter().any(|start| start.job == changed.job)
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

    /// The least priority with which a job would start, or be promised a place.
    fn priority_for(&self, ix: JobIx, now: Millis) -> Option<Alternative> {
        let job = &self.jobs[ix];
        let pool = &self.pools[self.classes[self.groups[job.group].class].pool as usize];
        let running = pool.preemptible.iter().map(|(priority, _, _)| *priority);
        let kept = pool.reserved.iter().flatten().map(|it| it.priority);
        let above: BTreeSet<u32> = running
            .chain(kept)
            .filter(|it| *it >= job.priority && *it < MAX_PRIORITY)
            .map(|it| it + 1)
            .collect();
        // The highest is enough, if any is; then the least of a few.
        let starts = |priority: u32| {
            let mut trial = self.clone();
            trial.change(&job.id, crate::Change::Priority(priority));
            let plan = trial.pass(now);
            plan.starts.iter().any(|start| start.job == job.id)
                || plan.preemptions.iter().any(|preemption| preemption.by == job.id)
        };
        let highest = above.last().copied().filter(|priority| starts(*priority))?;
        let least = above.iter().copied().take(3).find(|priority| starts(*priority));
        Some(Alternative::Priority(least.unwrap_or(highest)))
    }
}
