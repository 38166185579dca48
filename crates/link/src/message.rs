//! What server and agent say to each other on the control stream: one JSON object a line.
//!
//! Old and new versions meet here. Unknown fields are ignored, an unknown kind is answered [`ToAgent::Unsupported`]
//! or [`ToServer::Unsupported`] and otherwise changes nothing, and both hellos carry versions. A field is never
//! given a new meaning: a new one is added.
//!
//! Every message about a task names its attempt (it is part of the [`TaskId`]), so a late one cannot touch a newer
//! attempt. Repeating a message is harmless: after a lost connection both sides say again what they know.

use std::collections::BTreeMap;
use std::fmt;

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use jiff::Timestamp;
use muster_model::array::Grant;
use muster_model::launch::{LaunchFile, Peers, Surroundings, Work};
use muster_model::metrics::Sample;
use muster_model::node::{Account, Capacity};
use muster_model::session::{Session, SessionCommand};
use muster_model::signal::Signal;
use muster_model::spec::Array;
use muster_model::task::{Address, Outputs, TaskEnd};
use muster_model::{BundleId, ChunkId, JobId, NodeId, TaskId};
use serde::{Deserialize, Serialize};

/// The version of this protocol; raised when a peer must know the difference.
///
/// 2: what an agent reports of a task that runs, or has ended, says where it is or was.
/// 3: tasks run under the account, and with the volumes, that [`Prepare`] names.
/// 4: tasks may be lanes of an array, as [`Launch`] says.
/// 5: an agent confirms [`ToAgent::Remove`] with [`ToServer::Removed`].
pub const PROTOCOL: u32 = 5;

/// From agent to server.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToServer {
    /// The first message of a connection: who this is and what is on the node.
    Hello(Box<Hello>),
    /// A task is prepared and waits for its gang.
    Ready {
        /// The task.
        task: TaskId,
        /// Where peers reach it.
        address: Address,
    },
    /// A task's command started.
    Started {
        /// The task.
        task: TaskId,
        /// When.
        at: Timestamp,
    },
    /// A task is over and nothing of it is left running. Repeated on every connection until the server says
    /// [`ToAgent::Forget`].
    Ended {
        /// The task.
        task: TaskId,
        /// How.
        end: TaskEnd,
        /// When.
        at: Timestamp,
    },
    /// What became of the files a task was to leave behind. Said after its end, for a task that was prepared with
    /// patterns, and repeated on every connection until the server says [`ToAgent::Forget`].
    Outputs {
        /// The task.
        task: TaskId,
        /// What became of them.
        outputs: Outputs,
    },
    /// Which of the server's volumes tasks cannot have here, and why. Said after a welcome, and when it changes.
    Volumes {
        /// By name.
        lacks: BTreeMap<String, String>,
    },
    /// The answer to [`ToAgent::Collect`].
    Collected {
        /// What was freed on this node.
        bytes: u64,
    },
    /// The answer to [`ToAgent::Remove`]: nothing of the job is left on this node.
    Removed {
        /// The job.
        job: JobId,
    },
    /// What was measured on the node. Never waited for and never repeated: one that finds no room is dropped. A server
    /// that does not know it says so, and gets no more.
    Metrics(Box<Sample>),
    /// A task that runs has said that its work is saved: less of it would be lost now.
    Saved {
        /// The task.
        task: TaskId,
        /// When it last did.
        at: Timestamp,
    },
    /// Still here; sent when nothing else was for a while.
    Ping,
    /// A message of this kind is not known here.
    Unsupported {
        /// The kind.
        what: String,
    },
}

/// Who an agent is and what it has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Hello {
    /// [`PROTOCOL`].
    pub protocol: u32,
    /// The agent's version, for people.
    pub version: String,
    /// Which binary it is, by the metadata of its file.
    pub build: String,
    /// The node it serves.
    pub node: NodeId,
    /// Made anew whenever the agent's directory is: a node that lost its records is not the node it was.
    pub incarnation: String,
    /// The agent's process.
    pub pid: u32,
    /// The host's name.
    pub host: String,
    /// What the node has.
    pub capacity: Capacity,
    /// Whom its tasks run as.
    #[serde(default)]
    pub account: Account,
    /// Every task the agent knows of, also those that ended and were not yet forgotten.
    pub tasks: Vec<TaskReport>,
}

