//! Logs of jobs: which part is asked for, and what is sent.

use muster_model::{NodeId, Timestamp};
use serde::{Deserialize, Serialize};
use utoipa::{IntoParams, ToSchema};

use super::JobSummary;

/// Which part of a job's log to send.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct LogsQuery {
    /// Only this rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<u32>,
    /// Only the process of this rank, where tasks start several; else as `task`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_rank: Option<u32>,
    /// The last run of this element of an array, by its index.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub element: Option<u32>,
    /// This attempt instead of the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Go on until the job is over and its whole log was sent.
    #[serde(default)]
    pub follow: bool,
    /// Only the last lines of each task; with `grep`, the last that match.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<u32>,
    /// Only what was written from then on: RFC 3339, or a duration back from now such as `10m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Only what was written up to then: RFC 3339, or a duration back from now such as `10m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Only whole lines that this regular expression matches. A line beyond 64 KiB is taken in parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grep: Option<String>,
    /// `grep` takes no notice of upper and lower case.
    #[serde(default)]
    pub ignore_case: bool,
    /// `grep` keeps the lines that do not match.
    #[serde(default)]
    pub invert_match: bool,
    /// Go on from here: `ATTEMPT@RANK:NEXT,RANK:NEXT…`, from the `next` of the last `log` event of each rank; with
    /// its `skip`, if it has one, as `RANK:NEXT.SKIP.SKIP`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// Which part of a job's log to download.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct DownloadQuery {
    /// Only this rank, byte for byte. Without it, the lines of a gang carry the name of their task, and those of several
    /// processes their rank.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<u32>,
    /// Only the process of this rank, where tasks start several; else as `task`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_rank: Option<u32>,
    /// This attempt instead of the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Only what was written from then on: RFC 3339, or a duration back from now such as `10m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub since: Option<String>,
    /// Only what was written up to then: RFC 3339, or a duration back from now such as `10m`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub until: Option<String>,
    /// Only whole lines that this regular expression matches. A line beyond 64 KiB is taken in parts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grep: Option<String>,
    /// `grep` takes no notice of upper and lower case.
    #[serde(default)]
    pub ignore_case: bool,
    /// `grep` keeps the lines that do not match.
    #[serde(default)]
    pub invert_match: bool,
}

/// An SSE event `log`: a piece of a task's output, as it was written.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct LogChunk {
    /// The attempt.
    pub attempt: u32,
    /// The task.
    pub rank: u32,
    /// The rank of the process that wrote it, where the task starts several and it is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub process_rank: Option<u32>,
    /// Where from.
    pub stream: LogStream,
    /// When it was read.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// The output, when it is UTF-8.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub text: Option<String>,
    /// The output in base64, when it is not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub base64: Option<String>,
    /// The offset in this task's log after this piece; the cursor to go on from.
    pub next: u64,
    /// How many bytes of stdout and of stderr after `next` were dealt with already: with `grep`, and within long output.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub skip: Option<[u64; 2]>,
    /// With `tail`: the line that this piece begins with is too long, and only the end of it is sent.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub cut: bool,
}

/// One of a task's two outputs.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum LogStream {
    /// Standard output.
    Stdout,
    /// Standard error.
    Stderr,
}

/// An SSE event `end`, the last of a followed stream: the job is over and everything was sent.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct StreamEnd {
    /// The job as it ended.
    pub job: JobSummary,
    /// The rank whose failure came first.
    pub failed_rank: Option<u32>,
    /// Logs whose end did not come: it is on nodes that are away.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub missing: Vec<MissingLog>,
    /// Parts of logs that are damaged on the server's disk: what was sent of them may be wrong.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub damaged: Vec<DamagedLog>,
}

/// A part of a task's log that is damaged on the server's disk.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DamagedLog {
    /// The attempt.
    pub attempt: u32,
    /// The task.
    pub rank: u32,
    /// Where it begins in the log, record headers included.
    pub offset: u64,
    /// How long it is.
    pub bytes: u64,
}

/// The end of a task's log that is on a node that is away.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MissingLog {
    /// The attempt.
    pub attempt: u32,
    /// The task.
    pub rank: u32,
    /// Where the rest is.
    pub node: NodeId,
    /// How much of it, record headers included.
    pub bytes: u64,
}
