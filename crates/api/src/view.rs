//! What requests and replies look like.

mod log;
mod node;

use std::collections::BTreeMap;

use muster_model::array::ElementCounts;
use muster_model::bundle::{Chunk, Source};
use muster_model::file::FileEntry;
use muster_model::job::State;
use muster_model::metrics::Usage;
use muster_model::session::{Session, SessionCommand};
use muster_model::spec::{JobSpec, Kind};
use muster_model::task::{Address, Outputs, Parting, StopNotice, TaskPhase};
use muster_model::{BundleId, ChunkId, CommandOn, Framework, JobId, NodeId, Reason, Timestamp};
use serde::{Deserialize, Serialize};
use serde_json::Value;
use utoipa::{IntoParams, ToSchema};

use crate::metrics::TaskPoint;

pub use self::log::{DamagedLog, DownloadQuery, LogChunk, LogStream, LogsQuery, MissingLog, StreamEnd};
pub use self::node::{DeviceView, LabelNode, NodeError, NodeList, NodeView};

/// `POST /jobs`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct CreateJob {
    /// The spec as a map of fields; see `JobSpec` for them. Every wrong one is reported.
    #[schema(value_type = Object)]
    pub spec: Value,
    /// The code, already sent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub bundle: Option<BundleId>,
    /// Where the code came from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<Source>,
    /// The submitter's environment, for engines that pass it on. Kept private and deleted with the job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub environment: Option<BTreeMap<String, String>>,
}

/// Options of `POST /jobs`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct CreateJobQuery {
    /// Check everything and show the job that would be made, without making it.
    #[serde(default)]
    pub dry_run: bool,
}

/// What `dry_run` answers: the spec with every default filled in, and what would happen to it.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Preview {
    /// The spec as it would be stored.
    pub spec: JobSpec,
    /// The name it would get.
    pub name: String,
    /// How its tasks would be started. Absent from servers of before it.
    #[serde(default)]
    pub launch: Option<LaunchView>,
    /// What would happen now.
    pub why: Why,
}

/// How the tasks of a job are started.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct LaunchView {
    /// The launch contract.
    pub framework: Framework,
    /// The words that run.
    pub argv: Vec<String>,
    /// Where they run.
    pub command_on: CommandOn,
    /// How many processes each task has then: those that the server starts, or a launcher among the words.
    pub processes: u32,
}

/// A job in a list.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct JobSummary {
    /// Its id.
    pub id: JobId,
    /// Its name.
    pub name: String,
    /// What people call it, in any script. Never an identifier.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// What kind of job it is.
    #[serde(default)]
    pub kind: Kind,
    /// What its user wants to find it by.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub labels: BTreeMap<String, String>,
    /// Where it is.
    pub state: State,
    /// Why it is there, where that is not plain.
    pub reason: Option<Reason>,
    /// The reason in words.
    pub message: Option<String>,
    /// The size of its gang.
    pub nodes: u32,
    /// Devices on each node, as asked for: `H100:8`.
    pub gpus: Option<String>,
    /// What it runs, as typed.
    pub command: String,
    /// Where it runs.
    pub on: String,
    /// Who submitted it.
    pub owner: String,
    /// The current or last attempt, from 1; 0 before the first.
    pub attempt: u32,
    /// What `muster run` exits with, once it is over.
    pub exit_code: Option<i32>,
    /// When it was submitted.
    #[schema(value_type = String, format = DateTime)]
    pub submitted_at: Timestamp,
    /// When its gang was running whole.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Timestamp>,
    /// When it was over.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    /// How its elements are, where it is an array.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elements: Option<ElementCounts>,
    /// What it asks for beside nodes and devices. Absent from servers of before it.
    #[serde(default)]
    pub asks: Asks,
}

/// What a job asks for beside nodes and devices.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize, ToSchema)]
pub struct Asks {
    /// The workspace that it counts for.
    #[serde(default)]
    pub workspace: String,
    /// Higher goes first.
    #[serde(default)]
    pub priority: u32,
    /// It may be ended for more important work.
    #[serde(default)]
    pub preemptible: bool,
    /// Each task has a node of its own.
    #[serde(default)]
    pub exclusive: bool,
    /// CPUs of each task, in thousandths.
    #[serde(default)]
    pub cpu_millis: u64,
    /// Memory of each task.
    #[serde(default)]
    pub memory_bytes: u64,
    /// The longest it may run; absent if it does not say.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timeout_ms: Option<u64>,
}

