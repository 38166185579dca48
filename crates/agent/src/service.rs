//! The agent at work: one loop that takes one event at a time, and a table of tasks that it changes.
//!
//! The loop only waits; what an event means is decided without waiting, here and in `life`; what is to be done is done
//! by `hands`, which comes back with an event. All that is remembered here can be rebuilt from the disk.

mod fence;
mod hands;
mod holding;
mod introduction;
mod life;
mod message;
mod sampling;
mod table;
mod tenure;
#[cfg(test)]
mod tests;
mod volumes;

use std::collections::{BTreeMap, VecDeque};
use std::future::pending;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use muster_link::dial::{Channel, Server};
use muster_link::message::{Keep, ToServer};
use muster_model::launch::Peers;
use muster_model::node::Capacity;
use muster_model::{JobId, TaskId};
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{mpsc, watch};
use tokio::task::{JoinError, JoinSet};
use tokio::time::{Instant, sleep_until};

use crate::address::{self, Ledger};
use crate::bulk::bulk;
use crate::bundle::Cache;
use crate::control::{self, Control};
use crate::dialer::Dialer;
use crate::files::Reader;
use crate::identity::{Agent, Identity};
use crate::leftover::Left;
use crate::login::Login;
use crate::prepare::Means;
use crate::supervisor::{EXIT, STARTED};
use crate::tree::Tree;
use crate::watcher::{Changes, Watcher};
use crate::{Options, Overlays, device, disk, machine, overlay, start};

use hands::{Hands, Report};
use life::Outcome;
use sampling::{Sampled, Sampling};
use table::Table;
use tenure::Tenancy;
use volumes::Volumes;

/// Answers about tasks that are not known here. More wait with the server, whose next message is not read before.
const MAX_ANSWERS: usize = 64;
/// How often logs are looked at. A thousand tasks that print all the time wake the agent this often and not more.
const LOG_PAUSE: Duration = Duration::from_millis(5);
/// How long after the last thing that was done there is time to tidy up.
const TIDY: Duration = Duration::from_secs(2);
/// An idle agent is to be below 15 MB.
const MOST_RESIDENT: usize = 12 << 20;

/// Why the agent ends.
#[derive(Debug, PartialEq)]
pub(crate) enum End {
    Done,
    /// Its place was taken while it was at work.
    Taken,
    /// To make room for this binary.
    Upgrade(PathBuf),
    /// Something broke that should not: the next agent begins with a clear head.
    Broken,
}

/// The agent at work.
#[derive(Debug)]
pub(crate) struct Service {
    options: Options,
    identity: Identity,
    capacity: Capacity,
    tasks: Table,
    ledger: Ledger,
    hands: Hands,
    /// Everything that is under way: steps, shipments, waits for supervisors, and the two connections.
    work: JoinSet<Event>,
    link: mpsc::Receiver<control::Event>,
    outbound: Option<mpsc::Sender<ToServer>>,
    answers: VecDeque<ToServer>,
    volumes: Volumes,
    files: Watcher<Place>,
    logs: Watcher<TaskId>,
    logs_not_before: Instant,
    /// Tells the dialers that the server's socket is there again.
    appeared: watch::Sender<()>,
    terminate: [Signal; 2],
    /// Comes when a supervisor has ended that this process, or the binary it was before, has started.
    child: Signal,
    orphan_since: Option<Instant>,
    /// Where the place is lent.
    tenancy: Option<Tenancy>,
    /// When to give back the memory that ended tasks took.
    tidy_at: Option<Instant>,
    sampling: Sampling,
    /// How much of what is over may be kept.
    keep: Keep,
    /// What is old is being removed; and whether to look again afterwards, perhaps for someone who asked.
    collecting: bool,
    collect_again: Option<bool>,
    /// Tasks that are being told who their peers are, and what has come in meanwhile.
    introducing: BTreeMap<TaskId, Option<Peers>>,
}

/// What is watched for.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Place {
    Task(TaskId),
    /// The directory of the server's socket.
    Server,
}

