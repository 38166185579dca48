//! The states a job can be in, and the named sets of them that SQL, API and UI share.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// Where a job is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum State {
    /// Waits for a place.
    Queued,
    /// Has a place; its gang gathers.
    Starting,
    /// Every task runs.
    Running,
    /// Its tasks are being ended.
    Stopping,
    /// Every task ended with code 0.
    Succeeded,
    /// It ended, and not well.
    Failed,
    /// Its user ended it.
    Stopped,
    /// Parked: holds nothing, keeps its name and files, can be started again.
    Suspended,
}

impl State {
    /// Every state.
    pub const ALL: [Self; 8] = [
        Self::Queued,
        Self::Starting,
        Self::Running,
        Self::Stopping,
        Self::Succeeded,
        Self::Failed,
        Self::Stopped,
        Self::Suspended,
    ];
    /// The states nothing leaves.
    pub const TERMINAL: [Self; 3] = [Self::Succeeded, Self::Failed, Self::Stopped];
    /// The states in which a gang holds nodes and devices.
    pub const HOLDS_RESOURCES: [Self; 3] = [Self::Starting, Self::Running, Self::Stopping];

    /// Whether nothing leaves this state.
    pub fn is_terminal(self) -> bool {
        Self::TERMINAL.contains(&self)
    }

    /// The spelling everywhere outside Rust.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queued => "queued",
            Self::Starting => "starting",
            Self::Running => "running",
            Self::Stopping => "stopping",
            Self::Succeeded => "succeeded",
            Self::Failed => "failed",
            Self::Stopped => "stopped",
            Self::Suspended => "suspended",
        }
    }
}

impl fmt::Display for State {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.as_str())
    }
}

impl FromStr for State {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        Self::ALL.into_iter().find(|state| state.as_str() == text).ok_or_else(|| {
            let all = Self::ALL.map(Self::as_str).join(", ");
            format!("`{text}` is not a state; the states are {all}")
        })
    }
}
