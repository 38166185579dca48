//! From how a process ended to why a task failed.

use muster_model::Reason;
use muster_model::reason::TimeLimitSource;
use muster_model::task::TaskEnd;

use crate::supervisor::{Exit, NotExecutable, Outcome, Status};

/// How a task ended, for the server. `timeout_ms` is the limit it had.
pub(crate) fn task_end(exit: &Exit, timeout_ms: Option<u64>) -> TaskEnd {
    TaskEnd {
        notice: exit.notice.clone().map(Box::new),
        saved_at: exit.saved_at,
        ..TaskEnd::new(failure(&exit.outcome, timeout_ms), Some(exit.log_bytes))
    }
}

/// A task that was stopped keeps its own signal or code: that someone asked for it is the job's to know, and how it
/// took it is the task's.
pub(crate) fn failure(outcome: &Outcome, timeout_ms: Option<u64>) -> Option<Reason> {
    Some(match outcome {
        Outcome::Exited { code: 0 } => return None,
        Outcome::Exited { code } => Reason::exited(*code),
        Outcome::Signaled { signal } => Reason::Signal { signal: *signal },
        Outcome::NotFound { command } => Reason::CommandNotFound { command: command.clone() },
        Outcome::NotExecutable { command, why } => {
            Reason::CommandNotExecutable { command: not_executable(command, why) }
        }
        Outcome::SetupFailed { status: Status::Exited(code) } => Reason::SetupFailed { exit_code: *code },
        Outcome::SetupFailed { status: Status::Signaled(signal) } => {
            Reason::SetupFailed { exit_code: 128 + signal }
        }
        Outcome::Timeout => {
            Reason::Timeout { limit_ms: timeout_ms.unwrap_or_default(), set_by: TimeLimitSource::Job }
        }
        Outcome::OutOfMemory => Reason::OutOfMemory,
        // Only a stop keeps a supervisor from starting what it was given.
        Outcome::NotStarted => Reason::StoppedByUser,
        Outcome::LaunchFailed { message } => Reason::PrepareFailed { message: message.clone() },
        Outcome::SupervisorLost => Reason::SupervisorLost,
    })
}

/// The command with what keeps it from running, where its name alone would send people looking in the wrong place.
fn not_executable(command: &str, why: &NotExecutable) -> String {
    match why {
        NotExecutable::MissingInterpreter(interpreter) => {
            format!("{command} (its first line names {interpreter})")
        }
        NotExecutable::MissingLoader => {
            format!("{command} (made for another system: its loader is not here)")
        }
        NotExecutable::Directory => format!("{command} (a directory)"),
        NotExecutable::Format | NotExecutable::Permission => command.to_owned(),
    }
}
