//! What the scheduler is told: jobs, and what workspaces and users are due.

use std::collections::BTreeMap;
use std::ops::RangeInclusive;

use muster_model::task::Placement;
use muster_model::{JobId, NodeId};
use serde::{Deserialize, Serialize};

use crate::fit::Need;
use crate::policy::Millis;
use crate::quota::{Quota, Resource};

/// How many tasks a job has, and whether they need each other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Shape {
    /// All of them start together, or none does.
    Gang(u32),
    /// Each stands alone and starts when there is room for it.
    Many {
        /// Those that wait, by number.
        elements: Vec<RangeInclusive<u32>>,
        /// How many may run at once.
        at_once: u32,
    },
}

/// Whether a job is to be considered.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Standing {
    /// It is.
    Ready,
    /// Somebody holds it.
    Held,
    /// Other jobs come first; in words: which, and how they are to end.
    Dependent(String),
    /// Not before this moment.
    Paused(Millis),
}

/// A job that waits.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// The job.
    pub job: JobId,
    /// Whose quota it counts against.
    pub workspace: String,
    /// Whose it is.
    pub user: String,
    /// Where it runs.
    pub pool: String,
    /// 1 to 1000; the highest goes first.
    pub priority: u32,
    /// It may be ended for jobs of higher priority.
    pub preemptible: bool,
    /// When it was submitted.
    pub submitted_at: Millis,
    /// Its place among all jobs by age, which it keeps when it comes back to the queue.
    pub place: u64,
    /// For how long it is expected to run.
    pub expected: Option<Millis>,
    /// How many tasks it has.
    pub shape: Shape,
    /// What each task needs.
    pub need: Need,
    /// Nodes that it would rather have than others, by rank.
    pub prefer: Vec<NodeId>,
    /// Nodes that it is not to have.
    pub exclude: Vec<NodeId>,
    /// Labels that its nodes must have.
    pub labels: BTreeMap<String, String>,
    /// Whether it is to be considered.
    pub standing: Standing,
    /// When it was ended for others in the last 24 hours, with the element, of a job of many; 0 of a gang.
    pub preempted: Vec<(u32, Millis)>,
}

impl Request {
    /// One task of no particular need, for somebody of a workspace.
    pub fn new(job: JobId, workspace: &str, user: &str, pool: &str) -> Self {
        Self {
            job,
            workspace: workspace.into(),
            user: user.into(),
            pool: pool.into(),
            priority: muster_model::spec::DEFAULT_PRIORITY,
            preemptible: false,
            submitted_at: 0,
            place: 0,
            expected: None,
            shape: Shape::Gang(1),
            need: Need::default(),
            prefer: Vec::new(),
            exclude: Vec::new(),
            labels: BTreeMap::new(),
            standing: Standing::Ready,
            preempted: Vec::new(),
        }
    }
}

/// What changes about a job that waits or runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Change {
    /// Its priority.
    Priority(u32),
    /// Whether it is to be considered.
    Standing(Standing),
    /// It has saved what it has done so far.
    Saved {
        /// The element, of a job of many; 0 of a gang.
        element: u32,
        /// When.
        at: Millis,
    },
}

/// What a workspace is due.
#[derive(Debug, Clone, PartialEq)]
pub struct Workspace {
    /// Its part of what is fair, beside the others'.
    pub weight: f64,
    /// What it may have; without end in what is not listed.
    pub quotas: BTreeMap<Resource, Quota>,
}

impl Default for Workspace {
    fn default() -> Self {
        Self { weight: 1.0, quotas: BTreeMap::new() }
    }
}

/// What a user is due.
#[derive(Debug, Clone, PartialEq)]
pub struct User {
    /// Their part of what is fair, beside the others' of a workspace.
    pub weight: f64,
    /// How many gangs, or elements of jobs of many, they may run at once.
    pub max_running: Option<u32>,
}

impl Default for User {
    fn default() -> Self {
        Self { weight: 1.0, max_running: None }
    }
}

/// A gang, or one element of a job of many, that runs already: told once, when the scheduler is made anew.
#[derive(Debug, Clone, PartialEq)]
pub struct Running {
    /// The job, which was submitted before.
    pub job: JobId,
    /// The element, of a job of many; 0 of a gang.
    pub element: u32,
    /// A place for each rank; none for one that is over, and where somebody else's scheduler places.
    pub placements: Vec<Option<Placement>>,
    /// Since when.
    pub started_at: Millis,
    /// When it last saved what it had done.
    pub saved_at: Option<Millis>,
    /// It was told to end, and its place may be promised to somebody.
    pub is_leaving: bool,
}

/// What becomes of a job whose run is over.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It is over, too.
    Over,
    /// It waits again, at its old place.
    Again,
}

/// A gang, or one element of a job of many, that starts now.
#[derive(Debug, Clone, PartialEq)]
pub struct Start {
    /// The job.
    pub job: JobId,
    /// The element, of a job of many; 0 of a gang.
    pub element: u32,
    /// A place for each rank; none where somebody else's scheduler places.
    pub placements: Vec<Placement>,
}

/// Why somebody's run is ended for somebody else's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The other has a higher priority, and this one may be ended for it.
    Priority,
    /// It has what was borrowed, and the other's workspace wants its own back.
    Reclaim,
}

/// A run that is to end for another.
#[derive(Debug, Clone, PartialEq)]
pub struct Preemption {
    /// Whose run.
    pub job: JobId,
    /// The element, of a job of many; 0 of a gang.
    pub element: u32,
    /// For whom.
    pub by: JobId,
    /// Why.
    pub cause: Cause,
    /// What is lost: device-seconds since it started or saved.
    pub loses: f64,
}

/// What one pass decides. Everything in it is already so for the scheduler.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Plan {
    /// What starts.
    pub starts: Vec<Start>,
    /// What ends for others. What they hold is kept for those.
    pub preemptions: Vec<Preemption>,
    /// When another pass is worthwhile, though nothing happens.
    pub next_at: Option<Millis>,
}

/// What somebody has used, to be kept across restarts.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Usage {
    /// The workspace.
    pub workspace: String,
    /// The user in it; the workspace itself, if absent.
    pub user: Option<String>,
    /// Devices held in the mean, as far as that is not forgotten.
    pub mean: f64,
    /// As of when.
    pub at: Millis,
}
