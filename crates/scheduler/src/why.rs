//! Why a job waits, in words a user understands: the first thing that stands in its way, and what would help.
//!
//! Reasons come in tiers, the ones that waiting does not mend first. Nothing is offered that was not tried: see
//! [`crate::alternative`] for what would let it start now, [`crate::outlook`] for when it starts as it is.

mod tier;

use std::collections::BTreeSet;

use muster_model::JobId;
use muster_model::quantity::format_bytes;
use muster_model::spec::MAX_PRIORITY;
use serde::Serialize;
use smallvec::smallvec;

pub use self::tier::Tier;
use crate::alternative::Alternative;
use crate::outlook::Estimate;
use crate::place::{Asker, Blocked};
use crate::policy::Millis;
use crate::queue::JobIx;
use crate::quota::{CPU, Dim, MEMORY, Resource};
use crate::request::{Request, Standing};
use crate::run::Phase;
use crate::state::{Class, Scheduler};
use crate::words::{asks, free, has, smaller_task};

/// Why a job waits.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Explanation {
    /// What stands in its way.
    pub tier: Tier,
    /// One line.
    pub summary: String,
    /// What is not met, with numbers.
    pub constraint: String,
    /// What would help.
    pub help: String,
    /// What would let it start now; each was tried.
    pub alternatives: Vec<Alternative>,
    /// How many jobs of its pool are before it; none, if it is not considered.
    pub ahead: Option<usize>,
    /// When it starts as it is, by what is expected of running jobs.
    pub estimate: Option<Estimate>,
    /// Why there is no estimate.
    pub no_estimate: Option<String>,
    /// The jobs that the words name by their ids: those that make room for it, or that it is behind.
    pub jobs: Vec<JobId>,
}

impl Explanation {
    /// With what people call the jobs in place of their ids; jobs that the reader may not know have no name.
    pub fn with_names(mut self, name: impl Fn(&JobId) -> Option<String>) -> Self {
        if !self.jobs.is_empty() {
            let ids = listed(self.jobs.iter().map(|job| Some(job.to_string())));
            let named = listed(self.jobs.iter().map(name));
            for words in [&mut self.summary, &mut self.constraint, &mut self.help] {
                *words = words.replace(&ids, &named);
            }
        }
        self
    }
}

/// A tier, its summary, its constraint, its help.
pub(crate) type Words = (Tier, String, String, String);

/// How many other jobs are named.
const NAMED: usize = 3;

/// Why it cannot be foreseen when a job starts, where that is no matter of what runs and who waits.
fn unforeseen(tier: Tier) -> Option<&'static str> {
    match tier {
        Tier::Held => Some("it starts only after it is released"),
        Tier::Dependency => Some("it depends on when the jobs before it end"),
        Tier::Backoff => Some("it is considered after its pause"),
        Tier::NoNode => Some("no node that it could have takes tasks now"),
        Tier::NotServed | Tier::NeverFits | Tier::NeverAllowed => Some("it never starts as it is"),
        Tier::WaitingForPreemption => Some("it starts as soon as those that make room have ended"),
        Tier::UserLimit
        | Tier::OutOfQuota
        | Tier::QuotaLent
        | Tier::BehindOthers
        | Tier::NoCapacity
        | Tier::StartsNow => None,
    }
}

/// The labels that a job asks for.
fn labels(class: &Class) -> String {
    let labels: Vec<String> = class.labels.iter().map(|(key, value)| format!("{key}={value}")).collect();
    labels.join(" ")
}

/// By what a job chooses nodes.
fn choice(class: &Class) -> String {
    match (class.labels.is_empty(), class.exclude.is_empty()) {
        (false, true) => format!("labelled {}", labels(class)),
        (true, _) => "other than those it excludes".into(),
        (false, false) => format!("labelled {}, other than those it excludes", labels(class)),
    }
}

/// Which nodes are counted for a job that does not take any.
fn among(class: &Class) -> String {
    match class.labels.is_empty() && class.exclude.is_empty() {
        true => String::new(),
        false => format!("of the nodes {}, ", choice(class)),
    }
}