/// A job in full.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct JobDetail {
    /// What a list shows.
    #[serde(flatten)]
    pub summary: JobSummary,
    /// What was asked for.
    pub spec: JobSpec,
    /// How its tasks are started. Absent from servers of before it.
    #[serde(default)]
    pub launch: Option<LaunchView>,
    /// Its code.
    pub bundle: Option<BundleId>,
    /// Where the code came from.
    pub source: Option<Source>,
    /// The rank whose failure came first.
    pub failed_rank: Option<u32>,
    /// What another scheduler keeps, or kept, for its current or last attempt.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub allocation: Option<AllocationView>,
    /// Every attempt, the latest last.
    pub attempts: Vec<AttemptView>,
}

/// What another scheduler keeps for an attempt.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AllocationView {
    /// What that scheduler calls it: Slurm's job id. Absent until it has said so.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub id: Option<String>,
    /// The machines it has there, by rank; empty until they are known.
    pub hosts: Vec<String>,
}

/// One try.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct AttemptView {
    /// Which, from 1.
    pub number: u32,
    /// When it was given its place.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// When its last task was gone.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
    /// Why it ended.
    pub reason: Option<Reason>,
    /// Its gang, by rank. Members that were started before, and not anew, belong to it as well.
    pub tasks: Vec<TaskView>,
}

/// One member of a gang.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct TaskView {
    /// Its rank.
    pub rank: u32,
    /// What a machine is called that has a name of its own; absent where it is called `taskN.JOB`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// The attempt that it was started in.
    #[serde(default)]
    pub attempt: u32,
    /// Where it runs.
    pub node: NodeId,
    /// The devices it was given.
    pub devices: Vec<u32>,
    /// How far it is.
    pub phase: TaskPhase,
    /// Whether a member of a group was asked to end, alone or with the others: for now, or for good.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub parting: Option<Parting>,
    /// Where its peers reach it.
    pub address: Option<Address>,
    /// Why it failed, if it did.
    pub failure: Option<Reason>,
    /// The failure in words.
    pub message: Option<String>,
    /// That it was told to end while it ran, and how it took that.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<StopNotice>,
    /// When it last said that it had saved its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub saved_at: Option<Timestamp>,
    /// What became of the files it was to leave behind; absent before that is known, and where none were asked for.
    pub outputs: Option<Outputs>,
    /// What it uses now; absent when it does not run, or its node is away.
    #[serde(default)]
    pub now: Option<TaskPoint>,
    /// What it has used from its start on; absent if it never ran.
    #[serde(default)]
    pub usage: Option<Usage>,
    /// When its command started.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub started_at: Option<Timestamp>,
    /// When it ended.
    #[schema(value_type = Option<String>, format = DateTime)]
    pub ended_at: Option<Timestamp>,
}

/// A page of a list.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct JobPage {
    /// The jobs, newest first.
    pub items: Vec<JobSummary>,
    /// Pass it as `cursor` for the next page; absent on the last.
    pub next_cursor: Option<String>,
}

/// Which jobs to list.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct ListJobs {
    /// Only jobs in these states, separated by commas.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub state: Option<String>,
    /// Only jobs of this name.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    /// Only groups that have a machine of this name, which is the machine's own.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub machine: Option<String>,
    /// Only jobs of this kind: `training` or `machine`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kind: Option<String>,
    /// Only jobs with this label, `NAME=VALUE`; several are separated by commas, and all must fit.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub label: Option<String>,
    /// At most so many, up to 1,000; 100 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(minimum = 1, maximum = 1000)]
    pub limit: Option<u32>,
    /// Where the last page ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cursor: Option<String>,
}

/// `POST /jobs/{job}/stop`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct StopJob {
    /// How long its tasks may take after SIGTERM, if not as the spec says; 0 kills at once.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub grace_ms: Option<u64>,
}

/// `POST /jobs/{job}/rename`, and of one machine of a group `POST /jobs/{job}/tasks/{rank}/rename`.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RenameJob {
    /// What it is to be called. No other job that is not over may have the name.
    pub name: String,
}

