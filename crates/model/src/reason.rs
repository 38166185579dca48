//! Why something is as it is: one enum with a stable code, words, and what follows from each.

use serde::{Deserialize, Serialize};

use crate::catalogue::Entry;
use crate::error_line::ErrorLine;
use crate::signal::Signal;

/// Why a task or a job ended, or went back to the queue. Serialised with its `code`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "code", rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Reason {
    /// What another scheduler kept for the job ended before its agents came.
    AllocationFailed {
        /// That scheduler's words.
        message: String,
    },
    /// Its turn at the other scheduler passed and nothing of it has run: no server was there to tell its agents what to run, or
    /// that scheduler has forgotten it.
    AllocationLapsed {
        /// Which of them.
        message: String,
    },
    /// Somebody ended it in the other scheduler, behind our back.
    CancelledOutside {
        /// Who, where that is known.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        by: Option<String>,
    },
    /// The workdir, a file or the environment of the task could not be made on the node.
    PrepareFailed {
        /// What went wrong, in words for the user.
        message: String,
    },
    /// A part of the job's code is damaged on the server's disk, or gone from it.
    CodeDamaged {
        /// Which part, in words for the user.
        message: String,
    },
    /// The program exists but cannot be executed.
    CommandNotExecutable {
        /// The program.
        command: String,
    },
    /// There is no such program.
    CommandNotFound {
        /// The program.
        command: String,
    },
    /// A job that it waited for did not end as it should have.
    DependencyFailed {
        /// Which, and how it ended.
        message: String,
    },
    /// The cluster needed the machine for something else than a job: it was emptied, or short of memory or disk.
    Displaced {
        /// The other scheduler's words.
        message: String,
    },
    /// Elements of the array failed.
    ElementsFailed {
        /// How many.
        failed: u32,
        /// How many it has.
        total: u32,
        /// The error that the first of them named, where its output shows one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        error: Option<ErrorLine>,
    },
    /// The task ended with a non-zero code.
    ExitCode {
        /// The code.
        exit_code: i32,
        /// The error that the program named, where its output shows one.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
        error: Option<ErrorLine>,
    },
    /// The other scheduler took its place back, and nobody says why.
    Evicted,
    /// No sign of progress for too long.
    Hung,
    /// The image could not be had.
    ImagePullFailed {
        /// The engine's words.
        message: String,
    },
    /// The node vanished, or restarted, with the task on it.
    NodeLost {
        /// The node.
        node: String,
    },
    /// The kernel killed it for memory; claimed only from a cgroup counter.
    OutOfMemory,
    /// Its owner lost the right to run jobs in its workspace, so the next attempt was not started.
    OwnerNotAllowed {
        /// What the owner lost.
        message: String,
    },
    /// A more important job needed the place.
    Preempted,
    /// Its node's record of it is damaged, so that the task was stopped.
    RecordDamaged,
    /// The engine's scheduler does not take the job.
    Refused {
        /// That scheduler's words.
        message: String,
    },
    /// The setup step failed.
    SetupFailed {
        /// Its exit code, or 128 and the signal's number.
        exit_code: i32,
    },
    /// A signal ended it.
    Signal {
        /// The signal's number.
        signal: i32,
    },
    /// Someone asked for it to stop.
    StoppedByUser,
    /// The supervisor died, and the task was ended because nobody held its output.
    SupervisorLost,
    /// It was paused; `resume` brings it back.
    Suspended,
    /// It ran longer than its time limit.
    Timeout {
        /// The limit, in milliseconds.
        limit_ms: u64,
        /// Who set the limit.
        #[serde(default, skip_serializing_if = "TimeLimitSource::is_job")]
        set_by: TimeLimitSource,
    },
}