/// Jobs in a sentence: a few that have names, and how many there are besides.
pub(crate) fn listed(jobs: impl Iterator<Item = Option<String>>) -> String {
    let jobs: Vec<Option<String>> = jobs.collect();
    let named: Vec<&str> = jobs.iter().flatten().take(NAMED).map(String::as_str).collect();
    match (&named[..], jobs.len() - named.len()) {
        ([], 1) => "another job".into(),
        ([], others) => format!("{others} other jobs"),
        ([one], 0) => (*one).into(),
        ([first @ .., last], 0) => format!("{} and {last}", first.join(", ")),
        (named, 1) => format!("{} and another job", named.join(", ")),
        (named, others) => format!("{} and {others} other jobs", named.join(", ")),
    }
}

impl Scheduler {
    /// Why a job waits, to somebody who may give it any priority. None if it is not known, or runs.
    pub fn explain(&mut self, id: &JobId, now: Millis) -> Option<Explanation> {
        self.explain_up_to(id, now, MAX_PRIORITY)
    }

    /// Why a job waits, to somebody who may give it no higher priority than this.
    pub fn explain_up_to(&mut self, id: &JobId, now: Millis, highest_priority: u32) -> Option<Explanation> {
        let ix = *self.job_index.get(id)?;
        if !self.jobs[ix].runs.is_empty() && !self.jobs[ix].is_promised && !self.jobs[ix].is_queued {
            return None;
        }
        let (tier, summary, constraint, help) = self.words(ix, now);
        let is_considered = self.jobs[ix].is_queued;
        let may_change = is_considered && tier != Tier::StartsNow;
        let alternatives = match may_change {
            true => self.alternatives(ix, tier, now, highest_priority),
            false => Vec::new(),
        };
        let (estimate, no_estimate) = match unforeseen(tier) {
            _ if tier == Tier::StartsNow => (None, None),
            Some(why) => (None, Some(why.to_owned())),
            None => self.estimate(ix, now).map_or_else(|why| (None, Some(why)), |found| (Some(found), None)),
        };
        let ahead = is_considered.then(|| self.ahead(ix, now));
        let jobs = match tier {
            Tier::WaitingForPreemption => self.making_room_for(ix),
            Tier::BehindOthers => self.kept_before(ix),
            _ => Vec::new(),
        };
        let jobs = jobs.into_iter().map(|job| JobId::clone(&self.jobs[job].id)).collect();
        Some(Explanation {
            tier,
            summary,
            constraint,
            help,
            alternatives,
            ahead,
            estimate,
            no_estimate,
            jobs,
        })
    }

    /// What would happen to a job that is not submitted yet, to somebody who may give it no higher priority than this.
    pub fn preview(&mut self, request: Request, now: Millis, highest_priority: u32) -> Option<Explanation> {
        let id = request.job.clone();
        if self.knows(&id) {
            return None;
        }
        self.submit(request);
        let explained = self.explain_up_to(&id, now, highest_priority);
        self.withdraw(&id);
        explained
    }

    /// What waiting would not mend about a job that nobody has submitted yet.
    pub fn refusal(&mut self, request: Request) -> Option<Explanation> {
        let id = request.job.clone();
        if self.knows(&id) {
            return None;
        }
        self.submit(request);
        let words = self.job_index.get(&id).copied().and_then(|ix| self.unfit(ix));
        self.withdraw(&id);
        let (tier, summary, constraint, help) = words?;
        let alternatives = Vec::new();
        Some(Explanation {
            tier,
            summary,
            constraint,
            help,
            alternatives,
            ahead: None,
            estimate: None,
            no_estimate: None,
            jobs: Vec::new(),
        })
    }

    /// The first thing that stands in the way of a job, with its numbers. None if the job is not known.
    pub(crate) fn reason(&self, id: &JobId, now: Millis) -> Option<(Tier, String)> {
        let ix = *self.job_index.get(id)?;
        let (tier, _, constraint, _) = self.words(ix, now);
        Some((tier, constraint))
    }

    /// The first thing that stands in the way of a job.
    pub(crate) fn words(&self, ix: JobIx, now: Millis) -> Words {
        self.set_aside(ix).or_else(|| self.impossible(ix)).unwrap_or_else(|| self.blocked(ix, now))
    }

