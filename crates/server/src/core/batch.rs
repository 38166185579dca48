//! One turn of the core: what was decided, not yet on disk, and how to take it back.

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::path::Path;
use std::sync::Arc;

use muster_api::problem::{Code, Problem};
use muster_link::message::ToAgent;
use muster_model::array::Element;
use muster_model::job::Effect;
use muster_model::pool::Pool;
use muster_model::{AttemptId, BundleId, JobId, NodeId, TaskId, Timestamp};
use muster_store::{Change, NewAudit, NewEvent, Quotas};
use serde_json::Value;

use super::allocation::Allocation;
use super::input::{Reply, Then};
use super::live::{Ended, Live};
use crate::audit::Record;
use crate::delegate::{News, Word};

/// An answer that is given once the batch is on disk, or with the reason why it is not.
pub(super) enum Answer {
    Job(Reply<JobId>, JobId),
    Done(Reply<()>),
    Written(Reply<()>, Option<Then>),
    Node(Reply<NodeId>, NodeId),
    Bundles(Reply<u64>),
}

impl Answer {
    pub fn give(self, batch: &Batch) {
        // A caller that went away does not want its answer.
        match self {
            Self::Job(reply, id) => drop(reply.send(Ok(id))),
            Self::Done(reply) => drop(reply.send(Ok(()))),
            Self::Written(reply, then) => {
                then.into_iter().for_each(|Then(act)| act());
                drop(reply.send(Ok(())));
            }
            Self::Node(reply, id) => drop(reply.send(Ok(id))),
            Self::Bundles(reply) => drop(reply.send(Ok(batch.removed_bundles))),
        }
    }

    pub fn refuse(self, problem: Problem) {
        match self {
            Self::Job(reply, _) => drop(reply.send(Err(problem))),
            Self::Done(reply) | Self::Written(reply, _) => drop(reply.send(Err(problem))),
            Self::Node(reply, _) => drop(reply.send(Err(problem))),
            Self::Bundles(reply) => drop(reply.send(Err(problem))),
        }
    }
}

/// What happened to one job in this batch.
#[derive(Default)]
pub(super) struct Touched {
    /// The job as it was; `None` for a new one.
    pub before: Option<Live>,
    pub before_generation: u64,
    pub ranks: BTreeSet<u32>,
    /// Its attempt ended here, so the next one waits for the next batch: one write holds one attempt.
    pub attempt_ended: bool,
    /// Something about it must be written.
    pub moved: bool,
    /// It has another name.
    pub is_renamed: bool,
    /// Machines of it that have another name of their own, or none any more.
    pub renamed_machines: BTreeSet<u32>,
    /// It has another priority.
    pub is_reprioritised: bool,
}

/// Everything one turn decided.
#[derive(Default)]
pub(super) struct Batch {
    pub jobs: HashMap<JobId, Touched>,
    /// Written before the jobs' own changes: new jobs, bundles, nodes.
    pub first: Vec<Change>,
    pub events: Vec<NewEvent>,
    /// What became of elements of arrays.
    pub elements: Vec<(JobId, Vec<Element>)>,
    /// Written last.
    pub removed: Vec<JobId>,
    pub answers: Vec<Answer>,
    pub effects: Vec<(JobId, Effect)>,
    /// Groups in which somebody came or went.
    pub introduced: BTreeSet<JobId>,
    pub messages: Vec<(NodeId, ToAgent)>,
    pub ended: Vec<(TaskId, Ended)>,
    /// Agents whose words are in this batch: if it fails they must say them again.
    pub speakers: BTreeSet<NodeId>,
    pub keys: HashMap<String, (String, JobId)>,
    /// Bundles that are there once this is written.
    pub bundles: HashSet<BundleId>,
    /// Written after everything else: what is removed because nothing of the batch needs it.
    pub last: Vec<Change>,
    /// How many bundles went, known once the batch is on disk.
    pub removed_bundles: u64,
    /// Tasks of which it is now known what became of their files.
    pub outputs: Vec<TaskId>,
    /// The pools as they were, if any changed.
    pub pools_before: Option<BTreeMap<String, Pool>>,
    /// Nodes of pools that were spoken of: those that are away are tried at once.
    pub spoken_of: BTreeSet<NodeId>,
    /// Allocations as they were, of those that changed; none for a new one.
    pub allocations_before: BTreeMap<AttemptId, Option<Allocation>>,
    /// What was heard of other schedulers: if the batch fails it is heard again.
    pub news: Vec<(AttemptId, News)>,
    /// What is said to whoever speaks with them, once this is on disk.
    pub words: Vec<Word>,
    /// Allocations of which nothing is left.
    pub closed: Vec<AttemptId>,
    /// Whether nodes were drained, of those where that changed; as it was first comes last.
    pub drained_before: Vec<(NodeId, bool)>,
    /// What nodes were labelled with, of those where that changed; as it was first comes first.
    pub labels_before: Vec<(NodeId, BTreeMap<String, String>)>,
    /// What workspaces and users may have, if that changed.
    pub quotas_before: Option<Quotas>,
    /// Who the nodes were that said hello; as it was first comes first.
    pub incarnations_before: Vec<(NodeId, Option<String>)>,
    /// Audit entries of the requests in this batch.
    pub audit: Vec<(Arc<Record>, NewAudit)>,
    /// Workspaces that are gone once this is written.
    pub gone_workspaces: BTreeSet<String>,
}

