//! Why a job waits, in words a user understands: the first thing that stands in its way, and what would help.
//!
//! Reasons come in tiers, the ones that waiting does not mend first. Nothing is offered that was not tried: see
//! [`crate::alternative`] for what would let it start now, [`crate::outlook`] for when it starts as it is.

use muster_model::JobId;
use muster_model::quantity::format_bytes;
use serde::{Deserialize, Serialize};

use crate::alternative::Alternative;
use crate::explain::asks;
use crate::outlook::Estimate;
use crate::place::{Asker, Blocked};
use crate::policy::Millis;
use crate::queue::JobIx;
use crate::quota::{CPU, Dim, MEMORY};
use crate::request::{Request, Standing};
use crate::run::Phase;
use crate::state::Scheduler;

/// What stands between a job and its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Tier {
    /// Somebody holds it.
    Held,
    /// Other jobs come first.
    Dependency,
    /// It waits for a moment, after a failed attempt.
    Paused,
    /// There is no node that takes anything.
    NoNode,
    /// No node runs tasks of its account, or has its volumes.
    NotServed,
    /// It asks for more than there is.
    NeverFits,
    /// It asks for more than its workspace may ever have.
    NeverAllowed,
    /// Its user runs as many as they may.
    UserLimit,
    /// Its workspace has as much as it may.
    OverQuota,
    /// Others have borrowed what is its workspace's own.
    QuotaLent,
    /// Others are about to make room for it.
    WaitingForPreemption,
    /// What is free is kept for a job before it.
    BehindOthers,
    /// There is not enough room.
    WaitingForCapacity,
    /// Nothing: it starts with the next pass.
    StartsNow,
}

impl Tier {
    /// The stable code, as it stands in JSON.
    pub fn code(self) -> &'static str {
        match self {
            Self::Held => "held",
            Self::Dependency => "dependency",
            Self::Paused => "paused",
            Self::NoNode => "no_node",
            Self::NotServed => "not_served",
            Self::NeverFits => "never_fits",
            Self::NeverAllowed => "never_allowed",
            Self::UserLimit => "user_limit",
            Self::OverQuota => "over_quota",
            Self::QuotaLent => "quota_lent",
            Self::WaitingForPreemption => "waiting_for_preemption",
            Self::BehindOthers => "behind_others",
            Self::WaitingForCapacity => "waiting_for_capacity",
            Self::StartsNow => "starts_now",
        }
    }
}

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
}

/// A tier, its summary, its constraint, its help.
type Words = (Tier, String, String, String);

impl Scheduler {
    /// Why a job waits. None if it is not known, or runs.
    pub fn explain(&mut self, id: &JobId, now: Millis) -> Option<Explanation> {
        let ix = *self.job_index.get(id)?;
        if !self.jobs[ix].runs.is_empty() && !self.jobs[ix].is_promised && !self.jobs[ix].is_queued {
            return None;
        }
        let words =
            self.set_aside(ix).or_else(|| self.impossible(ix)).unwrap_or_else(|| self.blocked(ix, now));
        let (tier, summary, constraint, help) = words;
        let is_considered = self.jobs[ix].is_queued;
        let may_change = is_considered && tier != Tier::StartsNow;
        let alternatives = if may_change { self.alternatives(ix, tier, now) } else { Vec::new() };
        let is_matter_of_time = !matches!(tier, Tier::NeverFits | Tier::NeverAllowed | Tier::NotServed);
        let estimate = (may_change && is_matter_of_time).then(|| self.estimate(id, now)).flatten();
        let ahead = is_considered.then(|| self.ahead(ix, now));
        Some(Explanation { tier, summary, constraint, help, alternatives, ahead, estimate })
    }

