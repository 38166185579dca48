//! The life of a task as its agent decides it: what was asked, what is known, and the one thing to do next.
//!
//! Pure. At most one step is under way at a time, so that two of them never meet in the task's directory; whatever is
//! asked meanwhile is remembered, and asking twice changes nothing. A step that failed is asked for again by `next`,
//! since nothing counts as done before its outcome says so.

use jiff::Timestamp;
use muster_link::message::{Launch, ReportPhase, ToServer};
use muster_model::task::Address;
use muster_model::{Reason, TaskId};

use crate::record::Ended;

/// How often a supervisor is started that ends before it has begun: a machine may lack memory for a moment.
const LAUNCHES: u32 = 3;

/// How far a task is.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Phase {
    Preparing,
    Ready,
    /// It was given to a supervisor, of which nothing was heard yet.
    Launching,
    Running {
        at: Timestamp,
    },
    Ended(Box<Ended>),
}

/// What is to be done for a task.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Step {
    /// Make its directory, its files and all else it needs.
    Prepare,
    /// Write down that it ended without ever running.
    End { failure: Reason },
    /// Give it to a supervisor.
    Launch(Box<Launch>),
    /// Tell its supervisor to end it.
    Stop { grace_ms: u64, reason: String },
    /// See what became of it.
    Look,
    /// Send home what it leaves behind.
    Collect(Box<Ended>),
    /// Drop all but its files, which another attempt may want if its job continues.
    Forget { continues: bool },
    /// Drop all.
    Remove,
}

/// What came of a step.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Outcome {
    Prepared,
    /// Nobody wants it any more.
    Abandoned,
    /// It cannot be prepared or launched, and why.
    Impossible {
        failure: Reason,
    },
    Launched,
    /// The supervisor knows that it is to stop.
    Told {
        grace_ms: u64,
    },
    /// No supervisor was ever there, and none will come.
    NotStarted,
    /// A supervisor is there, and nothing runs yet.
    Starting,
    Running {
        at: Timestamp,
    },
    Ended(Box<Ended>),
    Forgotten,
    Removed,
    /// It did not work now, and may later.
    Failed,
}

/// Where a task stands.
#[derive(Debug)]
pub(super) struct Life {
    phase: Phase,
    /// A step is under way.
    is_busy: bool,
    /// It cannot be prepared or launched, which is not written down yet.
    impossible: Option<Reason>,
    launch: Option<Box<Launch>>,
    launches: u32,
    /// The shortest grace that was asked for, and the one that the supervisor was told.
    stop_ms: Option<u64>,
    /// Why; what was said first.
    stop_reason: String,
    told_ms: Option<u64>,
    /// Something may have happened since the last look.
    has_changed: bool,
    /// Whether it is to be forgotten, and then whether its job continues.
    forget: Option<bool>,
    remove: bool,
    /// It is to leave files behind.
    has_outputs: bool,
    said: Said,
}

/// What the server was told on this connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Said {
    Nothing,
    Ready,
    Started,
    Ended,
    Outputs,
}

impl Life {
    /// The life of a task that was just asked for.
    pub(super) fn begin() -> Life {
        Life::at(Phase::Preparing)
    }

    /// The life of a task that an earlier agent knew. A launched one is looked after.
    pub(super) fn resume(phase: Phase) -> Life {
        let has_changed = phase == Phase::Launching;
        Life { has_changed, ..Life::at(phase) }
    }

    fn at(phase: Phase) -> Life {
        Life {
            phase,
            is_busy: false,
            impossible: None,
            launch: None,
            launches: 0,
            stop_ms: None,
            stop_reason: String::new(),
            told_ms: None,
            has_changed: false,
            forget: None,
            remove: false,
            has_outputs: false,
            said: Said::Nothing,
        }
    }

    /// Whether it is to leave files behind.
    #[must_use]
    pub(super) fn with_outputs(self, has_outputs: bool) -> Life {
        Life { has_outputs, ..self }
    }

    pub(super) fn is_live(&self) -> bool {
        !matches!(self.phase, Phase::Ended(_))
    }

