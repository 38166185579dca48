//! Doing what was decided: each step of a task's life, where it may wait for the disk and for the network.
//!
//! What is promised is on disk before it is acted upon. A step may be cut off at any point by a kill, and is then made
//! again by the next agent: each is written so that making it twice is making it once.

use std::collections::BTreeSet;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use jiff::Timestamp;
use muster_link::dial::Server;
use muster_link::message::{Keep, Launch};
use muster_model::metrics::Usage;
use muster_model::node::Device;
use muster_model::task::{Outputs, TaskEnd};
use muster_model::{JobId, NodeId, Reason, TaskId};
use tokio_util::sync::CancellationToken;

use super::Event;
use super::life::{Outcome, Step};
use super::table::Task;
use super::tenure::Taken;
use crate::bulk::Bulk;
use crate::files::Reader;
use crate::files::collect::collect;
use crate::prepare::{self, Coming, Means, Prepared, prepare};
use crate::record::{self, Ended, Found, Record, TaskDir};
use crate::shelf::{Kept, Shelf};
use crate::stage::remove_points;
use crate::start::{self, Watch};
use crate::supervisor::{self, Exit, LAUNCH, Started, read, read_started};
use crate::task::{self, Observation, Pipes};
use crate::{Options, diagnosis, disk, metrics, outcome, words};

/// How long after a failure a step is tried again, and by how much that grows with each further one.
const RETRY: Duration = Duration::from_secs(1);
const RETRY_DOUBLINGS: u32 = 6;
/// A task may look alive for a moment after its supervisor has died: a supervisor of another task that is just being
/// started holds the same lock until it becomes one. So what is in doubt is looked at again, this often at most.
const DOUBT: Duration = Duration::from_millis(5);
const DOUBTS: u32 = 200;

/// What came of a step, with what the step was lent and what it found.
#[derive(Debug)]
pub(super) struct Report {
    pub(super) outcome: Outcome,
    pub(super) pipes: Option<Pipes>,
    /// A supervisor that will wait for the task.
    pub(super) coming: Option<Coming>,
    /// A supervisor that is to be awaited from now on.
    pub(super) supervisor: Option<Watch>,
    /// What is known of the task since.
    pub(super) record: Option<Box<Record>>,
}

/// What a step works on.
struct Work {
    id: TaskId,
    dir: TaskDir,
    record: Record,
    pipes: Option<Pipes>,
    /// For the launch; any other step is the end of it.
    coming: Option<Coming>,
    is_awaited: bool,
    is_supervisor_gone: bool,
    /// How often in a row its steps have failed.
    failures: u32,
    usage: Option<Box<Usage>>,
    cancel: CancellationToken,
    taken: Option<Taken>,
}

/// What all steps need.
#[derive(Debug)]
pub(super) struct Hands {
    tasks_dir: PathBuf,
    node: NodeId,
    means: Means,
    start: start::Means,
    shelf: Arc<Shelf>,
    /// Where the place is lent: whether it was taken.
    taken: Option<Taken>,
}

/// The directories that programs of this node find by their paths.
fn kept(options: &Options) -> Vec<PathBuf> {
    let socket = match &options.server {
        Server::Unix(socket) => socket.parent().map(Path::to_owned),
        _ => None,
    };
    [options.dir.clone()].into_iter().chain(socket).collect()
}

impl Hands {
    pub(super) fn new(
        options: &Options,
        tasks_dir: PathBuf,
        means: Means,
        devices: &[Device],
        taken: Option<Taken>,
    ) -> Hands {
        let start = start::Means {
            exe: options.exe.clone(),
            tree: options.tree,
            devices: devices.to_vec(),
            cache: Arc::clone(&means.cache),
            login: Arc::clone(&means.login),
            kept: kept(options),
            lent: options.tenure.as_ref().map(|tenure| Arc::new(tenure.variables.clone())),
        };
        if options.tenure.is_some() {
            start.login.ask_ahead(None);
        }
        let shelf = Arc::new(Shelf::new(tasks_dir.clone(), Arc::clone(&means.cache)));
        Hands { tasks_dir, node: options.node.clone(), means, start, shelf, taken }
    }

    pub(super) fn tasks_dir(&self) -> &Path {
        &self.tasks_dir
    }

    pub(super) fn bulk(&self) -> Bulk {
        self.means.bulk.clone()
    }

    pub(super) fn reader(&self) -> Arc<Reader> {
        Arc::clone(&self.means.reader)
    }

    pub(super) fn node_lost(&self) -> Reason {
        Reason::NodeLost { node: self.node.to_string() }
    }

