//! What is kept of the objects of a cluster. Pure.
//!
//! A pod is ten kilobytes as the API server sends it, most of which nobody here reads; a server that watches thousands of them
//! keeps what is said below and nothing else. What is not read cannot be a change either, so whoever waits for changes is not
//! woken by it. Nothing here decides what a thing means.

mod quantity;
mod raw;

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_model::Timestamp;
use serde::Deserialize;

use crate::gang::needs::{Amounts, Needs, Node};
pub(crate) use quantity::amount;

/// A pod of a gang.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "raw::Pod")]
pub(crate) struct Pod {
    /// Which state of it this is. Emptied when it is kept: every change has another.
    pub version: String,
    /// Where its name is unique.
    pub namespace: String,
    pub name: String,
    /// Unique for ever, also among pods that were called the same.
    pub uid: String,
    pub labels: BTreeMap<String, String>,
    /// Its place in the gang.
    pub rank: Option<u32>,
    pub created_at: Option<Timestamp>,
    /// When somebody began to end it.
    pub deleted_at: Option<Timestamp>,
    /// It still waits for all of its gang.
    pub is_gated: bool,
    /// What it asks of a node.
    pub needs: Arc<Needs>,
    /// The machine that it has.
    pub node: Option<String>,
    /// The machine on which room is made for it.
    pub nominated: Option<String>,
    pub phase: Phase,
    /// Why it is in that phase: `Evicted`, `DeadlineExceeded`, `NodeLost`.
    pub reason: Option<String>,
    pub message: Option<String>,
    /// When it got its machine.
    pub scheduled_at: Option<Timestamp>,
    /// Why the scheduler has not placed it.
    pub unscheduled: Option<Said>,
    /// Why Kubernetes itself takes it away.
    pub disruption: Option<Said>,
    /// Those that come before its task.
    pub init: Vec<Container>,
    pub containers: Vec<Container>,
}

impl Pod {
    /// Takes over what was known before and is not said any more: with the last word of its node a pod that was told to end
    /// is deleted once more, at that time.
    pub(crate) fn continue_from(&mut self, earlier: &Self) {
        self.deleted_at = match (earlier.deleted_at, self.deleted_at) {
            (Some(earlier), Some(now)) => Some(earlier.min(now)),
            (_, now) => now,
        };
    }
}

/// How far a pod is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) enum Phase {
    #[default]
    Pending,
    Running,
    Succeeded,
    Failed,
    /// Its node does not say.
    Unknown,
}

impl Phase {
    /// Nothing of it runs, nor will.
    pub(crate) fn is_over(self) -> bool {
        matches!(self, Self::Succeeded | Self::Failed)
    }
}

/// What somebody gave as the reason for something.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct Said {
    pub reason: String,
    pub message: String,
    pub at: Option<Timestamp>,
}

/// A container, as its node has last reported it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Container {
    pub name: String,
    pub image: String,
    pub state: ContainerState,
}

/// How far a container is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum ContainerState {
    /// It has not begun: `ContainerCreating`, `PodInitializing`, `ImagePullBackOff`.
    Waiting {
        reason: String,
        message: String,
    },
    Running,
    /// It ended.
    Over {
        exit_code: i32,
        reason: String,
        message: String,
        at: Option<Timestamp>,
    },
}

/// The Job of an attempt.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(from = "raw::Job")]
pub(crate) struct Job {
    pub version: String,
    pub namespace: String,
    pub name: String,
    pub uid: String,
    pub labels: BTreeMap<String, String>,
    /// Those of ours, which begin with `muster.dev/`.
    pub annotations: BTreeMap<String, String>,
    pub created_at: Option<Timestamp>,
    pub deleted_at: Option<Timestamp>,
    /// How many ranks it has.
    pub ranks: u32,
    pub is_suspended: bool,
    /// The Job controller has suspended it, and has not heard yet if it is to go on.
    pub is_held: bool,
    /// When it was last let go on after having been suspended.
    pub resumed_at: Option<Timestamp>,
    pub end: Option<JobEnd>,
    /// Kubernetes has given it up and ends what is left of it.
    pub failing: Option<Said>,
    /// How many pods the Job controller still counts as there.
    pub active: u32,
}

/// How a Job ended.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum JobEnd {
    Complete,
    Failed(Said),
}

/// Something that went wrong with an object, as Kubernetes tells people.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "raw::Event")]
pub(crate) struct Event {
    pub version: String,
    pub namespace: String,
    pub name: String,
    /// `Job` or `Pod`.
    pub about_kind: String,
    pub about: String,
    pub about_uid: String,
    pub reason: String,
    pub message: String,
    /// When it was first said, and last.
    pub first_at: Option<Timestamp>,
    pub at: Option<Timestamp>,
}

/// A pod of anybody's that has a place on a machine.
#[derive(Debug, Clone, PartialEq, Eq, Deserialize)]
#[serde(from = "raw::Pod")]
pub(crate) struct Tenant {
    pub version: String,
    pub uid: String,
    pub node: Option<String>,
    pub requests: Amounts,
    pub priority: i32,
    /// It holds nothing any more.
    pub is_over: bool,
}

/// A machine of the cluster.
#[derive(Debug, Clone, PartialEq, Eq, Default, Deserialize)]
#[serde(from = "raw::Node")]
pub(crate) struct Machine {
    pub version: String,
    pub name: String,
    /// Its labels, its taints, and what of it pods may have.
    pub node: Node,
    /// Somebody wants nothing new on it.
    pub is_cordoned: bool,
    pub is_ready: bool,
    /// Why it is not ready, or what else is wrong with it: `DiskPressure`.
    pub trouble: Option<String>,
    /// What it has.
    pub capacity: Amounts,
}

#[cfg(test)]
mod tests;
