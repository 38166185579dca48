//! `[limits]` of `config.toml`: how much of a disk people and their tasks may fill.

use anyhow::{Context, ensure};
use muster_link::message::DiskLimits;
use muster_model::quantity::parse_bytes;
use serde::Deserialize;

/// A log or a bundle that is shorter than this serves nobody.
const LEAST: u64 = 64 << 10;

/// `[limits]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// The log of one task: `4GB`.
    task_log: Option<String>,
    /// The code of one job, unpacked: `20GB`.
    bundle: Option<String>,
    /// Code that one user has uploaded and no job refers to: `20GB`.
    unused_uploads: Option<String>,
    /// Logs, outputs and code of the jobs of one workspace: `200GB`.
    workspace: Option<String>,
    /// Free space that stays on the server's disk: `5GB`.
    server_free: Option<String>,
    /// Free space that stays on each node's disk: `5GB`.
    node_free: Option<String>,
}

impl Limits {
    /// The limits of a server.
    pub fn read(&self) -> anyhow::Result<muster_server::Limits> {
        let default = muster_server::Limits::default();
        let disk = DiskLimits {
            log_bytes: limit("task_log", self.task_log.as_deref(), default.disk.log_bytes)?,
            bundle_bytes: limit("bundle", self.bundle.as_deref(), default.disk.bundle_bytes)?,
            free_bytes: size("node_free", self.node_free.as_deref())?,
        };
        Ok(muster_server::Limits {
            upload_bytes: limit("unused_uploads", self.unused_uploads.as_deref(), default.upload_bytes)?,
            workspace_bytes: limit("workspace", self.workspace.as_deref(), default.workspace_bytes)?,
            free_bytes: size("server_free", self.server_free.as_deref())?,
            disk,
        })
    }
}

fn limit(field: &str, text: Option<&str>, default: u64) -> anyhow::Result<u64> {
    let bytes = size(field, text)?.unwrap_or(default);
    ensure!(bytes >= LEAST, "limits.{field}: must be at least 64KB");
    Ok(bytes)
}

fn size(field: &str, text: Option<&str>) -> anyhow::Result<Option<u64>> {
    text.map(|text| parse_bytes(text).with_context(|| format!("limits.{field}"))).transpose()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn settings_that_are_absent_have_their_defaults() {
        let limits: Limits = toml::from_str("task_log = '1MB'\nserver_free = '0'").unwrap();
        let (read, default) = (limits.read().unwrap(), muster_server::Limits::default());
        assert_eq!((read.disk.log_bytes, read.free_bytes), (parse_bytes("1MB").unwrap(), Some(0)));
        assert_eq!(
            (read.disk.bundle_bytes, read.upload_bytes),
            (default.disk.bundle_bytes, default.upload_bytes)
        );
        assert_eq!(Limits::default().read().unwrap(), default);
    }

    #[test]
    fn a_wrong_value_is_named() {
        for (text, field) in [("task_log = 'much'", "limits.task_log"), ("bundle = '1KB'", "limits.bundle")] {
            let error = toml::from_str::<Limits>(text).unwrap().read().unwrap_err();
            assert!(format!("{error:#}").contains(field), "{error:#}");
        }
        assert!(toml::from_str::<Limits>("log = '1GB'").is_err());
    }
}
