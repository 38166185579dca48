//! One member of a gang, as the server knows it.

use std::net::IpAddr;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::id::{BundleId, NodeId};
use crate::metrics::Usage;
use crate::node::Account;
use crate::quantity::format_bytes;
use crate::reason::Reason;

/// How far a task has come. It only ever moves forward.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum TaskPhase {
    /// A node was chosen; its agent prepares the task.
    Assigned,
    /// Prepared; its address is known; it waits for the rest of the gang.
    Ready,
    /// Its command runs.
    Running,
    /// It is over.
    Ended,
}

/// Where a task's peers reach it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Address {
    /// The address on the gang's network.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub ip: IpAddr,
    /// Free ports reserved for the gang's use, one after the other.
    pub ports: Vec<u16>,
    /// A port that every member was asked to have; absent where it was not free.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub shared_port: Option<u16>,
    /// The network interface with the address.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub interface: Option<String>,
    /// The address of the node's InfiniBand interface, where it has one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>))]
    pub infiniband: Option<IpAddr>,
    /// Whom it runs as, where that is not the node's own account.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub account: Option<Account>,
}

impl Address {
    /// An address and ports on it, and nothing else known.
    pub fn new(ip: impl Into<IpAddr>, ports: Vec<u16>) -> Self {
        Self { ip: ip.into(), ports, shared_port: None, interface: None, infiniband: None, account: None }
    }
}

/// How a task ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct TaskEnd {
    /// Why it failed; absent when it ended with code 0.
    pub failure: Option<Reason>,
    /// The length of its log, where the node lived to tell; nothing more will come after it.
    pub log_bytes: Option<u64>,
    /// What it used, if it ran long enough to be measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub usage: Option<Box<Usage>>,
    /// That it was told to end while it ran.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub notice: Option<Box<StopNotice>>,
    /// When it last said that it had saved its work.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<String>, format = DateTime))]
    pub saved_at: Option<Timestamp>,
}

/// That a task was told to end, and how it took that.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StopNotice {
    /// The code of the reason why.
    pub reason: String,
    /// When.
    #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
    pub at: Timestamp,
    /// Whether it was still there when its grace was over, and was killed.
    pub killed: bool,
}

impl TaskEnd {
    /// The end of a task that was not measured.
    pub fn new(failure: Option<Reason>, log_bytes: Option<u64>) -> Self {
        Self { failure, log_bytes, usage: None, notice: None, saved_at: None }
    }
}

/// What became of the files a task was to leave behind.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "state", rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Outputs {
    /// They are on the server.
    Collected {
        /// As this bundle.
        bundle: BundleId,
        /// How many.
        files: u64,
        /// How large they are together.
        bytes: u64,
    },
    /// They could not be sent.
    Failed {
        /// Why, in words.
        message: String,
    },
    /// They were on the server, and were removed there to make room.
    Removed {
        /// When.
        #[cfg_attr(feature = "openapi", schema(value_type = String, format = DateTime))]
        at: Timestamp,
    },
}

impl Outputs {
    /// What became of them, in words.
    pub fn message(&self) -> String {
        match self {
            Self::Collected { files: 0, .. } => "no file matched".into(),
            Self::Collected { files, bytes, .. } => {
                let plural = if *files == 1 { "" } else { "s" };
                format!("{files} file{plural}, {} on the server", format_bytes(*bytes))
            }
            Self::Failed { message } => format!("not on the server: {message}"),
            Self::Removed { at } => format!("removed from the server at {at:.0} to make room"),
        }
    }
}

/// A place for one task: a node and the devices on it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Placement {
    /// The node.
    pub node: NodeId,
    /// The devices' numbers on that node.
    pub devices: Vec<u32>,
}

/// What one member alone was asked, of a gang whose members come and go.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum Parting {
    /// To end for now; it can be started anew.
    Suspend,
    /// To end for good.
    Stop,
}

impl Parting {
    /// Why a member that was asked so is over.
    pub fn reason(self) -> Reason {
        match self {
            Self::Suspend => Reason::Suspended,
            Self::Stop => Reason::StoppedByUser,
        }
    }
}

/// One member of a gang.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Task {
    /// The attempt that it was started in. In most gangs that is the job's; a member that was started alone has a newer
    /// one than the others, and theirs stays as it was.
    pub attempt: u32,
    /// Where it runs.
    pub placement: Placement,
    /// How far it is.
    pub phase: TaskPhase,
    /// Where peers reach it, once it is ready.
    pub address: Option<Address>,
    /// When its command started.
    pub started_at: Option<Timestamp>,
    /// When it ended.
    pub ended_at: Option<Timestamp>,
    /// How it ended.
    pub end: Option<TaskEnd>,
    /// What it alone was asked, or its group while it was alive; it stays so once it is over.
    pub parting: Option<Parting>,
}

impl Task {
    /// A task that was just given a place.
    pub fn assigned(attempt: u32, placement: Placement) -> Self {
        Self {
            attempt,
            placement,
            phase: TaskPhase::Assigned,
            address: None,
            started_at: None,
            ended_at: None,
            end: None,
            parting: None,
        }
    }

    /// Whether nothing of it is left on its node.
    pub fn is_over(&self) -> bool {
        self.phase == TaskPhase::Ended
    }

    /// Whether it was given back for now.
    pub fn is_suspended(&self) -> bool {
        self.is_over() && self.parting == Some(Parting::Suspend)
    }

    /// Whether it was given back for good: nothing starts it anew.
    pub fn is_killed(&self) -> bool {
        self.is_over() && self.parting == Some(Parting::Stop)
    }

    /// Why it failed, where it did and nobody had asked it to end.
    pub fn failure(&self) -> Option<&Reason> {
        self.end.as_ref().filter(|_| self.parting.is_none()).and_then(|end| end.failure.as_ref())
    }
}