    /// Why a job is not considered at all.
    fn set_aside(&self, ix: JobIx) -> Option<Words> {
        let job = &self.jobs[ix];
        let words = |tier, summary: &str, constraint: String, help: &str| {
            Some((tier, summary.to_owned(), constraint, help.to_owned()))
        };
        if job.is_promised {
            return Some(self.promised_words(ix));
        }
        match &job.standing {
            Standing::Ready => None,
            Standing::Held => words(
                Tier::Held,
                "it is held",
                "it is not considered while it is held".into(),
                "`muster release` lets it go",
            ),
            Standing::Dependent(on) => words(
                Tier::Dependency,
                "it waits for other jobs",
                on.clone(),
                "it is considered when they have ended so",
            ),
            Standing::Paused(_) => words(
                Tier::Backoff,
                "it waits a while before its next attempt",
                "its last attempt failed".into(),
                "it is considered again by itself",
            ),
        }
    }

    /// The jobs that were told to end for one.
    fn making_room_for(&self, ix: JobIx) -> Vec<JobIx> {
        let phases = self.jobs[ix].runs.values().map(|run| &self.runs[*run].phase);
        let waits =
            phases.filter_map(|phase| if let Phase::Promised(waits) = phase { Some(waits) } else { None });
        waits.flatten().map(|run| self.runs[*run].job).collect()
    }

    /// The jobs for which what is free is kept.
    fn kept_before(&self, ix: JobIx) -> Vec<JobIx> {
        let kept = self.pools[self.pool_of(ix) as usize].reserved.iter().flatten();
        kept.map(|it| it.job).filter(|job| *job != ix).collect()
    }

    /// Jobs by their ids, for a sentence.
    fn listed(&self, jobs: &[JobIx]) -> String {
        listed(jobs.iter().map(|job| Some(self.jobs[*job].id.to_string())))
    }

    fn promised_words(&self, ix: JobIx) -> Words {
        let others = self.making_room_for(ix);
        let were = if others.len() == 1 { "was" } else { "were" };
        (
            Tier::WaitingForPreemption,
            "others make room for it".into(),
            format!("{} {were} told to end for it and may save first", self.listed(&others)),
            "it starts when they have ended".into(),
        )
    }

    /// What waiting does not mend.
    fn impossible(&self, ix: JobIx) -> Option<Words> {
        let group = &self.groups[self.jobs[ix].group];
        let class = &self.classes[group.class];
        let pool = &self.pools[class.pool as usize];
        if !pool.delegates {
            let nodes = || pool.nodes.iter().map(|node| &self.nodes[*node]);
            let mut chosen = nodes().filter(|node| class.chooses(node)).peekable();
            let asks = asks(&class.need, group.size);
            if nodes().any(|node| node.state.usable)
                && chosen.peek().is_some()
                && chosen.all(|node| !node.state.usable)
            {
                return Some((
                    Tier::NoNode,
                    "none of the nodes that it chooses takes tasks now".into(),
                    format!("it chooses nodes {}", choice(class)),
                    "see `muster nodes`, or choose others".into(),
                ));
            }
            if nodes().all(|node| !node.state.usable) {
                let constraint =
                    format!("{asks}; {} has {} nodes, and none takes anything", pool.name, pool.nodes.len());
                return Some((
                    Tier::NoNode,
                    "no node takes tasks now".into(),
                    constraint,
                    "see `muster nodes`".into(),
                ));
            }
            if let Some(refused) = self.refused(ix) {
                let help = "ask whoever runs the nodes, or choose another pool";
                return Some((Tier::NotServed, "no node can have it".into(), refused, help.into()));
            }
        }
        self.unfit(ix)
    }

