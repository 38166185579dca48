//! The tasks of a node, as its agent knows them.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use muster_link::message::{TaskReport, ToServer};
use muster_model::metrics::Usage;
use muster_model::{JobId, TaskId};
use tokio::task::AbortHandle;
use tokio_util::sync::CancellationToken;

use super::life::Life;
use crate::prepare::Coming;
use crate::record::{Record, TaskDir};
use crate::ship::Source;
use crate::task::Pipes;

/// One task, and all that is held for it.
#[derive(Debug)]
pub(super) struct Task {
    pub(super) life: Life,
    pub(super) dir: TaskDir,
    pub(super) record: Record,
    /// Ends its preparation.
    pub(super) cancel: CancellationToken,
    /// The hold on its output, except while a step has it.
    pub(super) pipes: Option<Pipes>,
    /// The supervisor that will wait for its launch, until a step takes it.
    pub(super) coming: Option<Coming>,
    /// Its supervisor's end is being waited for, or has come.
    pub(super) is_awaited: bool,
    pub(super) is_supervisor_gone: bool,
    /// How often in a row its steps have failed.
    pub(super) failures: u32,
    /// What it has used, as last measured.
    pub(super) usage: Option<Box<Usage>>,
    pub(super) log: Arc<Source>,
    /// Ends the shipping of its log, once that has begun.
    pub(super) shipping: Option<AbortHandle>,
}

impl Task {
    pub(super) fn new(id: &TaskId, dir: TaskDir, record: Record, life: Life) -> Task {
        let log = Arc::new(Source::new(id.clone(), dir.log()));
        Task {
            life,
            dir,
            record,
            cancel: CancellationToken::new(),
            pipes: None,
            coming: None,
            is_awaited: false,
            is_supervisor_gone: false,
            failures: 0,
            usage: None,
            log,
            shipping: None,
        }
    }

    /// Whether nothing of it is on its way to the server, or has yet to be.
    pub(super) fn is_shipped(&self) -> bool {
        self.shipping.as_ref().is_none_or(AbortHandle::is_finished) && !self.life.has_files_to_send()
    }
}

/// All tasks, and which of them the server has yet to be told about. Every change of a task goes through here, so that
/// none is left unsaid.
#[derive(Debug, Default)]
pub(super) struct Table {
    tasks: BTreeMap<TaskId, Task>,
    unsaid: BTreeSet<TaskId>,
}

impl Table {
    pub(super) fn insert(&mut self, id: TaskId, task: Task) {
        self.unsaid.insert(id.clone());
        self.tasks.insert(id, task);
    }

    /// A task, to change it.
    pub(super) fn change(&mut self, id: &TaskId) -> Option<&mut Task> {
        let task = self.tasks.get_mut(id)?;
        self.unsaid.insert(id.clone());
        Some(task)
    }

    pub(super) fn get(&self, id: &TaskId) -> Option<&Task> {
        self.tasks.get(id)
    }

    /// What a task has used. The server knows from the measurement itself, so nothing is left unsaid.
    pub(super) fn note_usage(&mut self, id: &TaskId, usage: &Usage) {
        if let Some(task) = self.tasks.get_mut(id) {
            task.usage = Some(Box::new(usage.clone()));
        }
    }

    pub(super) fn remove(&mut self, id: &TaskId) -> Option<Task> {
        self.unsaid.remove(id);
        self.tasks.remove(id)
    }

    pub(super) fn ids(&self) -> Vec<TaskId> {
        self.tasks.keys().cloned().collect()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = &Task> {
        self.tasks.values()
    }

    pub(super) fn entries(&self) -> impl Iterator<Item = (&TaskId, &Task)> {
        self.tasks.iter()
    }

    pub(super) fn of_job(&self, job: &JobId) -> BTreeSet<TaskId> {
        self.tasks.keys().filter(|id| id.attempt.job == *job).cloned().collect()
    }

    /// Whether one runs, or is about to.
    pub(super) fn has_launched(&self) -> bool {
        self.tasks.values().any(|task| task.life.is_live() && !task.life.is_unlaunched())
    }

    pub(super) fn has_live(&self) -> bool {
        self.tasks.values().any(|task| task.life.is_live())
    }

    /// Everything, for a hello. What a report has no room for, and what changes afterwards, is said on its own.
    pub(super) fn reports(&mut self) -> Vec<TaskReport> {
        self.unsaid = self.tasks.keys().cloned().collect();
        let report = |(id, task): (&TaskId, &mut Task)| TaskReport {
            task: id.clone(),
            phase: task.life.report(task.record.address.as_ref()),
        };
        self.tasks.iter_mut().map(report).collect()
    }

    pub(super) fn has_unsaid(&self) -> bool {
        !self.unsaid.is_empty()
    }

    /// The next thing that the server has to be told.
    pub(super) fn next_message(&mut self) -> Option<ToServer> {
        while let Some(id) = self.unsaid.first() {
            let message =
                self.tasks.get_mut(id).and_then(|task| task.life.message(id, task.record.address.as_ref()));
            if message.is_some() {
                return message;
            }
            self.unsaid.pop_first();
        }
        None
    }
}
