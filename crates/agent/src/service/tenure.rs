//! A place that was lent by another scheduler: when the agent gives it back, and what it says when it is taken.
//!
//! Nobody may hold a machine of somebody else's to wait for a server: what a task leaves lies in the agent's directory, where
//! another agent finds it later. Where the directory goes with the place, it is printed.

use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use jiff::Timestamp;
use muster_model::Reason;
use rustix::process::{Signal, kill_process};
use tokio::time::Instant;

use super::fence::Fenced;
use super::{End, Event, Service};
use crate::leftover::{self, Left, Owed};
use crate::{Tenure, disk, words};

/// With a server that has nothing to run yet; the others of its gang may be slow to come.
const UNUSED: Duration = Duration::from_secs(600);
/// How often it is looked whether the attempt was closed: well before the next one may begin elsewhere.
const GLANCE: Duration = Duration::from_secs(5);
/// After the task's end: with a server that has not forgotten it, and without one.
const UNFORGOTTEN: Duration = Duration::from_secs(120);
const ALONE: Duration = Duration::from_secs(30);
/// After the last task was forgotten, if the server does not end the agent first.
const FORGOTTEN: Duration = Duration::from_secs(10);
/// Once the place is taken: with everything told, and at most. What held it longer would be killed.
const TOLD: Duration = Duration::from_secs(1);
const UNTOLD: Duration = Duration::from_secs(15);
/// Whoever salvages has no place to give back.
const SALVAGE: Duration = Duration::from_secs(60);
/// Where a container says in a few words why it ended; and what it says there, which whoever looks for what was printed goes by.
const LAST_WORDS: &str = "/dev/termination-log";
const PRINTED: &str = "what the server has yet to be told is in the log";
/// The same signal may end the task before the agent has heard it.
const TOGETHER: Duration = Duration::from_millis(200);

/// When the place was taken. Shared with those who look at how a task ended.
#[derive(Debug, Clone, Default)]
pub(super) struct Taken {
    at: Arc<Mutex<Option<Timestamp>>>,
}

impl Taken {
    fn set(&self) {
        self.at.lock().unwrap_or_else(PoisonError::into_inner).get_or_insert_with(Timestamp::now);
    }

    pub(super) fn is_set(&self) -> bool {
        self.at.lock().unwrap_or_else(PoisonError::into_inner).is_some()
    }

    /// Whether what ended then was ended by it.
    pub(super) fn has_ended(&self, ended_at: Timestamp) -> bool {
        let at = *self.at.lock().unwrap_or_else(PoisonError::into_inner);
        at.is_some_and(|at| at.duration_since(ended_at).as_millis() <= TOGETHER.as_millis() as i128)
    }

    /// Waits for a signal that may be on its way. For a thread that may block.
    pub(super) fn wait(&self) {
        if !self.is_set() {
            std::thread::sleep(TOGETHER);
        }
    }
}

/// How the agent stands to its place.
#[derive(Debug)]
pub(super) struct Tenancy {
    options: Tenure,
    pub(super) taken: Taken,
    since: Instant,
    has_had_tasks: bool,
    /// What it waits for, and since when.
    phase: Phase,
    phase_since: Instant,
    /// Where it can be cut off.
    pub(super) fence: Option<Fenced>,
    leaving: Leaving,
    /// It was taken before the agent was done with it.
    is_untimely: bool,
}

/// How far the agent is with printing what it owes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Leaving {
    No,
    /// It is being done.
    Now,
    /// It is too much to print, and a server may come.
    Holding,
}

/// What the agent waits for before it gives its place back.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Phase {
    Unused,
    /// Nothing runs, and nobody is there to say what should.
    Deserted,
    /// A task lives.
    Used,
    /// It is over, and its files, which go with the place, are being sent.
    Sending,
    /// There is a server that has not forgotten it; or there is none.
    Unforgotten,
    Alone,
    Forgotten,
    /// The place was taken, the task is over, and everything was told; or not yet.
    Told,
    Untold,
    Salvage,
}

/// What matters of the agent's tasks and connection.
#[derive(Debug, Clone, Copy)]
struct View {
    has_tasks: bool,
    has_live: bool,
    /// One of them runs, or is about to.
    has_launched: bool,
    is_connected: bool,
    is_told: bool,
    /// What a task leaves behind has yet to be sent.
    is_sending: bool,
}