/// Why a job is as it is: what it waits for, or why it ended.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize, ToSchema)]
pub struct Why {
    /// Stable: `running`, `no_capacity`, `exit_code`, …
    pub code: String,
    /// One line.
    pub summary: String,
    /// What people call the job, in any script.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub display_name: Option<String>,
    /// The constraint that is not met, or the task that failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub constraint: Option<String>,
    /// What would help.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub help: Option<String>,
    /// When whoever decides thinks that it starts.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub starts_at: Option<Timestamp>,
    /// The job whose end is expected to make room for it then, by its name where the caller may know it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub starts_after: Option<String>,
    /// Why it cannot be foreseen when it starts, of a job that waits without `starts_at`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub no_estimate: Option<String>,
    /// How many jobs are before it in the queue.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ahead: Option<u64>,
    /// Changes with which it would start now. Each was tried before it was named.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub options: Vec<WhyOption>,
}

/// A change to a job with which it would start now.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct WhyOption {
    /// What to change, as `muster run` has it.
    pub change: String,
    /// In words.
    pub summary: String,
}

/// Something that happened to a job.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct EventView {
    /// Grows with time; the SSE id.
    pub seq: u64,
    /// The job it happened to.
    #[serde(default)]
    pub job: Option<JobId>,
    /// When.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// The attempt it belongs to.
    pub attempt: Option<u32>,
    /// What: `submitted`, `starting`, `running`, `task_ended`, …
    pub kind: String,
    /// The details of this kind.
    #[schema(value_type = Object)]
    pub body: Value,
}

/// Which events to send.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct EventsQuery {
    /// Only those after this one; a `Last-Event-ID` header says the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Go on until the job is over; otherwise only what is there.
    #[serde(default)]
    pub follow: bool,
}

/// Which events of all jobs to send.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[into_params(parameter_in = Query)]
#[serde(deny_unknown_fields)]
pub struct AllEventsQuery {
    /// Only those after this one; a `Last-Event-ID` header says the same.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub after: Option<u64>,
    /// Where to begin without `after`: at about so many events before the newest; 100 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub tail: Option<u32>,
    /// Go on for as long as there is somebody to send them to; otherwise only what is there.
    #[serde(default)]
    pub follow: bool,
}

/// `POST /bundles`: what a bundle is made of.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct PutBundle {
    /// The chunks of its listing, in order.
    pub listing: Vec<Chunk>,
    /// The chunks of its content, in order.
    pub content: Vec<Chunk>,
}

/// The answer: the bundle's name, and what must still be sent with `POST /chunks` before asking again.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct BundleStatus {
    /// Its name.
    pub id: BundleId,
    /// The chunks that you have not sent, of many the first; the bundle can be used once there are none. A chunk that only
    /// other users have sent is missing, too.
    pub missing: Vec<ChunkId>,
}

/// `POST /chunks/missing`, request and reply: of these chunks, those that the server lacks, or has from other users alone.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct ChunkList {
    /// Which.
    #[schema(max_items = 4096)]
    pub chunks: Vec<ChunkId>,
}

/// Which files of a job to show or send.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct FilesQuery {
    /// Below the working directory; `@output/…` for the output directory; empty for all.
    #[serde(default)]
    pub path: String,
    /// The task's rank; 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<u32>,
    /// This attempt instead of the last.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub attempt: Option<u32>,
    /// Also what is in the directories below; for lists.
    #[serde(default)]
    pub recursive: bool,
}

/// Whom to call on, and as whom.
#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SshQuery {
    /// The task's rank; 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<u32>,
    /// The public key that the caller will show, as a line of `authorized_keys`.
    pub key: String,
}

/// Which task's sessions.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct SessionsQuery {
    /// The task's rank; 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<u32>,
}

/// `PUT /jobs/{job}/sessions/{name}`: how to open a session.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct OpenSession {
    /// End the shell that the session has, or had, and begin with a new one.
    #[serde(default)]
    pub fresh: bool,
}

/// The sessions of a task.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct SessionList {
    /// By name.
    pub items: Vec<Session>,
}

/// `POST …/sessions/{name}/commands`: what its shell is to run.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct RunCommand {
    /// As one would type it; it may have many lines.
    pub command: String,
}