/// What an agent knows of one task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct TaskReport {
    /// The task.
    pub task: TaskId,
    /// How far it is.
    pub phase: ReportPhase,
}

/// How far a task is, as its node sees it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "phase", rename_all = "snake_case")]
pub enum ReportPhase {
    /// It is being prepared.
    Preparing,
    /// It waits for its gang.
    Ready {
        /// Where peers reach it.
        address: Address,
    },
    /// Its command runs.
    Running {
        /// Since when.
        at: Timestamp,
        /// Where peers reach it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<Address>,
    },
    /// It is over.
    Ended {
        /// How.
        end: TaskEnd,
        /// When.
        at: Timestamp,
        /// When its command had started, if it did.
        started_at: Option<Timestamp>,
        /// Where peers reached it, if it had come so far.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        address: Option<Address>,
    },
}

/// From server to agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum ToAgent {
    /// The answer to a hello that was accepted.
    Welcome {
        /// [`PROTOCOL`] as the server speaks it.
        protocol: u32,
        /// How much the node may keep.
        #[serde(default)]
        keep: Keep,
        /// The volumes that tasks are to have: answered by [`ToServer::Volumes`], also when there is none.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        volumes: Vec<Volume>,
    },
    /// Make everything a task needs, then say [`ToServer::Ready`]. A task already known is reported again.
    Prepare(Box<Prepare>),
    /// The gang is whole: start. A task already started is reported again.
    Launch(Box<Launch>),
    /// More elements for a lane of an array. Said again on every connection, until the lane's log says that they are done.
    Elements {
        /// The lane.
        task: TaskId,
        /// Which.
        grant: Grant,
    },
    /// Who the members of a gang are now, where they come and go: whoever is at 0.0.0.0 is not there.
    Peers {
        /// The task that is told.
        task: TaskId,
        /// All of them.
        peers: Peers,
    },
    /// End a task: its notice and its signal, then after the grace SIGKILL for all that is left. Answered by [`ToServer::Ended`], also
    /// for a task that never started or is not known here.
    Stop {
        /// The task.
        task: TaskId,
        /// How long it may take.
        grace_ms: u64,
        /// The code of the reason why, for the task.
        #[serde(default)]
        reason: String,
    },
    /// Remove what goes beyond [`Keep`] now, and answer [`ToServer::Collected`].
    Collect,
    /// The server has the end, the outputs and the whole log on disk: the record and the log may go. Its files stay.
    Forget {
        /// The task.
        task: TaskId,
        /// Its job is not over: another attempt may want its files.
        #[serde(default)]
        continues: bool,
    },
    /// The job was removed: whatever is left of its tasks goes.
    Remove {
        /// The job.
        job: JobId,
    },
    /// Start the binary at this path in place of this process; tasks go on.
    Upgrade {
        /// The new binary.
        path: String,
    },
    /// End the agent, if no task runs.
    Shutdown,
    /// Still here.
    Ping,
    /// A message of this kind is not known here.
    Unsupported {
        /// The kind.
        what: String,
    },
}

/// What a node needs to know before the gang's addresses are.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Prepare {
    /// The task.
    pub task: TaskId,
    /// The code to unpack into its working directory.
    #[serde(default)]
    pub bundle: Option<BundleId>,
    /// The task of this rank in the attempt before: if its files are on this node, the task is told where.
    #[serde(default)]
    pub previous: Option<TaskId>,
    /// Which files of its working and output directories to send home when it ends.
    #[serde(default)]
    pub outputs: Vec<String>,
    /// Run in this directory of the node itself, not in a copy of the bundle.
    pub in_place: Option<String>,
    /// Its working directory is the one that an earlier attempt of this rank left on this node, if there is one.
    #[serde(default)]
    pub goes_on: bool,
    /// How many free ports to find, one after the other.
    pub ports: u32,
    /// A port that all members of the gang are asked to have, to be given if it is free here.
    #[serde(default)]
    pub shared_port: Option<u16>,
    /// The node's devices it was given.
    pub devices: Vec<u32>,
    /// The most memory it may use.
    pub memory_bytes: Option<u64>,
    /// The account that it runs under; the agent's own, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<String>,
    /// The volumes that it has.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub volumes: Vec<GivenVolume>,
    /// How much of the node's disk it may fill.
    #[serde(default)]
    pub disk: DiskLimits,
}