    /// What neither waiting nor another node mends: it asks for more than there is, or than it may have.
    fn unfit(&self, ix: JobIx) -> Option<Words> {
        let group = &self.groups[self.jobs[ix].group];
        let class = &self.classes[group.class];
        let pool = &self.pools[class.pool as usize];
        let most = self.largest_ever(group.class);
        if !pool.delegates && !pool.nodes.is_empty() && most < group.size {
            let chosen = || pool.nodes.iter().map(|ix| &self.nodes[*ix]).filter(|node| class.chooses(node));
            if chosen().next().is_none() {
                return Some(self.unchosen(class));
            }
            let help = match most {
                0 => smaller_task(chosen(), &class.need),
                most => format!("the largest gang of such tasks here is {most}: use --nodes {most} or fewer"),
            };
            let summary = "it can never start here: it asks for more than there is".into();
            let asks = asks(&class.need, group.size);
            let constraint = format!("{asks}; {}{}", among(class), has(chosen(), &class.need));
            return Some((Tier::NeverFits, summary, constraint, help));
        }
        self.never_allowed(ix)
    }

    /// A job chooses no node at all that there is.
    fn unchosen(&self, class: &Class) -> Words {
        let pool = &self.pools[class.pool as usize];
        let nodes = || pool.nodes.iter().map(|ix| &self.nodes[*ix]);
        if nodes().any(|node| class.has_labels(node)) {
            let summary = "it excludes every node that it could have".into();
            let help = "leave one of them out of --exclude";
            return (Tier::NeverFits, summary, format!("{} has no other", pool.name), help.into());
        }
        let is_there = |key: &str, value: &str| {
            nodes().any(|node| node.state.labels.get(key).is_some_and(|it| it == value))
        };
        let missing = class.labels.iter().find(|(key, value)| !is_there(key, value));
        let (constraint, label) = match missing {
            Some((key, value)) => {
                let known: BTreeSet<&str> =
                    nodes().filter_map(|node| node.state.labels.get(key).map(String::as_str)).collect();
                let known: Vec<&str> = known.into_iter().take(NAMED).collect();
                let known = match known.is_empty() {
                    true => format!("no node has a label `{key}`"),
                    false => format!("`{key}` is {} there", known.join(", ")),
                };
                (
                    format!("no node of {} is labelled {key}={value}; {known}", pool.name),
                    format!("{key}={value}"),
                )
            }
            None => {
                let all = labels(class);
                (format!("no node of {} has all of the labels {all}", pool.name), all)
            }
        };
        let summary = "no node has the labels that it asks for".into();
        let help =
            format!("choose another --node-label, or give it to a node: `muster nodes label NODE {label}`");
        (Tier::NeverFits, summary, constraint, help)
    }

    fn never_allowed(&self, ix: JobIx) -> Option<Words> {
        let job = &self.jobs[ix];
        let class = &self.classes[self.groups[job.group].class];
        let delegates = self.pools[class.pool as usize].delegates;
        let kinds = if delegates { smallvec![None] } else { self.kinds_for(class) };
        let never = |kind| self.ledger.never(job.workspace, &self.charge_of(job.group, kind, &[]));
        let all: Option<Vec<(Dim, u64)>> = kinds.into_iter().map(never).collect();
        let (dim, most) = all?.into_iter().max_by_key(|(_, most)| *most)?;
        let workspace = &self.workspaces[job.workspace as usize].0;
        Some((
            Tier::NeverAllowed,
            format!("it asks for more than workspace {workspace} may ever have"),
            format!("{workspace} can have {} at most", self.counted(dim, most)),
            "ask for less, or have the quota raised".into(),
        ))
    }