/// Who set the time limit that a job reached.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum TimeLimitSource {
    /// The job itself: its `timeout`.
    #[default]
    Job,
    /// Its partition, which gives jobs without a limit of their own this one.
    PartitionDefault,
    /// Its partition, which allows no longer limit.
    PartitionLimit,
    /// The cluster's scheduler, in another way.
    Cluster,
}

impl TimeLimitSource {
    fn is_job(&self) -> bool {
        *self == Self::Job
    }
}

impl Reason {
    /// A non-zero exit code of a program that named no error.
    pub fn exited(exit_code: i32) -> Self {
        Self::ExitCode { exit_code, error: None }
    }

    /// One of each, for tables and documentation.
    pub fn examples() -> Vec<Self> {
        vec![
            Self::AllocationFailed { message: "prolog failed on n1".into() },
            Self::AllocationLapsed { message: "the scheduler has forgotten it".into() },
            Self::CancelledOutside { by: Some("root".into()) },
            Self::PrepareFailed { message: "no space left on device".into() },
            Self::CodeDamaged { message: "the server does not have chunk_0123".into() },
            Self::CommandNotExecutable { command: "./train.py".into() },
            Self::CommandNotFound { command: "pyton".into() },
            Self::DependencyFailed { message: "job_0123456789 (prep) failed".into() },
            Self::Displaced { message: "n1 was drained".into() },
            Self::ElementsFailed { failed: 3, total: 1000, error: None },
            Self::exited(1),
            Self::Evicted,
            Self::Hung,
            Self::ImagePullFailed { message: "not found".into() },
            Self::NodeLost { node: "node_local".into() },
            Self::OutOfMemory,
            Self::OwnerNotAllowed { message: "the account `ada` is disabled".into() },
            Self::Preempted,
            Self::RecordDamaged,
            Self::Refused { message: "invalid account".into() },
            Self::SetupFailed { exit_code: 1 },
            Self::Signal { signal: 9 },
            Self::StoppedByUser,
            Self::SupervisorLost,
            Self::Suspended,
            Self::Timeout { limit_ms: 60_000, set_by: TimeLimitSource::Job },
        ]
    }