impl Batch {
    /// Remembers a job as it was before this batch touched it.
    pub fn remember(&mut self, live: &Live) -> &mut Touched {
        self.jobs.entry(live.job.id.clone()).or_insert_with(|| Touched {
            before: Some(live.clone()),
            before_generation: live.job.generation,
            ..Touched::default()
        })
    }

    /// What was decided is answered once it is on disk; what was refused, at once.
    pub fn answer(&mut self, reply: Reply<()>, decided: Result<(), Problem>) {
        match decided {
            Ok(()) => self.answers.push(Answer::Done(reply)),
            Err(problem) => drop(reply.send(Err(problem))),
        }
    }

    pub fn event(&mut self, job: &JobId, attempt: u32, at: Timestamp, kind: &str, body: Value) {
        let attempt = (attempt > 0).then_some(attempt);
        self.events.push(NewEvent { job: Some(job.clone()), attempt, at, kind: kind.into(), body });
    }

    /// Grows with every effect of an input. What was refused is answered at once and leaves it as it is.
    pub fn effects_so_far(&self) -> usize {
        let decided = self.answers.len() + self.jobs.len() + self.events.len() + self.effects.len();
        let written = self.first.len() + self.last.len() + self.removed.len() + self.elements.len();
        decided + written + self.messages.len() + self.words.len()
    }

    /// The job that the last answer is about, if the answer is a new job.
    pub fn made_job(&self) -> Option<&JobId> {
        match self.answers.last() {
            Some(Answer::Job(_, id)) => Some(id),
            _ => None,
        }
    }

    /// The whole batch as one list of writes, in an order the database accepts.
    pub fn changes(&mut self, jobs: &HashMap<JobId, Live>, at: Timestamp) -> Vec<Change> {
        let mut changes: Vec<Change> = self.audit.iter().map(|(_, row)| Change::Audit(row.clone())).collect();
        changes.append(&mut self.first);
        for (id, touched) in self.jobs.iter().filter(|(_, touched)| touched.moved) {
            if let Some(live) = jobs.get(id) {
                changes.push(Change::Job {
                    before_generation: touched.before_generation,
                    job: Box::new(live.job.clone()),
                    touched: touched.ranks.iter().copied().collect(),
                    at,
                });
            }
        }
        for (id, _) in self.jobs.iter().filter(|(_, touched)| touched.is_renamed) {
            if let Some(live) = jobs.get(id) {
                let (generation, name) = (live.job.generation, live.name.clone());
                changes.push(Change::Rename { job: id.clone(), generation, name });
            }
        }
        for (id, touched) in &self.jobs {
            for rank in &touched.renamed_machines {
                if let Some(live) = jobs.get(id) {
                    let (generation, name) = (live.job.generation, live.machine_names.get(rank).cloned());
                    changes.push(Change::NameMachine { job: id.clone(), generation, rank: *rank, name });
                }
            }
        }
        for (id, _) in self.jobs.iter().filter(|(_, touched)| touched.is_reprioritised) {
            if let Some(live) = jobs.get(id) {
                let (generation, priority) = (live.job.generation, live.spec.priority);
                changes.push(Change::Reprioritise { job: id.clone(), generation, priority });
            }
        }
        changes.extend(self.elements.drain(..).map(|(job, elements)| Change::Elements { job, elements }));
        changes.extend(self.events.drain(..).map(Change::Event));
        changes.extend(self.removed.iter().cloned().map(|job| Change::RemoveJob { job, at }));
        changes.append(&mut self.last);
        changes
    }
}

/// What a caller is told when the database cannot be written.
pub(super) fn not_written(error: &muster_store::Error, home: &Path) -> Problem {
    if error.is_disk_full() {
        return crate::disk::read_only(home);
    }
    Problem::new(Code::Unavailable, "the server cannot write to its database now; nothing was changed")
        .hint("the server's log says why; then try again")
}