    /// Why no node at all serves a job.
    fn refused(&self, ix: JobIx) -> Option<String> {
        let class = &self.classes[self.groups[self.jobs[ix].group].class];
        let nodes = || self.pools[class.pool as usize].nodes.iter().map(|node| &*self.nodes[*node].state);
        if nodes().any(|node| node.serves.may_serve(&class.need)) {
            return None;
        }
        let why =
            |node: &crate::NodeState| Some(format!("{}: {}", node.node, node.serves.obstacle(&class.need)?));
        let all: Vec<String> = nodes().filter_map(why).take(3).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// What keeps a job from starting just now.
    fn blocked(&self, ix: JobIx, now: Millis) -> Words {
        let asker = self.asker(ix, now);
        let job = &self.jobs[ix];
        let (workspace, user) = (&self.workspaces[job.workspace as usize].0, &self.people[job.user as usize]);
        match self.offer(&asker) {
            Ok(_) => (
                Tier::StartsNow,
                "it starts now".into(),
                "there is room for it".into(),
                "nothing is to be done".into(),
            ),
            Err(Blocked::User) => {
                let most = user.due.max_running.or(self.max_running).unwrap_or(0);
                (
                    Tier::UserLimit,
                    format!("{} runs as many jobs as one user may", user.name),
                    format!("{} of {most} run", user.running),
                    "it starts when one of them ends".into(),
                )
            }
            Err(Blocked::Quota(dim)) => (
                Tier::OutOfQuota,
                format!("workspace {workspace} has as much as it may"),
                self.quota_words(job.workspace, dim),
                "it starts when other jobs of the workspace end, or when others leave some of theirs idle"
                    .into(),
            ),
            Err(Blocked::Lent(dim)) => (
                Tier::QuotaLent,
                format!("others have borrowed what is workspace {workspace}'s own"),
                self.quota_words(job.workspace, dim),
                "it is taken back as soon as those who have it have had their least time".into(),
            ),
            Err(Blocked::Room) => self.no_room(ix, &asker),
        }
    }

    fn no_room(&self, ix: JobIx, asker: &Asker) -> Words {
        let group = &self.groups[self.jobs[ix].group];
        let class = &self.classes[group.class];
        let pool = &self.pools[class.pool as usize];
        if self.offer(&Asker { is_bound: false, ..*asker }).is_ok() {
            let others = self.kept_before(ix);
            let need =
                if others.len() == 1 { "waits before it and needs" } else { "wait before it and need" };
            return (
                Tier::BehindOthers,
                "what is free is kept for jobs before it".into(),
                format!("{} {need} more than is free yet", self.listed(&others)),
                "one that is over in time may start before them: say how long it runs with --timeout".into(),
            );
        }
        let summary = match self.largest_now(ix, asker) {
            0 => "waits for room".into(),
            _ if group.size == 1 => "waits for room on a node".into(),
            some => format!("waits for room: {some} of its {} tasks would fit now", group.size),
        };
        let nodes = pool.nodes.iter().map(|ix| &self.nodes[*ix]).filter(|node| class.chooses(node));
        let asks = asks(&class.need, group.size);
        let constraint = format!("{asks}; {}{}", among(class), free(nodes, &class.need));
        (Tier::NoCapacity, summary, constraint, "it starts when running jobs end (`muster ps`)".into())
    }

    fn quota_words(&self, workspace: u32, dim: Dim) -> String {
        let name = &self.workspaces[workspace as usize].0;
        let used = self.ledger.used(workspace, dim);
        let Some(quota) = self.ledger.quotas(workspace).get(&dim) else {
            return format!("{name} has {}", self.counted(dim, used));
        };
        let borrow = match quota.borrow {
            Some(0) => "none".into(),
            Some(most) => self.amount(dim, most),
            None => "what others leave idle".into(),
        };
        let has = match used <= quota.nominal {
            true => format!("{} of its own {}", self.amount(dim, used), self.counted(dim, quota.nominal)),
            false => {
                format!("{}, of which {} its own", self.counted(dim, used), self.owned(dim, quota.nominal))
            }
        };
        format!("{name} has {has}, and may borrow {borrow}")
    }

    /// `1 is`, `4 are`, `16 GB are`.
    fn owned(&self, dim: Dim, amount: u64) -> String {
        let amount = self.amount(dim, amount);
        format!("{amount} {}", if amount == "1" { "is" } else { "are" })
    }

    /// An amount, and of what.
    fn counted(&self, dim: Dim, amount: u64) -> String {
        let number = self.amount(dim, amount);
        let plural = if number == "1" { "" } else { "s" };
        match self.resource(dim) {
            Resource::Cpu => format!("{number} CPU{plural}"),
            Resource::Memory => format!("{number} of memory"),
            Resource::Devices => format!("{number} device{plural}"),
            Resource::Model(model) => format!("{number} {model} device{plural}"),
        }
    }

    pub(crate) fn amount(&self, dim: Dim, amount: u64) -> String {
        match dim {
            CPU => format!("{}", amount as f64 / 1000.0),
            MEMORY => format_bytes(amount),
            _ => amount.to_string(),
        }
    }
}