/// What happens to an agent.
#[derive(Debug)]
enum Event {
    Link(control::Event),
    /// The server can be told more.
    Room,
    /// A step of a task is over.
    Done {
        task: TaskId,
        report: Box<Report>,
    },
    SupervisorGone {
        task: TaskId,
    },
    /// A task was told who its peers are.
    Introduced {
        task: TaskId,
    },
    /// Which volumes cannot be had here.
    Volumes(BTreeMap<String, String>),
    /// Something was mounted, or unmounted.
    Mounted,
    /// The files of a job were removed, perhaps not all of them; and perhaps a bundle is no longer needed.
    Discarded {
        job: JobId,
        is_complete: bool,
    },
    /// What is old was removed.
    Collected {
        bytes: u64,
        asked: bool,
    },
    /// It is time to measure.
    SampleDue,
    /// None from one that broke.
    Sampled(Option<Box<Sampled>>),
    Files(Changes<Place>),
    Logs(Changes<TaskId>),
    /// A process is to be reaped. What it means for its task is told by other signs.
    ChildEnded,
    /// Nothing that anyone waits for.
    Nothing,
    Terminate,
    Orphaned,
    /// It is time to give back a place that was lent.
    TenancyOver,
    /// It is time to see whether the place is cut off; and whether anybody answered.
    FenceDue,
    Probed(fence::Answers),
    /// What the server has yet to be told was printed, or could not be.
    Left(Result<Left, String>),
    /// Nothing was to be done for a while.
    Quiet,
    Broke,
}

impl Service {
    /// Take up where the last agent of this directory left off.
    pub(crate) fn open(options: &Options, agent: &Agent) -> io::Result<Service> {
        let tasks_dir = options.dir.join("tasks");
        disk::make_dir(&tasks_dir)?;
        disk::spread_out(&tasks_dir);
        let cache = Arc::new(Cache::open(options.dir.join("cache/bundles"), &agent.identity.boot_id)?);
        let overlays = match options.overlays {
            Overlays::Never => Overlays::Never,
            wanted if overlay::is_possible(&options.dir) => wanted,
            _ => Overlays::Never,
        };
        let (appeared, watched) = watch::channel(());
        let reader = Arc::new(Reader::new(tasks_dir.clone(), Arc::clone(&cache)));
        let (keeper, bulk) = bulk(Dialer::new(options, Channel::Bulk, watched.clone())?, Arc::clone(&reader));
        let (control, link) = Control::new(Dialer::new(options, Channel::Control, watched)?);
        let devices = match &options.tenure {
            Some(tenure) => tenure.devices.devices(),
            None => device::discover(&options.devices),
        };
        if devices.iter().any(|device| !device.simulated) {
            let by = if Tree::can_limit_devices(options.tree) { "a device cgroup" } else { "variables only" };
            tracing::info!(by, "tasks are limited to their devices");
        }
        let tenancy = options.tenure.as_ref().map(|tenure| Tenancy::new(tenure, false));
        let seed = getrandom::u64().map_err(io::Error::other)?;
        let login = Arc::new(Login::new(options.tree, options.login));
        let means = Means { cache, bulk, reader, overlays, exe: options.exe.clone(), login };
        let taken = tenancy.as_ref().map(|tenancy| tenancy.taken.clone());
        let hands = Hands::new(options, tasks_dir, means, &devices, taken);
        let sampling = Sampling::new(options.measure_every, &devices);
        let mut service = Service {
            capacity: machine::capacity(options, devices),
            options: options.clone(),
            identity: agent.identity.clone(),
            tasks: Table::default(),
            ledger: Ledger::new(options.network.clone(), seed, address::ephemeral_start()),
            hands,
            work: JoinSet::new(),
            link,
            outbound: None,
            answers: VecDeque::new(),
            volumes: Volumes::default(),
            files: Watcher::new(),
            logs: Watcher::new(),
            logs_not_before: Instant::now(),
            appeared,
            terminate: [signal(SignalKind::terminate())?, signal(SignalKind::interrupt())?],
            child: signal(SignalKind::child())?,
            orphan_since: None,
            tenancy,
            tidy_at: None,
            sampling,
            keep: Keep::default(),
            collecting: false,
            collect_again: None,
            introducing: BTreeMap::new(),
        };
        // Some may have ended while nobody listened.
        start::reap();
        service.resume(agent.is_new_boot)?;
        service.begin_tenancy();
        service.watch_server();
        service.work.spawn(never_ends(keeper.run()));
        service.work.spawn(never_ends(control.run()));
        Ok(service)
    }