/// The last commands of a session.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct CommandList {
    /// By number.
    pub items: Vec<SessionCommand>,
}

/// How to look at a command.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct CommandQuery {
    /// The task's rank; 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<u32>,
    /// Answer when it is over, or after so many seconds, 50 at most; at once when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[param(maximum = 50)]
    pub wait: Option<u32>,
}

/// Which of a command's output to send.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct OutputQuery {
    /// The task's rank; 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<u32>,
    /// From this byte on.
    #[serde(default)]
    pub offset: u64,
    /// Also what comes until the command is over.
    #[serde(default)]
    pub follow: bool,
}

/// `POST …/sessions/{name}/signal`: what to send to what runs.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct SendSignal {
    /// Its name, with or without `SIG`; `INT`, as Ctrl-C, when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub signal: Option<String>,
}

/// At whose terminal to sit down, and with one of what size.
#[derive(Debug, Clone, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct AttachQuery {
    /// The task's rank; 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<u32>,
    /// How wide the caller's terminal is.
    #[serde(default = "usual_columns")]
    pub columns: u16,
    /// How high.
    #[serde(default = "usual_rows")]
    pub rows: u16,
}

const fn usual_columns() -> u16 {
    80
}

const fn usual_rows() -> u16 {
    24
}

/// Whom to copy files to or from.
#[derive(Debug, Clone, Default, Serialize, Deserialize, IntoParams)]
#[serde(deny_unknown_fields)]
#[into_params(parameter_in = Query)]
pub struct CopyQuery {
    /// The task's rank; 0 when absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub task: Option<u32>,
}

/// A job's files.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct FileList {
    /// Where they are: `node`, or `server` for collected outputs.
    pub on: String,
    /// The files, by path.
    pub items: Vec<FileEntry>,
    /// There were more than are listed.
    pub truncated: bool,
}

/// `POST /gc`.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub struct Gc {
    /// Say what would be removed, and remove nothing.
    #[serde(default)]
    pub dry_run: bool,
}

/// What became of a changed configuration.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct ServerReload {
    /// Settings that differ from what they were, and hold from now on.
    pub changed: Vec<String>,
    /// Settings that differ from what the server started with, and hold after its next start.
    pub needs_restart: Vec<String>,
}

/// What was removed because it need not be kept, or would be.
#[derive(Debug, Clone, Default, Serialize, Deserialize, ToSchema)]
pub struct GcReport {
    /// Nothing was removed; this is what would be.
    pub dry_run: bool,
    /// Logs of jobs that are over.
    pub logs_bytes: u64,
    /// What tasks left behind. The room is free once no other bundle has the same chunks.
    pub outputs_bytes: u64,
    /// Code that no job has.
    pub bundles: u64,
    /// Chunks that no bundle has.
    pub chunks: u64,
    /// Their size on the server's disk.
    pub chunk_bytes: u64,
    /// What the nodes removed; those that did not answer in time are left out.
    pub nodes: Vec<NodeFreed>,
    /// Nodes that have yet to remove files of removed jobs.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub owed: Vec<OwedRemovals>,
}

/// What a node has yet to remove: it was away when the jobs were removed, or could not do it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct OwedRemovals {
    /// The node.
    pub node: NodeId,
    /// Removed jobs of which it has files.
    pub jobs: u64,
    /// When the first of them was removed, where that is known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schema(value_type = Option<String>, format = DateTime)]
    pub since: Option<Timestamp>,
}

/// What a node removed.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct NodeFreed {
    /// The node.
    pub node: NodeId,
    /// How much.
    pub bytes: u64,
}

/// The server itself.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct ServerView {
    /// Its process.
    pub pid: u32,
    /// Its version.
    pub version: String,
    /// Which binary it is.
    pub build: String,
    /// Since when it runs.
    #[schema(value_type = String, format = DateTime)]
    pub started_at: Timestamp,
    /// Its data directory.
    pub home: String,
    /// That of the certificate it shows, where it speaks TLS: `sha256:` and 64 hexadecimal digits.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// Jobs that are not over.
    pub unfinished_jobs: u64,
    /// Its nodes.
    pub nodes: Vec<NodeView>,
}