impl Tenancy {
    pub(super) fn new(options: &Tenure, has_tasks: bool) -> Tenancy {
        let (taken, since) = (Taken::default(), Instant::now());
        let phase = if options.is_salvage { Phase::Salvage } else { Phase::Unused };
        let fence = options.fence.as_ref().filter(|_| !options.is_salvage).map(Fenced::new);
        Tenancy {
            fence,
            leaving: Leaving::No,
            is_untimely: false,
            options: options.clone(),
            taken,
            since,
            has_had_tasks: has_tasks,
            phase,
            phase_since: since,
        }
    }

    /// When the agent ends if nothing else happens.
    pub(super) fn ends_at(&self) -> Option<Instant> {
        if self.leaving == Leaving::Now {
            return None;
        }
        let span = match self.phase {
            Phase::Used => return None,
            Phase::Alone if self.leaving == Leaving::Holding => self.options.hold.unwrap_or(ALONE).max(ALONE),
            Phase::Unused => UNUSED,
            Phase::Deserted => self.options.patience.unwrap_or(UNUSED),
            Phase::Sending => self.options.hold.unwrap_or_default().max(UNFORGOTTEN),
            Phase::Unforgotten => UNFORGOTTEN,
            Phase::Alone => ALONE,
            Phase::Forgotten => FORGOTTEN,
            Phase::Told => TOLD,
            Phase::Untold => UNTOLD,
            Phase::Salvage => SALVAGE,
        };
        Some(self.phase_since + span)
    }

    fn update(&mut self, view: View) {
        self.has_had_tasks |= view.has_tasks;
        let phase = self.phase_of(view);
        // Being told is the end of being untold, and does not begin it again.
        if phase != self.phase {
            self.phase = phase;
            self.phase_since = Instant::now();
        }
    }

    fn phase_of(&self, view: View) -> Phase {
        if self.options.is_salvage {
            return Phase::Salvage;
        }
        // One that waits for its launch keeps its place for its server alone.
        let is_wanted = view.has_launched || view.is_connected || self.taken.is_set();
        if view.has_live {
            return if is_wanted { Phase::Used } else { Phase::Deserted };
        }
        let has_no_disk = self.options.hold.is_some();
        match (self.taken.is_set(), view) {
            (true, View { is_connected: true, is_told: false, .. }) => Phase::Untold,
            (true, _) => Phase::Told,
            (false, View { has_tasks: true, is_connected: true, is_sending: true, .. }) if has_no_disk => {
                Phase::Sending
            }
            (false, View { has_tasks: true, is_connected: true, .. }) => Phase::Unforgotten,
            (false, View { has_tasks: true, is_connected: false, .. }) => Phase::Alone,
            (false, _) if self.has_had_tasks => Phase::Forgotten,
            (false, View { is_connected: true, .. }) => Phase::Unused,
            (false, View { is_connected: false, .. }) => Phase::Deserted,
        }
    }
}

impl Service {
    /// The place is being taken: the task has its grace, and what becomes of it is told as far as there is time.
    pub(super) fn on_taken(&mut self) -> Option<End> {
        let Some(tenancy) = &self.tenancy else {
            tracing::info!("the agent was told to end; its tasks go on");
            return Some(End::Done);
        };
        if tenancy.options.is_salvage {
            return Some(End::Done);
        }
        tracing::info!("the place is being taken back");
        let grace = tenancy.options.grace;
        self.end_all(grace);
        None
    }

    /// Whoever salvages has no right to let anything run: a scheduler that does not hold processes together may have left some.
    pub(super) fn begin_tenancy(&mut self) {
        if self.tenancy.as_ref().is_some_and(|tenancy| tenancy.options.is_salvage) {
            self.end_all(Duration::ZERO);
        }
        if let Some(closed) = self.tenancy.as_ref().and_then(|tenancy| tenancy.options.closed.clone()) {
            watch_for(closed);
        }
        self.update_tenancy();
    }

    /// Nobody was heard for so long that others believe this place to be gone.
    pub(super) fn on_cut_off(&mut self) {
        let Some(grace) = self.tenancy.as_ref().map(|tenancy| tenancy.options.grace) else { return };
        tracing::error!("neither the server nor the cluster was heard for too long: what runs here ends");
        self.end_all(grace);
    }