    /// Serve until told to end.
    pub(crate) async fn run(mut self) -> End {
        tracing::info!(node = %self.options.node, tasks = self.tasks.ids().len(), "the agent serves");
        loop {
            let event = self.next_event().await;
            if let Some(end) = self.on_event(event) {
                return self.how(end);
            }
            let is_orphan = self.outbound.is_none() && !self.tasks.has_live();
            self.orphan_since = is_orphan.then(|| self.orphan_since.unwrap_or_else(Instant::now));
            self.update_tenancy();
        }
    }

    async fn next_event(&mut self) -> Event {
        let has_news = self.tasks.has_unsaid() || !self.answers.is_empty();
        let orphaned_at = self.options.orphan_exit.zip(self.orphan_since).map(|(limit, since)| since + limit);
        let tenancy_ends_at = self.tenancy.as_ref().and_then(Tenancy::ends_at);
        let fence_due = self.fence_due();
        let [terminate, interrupt] = &mut self.terminate;
        let (logs, logs_not_before) = (&mut self.logs, self.logs_not_before);
        tokio::select! {
            Some(event) = self.link.recv(), if self.answers.len() < MAX_ANSWERS => Event::Link(event),
            () = room(self.outbound.as_ref()), if has_news => Event::Room,
            Some(done) = self.work.join_next() => done.unwrap_or_else(on_lost_work),
            changes = self.files.changes() => Event::Files(changes),
            changes = async { sleep_until(logs_not_before).await; logs.changes().await } => Event::Logs(changes),
            _ = terminate.recv() => Event::Terminate,
            _ = interrupt.recv() => Event::Terminate,
            _ = self.child.recv() => Event::ChildEnded,
            () = wait_until(orphaned_at) => Event::Orphaned,
            () = wait_until(tenancy_ends_at) => Event::TenancyOver,
            () = wait_until(fence_due) => Event::FenceDue,
            () = wait_until(self.tidy_at) => Event::Quiet,
            () = wait_until(self.sampling.due()) => Event::SampleDue,
        }
    }

    fn on_event(&mut self, event: Event) -> Option<End> {
        match event {
            Event::Link(event) => return self.on_link(event),
            Event::Room => self.on_room(),
            Event::Done { task, report } => self.on_done(&task, *report),
            Event::SupervisorGone { task } => self.on_supervisor_gone(&task),
            Event::Collected { bytes, asked } => self.on_collected(bytes, asked),
            Event::SampleDue => self.on_sample_due(),
            Event::Sampled(sampled) => self.on_sampled(sampled.map(|it| *it)),
            Event::Files(changes) => self.on_files(changes),
            Event::Logs(changes) => self.on_logs(changes),
            Event::ChildEnded => start::reap(),
            Event::Introduced { task } => self.on_introduced(task),
            Event::Volumes(lacks) => self.on_volumes(lacks),
            Event::Mounted => self.on_mounted(),
            Event::Discarded { job, is_complete } => self.on_discarded(job, is_complete),
            Event::Nothing => {}
            Event::Quiet => {
                self.tidy_at = None;
                muster_link::memory::give_back(MOST_RESIDENT);
            }
            Event::Broke => return Some(End::Broken),
            Event::Terminate => return self.on_taken(),
            Event::TenancyOver => return self.on_tenancy_over(),
            Event::FenceDue => self.on_fence_due(),
            Event::Probed(answers) => self.on_probed(answers),
            Event::Left(left) => return self.on_left(left),
            Event::Orphaned => {
                tracing::info!("no task and no server for long; the agent ends");
                return Some(End::Done);
            }
        }
        None
    }

    fn on_room(&mut self) {
        let Some(outbound) = &self.outbound else { return };
        while let Ok(permit) = outbound.try_reserve() {
            match self.answers.pop_front().or_else(|| self.tasks.next_message()) {
                Some(message) => permit.send(message),
                None => return,
            }
        }
    }

