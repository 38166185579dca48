//! What the objects of an attempt say about it. Pure.
//!
//! A gang is over when nothing of it runs any more, and not before: the next attempt begins then. While its pods end, it runs.
//! Kubernetes lets the other ranks go on when one is taken away, and keeps trying to start what can never start; such a gang is
//! *doomed*: its Job is told to end, with the reason written on it, so that whoever looks later finds the same.

mod cause;
mod hindrance;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use muster_engine::{Observed, Status, Verdict, Wait};
use muster_model::Timestamp;

use crate::inventory::Inventory;
use crate::seen::{Event, Job, JobEnd, Pod};

pub(crate) use cause::read_verdict;
pub(crate) use cause::write_verdict;

/// Where the reason for which a Job was told to end is written on it.
pub(crate) const VERDICT: &str = "muster.dev/verdict";
/// How often its pods were taken back because they could not all be placed.
const TAKEN_BACK: &str = "muster.dev/taken-back";

/// All that is known of an attempt.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Facts<'a> {
    /// Its Job, also one that is gone.
    pub job: Option<&'a Job>,
    pub is_job_gone: bool,
    /// Its pods, also those that are gone.
    pub pods: &'a [Known],
    /// What went wrong with any of them.
    pub events: &'a [Event],
    /// We end it ourselves.
    pub is_stopping: bool,
    /// What its gates wait for, where that is known.
    pub gate: Option<&'a Wait>,
    /// The machines, where they may be seen.
    pub inventory: Option<&'a Inventory>,
    pub now: Timestamp,
}

/// A pod that was seen.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Known {
    pub pod: Arc<Pod>,
    /// It is not there any more.
    pub is_gone: bool,
}

impl Known {
    /// Whether something of it runs, or may.
    pub(crate) fn is_live(&self) -> bool {
        !self.is_gone && !self.pod.phase.is_over()
    }
}

/// What is known, and what is to be done about it.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct Judgement {
    pub observed: Observed,
    /// The Job is to be ended for this reason.
    pub doom: Option<Verdict>,
}

/// What the facts mean.
pub(crate) fn judge(facts: Facts) -> Judgement {
    let ranks = facts.ranks();
    let hosts = facts.hosts(&ranks);
    let external = facts.job.map(|job| job.name.clone());
    let (status, doom) = facts.status(&ranks);
    Judgement { observed: Observed { status, external, hosts }, doom }
}

/// The newest pod of every rank that has one.
type Ranks<'a> = BTreeMap<u32, &'a Known>;

impl<'a> Facts<'a> {
    fn ranks(&self) -> Ranks<'a> {
        let mut ranks = Ranks::new();
        for known in self.pods {
            let Some(rank) = known.pod.rank.filter(|_| !self.is_past(known)) else { continue };
            let age = |known: &Known| (!known.is_gone, known.pod.created_at);
            ranks
                .entry(rank)
                .and_modify(|newest| {
                    if age(known) > age(newest) {
                        *newest = known
                    }
                })
                .or_insert(known);
        }
        ranks
    }

    /// Whether it is of before the Job was last suspended, and over: that is not how the gang ended.
    fn is_past(&self, known: &Known) -> bool {
        let resumed_at = self.job.and_then(|job| job.resumed_at);
        known.is_gone
            && resumed_at.zip(known.pod.created_at).is_some_and(|(resumed, created)| created < resumed)
    }

    /// The machines, once all ranks have theirs.
    fn hosts(&self, ranks: &Ranks) -> Vec<String> {
        let count = self.job.map_or(ranks.len(), |job| job.ranks as usize);
        let hosts: Vec<String> = ranks.values().filter_map(|known| known.pod.node.clone()).collect();
        if hosts.len() == count { hosts } else { Vec::new() }
    }

    fn status(&self, ranks: &Ranks) -> (Status, Option<Verdict>) {
        let is_live = self.pods.iter().any(Known::is_live);
        let Some(job) = self.job.filter(|_| !self.is_job_gone) else {
            return (self.without_job(ranks, is_live), None);
        };
        let all_over =
            ranks.len() == job.ranks as usize && ranks.values().all(|known| known.pod.phase.is_over());
        if !is_live && !job.is_held && (job.end.is_some() || all_over) {
            return (Status::Ended(self.verdict(ranks)), None);
        }
        let is_ending = self.is_stopping || job.failing.is_some() || job.deleted_at.is_some();
        if is_ending || job.annotations.contains_key(VERDICT) {
            return (Status::Running, None);
        }
        if let Some(verdict) = self.interrupted(job, ranks) {
            return (Status::Running, Some(verdict));
        }
        if job.is_held {
            return (Status::Waiting(self.gated()), None);
        }
        match hindrance::of(self, job, ranks) {
            Some(hindrance::Hindrance::Fatal(verdict, wait)) => (Status::Waiting(wait), Some(verdict)),
            Some(hindrance::Hindrance::Passing(wait)) => (Status::Waiting(wait), None),
            None => (Status::Running, None),
        }
    }

    /// The Job is gone, or there never was one.
    fn without_job(&self, ranks: &Ranks, is_live: bool) -> Status {
        if is_live {
            return Status::Running;
        }
        let was_there = self.job.is_some() || !self.pods.is_empty();
        if self.is_stopping || !was_there {
            return Status::Gone;
        }
        Status::Ended(self.verdict(ranks))
    }

    /// A rank is over although the gang is not, and its agent has not ended in order.
    fn interrupted(&self, job: &Job, ranks: &Ranks) -> Option<Verdict> {
        if !job.is_held {
            return cause::first(ranks.values().filter(|known| !known.is_live()).copied(), None);
        }
        // We suspend what could not be placed whole. Others suspend what has to make way for something, and a gang runs once.
        let is_ours = job.annotations.contains_key(TAKEN_BACK);
        let has_begun = || ranks.values().any(|known| cause::has_begun(&known.pod));
        (!is_ours && has_begun()).then_some(Verdict::Preempted)
    }

    /// Why it is over.
    fn verdict(&self, ranks: &Ranks) -> Verdict {
        let written =
            self.job.and_then(|job| job.annotations.get(VERDICT)).and_then(|text| read_verdict(text));
        let failing = self.job.and_then(|job| job.failing.as_ref()).and_then(|said| said.at);
        let end = self.job.and_then(|job| job.end.as_ref());
        let of_pods = || cause::first(ranks.values().copied(), failing);
        let of_job = || match end {
            Some(JobEnd::Complete) => Verdict::Completed,
            Some(JobEnd::Failed(said)) => cause::of_job(said, self.is_any_missing(ranks)),
            // Nothing of it failed, and it is over: every agent ended in order, or the Job was taken away.
            None if self.is_job_gone => Verdict::Cancelled { by: None },
            None => Verdict::Completed,
        };
        written.or_else(of_pods).unwrap_or_else(of_job)
    }

    /// Whether a rank has no pod that could say anything.
    fn is_any_missing(&self, ranks: &Ranks) -> bool {
        self.job.is_some_and(|job| ranks.len() < job.ranks as usize)
    }

    /// What a gang waits for that is held back.
    fn gated(&self) -> Wait {
        self.gate.cloned().unwrap_or_else(|| Wait {
            code: "scheduler",
            summary: "it is held back until all of its pods can start together".into(),
            help: None,
            starts_at: None,
        })
    }
}