/// Limits on what one task writes to a node's disk through the agent.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DiskLimits {
    /// The length of a log, in bytes, after which the supervisor drops further output.
    pub log_bytes: u64,
    /// The largest bundle that the node unpacks, in bytes.
    pub bundle_bytes: u64,
    /// Free space, in bytes, that stays on the node's disk; absent: see [`free_floor`].
    pub free_bytes: Option<u64>,
}

impl Default for DiskLimits {
    /// A log of this length fills a tenth of a small disk; code of this size fills the cache of bundles.
    fn default() -> Self {
        Self { log_bytes: 4 << 30, bundle_bytes: 20 << 30, free_bytes: None }
    }
}

/// The free space that stays on a disk of this size: the configured amount, else 2 % of the disk and at most 1 GiB. The
/// database, exit records and cleanup still work in that reserve.
pub fn free_floor(configured: Option<u64>, disk_bytes: u64) -> u64 {
    configured.unwrap_or_else(|| (disk_bytes / 50).min(1 << 30))
}

/// A volume as nodes know it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Volume {
    /// Its name.
    pub name: String,
    /// The directory of the node that holds everybody's part of it.
    pub root: String,
    /// Tasks see their part at another path, so it must be mounted for them.
    #[serde(default)]
    pub is_elsewhere: bool,
}

/// A task's part of a volume.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct GivenVolume {
    /// The volume.
    pub name: String,
    /// The directory of the node that holds everybody's part of it.
    pub root: String,
    /// The task's part, below that.
    pub below: String,
    /// Where the task sees it.
    pub path: String,
    /// It is the task's user's alone.
    #[serde(default)]
    pub is_private: bool,
}

/// What a node may keep of tasks that are over, and of code. What was not used for longest goes first; what a task
/// that is not over needs never does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Keep {
    /// The files of tasks that are over, in bytes.
    pub files_bytes: u64,
    /// The files of tasks that are over, in seconds since their end.
    pub files_seconds: u64,
    /// Unpacked bundles, in bytes.
    pub bundles_bytes: u64,
}

impl Default for Keep {
    /// A month of work on an ordinary disk.
    fn default() -> Self {
        Self { files_bytes: 50 << 30, files_seconds: 30 * 24 * 3600, bundles_bytes: 20 << 30 }
    }
}

/// What a task runs, once the gang is whole. The agent adds what only the node knows: `MUSTER_OUTPUT_DIR` and the
/// visible devices.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Launch {
    /// The task.
    pub task: TaskId,
    /// Its whole environment.
    pub env: BTreeMap<String, String>,
    /// A script to run first.
    pub setup: Option<Vec<String>>,
    /// A script to run before that, unless it has run on this node.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub setup_once: Option<String>,
    /// What to run.
    pub work: Work,
    /// Variables whose value is the place of one of the files: where they are is the node's to say.
    #[serde(default)]
    pub paths: BTreeMap<String, String>,
    /// Files that are to be there before anything runs.
    #[serde(default)]
    pub files: Vec<LaunchFile>,
    /// What else it finds around it.
    #[serde(default)]
    pub surroundings: Surroundings,
    /// What members of the gang need to start processes on each other; absent where they do not.
    #[serde(default)]
    pub peers: Option<Peers>,
    /// Secrets that it is given.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub secrets: Vec<GivenSecret>,
    /// Why it cannot be given its secrets: then it does not start, and this is the reason.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub withheld: Option<String>,
    /// The elements that it runs one after the other, where it is a lane of an array. The command is then run once for each.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub elements: Option<Elements>,
    /// The longest it may run, or each of its elements.
    pub timeout_ms: Option<u64>,
    /// How long it may take to end after SIGTERM when it runs out of time.
    pub grace_ms: u64,
    /// What it is told to end with.
    #[serde(default)]
    pub stop_signal: Signal,
}