    /// A step, to be run. Lends it the task's pipes.
    pub(super) fn step(
        &self,
        id: &TaskId,
        task: &mut Task,
        step: Step,
    ) -> impl Future<Output = Event> + use<> {
        let work = Work {
            id: id.clone(),
            dir: task.dir.clone(),
            record: task.record.clone(),
            pipes: task.pipes.take(),
            coming: task.coming.take(),
            is_awaited: task.is_awaited,
            is_supervisor_gone: task.is_supervisor_gone,
            failures: task.failures,
            usage: task.usage.clone(),
            cancel: task.cancel.clone(),
            taken: self.taken.clone(),
        };
        let (means, start, node_lost) = (self.means.clone(), self.start.clone(), self.node_lost());
        let shelf = Arc::clone(&self.shelf);
        async move {
            let task = work.id.clone();
            let report = match step {
                Step::Prepare => work.prepare(means).await,
                Step::End { failure } => work.on_disk(move |work| work.end(failure)).await,
                Step::Launch(launch) => work.launch(launch, start).await,
                Step::Stop { grace_ms, reason } => {
                    work.on_disk(move |work| work.stop(grace_ms, &reason)).await
                }
                Step::Look => work.on_disk(move |work| work.look(node_lost)).await,
                Step::Collect(ended) => work.collect(*ended, means).await,
                Step::Forget { continues } => work.on_disk(move |work| work.forget(continues, &shelf)).await,
                Step::Remove => work.on_disk(move |work| work.remove(&shelf)).await,
            };
            Event::Done { task, report: Box::new(report) }
        }
    }

    /// Remove what is left of a job's tasks, but for those that have a life of their own here.
    pub(super) fn remove_rest(
        &self,
        job: JobId,
        known: BTreeSet<TaskId>,
    ) -> impl Future<Output = Event> + use<> {
        let shelf = Arc::clone(&self.shelf);
        async move {
            let id = job.clone();
            let discarded = disk::work(move || shelf.discard_job(&id, &known)).await;
            if let Err(error) = &discarded {
                tracing::warn!(%job, error = %error, "a job's files could not all be removed");
            }
            Event::Discarded { job, is_complete: discarded.is_ok() }
        }
    }
}

impl Hands {
    /// Remove what goes beyond the bounds. `asked` is whether someone waits to hear of it.
    pub(super) fn collect(
        &self,
        keep: Keep,
        needed: BTreeSet<TaskId>,
        asked: bool,
    ) -> impl Future<Output = Event> + use<> {
        let shelf = Arc::clone(&self.shelf);
        async move {
            let collected = disk::work(move || shelf.collect(&keep, &needed, Timestamp::now())).await;
            let bytes = collected.unwrap_or_else(|error: io::Error| {
                tracing::warn!(error = %error, "what is old could not all be removed");
                0
            });
            Event::Collected { bytes, asked }
        }
    }
}