    /// What would happen to a job that nobody has submitted yet.
    pub fn preview(&mut self, request: Request, now: Millis) -> Option<Explanation> {
        let id = request.job.clone();
        if self.knows(&id) {
            return None;
        }
        self.submit(request);
        let explained = self.explain(&id, now);
        self.withdraw(&id);
        explained
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
            Standing::Held => {
                words(Tier::Held, "it is held", "it is not considered while it is held".into(), "release it")
            }
            Standing::Dependent(on) => words(
                Tier::Dependency,
                "it waits for other jobs",
                on.clone(),
                "it is considered when they have ended so",
            ),
            Standing::Paused(_) => words(
                Tier::Paused,
                "it waits a while before its next attempt",
                "its last attempt failed".into(),
                "it is considered again by itself",
            ),
        }
    }

    fn promised_words(&self, ix: JobIx) -> Words {
        let runs = self.jobs[ix].runs.values().map(|run| &self.runs[*run].phase);
        let waits =
            runs.filter_map(|phase| if let Phase::Promised(waits) = phase { Some(waits) } else { None });
        let names: Vec<String> =
            waits.flatten().map(|run| self.jobs[self.runs[*run].job].id.to_string()).take(3).collect();
        (
            Tier::WaitingForPreemption,
            "others make room for it".into(),
            format!("{} were told to end for it, and have their time to save", names.join(", ")),
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
            let asks = asks(&class.need, group.size);
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
            let most = self.largest_ever(group.class);
            if most < group.size {
                let help = match most {
                    0 => "ask for less for each task; `muster nodes` shows what there is".into(),
                    most => {
                        format!("the largest gang of such tasks here is {most}: use --nodes {most} or fewer")
                    }
                };
                let summary = "it can never start here: it asks for more than there is".into();
                return Some((
                    Tier::NeverFits,
                    summary,
                    format!("{asks}; there is room for {most} such tasks in all"),
                    help,
                ));
            }
        }
        self.never_allowed(ix)
    }

    fn never_allowed(&self, ix: JobIx) -> Option<Words> {
        let job = &self.jobs[ix];
        let class = &self.classes[self.groups[job.group].class];
        let delegates = self.pools[class.pool as usize].delegates;
        let kinds = if delegates { vec![None] } else { self.kinds_for(class) };
        let never = |kind| self.ledger.never(job.workspace, &self.charge_of(job.group, kind, &[]));
        let all: Option<Vec<(Dim, u64)>> = kinds.into_iter().map(never).collect();
        let (dim, most) = all?.into_iter().max_by_key(|(_, most)| *most)?;
        let workspace = &self.workspaces[job.workspace as usize].0;
        Some((
            Tier::NeverAllowed,
            format!("it asks for more than workspace {workspace} may ever have"),
            format!("{workspace} can come to {} {}", self.amount(dim, most), self.dims[dim as usize]),
            "ask for less, or have the quota raised".into(),
        ))
    }

    /// Why no node at all serves a job.
    fn refused(&self, ix: JobIx) -> Option<String> {
        let class = &self.classes[self.groups[self.jobs[ix].group].class];
        let nodes = || self.pools[class.pool as usize].nodes.iter().map(|node| &self.nodes[*node].state);
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
                let most = user.due.max_running.unwrap_or(0);
                (
                    Tier::UserLimit,
                    format!("{} runs as many jobs as one user may", user.name),
                    format!("{} of {most} run", user.running),
                    "it starts when one of them ends".into(),
                )
            }
            Err(Blocked::Quota(dim)) => (
                Tier::OverQuota,
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
            let others = pool.reserved.iter().flatten().filter(|it| it.job != ix);
            let names: Vec<String> = others.map(|it| self.jobs[it.job].id.to_string()).collect();
            return (
                Tier::BehindOthers,
                "what is free is kept for jobs before it".into(),
                format!("{} waited before it and need it whole", names.join(", ")),
                "a job that says for how long it runs may start before theirs begin".into(),
            );
        }
        let free = match &class.need.devices {
            Some(_) => {
                let free: u64 =
                    self.kinds_for(class).into_iter().flatten().map(|kind| pool.room.free(kind)).sum();
                format!("{free} such devices are free in all")
            }
            None => format!("{} nodes have too little left", pool.nodes.len()),
        };
        let summary = match self.largest_now(ix, asker) {
            0 => "waits for room".into(),
            some => format!("waits for room: {some} of its {} tasks would fit now", group.size),
        };
        let constraint = format!("{}; {free}", asks(&class.need, group.size));
        (
            Tier::WaitingForCapacity,
            summary,
            constraint,
            "it starts when running jobs end (`muster ps`)".into(),
        )
    }

    fn quota_words(&self, workspace: u32, dim: Dim) -> String {
        let quota = self.ledger.quotas(workspace).get(&dim).copied();
        let used = self.amount(dim, self.ledger.used(workspace, dim));
        let what = &self.dims[dim as usize];
        let Some(quota) = quota else { return format!("{used} {what} in use") };
        let own = self.amount(dim, quota.nominal);
        let borrow = match quota.borrow {
            Some(0) => "and may borrow none".into(),
            Some(most) => format!("and may borrow {}", self.amount(dim, most)),
            None => "and may borrow what others leave idle".into(),
        };
        format!("{used} of {own} {what} in use, {borrow}")
    }

    pub(crate) fn amount(&self, dim: Dim, amount: u64) -> String {
        match dim {
            CPU => format!("{}", amount as f64 / 1000.0),
            MEMORY => format_bytes(amount),
            _ => amount.to_string(),
        }
    }
}