/// What a lane of an array runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Elements {
    /// All of the array.
    pub array: Array,
    /// What of it is the lane's so far.
    pub grants: Vec<Grant>,
}

/// A secret on its way to a task.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct GivenSecret {
    /// The variable that is to have its value.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub env: Option<String>,
    /// The file that is to have its value, by its name alone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub file: Option<String>,
    /// The value.
    pub value: SecretValue,
}

/// The value of a secret: base64 on the wire, and in no log.
#[derive(Clone, PartialEq, Eq)]
pub struct SecretValue(pub Vec<u8>);

impl fmt::Debug for SecretValue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("(secret)")
    }
}

impl Serialize for SecretValue {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(&STANDARD.encode(&self.0))
    }
}

impl<'de> Deserialize<'de> for SecretValue {
    fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        // Without the decoder's own words, which would show a part of it.
        STANDARD.decode(text).map(Self).map_err(|_| serde::de::Error::custom("a secret is not base64"))
    }
}

/// The first line of a bulk stream: what it carries.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "stream", rename_all = "snake_case")]
pub enum StreamHeader {
    /// Opened by the agent. The server answers one line, [`LogHave`]; then the agent sends frames
    /// ([`crate::frame`]) and the server one 8-byte little-endian acknowledged offset after each write.
    Log {
        /// Whose log.
        task: TaskId,
    },
    /// Opened by the agent. The server answers the length of the bundle's manifest (8 bytes, little endian; 0: it has no
    /// such bundle) and its text.
    Manifest {
        /// Which.
        bundle: BundleId,
    },
    /// Opened by the agent. The server answers for each chunk, in the order asked, the length of its stored form (4
    /// bytes, little endian; 0: it has no such chunk) and the stored form.
    Chunks {
        /// Which, at most [`MAX_CHUNKS`].
        chunks: Vec<ChunkId>,
    },
    /// Opened by the agent: a chunk it was given that is not what its name says, and others of the same bundle. The server looks at them, and
    /// removes those that are damaged on its own disk, so that the next upload sends them again. There is no answer.
    Damaged {
        /// Which, at most [`MAX_CHUNKS`].
        chunks: Vec<ChunkId>,
    },
    /// Opened by the agent, to send what a task leaves behind. It sends the length of a manifest (8 bytes, little
    /// endian) and its text; the server answers one line, [`Lacks`]; the agent sends those chunks as records of a pack, in
    /// any order, and closes its side. The server answers one line, [`Kept`], once the bundle is on its disk.
    PutBundle,
    /// Opened by the server, to see a task's files. The agent answers one line, [`Files`], and then what that says.
    Files {
        /// Whose.
        task: TaskId,
        /// Below the working directory, or below the output directory if it begins with
        /// [`muster_model::file::OUTPUT`]. Empty: the working directory.
        path: String,
        /// What of it.
        want: FilesWanted,
    },
    /// Opened by the server, for someone who calls on a task that runs. The answer is one line, [`Called`]; after
    /// [`Called::Open`] the stream is the caller's.
    Call {
        /// Whom.
        task: TaskId,
        /// What for.
        call: Call,
    },
}

/// What someone calls on a task for. The agent passes it on to the process inside the task that answers, and then only
/// moves bytes.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Call {
    /// To speak SSH.
    Ssh {
        /// The one key that is let in: a line as in `authorized_keys`.
        key: String,
    },
    /// To copy files, in the words of `muster_bundle::copy`: the caller says first what it wants.
    Copy,
    /// For its sessions. After [`Called::Open`] comes one line, [`SessionAnswer`], and what that says.
    Session {
        /// What is asked.
        ask: SessionAsk,
    },
}