    /// How it ended, if it has.
    pub(super) fn ended(&self) -> Option<&Ended> {
        match &self.phase {
            Phase::Ended(ended) => Some(ended),
            Phase::Preparing | Phase::Ready | Phase::Launching | Phase::Running { .. } => None,
        }
    }

    /// Whether it waits to be told what to run.
    pub(super) fn is_unlaunched(&self) -> bool {
        matches!(self.phase, Phase::Preparing | Phase::Ready) && self.launch.is_none()
    }

    /// Whether it is over, and what it leaves behind has yet to be sent home.
    pub(super) fn has_files_to_send(&self) -> bool {
        matches!(&self.phase, Phase::Ended(ended) if self.has_outputs && ended.outputs.is_none())
    }

    /// Since when its command runs, if it does.
    pub(super) fn running_since(&self) -> Option<Timestamp> {
        match self.phase {
            Phase::Running { at } => Some(at),
            Phase::Preparing | Phase::Ready | Phase::Launching | Phase::Ended(_) => None,
        }
    }

    /// Whether whatever is being prepared is no longer wanted.
    pub(super) fn is_unwanted(&self) -> bool {
        self.stop_ms.is_some() || self.remove
    }

    /// Whether the step that is under way waits for the network, and nobody waits for it.
    pub(super) fn is_in_vain(&self) -> bool {
        match self.phase {
            Phase::Preparing => self.is_unwanted(),
            Phase::Ended(_) => self.remove,
            Phase::Ready | Phase::Launching | Phase::Running { .. } => false,
        }
    }

    /// Whether nothing is left to do for a task of which this became.
    pub(super) fn is_finished_by(&self, outcome: &Outcome) -> bool {
        // A removal that was asked for while it was being forgotten is still to come.
        matches!(outcome, Outcome::Removed) || (matches!(outcome, Outcome::Forgotten) && !self.remove)
    }

    /// It is over before it began, for a reason that is known already.
    pub(super) fn refuse(&mut self, failure: Reason) {
        self.impossible = Some(failure);
    }

    pub(super) fn on_launch(&mut self, launch: Box<Launch>) {
        match self.phase {
            Phase::Preparing | Phase::Ready | Phase::Launching => self.launch = Some(launch),
            Phase::Running { .. } | Phase::Ended(_) => self.repeat(),
        }
    }

    pub(super) fn on_stop(&mut self, grace_ms: u64, reason: &str) {
        if !self.is_live() {
            self.repeat();
        }
        if self.stop_ms.is_none() {
            reason.clone_into(&mut self.stop_reason);
        }
        self.stop_ms = Some(self.stop_ms.map_or(grace_ms, |asked| asked.min(grace_ms)));
    }

    pub(super) fn on_forget(&mut self, continues: bool) {
        // Only what has ended can be forgotten; a live one is none of a confused server's to lose.
        self.forget = (!self.is_live()).then_some(continues);
    }

    pub(super) fn on_remove(&mut self) {
        self.remove = true;
    }

    pub(super) fn on_change(&mut self) {
        self.has_changed = true;
    }

    /// The next thing to do, if nothing is being done. The caller does it.
    pub(super) fn next(&mut self) -> Option<Step> {
        if self.is_busy {
            return None;
        }
        let step = match &self.phase {
            Phase::Preparing | Phase::Ready if self.impossible.is_some() => {
                self.impossible.clone().map(|failure| Step::End { failure })
            }
            Phase::Preparing | Phase::Ready if self.is_unwanted() => {
                Some(Step::End { failure: Reason::StoppedByUser })
            }
            Phase::Preparing => Some(Step::Prepare),
            Phase::Ready => self.launch.clone().map(Step::Launch),
            Phase::Launching | Phase::Running { .. } => self.next_while_running(),
            Phase::Ended(_) if self.remove => Some(Step::Remove),
            Phase::Ended(ended) if self.has_outputs && ended.outputs.is_none() => {
                Some(Step::Collect(ended.clone()))
            }
            Phase::Ended(_) => self.forget.map(|continues| Step::Forget { continues }),
        };
        self.is_busy = step.is_some();
        step
    }

