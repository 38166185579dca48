//! What `muster doctor` finds: on the server through `GET /doctor`, on the user's machine by itself, in one form.

use muster_model::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How a check came out.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "snake_case")]
pub enum Health {
    /// As it should be.
    Ok,
    /// Works, but not as well as it could, or not for long.
    Warning,
    /// Does not work.
    Broken,
}

/// One thing that was looked at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct Check {
    /// What was looked at: `disk space`.
    pub name: String,
    /// How it came out.
    pub status: Health,
    /// What was found.
    pub detail: String,
    /// What would help, where something would.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub remedy: Option<String>,
}

impl Check {
    /// As it should be.
    pub fn ok(name: impl Into<String>, detail: impl Into<String>) -> Self {
        Self { name: name.into(), status: Health::Ok, detail: detail.into(), remedy: None }
    }

    /// Could be better.
    pub fn warning(name: impl Into<String>, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { status: Health::Warning, remedy: Some(remedy.into()), ..Self::ok(name, detail) }
    }

    /// Does not work.
    pub fn broken(name: impl Into<String>, detail: impl Into<String>, remedy: impl Into<String>) -> Self {
        Self { status: Health::Broken, remedy: Some(remedy.into()), ..Self::ok(name, detail) }
    }

    /// The space on the disk of a directory, the same on the server and here.
    pub fn disk_space(
        name: impl Into<String>,
        place: &str,
        free: u64,
        total: u64,
        free_files: Option<u64>,
    ) -> Self {
        use muster_model::quantity::format_bytes;
        let detail = format!("{} of {} free at {place}", format_bytes(free), format_bytes(total));
        let remedy =
            "remove what is not needed (`muster rm` removes jobs with their files), or move MUSTER_HOME";
        match (free, free_files) {
            (..LEAST_FREE, _) => Self::broken(name, detail, remedy),
            (_, Some(files @ ..LEAST_FILES)) => {
                Self::broken(name, format!("only {files} more files can be made at {place}"), remedy)
            }
            (..LITTLE_FREE, _) => Self::warning(name, detail, remedy),
            _ => Self::ok(name, detail),
        }
    }
}

/// Below this nothing of any size can be submitted or logged.
const LEAST_FREE: u64 = 100 << 20;
/// Below this the next bundle or checkpoint may fill it.
const LITTLE_FREE: u64 = 2 << 30;
/// One job with a small tree makes hundreds.
const LEAST_FILES: u64 = 1000;

/// `GET /doctor`: how the server is.
#[derive(Debug, Clone, Serialize, Deserialize, ToSchema)]
pub struct Doctor {
    /// The server's clock.
    #[schema(value_type = String, format = DateTime)]
    pub at: Timestamp,
    /// What it looked at, in its own words.
    pub checks: Vec<Check>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_well_or_nearly_full_or_full_or_out_of_files() {
        let status = |free, files| Check::disk_space("disk", "/data", free, 1 << 40, files).status;
        assert_eq!(status(1 << 39, Some(1 << 20)), Health::Ok);
        assert_eq!(status(1 << 39, None), Health::Ok);
        assert_eq!(status(1 << 30, None), Health::Warning);
        assert_eq!(status(1 << 20, None), Health::Broken);
        assert_eq!(status(1 << 39, Some(10)), Health::Broken);
    }

    #[test]
    fn what_is_not_well_comes_with_a_remedy() {
        for check in [Check::warning("a", "b", "c"), Check::broken("a", "b", "c")] {
            assert_eq!(check.remedy.as_deref(), Some("c"));
        }
        assert_eq!(Check::ok("a", "b").remedy, None);
    }
}