/// What is asked of a task's sessions.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "ask", rename_all = "snake_case")]
pub enum SessionAsk {
    /// Which there are.
    List,
    /// One of them.
    Show {
        /// Which.
        name: String,
    },
    /// Open one, unless it is open.
    Open {
        /// Its name.
        name: String,
        /// With a new shell, also if one is there.
        fresh: bool,
    },
    /// End its shell, and remove what is left of its commands.
    Remove {
        /// Which.
        name: String,
    },
    /// Give it a command, behind those that it has.
    Run {
        /// Which.
        name: String,
        /// What its shell is to run.
        text: String,
        /// Repeating a request with the same key gives the command once.
        key: Option<String>,
    },
    /// The last of its commands.
    Commands {
        /// Which.
        name: String,
    },
    /// How a command is.
    Command {
        /// Which session.
        name: String,
        /// Which of its commands.
        number: u32,
        /// Answer when it is over, or after this time.
        wait_ms: u64,
    },
    /// What a command has written.
    Output {
        /// Which session.
        name: String,
        /// Which of its commands.
        number: u32,
        /// From here on.
        offset: u64,
        /// Until it is over.
        follow: bool,
    },
    /// Send a signal to what runs in it.
    Signal {
        /// Which session.
        name: String,
        /// Its number.
        signal: i32,
    },
    /// Sit down at its terminal. What comes are bytes of the terminal; what goes are records: a kind
    /// ([`TYPED`], [`RESIZED`]), the length of what follows (2 bytes, little endian), and that.
    Attach {
        /// Which.
        name: String,
        /// How wide the caller's terminal is.
        columns: u16,
        /// How high.
        rows: u16,
    },
}

/// A record of an attached terminal: bytes that were typed.
pub const TYPED: u8 = 0;
/// A record of an attached terminal: its width and height, 2 bytes each, little endian.
pub const RESIZED: u8 = 1;

/// The answer to a [`SessionAsk`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum SessionAnswer {
    /// All of them.
    Sessions {
        /// By name.
        items: Vec<Session>,
    },
    /// One.
    Session {
        /// As it is now.
        session: Session,
    },
    /// Its commands.
    Commands {
        /// By number.
        items: Vec<SessionCommand>,
    },
    /// One.
    Command {
        /// As it is now.
        command: SessionCommand,
    },
    /// Bytes follow, in pieces: the length of each (4 bytes, little endian) and its bytes. One of length 0 is the end.
    Output,
    /// The terminal follows.
    Attached,
    /// It is done.
    Done,
}

/// The answer to a [`Call`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case")]
pub enum Called {
    /// Go on.
    Open,
    /// It cannot be.
    Refused {
        /// `not_running`, `invalid`, or another word for programs.
        code: String,
        /// For people.
        message: String,
    },
}

/// The most chunks one stream asks for, so that no line grows with the bundle.
pub const MAX_CHUNKS: usize = 1024;

/// What is asked about a path.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum FilesWanted {
    /// What is in it.
    List,
    /// What is in it, and in the directories below.
    Tree,
    /// The bytes: of a file as they are, of a directory as a tar archive.
    Content,
}

/// The answer to [`StreamHeader::Files`].
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "answer", rename_all = "snake_case")]
pub enum Files {
    /// Lines follow, [`FileLine`], the last of which says so.
    Entries,
    /// The bytes of a file follow, in pieces: the length of each (4 bytes, little endian) and its bytes. One of length 0 is
    /// the end; a stream that ends without it was cut off.
    File {
        /// How many they are, unless it is being written to.
        bytes: u64,
    },
    /// A tar archive follows, in pieces as of a file.
    Archive,
    /// There is no such task or path, or it cannot be read.
    Failed {
        /// `not_found`, or another word for programs.
        code: String,
        /// For people.
        message: String,
    },
}

/// A line of a list of files.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "line", rename_all = "snake_case")]
pub enum FileLine {
    /// A file.
    Entry(muster_model::file::FileEntry),
    /// That was all.
    End,
}

/// The longest piece of a file or an archive.
pub const MAX_PIECE: usize = 256 * 1024;

/// The chunks a server lacks.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Lacks {
    /// Which.
    pub chunks: Vec<ChunkId>,
}

/// The end of a [`StreamHeader::PutBundle`].
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Kept {
    /// The bundle, if it was kept.
    pub bundle: Option<BundleId>,
    /// Why it was not.
    pub error: Option<String>,
}

/// How much of a task's log the server already has.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LogHave {
    /// Bytes, from the start of the task's records.
    pub offset: u64,
}