    /// The stable name, the same in JSON, SQL, YAML (`retries.on`) and documentation.
    pub fn code(&self) -> &'static str {
        match self {
            Self::AllocationFailed { .. } => "allocation_failed",
            Self::AllocationLapsed { .. } => "allocation_lapsed",
            Self::CancelledOutside { .. } => "cancelled_outside",
            Self::PrepareFailed { .. } => "prepare_failed",
            Self::CodeDamaged { .. } => "code_damaged",
            Self::CommandNotExecutable { .. } => "command_not_executable",
            Self::CommandNotFound { .. } => "command_not_found",
            Self::DependencyFailed { .. } => "dependency_failed",
            Self::Displaced { .. } => "displaced",
            Self::ElementsFailed { .. } => "elements_failed",
            Self::ExitCode { .. } => "exit_code",
            Self::Evicted => "evicted",
            Self::Hung => "hung",
            Self::ImagePullFailed { .. } => "image_pull_failed",
            Self::NodeLost { .. } => "node_lost",
            Self::OutOfMemory => "out_of_memory",
            Self::OwnerNotAllowed { .. } => "owner_not_allowed",
            Self::Preempted => "preempted",
            Self::RecordDamaged => "record_damaged",
            Self::Refused { .. } => "refused",
            Self::SetupFailed { .. } => "setup_failed",
            Self::Signal { .. } => "signal",
            Self::StoppedByUser => "stopped_by_user",
            Self::SupervisorLost => "supervisor_lost",
            Self::Suspended => "suspended",
            Self::Timeout { .. } => "timeout",
        }
    }

    /// The exit code of `muster run` for a job that ended so: the task's own where it had one, the shell's
    /// customs (124, 126, 127, 128 + n) where they apply, 125 where the platform, not the program, was at fault.
    pub fn exit_code(&self) -> i32 {
        match self {
            Self::ExitCode { exit_code, .. } | Self::SetupFailed { exit_code } => *exit_code,
            Self::ElementsFailed { .. } => 1,
            Self::CommandNotFound { .. } => 127,
            Self::CommandNotExecutable { .. } => 126,
            Self::Signal { signal } => 128 + signal,
            Self::OutOfMemory => 137,
            Self::Timeout { .. } => 124,
            Self::CancelledOutside { .. } | Self::StoppedByUser => 130,
            Self::AllocationFailed { .. }
            | Self::AllocationLapsed { .. }
            | Self::CodeDamaged { .. }
            | Self::DependencyFailed { .. }
            | Self::Displaced { .. }
            | Self::Evicted
            | Self::Hung
            | Self::ImagePullFailed { .. }
            | Self::NodeLost { .. }
            | Self::OwnerNotAllowed { .. }
            | Self::Preempted
            | Self::PrepareFailed { .. }
            | Self::RecordDamaged
            | Self::Refused { .. }
            | Self::SupervisorLost
            | Self::Suspended => 125,
        }
    }

    /// Whether another attempt may end otherwise, when the job does not say which reasons to retry.
    /// A missing program or a user's stop never does.
    pub fn retry(&self) -> bool {
        match self {
            Self::AllocationFailed { .. }
            | Self::AllocationLapsed { .. }
            | Self::Displaced { .. }
            | Self::Evicted
            | Self::ExitCode { .. }
            | Self::Hung
            | Self::NodeLost { .. }
            | Self::OutOfMemory
            | Self::Preempted
            | Self::PrepareFailed { .. }
            | Self::RecordDamaged
            | Self::SetupFailed { .. }
            | Self::Signal { .. }
            | Self::SupervisorLost => true,
            Self::CancelledOutside { .. }
            // It stays damaged until the code is sent again.
            | Self::CodeDamaged { .. }
            | Self::CommandNotExecutable { .. }
            | Self::CommandNotFound { .. }
            | Self::DependencyFailed { .. }
            // Each element was tried as often as it may be.
            | Self::ElementsFailed { .. }
            | Self::ImagePullFailed { .. }
            | Self::OwnerNotAllowed { .. }
            | Self::Refused { .. }
            | Self::StoppedByUser
            | Self::Suspended
            | Self::Timeout { .. } => false,
        }
    }

    /// Whether the job waits again at no cost to its retries: somebody needed its place, or it never had one, and nothing has
    /// failed.
    pub fn requeues(&self) -> bool {
        matches!(self, Self::AllocationLapsed { .. } | Self::Preempted | Self::Displaced { .. })
    }

    /// What the code means whatever the case, and what to do about it. The words for one case are [`Self::message`]
    /// and [`Self::hint`].
    pub fn entry(&self) -> Entry {
        let (meaning, remedy) = match self {
            Self::AllocationFailed { .. } => (
                "The cluster's scheduler began the job and ended it before muster's agents could run there.",
                "Read the message; when a machine of the cluster is to blame, `retries: 1` tries again elsewhere.",
            ),
            Self::AllocationLapsed { .. } => (
                "The job's turn in the cluster passed while no server was there to run it, or the cluster's scheduler has \
                 forgotten it; nothing of it has run.",
                "Nothing: it is handed over again, at no cost to its retries.",
            ),
            Self::CancelledOutside { .. } => (
                "Somebody ended the job in the cluster's own scheduler (`scancel`, `kubectl delete`), not through muster.",
                "Ask whoever it was, or submit it again; `retries` with `on: [cancelled_outside]` starts it anew.",
            ),
            Self::PrepareFailed { .. } => (
                "The task's directory, files or environment could not be made on its node.",
                "Read the message; most often the node's disk is full or a directory is not writable.",
            ),
            Self::CodeDamaged { .. } => (
                "A part of the job's code is damaged on the server's disk, or gone from it. The damaged parts were removed.",
                "Submit the job again from its code directory: the client sends what the server lacks. Then check the server's disk.",
            ),
            Self::CommandNotExecutable { .. } => (
                "The program is there, but may not be executed.",
                "Make it executable (chmod +x), or name its interpreter: `python train.py`.",
            ),
            Self::CommandNotFound { .. } => (
                "There is no such program where the task ran.",
                "Check the spelling and PATH; a program of your own directory is written ./NAME.",
            ),
            Self::DependencyFailed { .. } => (
                "A job that it waited for (`--after`) ended otherwise than it should have; it was never started.",
                "See why that one ended: `muster show JOB`. `--after JOB:any` starts whatever becomes of it.",
            ),
            Self::Displaced { .. } => (
                "The cluster took the machine back for something else than another job: it was drained for maintenance, \
                 or was short of memory or disk.",
                "Nothing: it goes back to the queue, and its `retries` are not used up.",
            ),
            Self::ElementsFailed { .. } => (
                "Some elements of the array failed, as often as they may be tried; the others ran to their end.",
                "See which and why with `muster elements JOB --failed`; `muster clone JOB --failed` runs those again.",
            ),
            Self::ExitCode { .. } => (
                "The program ended with a code other than 0.",
                "Read its last lines: `muster logs JOB --tail 20`.",
            ),
            Self::Evicted => (
                "The cluster's scheduler took the job's place back and does not say why.",
                "Run the job again, or add `retries: 1` so that it starts again by itself.",
            ),
            Self::Hung => (
                "The job made no progress for too long.",
                "Look at the last lines of each task: `muster logs JOB --tail 20`.",
            ),
            Self::ImagePullFailed { .. } => (
                "The container image could not be had.",
                "Check the image's name, and the node's access to its registry.",
            ),
            Self::NodeLost { .. } => (
                "The node vanished, or restarted, with the task on it.",
                "Run the job again, or add `retries: 1` so that it starts again by itself.",
            ),
            Self::OutOfMemory => (
                "The kernel killed the task because it used more memory than it may.",
                "Ask for more with --memory, or use a smaller batch.",
            ),
            Self::OwnerNotAllowed { .. } => (
                "The job's owner was disabled, or may no longer run jobs in its workspace, so no new attempt was started and \
                 no secret was given out.",
                "An admin can enable the account (`muster user enable`) or a lead can add the owner to the workspace; then submit \
                 the job again.",
            ),
            Self::Preempted => (
                "A job of higher priority needed its place.",
                "Nothing: it goes back to the queue; a higher --priority keeps it from happening.",
            ),
            Self::RecordDamaged => (
                "The record that its node keeps of the task is damaged. The node no longer knows what was asked for, and stopped the task.",
                "Check the node's disk; `muster server check` on the machine of a private server names damaged records. Then run the job again.",
            ),
            Self::Refused { .. } => (
                "The cluster's scheduler does not take the job.",
                "Read the message: most often a partition, account or limit. Change the job or ask the cluster's admin.",
            ),
            Self::SetupFailed { .. } => (
                "The `setup` script failed, and the command was not started.",
                "Read what the script wrote: `muster logs JOB`.",
            ),
            Self::Signal { .. } => (
                "A signal ended the task.",
                "Signal 9 is often the kernel killing for memory (see `dmesg`), 11 a crash in native code.",
            ),
            Self::StoppedByUser => {
                ("Someone asked for it to stop.", "Nothing; to run it again, submit it again.")
            }
            Self::SupervisorLost => (
                "The process that watches the task was killed, and the task was ended with it.",
                "Run the job again, or add `retries: 1`; do not kill `muster supervise` processes. On an SSH host that ends \
                 what a login leaves behind, `loginctl enable-linger` for its account keeps them.",
            ),
            Self::Suspended => (
                "It was paused.",
                "Bring it back with `muster resume JOB`, a machine with `muster machine start NAME`.",
            ),
            Self::Timeout { .. } => (
                "It ran longer than its timeout, or than its cluster lets it.",
                "Give it more time with --timeout, or find out where it hangs with `muster logs JOB`.",
            ),
        };
        Entry { code: self.code(), meaning, remedy }
    }

    /// One line for people.
    pub fn message(&self) -> String {
        match self {
            Self::AllocationFailed { message } => format!("it ended before its agents came: {message}"),
            Self::AllocationLapsed { message } => format!("it has not run: {message}"),
            Self::CancelledOutside { by: Some(by) } => format!("cancelled by {by}, and not through muster"),
            Self::CancelledOutside { by: None } => "cancelled, and not through muster".into(),
            Self::PrepareFailed { message } => format!("the task could not be prepared: {message}"),
            Self::CodeDamaged { message } => format!("its code is damaged on the server's disk: {message}"),
            Self::CommandNotExecutable { command } => format!("`{command}` is not executable"),
            Self::CommandNotFound { command } => format!("`{command}` was not found"),
            Self::DependencyFailed { message } => format!("never started: {message}"),
            Self::Displaced { message } => format!("its machine was needed: {message}"),
            Self::ElementsFailed { failed, total, error: None } => {
                format!("{failed} of {total} elements failed")
            }
            Self::ElementsFailed { failed, total, error: Some(error) } => {
                format!("{failed} of {total} elements failed; the first error: {error}")
            }
            Self::ExitCode { exit_code, error: None } => format!("exited with code {exit_code}"),
            Self::ExitCode { exit_code, error: Some(error) } => {
                format!("exited with code {exit_code}: {error}")
            }
            Self::Evicted => "its place was taken back".into(),
            Self::Hung => "made no progress for too long".into(),
            Self::ImagePullFailed { message } => format!("the image could not be pulled: {message}"),
            Self::NodeLost { node } => format!("lost {node}"),
            Self::OutOfMemory => "ran out of memory".into(),
            Self::OwnerNotAllowed { message } => format!("not started: {message}"),
            Self::Preempted => "preempted: it made room for another job".into(),
            Self::RecordDamaged => "stopped, since its node's record of it is damaged".into(),
            Self::Refused { message } => format!("refused: {message}"),
            Self::SetupFailed { exit_code } => format!("setup failed with code {exit_code}"),
            Self::Signal { signal } => format!("killed by {}", signal_name(*signal)),
            Self::StoppedByUser => "stopped by its user".into(),
            Self::SupervisorLost => "its supervisor was killed".into(),
            Self::Suspended => "paused".into(),
            Self::Timeout { limit_ms, set_by } => {
                let limit = crate::quantity::format_duration(std::time::Duration::from_millis(*limit_ms));
                match set_by {
                    TimeLimitSource::Job => format!("ran longer than its timeout of {limit}"),
                    TimeLimitSource::PartitionDefault => {
                        format!("ran longer than the partition's default of {limit}")
                    }
                    TimeLimitSource::PartitionLimit => {
                        format!("ran longer than the partition's limit of {limit}")
                    }
                    TimeLimitSource::Cluster => {
                        format!("ran longer than the {limit} that the cluster's scheduler gave it")
                    }
                }
            }
        }
    }

    /// What would help a job that has had so many attempts, if anything is known to.
    pub fn hint(&self, attempts: u32) -> Option<&'static str> {
        match self {
            Self::AllocationFailed { .. } | Self::Evicted => Some("run it again, or add `retries: 1`"),
            Self::CancelledOutside { .. } => Some("submit it again, or ask whoever cancelled it"),
            Self::Refused { .. } => Some("change what the job asks for, or ask the cluster's admin"),
            Self::PrepareFailed { .. } => Some("check free disk space and rights on the node"),
            Self::RecordDamaged => Some("check the node's disk, then run it again"),
            Self::CodeDamaged { .. } => {
                Some("submit it again from its code directory: what is damaged is sent again")
            }
            Self::CommandNotExecutable { .. } => {
                Some("make it executable (chmod +x), or name its interpreter")
            }
            Self::CommandNotFound { .. } => {
                Some("check the spelling and PATH; `muster run` gives the task your PATH")
            }
            Self::Hung => Some("look at the last lines of each task: `muster logs JOB --tail 20`"),
            Self::ImagePullFailed { .. } => {
                Some("check the image's name and the node's access to its registry")
            }
            Self::NodeLost { .. } if attempts > 1 => {
                Some("allow more attempts with a larger `retries`; `muster nodes` shows how its nodes are")
            }
            Self::NodeLost { .. } => Some("add `retries: 1` to start again on another node"),
            Self::OutOfMemory => Some("ask for more with --memory, or use a smaller batch"),
            Self::OwnerNotAllowed { .. } => {
                Some("ask an admin or a lead of the workspace, then submit it again")
            }
            Self::Signal { signal: 9 } => {
                Some("signal 9 that nobody here sent is often the kernel killing for memory: see `dmesg`")
            }
            Self::Signal { signal: 11 } => Some("a crash in native code: check library versions"),
            Self::Timeout { set_by: TimeLimitSource::PartitionLimit, .. } => {
                Some("choose a partition with a longer limit; `muster nodes` shows their limits")
            }
            Self::Timeout { .. } => Some("give it more time with --timeout"),
            Self::SupervisorLost if attempts > 1 => {
                Some("run it again, or allow more attempts with a larger `retries`")
            }
            Self::SupervisorLost => Some("run it again, or add `retries: 1`"),
            Self::Suspended => {
                Some("`muster resume JOB` brings it back, `muster machine start NAME` a machine")
            }
            Self::ElementsFailed { .. } => {
                Some("`muster elements JOB --failed` lists them, `muster clone JOB --failed` runs them again")
            }
            Self::DependencyFailed { .. } => Some("`--after JOB:any` starts whatever becomes of that job"),
            Self::AllocationLapsed { .. }
            | Self::Displaced { .. }
            | Self::ExitCode { .. }
            | Self::SetupFailed { .. }
            | Self::Preempted
            | Self::Signal { .. }
            | Self::StoppedByUser => None,
        }
    }
}