    fn end_all(&mut self, grace: Duration) {
        let is_busy = self.tasks.has_live();
        if let Some(tenancy) = &mut self.tenancy {
            tenancy.taken.set();
            tenancy.is_untimely |= is_busy || !tenancy.has_had_tasks;
        }
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        for id in self.tasks.ids() {
            if let Some(task) = self.tasks.change(&id).filter(|task| task.life.is_live()) {
                // Why the place goes is for the other scheduler to say, later, to the server.
                task.life.on_stop(grace_ms, Reason::Evicted.code());
                self.advance(&id);
            }
        }
    }

    /// To be called after every event.
    pub(super) fn update_tenancy(&mut self) {
        let is_told = !self.tasks.has_unsaid() && self.tasks.iter().all(|task| task.is_shipped());
        let view = View {
            has_tasks: !self.tasks.ids().is_empty(),
            has_live: self.tasks.has_live(),
            has_launched: self.tasks.has_launched(),
            is_connected: self.outbound.is_some(),
            is_told,
            is_sending: self.tasks.iter().any(|task| task.life.has_files_to_send()),
        };
        if let Some(tenancy) = &mut self.tenancy {
            tenancy.update(view);
        }
    }

    /// Where nobody else says so, how the agent ends tells whether its place was taken.
    pub(super) fn how(&self, end: End) -> End {
        let is_taken = |tenancy: &Tenancy| tenancy.is_untimely && tenancy.options.hold.is_some();
        match end {
            End::Done if self.tenancy.as_ref().is_some_and(is_taken) => End::Taken,
            end => end,
        }
    }

    pub(super) fn on_tenancy_over(&mut self) -> Option<End> {
        let owed = self.owed();
        let Some(tenancy) = &mut self.tenancy else { return Some(End::Done) };
        tracing::info!(phase = ?tenancy.phase, after = ?tenancy.since.elapsed(), "the agent gives its place back");
        let has_files_after = tenancy.options.hold.is_none() || tenancy.options.is_salvage;
        if has_files_after || owed.is_empty() {
            return Some(End::Done);
        }
        let may_wait = tenancy.phase == Phase::Alone && tenancy.leaving == Leaving::No;
        tenancy.leaving = Leaving::Now;
        let (identity, reader) = (self.identity.clone(), self.hands.reader());
        self.work.spawn(async move {
            let printed = disk::work(move || {
                let open = |id: &muster_model::TaskId| reader.open(id);
                leftover::leave(&identity, &owed, open, may_wait, &mut std::io::stdout().lock())
            });
            Event::Left(printed.await.map_err(|error: std::io::Error| words(&error)))
        });
        None
    }

    /// Tasks that are over and that the server has not said it has all of.
    fn owed(&self) -> Vec<Owed> {
        let owed = |(id, task): (&muster_model::TaskId, &super::table::Task)| {
            let (dir, record, ended) = (task.dir.clone(), task.record.clone(), task.life.ended()?.clone());
            Some(Owed { id: id.clone(), dir, record, ended, acked: task.log.acked() })
        };
        self.tasks.entries().filter_map(owed).collect()
    }

    /// What is owed was printed, or is too much for that.
    pub(super) fn on_left(&mut self, left: Result<Left, String>) -> Option<End> {
        match (left, &mut self.tenancy) {
            (Ok(Left::TooMuch), Some(tenancy)) => {
                tracing::warn!(hold = ?tenancy.options.hold, "what the server has yet to be told is too much to print");
                tenancy.leaving = Leaving::Holding;
                return None;
            }
            (Ok(_), _) => {
                tracing::info!("what the server has yet to be told is printed above");
                // Where there is no such file, the log is found all the same, only not as soon.
                if let Ok(mut file) = std::fs::OpenOptions::new().write(true).open(LAST_WORDS) {
                    let _ = std::io::Write::write_all(&mut file, PRINTED.as_bytes());
                }
            }
            (Err(error), _) => tracing::error!(error, "what the server has yet to be told is lost"),
        }
        Some(End::Done)
    }
}