    fn on_done(&mut self, id: &TaskId, report: Report) {
        self.tidy_at = Some(Instant::now() + TIDY);
        let Some(task) = self.tasks.change(id) else { return };
        task.pipes = report.pipes;
        task.coming = report.coming;
        if let Some(record) = report.record {
            task.record = *record;
        }
        task.failures = if report.outcome == Outcome::Failed { task.failures + 1 } else { 0 };
        if let Some(supervisor) = report.supervisor {
            self.await_supervisor(id, supervisor);
        }
        let is_launched = report.outcome == Outcome::Launched;
        match &report.outcome {
            Outcome::Prepared => self.watch(id),
            Outcome::Launched => self.ship(id),
            Outcome::Running { .. } => self.sampling.on_task(),
            Outcome::Ended(ended) => self.on_ended(id, ended.end.log_bytes),
            _ => {}
        }
        let Some(task) = self.tasks.change(id) else { return };
        if task.life.is_finished_by(&report.outcome) {
            self.drop_task(id);
            if report.outcome == Outcome::Removed {
                self.discard_rest(&id.attempt.job);
            }
            return self.collect(false);
        }
        task.life.on_done(report.outcome);
        if is_launched && !task.is_awaited {
            // It had a supervisor already, of whose signs none may come again.
            task.life.on_change();
        }
        self.advance(id);
    }

    fn on_supervisor_gone(&mut self, id: &TaskId) {
        if let Some(task) = self.tasks.change(id) {
            task.is_supervisor_gone = true;
        }
        self.on_changed(id);
    }

    /// Do what is next for a task, if anything is.
    fn advance(&mut self, id: &TaskId) {
        let Some(task) = self.tasks.change(id) else { return };
        if task.life.is_in_vain() {
            task.cancel.cancel();
        }
        if let Some(step) = task.life.next() {
            let step = self.hands.step(id, task, step);
            self.work.spawn(step);
        }
    }

    fn on_changed(&mut self, id: &TaskId) {
        if let Some(task) = self.tasks.change(id) {
            task.life.on_change();
            self.advance(id);
        }
    }

    fn on_files(&mut self, changes: Changes<Place>) {
        match changes {
            Changes::Some(changes) => {
                for (place, name) in changes {
                    match place {
                        Place::Task(id) if is_sign(&name) => self.on_changed(&id),
                        Place::Task(_) => {}
                        Place::Server => self.on_server_files(&name),
                    }
                }
            }
            Changes::Unknown => {
                self.tasks.ids().iter().for_each(|id| self.on_changed(id));
                self.appeared.send_replace(());
            }
        }
    }

    fn on_server_files(&self, name: &[u8]) {
        if let Server::Unix(socket) | Server::Posted(socket) = &self.options.server
            && socket.file_name().is_some_and(|file| file.as_encoded_bytes() == name)
        {
            self.appeared.send_replace(());
        }
    }

    fn on_logs(&mut self, changes: Changes<TaskId>) {
        self.logs_not_before = Instant::now() + LOG_PAUSE;
        match changes {
            Changes::Some(changes) => {
                let logs = changes.iter().filter_map(|(id, _)| self.tasks.get(id));
                logs.for_each(|task| task.log.changed());
            }
            Changes::Unknown => self.tasks.iter().for_each(|task| task.log.changed()),
        }
    }
}

/// Something under way was given up, or broke.
fn on_lost_work(error: JoinError) -> Event {
    if !error.is_panic() {
        return Event::Nothing;
    }
    tracing::error!(error = %error, "a part of the agent broke, and the agent ends");
    Event::Broke
}

/// Whether a file of this name says how far a task is.
fn is_sign(name: &[u8]) -> bool {
    name == STARTED.as_bytes() || name == EXIT.as_bytes()
}

async fn never_ends(component: impl Future<Output = ()>) -> Event {
    component.await;
    Event::Nothing
}

/// Ends when a message can be sent.
async fn room(outbound: Option<&mpsc::Sender<ToServer>>) {
    match outbound {
        Some(outbound) => {
            // One that is closed is about to be replaced, which is an event of its own.
            if outbound.reserve().await.is_err() {
                pending().await
            }
        }
        None => pending().await,
    }
}

async fn wait_until(moment: Option<Instant>) {
    match moment {
        Some(moment) => sleep_until(moment).await,
        None => pending().await,
    }
}
