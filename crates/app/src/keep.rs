//! `[keep]` of `config.toml`: how much of what is over is kept, and for how long.

use std::time::Duration;

use anyhow::Context;
use muster_model::quantity::{parse_bytes, parse_duration};
use muster_server::Limit;
use serde::Deserialize;

/// `[keep]`
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Keep {
    /// Logs of jobs that are over: `10GB`.
    logs: Option<String>,
    /// For how long after the job's end: `90d`, or `forever`.
    logs_age: Option<String>,
    /// What tasks left behind: `50GB`.
    outputs: Option<String>,
    /// For how long after the job's end: `90d`, or `forever`.
    outputs_age: Option<String>,
    /// For how long code is kept that no job has any more: `1d`.
    unused: Option<String>,
    /// Working directories of tasks that are over, on each node: `50GB`.
    files: Option<String>,
    /// For how long after the task's end: `30d`, or `forever`.
    files_age: Option<String>,
    /// Unpacked code, on each node: `20GB`.
    bundles: Option<String>,
    /// For how long the audit log has what was done: `365d`, or `forever`.
    audit_age: Option<String>,
}

impl Keep {
    /// What a server keeps.
    pub fn read(&self) -> anyhow::Result<muster_server::Keep> {
        let default = muster_server::Keep::default();
        let limit = |field: &str, bytes: &Option<String>, age: &Option<String>, default: Limit| {
            anyhow::Ok(Limit {
                bytes: size(field, bytes.as_deref(), default.bytes)?,
                age: self::age(&format!("{field}_age"), age.as_deref(), default.age)?,
            })
        };
        let files_age = Some(Duration::from_secs(default.node.files_seconds));
        let files_age = age("files_age", self.files_age.as_deref(), files_age)?;
        let node = muster_link::message::Keep {
            files_bytes: size("files", self.files.as_deref(), default.node.files_bytes)?,
            files_seconds: files_age.map_or(u64::MAX, |age| age.as_secs()),
            bundles_bytes: size("bundles", self.bundles.as_deref(), default.node.bundles_bytes)?,
        };
        Ok(muster_server::Keep {
            logs: limit("logs", &self.logs, &self.logs_age, default.logs)?,
            outputs: limit("outputs", &self.outputs, &self.outputs_age, default.outputs)?,
            unused: match self.unused.as_deref() {
                Some(text) => parse_duration(text).context("config.toml: keep.unused")?,
                None => default.unused,
            },
            audit: age("audit_age", self.audit_age.as_deref(), default.audit)?,
            node,
        })
    }
}

fn size(field: &str, text: Option<&str>, default: u64) -> anyhow::Result<u64> {
    let read = text.map(|text| parse_bytes(text).with_context(|| format!("config.toml: keep.{field}")));
    Ok(read.transpose()?.unwrap_or(default))
}

fn age(field: &str, text: Option<&str>, default: Option<Duration>) -> anyhow::Result<Option<Duration>> {
    match text {
        None => Ok(default),
        Some("forever") => Ok(None),
        Some(text) => {
            let read = parse_duration(text).with_context(|| format!("config.toml: keep.{field}"));
            read.map(Some)
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_not_said_is_as_it_is_without_configuration() {
        let keep: Keep = toml::from_str("logs = '2GB'\nlogs_age = 'forever'\nfiles_age = '2d'").unwrap();
        let read = keep.read().unwrap();
        let default = muster_server::Keep::default();
        assert_eq!(read.logs, Limit { bytes: parse_bytes("2GB").unwrap(), age: None });
        assert_eq!((read.outputs, read.unused), (default.outputs, default.unused));
        assert_eq!(read.node.files_seconds, 2 * 24 * 3600);
        assert_eq!(Keep::default().read().unwrap(), default);
    }

    #[test]
    fn what_cannot_be_read_is_named() {
        for (text, field) in [
            ("logs = 'much'", "keep.logs"),
            ("outputs_age = 'long'", "keep.outputs_age"),
            ("audit_age = 'long'", "keep.audit_age"),
        ] {
            let error = toml::from_str::<Keep>(text).unwrap().read().unwrap_err();
            assert!(format!("{error:#}").contains(field), "{error:#}");
        }
        assert!(toml::from_str::<Keep>("log = '1GB'").is_err());
    }
}