/// Takes the place back from ourselves when the attempt was closed and nobody could tell us: where its machine was given up, the
/// next attempt may be about to begin on another. On a thread of its own, because a file server may take its time.
fn watch_for(closed: PathBuf) {
    let watch = move || {
        while !closed.exists() {
            std::thread::sleep(GLANCE);
        }
        // As the scheduler would have told us.
        let _ = kill_process(rustix::process::getpid(), Signal::TERM);
    };
    let started = std::thread::Builder::new().name("closed".into()).stack_size(64 * 1024).spawn(watch);
    if let Err(error) = started {
        tracing::warn!(%error, "nobody watches for the attempt to be closed");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tenancy(is_salvage: bool) -> Tenancy {
        let grace = Duration::from_secs(10);
        let options = Tenure {
            is_salvage,
            grace,
            patience: Some(PATIENCE),
            closed: None,
            host: None,
            devices: Default::default(),
            variables: Default::default(),
            fence: None,
            hold: Some(Duration::from_secs(3600)),
        };
        Tenancy::new(&options, false)
    }

    const PATIENCE: Duration = Duration::from_secs(60);
    const IDLE: View = View {
        has_tasks: false,
        has_live: false,
        has_launched: false,
        is_connected: true,
        is_told: true,
        is_sending: false,
    };
    const LIVE: View = View { has_tasks: true, has_live: true, has_launched: true, ..IDLE };
    const OVER: View = View { has_tasks: true, has_live: false, ..IDLE };

    fn spans(tenancy: &mut Tenancy, views: &[View]) -> Vec<Option<Duration>> {
        let span = |view: &View| {
            tenancy.update(*view);
            tenancy.ends_at().map(|at| at - tenancy.phase_since)
        };
        views.iter().map(span).collect()
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_kept_for_a_task_and_not_for_a_server() {
        let alone = View { is_connected: false, ..OVER };
        let found = spans(&mut tenancy(false), &[IDLE, LIVE, OVER, alone, OVER, IDLE]);
        let expected =
            [Some(UNUSED), None, Some(UNFORGOTTEN), Some(ALONE), Some(UNFORGOTTEN), Some(FORGOTTEN)];
        assert_eq!(found, expected);
        assert_eq!(spans(&mut tenancy(true), &[IDLE, OVER]), [Some(SALVAGE); 2]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_not_kept_for_long_for_a_server_that_never_said_what_to_run() {
        let deserted = View { is_connected: false, ..IDLE };
        let prepared = View { has_launched: false, ..LIVE };
        let forsaken = View { is_connected: false, ..prepared };
        let runs = View { is_connected: false, ..LIVE };
        let found = spans(&mut tenancy(false), &[deserted, IDLE, prepared, forsaken, runs]);
        assert_eq!(found, [Some(PATIENCE), Some(UNUSED), None, Some(PATIENCE), None]);
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_that_is_taken_is_left_when_all_is_told() {
        let mut tenancy = tenancy(false);
        tenancy.update(LIVE);
        tenancy.taken.set();
        let untold = View { is_told: false, ..OVER };
        let alone = View { is_connected: false, ..untold };
        assert_eq!(
            spans(&mut tenancy, &[LIVE, untold, OVER, alone]),
            [None, Some(UNTOLD), Some(TOLD), Some(TOLD)]
        );
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_kept_for_files_that_are_being_sent_and_would_go_with_it() {
        let sending = View { is_sending: true, ..OVER };
        let alone = View { is_connected: false, ..sending };
        let hour = Some(Duration::from_secs(3600));
        let found = spans(&mut tenancy(false), &[LIVE, sending, alone, sending, OVER]);
        assert_eq!(found, [None, hour, Some(ALONE), hour, Some(UNFORGOTTEN)]);
        // Where they stay on a disk, nobody waits for them.
        let mut with_disk = tenancy(false);
        with_disk.options.hold = None;
        assert_eq!(spans(&mut with_disk, &[LIVE, sending]), [None, Some(UNFORGOTTEN)]);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_too_much_to_print_is_held_for_a_while() {
        let mut tenancy = tenancy(false);
        let alone = View { is_connected: false, ..OVER };
        assert_eq!(spans(&mut tenancy, &[LIVE, alone]), [None, Some(ALONE)]);
        tenancy.leaving = Leaving::Now;
        assert_eq!(spans(&mut tenancy, &[alone]), [None]);
        tenancy.leaving = Leaving::Holding;
        assert_eq!(spans(&mut tenancy, &[alone, OVER]), [Some(Duration::from_secs(3600)), Some(UNFORGOTTEN)]);
    }

    #[test]
    fn a_task_that_ended_just_before_its_agent_heard_was_ended_by_the_same() {
        let taken = Taken::default();
        let now = Timestamp::now();
        assert!(!taken.has_ended(now));
        taken.set();
        assert!(taken.has_ended(now) && taken.has_ended(Timestamp::now()));
        assert!(!taken.has_ended(now - Duration::from_secs(5)));
    }
}
