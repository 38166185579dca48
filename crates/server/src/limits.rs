//! Limits on how much of the server's and the nodes' disks people and their tasks may fill.

use muster_link::message::DiskLimits;

/// What may be stored. All of it can change while the server runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Limits {
    /// Code that one user has uploaded and no job refers to, in bytes.
    pub upload_bytes: u64,
    /// Logs, outputs and code of one workspace's jobs, in bytes.
    pub workspace_bytes: u64,
    /// Free space, in bytes, that stays on the server's disk; absent: see [`muster_link::message::free_floor`].
    pub free_bytes: Option<u64>,
    /// The limits of each task on its node, of which the size of a bundle holds on the server, too.
    pub disk: DiskLimits,
}

impl Default for Limits {
    /// More than a team needs in a day, and less than a disk.
    fn default() -> Self {
        Self {
            upload_bytes: 20 << 30,
            workspace_bytes: 200 << 30,
            free_bytes: None,
            disk: DiskLimits::default(),
        }
    }
}