    fn next_while_running(&mut self) -> Option<Step> {
        // First, since what has ended cannot be told anything. And the wish is dropped before the look, so that what
        // happens during it is looked at again.
        if std::mem::take(&mut self.has_changed) {
            return Some(Step::Look);
        }
        let wanted = if self.remove { Some(0) } else { self.stop_ms };
        let grace_ms = wanted.filter(|grace_ms| self.told_ms.is_none_or(|told| *grace_ms < told))?;
        Some(Step::Stop { grace_ms, reason: self.stop_reason.clone() })
    }

    /// A step is over.
    pub(super) fn on_done(&mut self, outcome: Outcome) {
        self.is_busy = false;
        match outcome {
            Outcome::Prepared => self.phase = Phase::Ready,
            Outcome::Impossible { failure } => self.impossible = Some(failure),
            Outcome::Abandoned => {}
            Outcome::Launched => {
                self.phase = Phase::Launching;
                self.launches += 1;
            }
            Outcome::Told { grace_ms } => self.told_ms = Some(grace_ms),
            Outcome::NotStarted => {
                self.phase = Phase::Ready;
                self.said = Said::Nothing;
                if self.launches >= LAUNCHES {
                    let message = "its supervisor ends before it has begun".to_owned();
                    self.impossible = Some(Reason::PrepareFailed { message });
                }
            }
            Outcome::Starting => {}
            Outcome::Running { at } => {
                self.phase = Phase::Running { at };
                self.launch = None;
            }
            Outcome::Ended(ended) => {
                self.phase = Phase::Ended(ended);
                self.launch = None;
            }
            Outcome::Forgotten => self.forget = None,
            Outcome::Removed => self.remove = false,
            // A look that failed has still to be made.
            Outcome::Failed => self.has_changed = true,
        }
    }

    /// The task as a hello tells it. What comes later is told on its own.
    pub(super) fn report(&mut self, address: Option<&Address>) -> ReportPhase {
        let (phase, said) = match (&self.phase, address) {
            (Phase::Running { at }, _) => {
                (ReportPhase::Running { at: *at, address: address.cloned() }, Said::Started)
            }
            (Phase::Ended(ended), _) => (report_end(ended, address), Said::Ended),
            (Phase::Ready | Phase::Launching, Some(address)) => {
                (ReportPhase::Ready { address: address.clone() }, Said::Ready)
            }
            (Phase::Preparing | Phase::Ready | Phase::Launching, _) => {
                (ReportPhase::Preparing, Said::Nothing)
            }
        };
        self.said = said;
        phase
    }

    /// Say again what is known.
    pub(super) fn repeat(&mut self) {
        self.said = Said::Nothing;
    }

    /// What the server has yet to be told, one message at a time.
    pub(super) fn message(&mut self, task: &TaskId, address: Option<&Address>) -> Option<ToServer> {
        // The server has removed its job, and would not know what this is about.
        if self.remove {
            return None;
        }
        let started_at = match &self.phase {
            Phase::Running { at } => Some(*at),
            Phase::Ended(ended) => ended.started_at,
            Phase::Preparing | Phase::Ready | Phase::Launching => None,
        };
        let task = task.clone();
        let (said, message) = match (&self.phase, started_at) {
            (Phase::Ready, _) if self.said < Said::Ready => {
                (Said::Ready, ToServer::Ready { task, address: address?.clone() })
            }
            (_, Some(at)) if self.said < Said::Started => (Said::Started, ToServer::Started { task, at }),
            (Phase::Ended(ended), _) if self.said < Said::Ended => {
                (Said::Ended, ToServer::Ended { task, end: ended.end.clone(), at: ended.at })
            }
            (Phase::Ended(ended), _) if self.said < Said::Outputs => {
                (Said::Outputs, ToServer::Outputs { task, outputs: ended.outputs.clone()? })
            }
            _ => return None,
        };
        self.said = said;
        Some(message)
    }
}

fn report_end(ended: &Ended, address: Option<&Address>) -> ReportPhase {
    ReportPhase::Ended {
        end: ended.end.clone(),
        at: ended.at,
        started_at: ended.started_at,
        address: address.cloned(),
    }
}
