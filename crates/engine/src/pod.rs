//! What the agents of a gang are told where another scheduler starts them: `seats.json`.
//!
//! The engine writes it, into a directory that agents share or into a secret that they are given; agents read it. Old and new
//! ones read each other's: fields are only ever added.

use std::fmt;
use std::path::Path;
use std::time::Duration;

use muster_model::NodeId;
use serde::{Deserialize, Serialize};

use crate::local::write_private;

/// Its name, wherever it lies.
pub const FILE: &str = "seats.json";
/// Where the agent in a pod is called upon: for messages at this port, for the rest at the next.
pub const PORT: u16 = 7719;
/// How long an agent that hears nobody goes on, where nothing else is said.
pub const FENCE: Duration = Duration::from_secs(300);
/// How long it waits with what is too much to print, where nothing else is said.
pub const HOLD: Duration = Duration::from_secs(3600);

/// How long an agent keeps its place for a server that is not there to say what is to run, where nothing else is said: longer
/// than one takes to start anew.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The seats of a gang, and what its agents have to know besides.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seats {
    /// By rank.
    pub seats: Vec<Seat>,
    /// How long tasks have to end by themselves when their place is taken.
    pub grace_ms: u64,
    /// How long they keep their places for a server that is not there to say what is to run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub patience_ms: Option<u64>,
    /// How many accelerators each task was given, where the scheduler does not tell them which.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub devices: u32,
    /// The accelerator that was asked for, by which simulated ones are called.
    #[serde(default)]
    pub model: Option<String>,
    /// `http://host:port` or `https://host:port` of the server; absent where the server comes to its agents.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub address: Option<String>,
    /// The certificate that it shows there, where the address is `https://`: `sha256:…`. Whom the machine believes, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fingerprint: Option<String>,
    /// How long an agent goes on that hears neither its server nor the cluster; for ever, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fence_ms: Option<u64>,
    /// Where the cluster's API is, as `host:port`, besides what pods are told by the cluster itself.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub api: Vec<String>,
    /// How long an agent that is done keeps its place for a server that does not come, where it has too much to print.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hold_ms: Option<u64>,
}

fn is_zero(number: &u32) -> bool {
    *number == 0
}

/// One agent's.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Seat {
    /// The node that it serves.
    pub node: NodeId,
    /// What it shows the server.
    pub token: String,
}

impl fmt::Debug for Seat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Seat").field(&self.node).finish()
    }
}

impl From<&crate::Seat> for Seat {
    fn from(seat: &crate::Seat) -> Self {
        Self { node: seat.node.clone(), token: seat.token.clone() }
    }
}

impl Seats {
    /// Those of a gang, with nothing else said.
    pub fn new(seats: &[crate::Seat], grace: Duration) -> Self {
        let grace_ms = u64::try_from(grace.as_millis()).unwrap_or(u64::MAX);
        Self {
            seats: seats.iter().map(Seat::from).collect(),
            grace_ms,
            patience_ms: None,
            devices: 0,
            model: None,
            address: None,
            fingerprint: None,
            fence_ms: None,
            api: Vec::new(),
            hold_ms: None,
        }
    }

    /// What `dir` has.
    pub fn read(dir: &Path) -> std::io::Result<Self> {
        Ok(serde_json::from_slice(&std::fs::read(dir.join(FILE))?)?)
    }

    /// For its owner's eyes only.
    pub fn write(&self, dir: &Path) -> std::io::Result<()> {
        write_private(&dir.join(FILE), &self.text())
    }

    /// As it is written.
    pub fn text(&self) -> String {
        serde_json::to_string(self).unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_another_engine_says_is_read_too() {
        let old = r#"{"seats": [{"node": "node_x", "token": "secret"}], "grace_ms": 10, "model": "H100"}"#;
        let seats: Seats = serde_json::from_str(old).unwrap();
        assert_eq!((seats.grace_ms, seats.model.as_deref(), seats.fence_ms), (10, Some("H100"), None));
        assert!(!format!("{seats:?}").contains("secret"));
        let dir = tempfile::tempdir().unwrap();
        seats.write(dir.path()).unwrap();
        assert_eq!(Seats::read(dir.path()).unwrap(), seats);
    }
}