/// `SIGKILL (9)`.
fn signal_name(signal: i32) -> String {
    let name = signal.to_string().parse::<Signal>().ok().and_then(Signal::name);
    name.map_or_else(|| format!("signal {signal}"), |name| format!("SIG{name} ({signal})"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_code_is_the_same_in_json() {
        for reason in Reason::examples() {
            let json = serde_json::to_value(&reason).unwrap();
            assert_eq!(json["code"], reason.code());
            assert_eq!(serde_json::from_value::<Reason>(json).unwrap(), reason);
        }
    }

    #[test]
    fn a_time_limit_names_who_set_it() {
        let message = |set_by| Reason::Timeout { limit_ms: 120_000, set_by }.message();
        assert_eq!(message(TimeLimitSource::Job), "ran longer than its timeout of 2m");
        assert_eq!(
            message(TimeLimitSource::PartitionDefault),
            "ran longer than the partition's default of 2m"
        );
        assert_eq!(message(TimeLimitSource::PartitionLimit), "ran longer than the partition's limit of 2m");
        assert_eq!(
            message(TimeLimitSource::Cluster),
            "ran longer than the 2m that the cluster's scheduler gave it"
        );
        // As agents and databases of before have it.
        let old = serde_json::json!({ "code": "timeout", "limit_ms": 5 });
        let reason: Reason = serde_json::from_value(old.clone()).unwrap();
        assert_eq!(reason, Reason::Timeout { limit_ms: 5, set_by: TimeLimitSource::Job });
        assert_eq!(serde_json::to_value(&reason).unwrap(), old);
    }
}