#[derive(Debug, thiserror::Error)]
enum Error {
    #[error("its files")]
    Disk(#[from] io::Error),
    #[error(transparent)]
    Task(#[from] task::Error),
    #[error("it seems to have a supervisor, and that cannot be found")]
    Doubtful,
}

impl Work {
    fn report(self, outcome: Outcome) -> Report {
        Report { outcome, pipes: self.pipes, coming: None, supervisor: None, record: None }
    }

    /// Make a step that waits for nothing but the disk. One that fails is tried again a little later.
    async fn on_disk(self, step: impl FnOnce(&mut Work) -> Result<Done, Error> + Send + 'static) -> Report {
        let pause = RETRY * 2_u32.pow(self.failures.min(RETRY_DOUBLINGS));
        let (id, mut work) = (self.id.clone(), self);
        let done = disk::work(move || {
            let found = step(&mut work);
            Ok::<_, io::Error>((work, found))
        });
        let (report, error) = match done.await {
            Ok((work, Ok(found))) => {
                return Report { supervisor: found.supervisor, ..work.report(found.outcome) };
            }
            Ok((work, Err(error))) => (work.report(Outcome::Failed), words(&error)),
            Err(error) => {
                let report = Report {
                    outcome: Outcome::Failed,
                    pipes: None,
                    coming: None,
                    supervisor: None,
                    record: None,
                };
                (report, words(&error))
            }
        };
        tracing::warn!(task = %id, error, "a step of a task failed and will be tried again");
        tokio::time::sleep(pause).await;
        report
    }

    async fn prepare(self, means: Means) -> Report {
        let outcome = match prepare(self.dir.clone(), self.record.clone(), means, self.cancel.clone()).await {
            Ok(Prepared::Ready(coming, record)) => {
                let report = self.report(Outcome::Prepared);
                return Report { coming: Some(coming), record: Some(record), ..report };
            }
            Ok(Prepared::Over(ended)) => Outcome::Ended(Box::new(ended)),
            Err(prepare::Error::Abandoned) => Outcome::Abandoned,
            Err(prepare::Error::Bundle(error)) if error.is_damaged() => {
                Outcome::Impossible { failure: Reason::CodeDamaged { message: words(&error) } }
            }
            Err(error) => self.impossible(error.is_full(), &error),
        };
        self.report(outcome)
    }

    /// Send home what it leaves behind, unless its job is removed meanwhile.
    async fn collect(self, ended: Ended, means: Means) -> Report {
        let (id, patterns) = (self.id.clone(), self.record.prepare.outputs.clone());
        let reader = Arc::clone(&means.reader);
        let opened = disk::work(move || reader.open(&id)).await;
        let outputs = match opened {
            Ok(Some(view)) => tokio::select! {
                outputs = collect(view, patterns, means.bulk) => outputs,
                () = self.cancel.cancelled() => return self.report(Outcome::Abandoned),
            },
            // It never got as far as having files.
            Ok(None) => Outputs::Failed { message: "it has no files".into() },
            Err(error) => Outputs::Failed { message: words(&error) },
        };
        let ended = Ended { outputs: Some(outputs), ..ended };
        self.on_disk(move |work| {
            work.dir.write_ended(&ended)?;
            Ok(Outcome::Ended(Box::new(ended)).into())
        })
        .await
    }

    /// It cannot be prepared or launched, in words.
    fn impossible(&self, is_full: bool, error: &dyn std::error::Error) -> Outcome {
        let dir = self.dir.path().parent().unwrap_or(self.dir.path());
        let message = if is_full { disk::full(dir) } else { words(error) };
        Outcome::Impossible { failure: Reason::PrepareFailed { message } }
    }

    /// Write down that it ended without running, or that a machine that went down took it along.
    fn end(&mut self, failure: Reason) -> Result<Done, Error> {
        let is_taken = self.taken.as_ref().is_some_and(Taken::is_set);
        let failure = if is_taken && failure == Reason::StoppedByUser { Reason::Evicted } else { failure };
        let written = self.write_record();
        // Nothing of it ran, so nothing is lost with a record for which there is no room, and its end can be told.
        match written {
            Err(error) if !disk::is_full(&error) || self.dir.was_launched() => return Err(error.into()),
            _ => {}
        }
        let started = read_started(self.dir.path()).unwrap_or_default();
        let log_bytes = self.dir.log().whole_end().map_err(io::Error::other)?;
        let end = TaskEnd::new(Some(failure), Some(log_bytes));
        self.ended(end, Timestamp::now(), started.map(|started| started.started_at))
    }

    fn write_record(&self) -> io::Result<()> {
        disk::make_dir(self.dir.path())?;
        if self.dir.read()? == Found::Nothing {
            self.dir.write(&self.record)?;
        }
        Ok(())
    }

    fn ended(&self, end: TaskEnd, at: Timestamp, started_at: Option<Timestamp>) -> Result<Done, Error> {
        let ended = Ended { end, at, started_at, outputs: None };
        match self.dir.write_ended(&ended) {
            // What its supervisor wrote down says the same to the next agent, and without one it never ran.
            Err(error) if !disk::is_full(&error) => return Err(error.into()),
            _ => {}
        }
        Ok(Outcome::Ended(Box::new(ended)).into())
    }

    async fn launch(mut self, launch: Box<Launch>, means: start::Means) -> Report {
        let waiting = match self.coming.take() {
            Some(coming) => coming.await.unwrap_or_default(),
            None => None,
        };
        self.on_disk(move |work| match start::start(&work.dir, &work.record, &launch, waiting, &means) {
            Ok((pipes, supervisor)) => {
                work.pipes = pipes;
                Ok(Done { outcome: Outcome::Launched, supervisor })
            }
            Err(error) => Ok(work.impossible(error.is_full(), &error).into()),
        })
        .await
    }

    fn stop(&mut self, grace_ms: u64, reason: &str) -> Result<Done, Error> {
        task::stop(self.dir.path(), Duration::from_millis(grace_ms), reason)?;
        Ok(Outcome::Told { grace_ms }.into())
    }

    fn look(&mut self, node_lost: Reason) -> Result<Done, Error> {
        let path = self.dir.path().to_owned();
        for _ in 0..DOUBTS {
            let observation = self.observe(&path)?;
            let (outcome, started) = match observation {
                Observation::NotStarted => return Ok(Outcome::NotStarted.into()),
                Observation::Ended(exit) => return self.exited(&exit, None),
                Observation::SupervisorLost(_) => {
                    let exit = task::bury(&path, self.pipes.as_ref())?;
                    return self.exited(&exit, None);
                }
                Observation::Rebooted => {
                    let exit = task::bury(&path, None)?;
                    return self.exited(&exit, Some(node_lost));
                }
                Observation::Starting => (Outcome::Starting, None),
                Observation::Running(started) => (Outcome::Running { at: started.started_at }, Some(started)),
            };
            if let Some(done) = self.await_end(&path, outcome, started.as_ref()) {
                return Ok(done);
            }
            std::thread::sleep(DOUBT);
        }
        Err(Error::Doubtful)
    }

    /// What lives is believed to live only if its end will be noticed.
    fn await_end(&self, path: &Path, outcome: Outcome, started: Option<&Started>) -> Option<Done> {
        match (self.is_supervisor_gone, self.is_awaited) {
            (true, _) => None,
            (false, true) => Some(outcome.into()),
            (false, false) => Some(Done { outcome, supervisor: Some(start::watch(path, started)?) }),
        }
    }

    /// Whether it ended because its place was taken, however it took that.
    fn evicted(&self, exit: &Exit) -> Option<Reason> {
        let taken = self.taken.as_ref()?;
        if !exit.stopped && exit.outcome != (supervisor::Outcome::Exited { code: 0 }) {
            taken.wait();
        }
        taken.has_ended(exit.ended_at).then_some(Reason::Evicted)
    }

    fn observe(&mut self, path: &Path) -> Result<Observation, Error> {
        if self.pipes.is_some() {
            return Ok(task::observe(path)?);
        }
        let adopted = task::adopt(path)?;
        self.pipes = adopted.pipes;
        Ok(adopted.observation)
    }

    fn exited(&mut self, exit: &Exit, instead: Option<Reason>) -> Result<Done, Error> {
        if !exit.survivors.is_empty() {
            tracing::error!(task = %self.id, pids = ?exit.survivors, "processes of an ended task cannot be killed");
        }
        let timeout_ms = match exit.outcome {
            supervisor::Outcome::Timeout => {
                read::<supervisor::Launch>(self.dir.path(), LAUNCH).unwrap_or_default()
            }
            _ => None,
        }
        .and_then(|launch| launch.timeout_ms);
        let mut end = outcome::task_end(exit, timeout_ms);
        let damaged = self.record.is_damaged.then_some(Reason::RecordDamaged);
        end.failure = instead.or(damaged).or_else(|| self.evicted(exit)).or(end.failure);
        if let Some(Reason::ExitCode { error, .. }) = &mut end.failure {
            *error = diagnosis::error_line(self.dir.path(), &self.dir.log(), exit.log_bytes);
        }
        let started = read_started(self.dir.path())?.map(|started| started.started_at);
        // A process may be over before its supervisor could write down that it is there.
        let started_at = started.or(exit.status.map(|_| exit.ended_at));
        let usage = metrics::at_end(self.usage.as_deref(), exit.spent, started_at, exit.ended_at);
        end.usage = usage.map(Box::new);
        self.ended(end, exit.ended_at, started_at)
    }

    fn forget(&mut self, continues: bool, shelf: &Shelf) -> Result<Done, Error> {
        self.release_tree()?;
        let files = record::Files { bytes: self.dir.usage(), continues };
        // One that finds no room is measured again by the next agent.
        match self.dir.write_files(files) {
            Err(error) if !disk::is_full(&error) => return Err(error.into()),
            _ => {}
        }
        let ended_at = self.dir.contents()?.ended.map_or_else(Timestamp::now, |ended| ended.at);
        self.dir.forget()?;
        shelf.put(&self.id, Kept { ended_at, bytes: files.bytes, continues });
        Ok(Outcome::Forgotten.into())
    }

    /// Give back what held the task's processes together. Its supervisor does so, unless it was killed at the very end
    /// or never came.
    fn release_tree(&self) -> Result<(), Error> {
        if let Ok(Some(launch)) = read::<supervisor::Launch>(self.dir.path(), LAUNCH) {
            launch.tree.remove();
            if let Some(stage) = &launch.stage {
                // While it lives, it keeps others from removing what it has mounted on.
                task::await_gone(self.dir.path())?;
                remove_points(stage);
            }
        }
        Ok(())
    }

    fn remove(&mut self, shelf: &Shelf) -> Result<Done, Error> {
        self.release_tree()?;
        shelf.discard(&self.id)?;
        Ok(Outcome::Removed.into())
    }
}

/// What a step found.
struct Done {
    outcome: Outcome,
    supervisor: Option<Watch>,
}

impl From<Outcome> for Done {
    fn from(outcome: Outcome) -> Done {
        Done { outcome, supervisor: None }
    }
}
