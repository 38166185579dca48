//! What a job waits for before it may start: the ends of others.

use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::field::{FieldCode, FieldError, Wrong};
use super::parse::text;
use crate::job::State;

/// More are a workflow, which has a job of its own to wait in.
const MOST: usize = 100;

/// Another job that must end first.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct After {
    /// Its id; a name, the beginning of an id or `last` where a job is submitted.
    pub job: String,
    /// How it must end.
    #[serde(default)]
    pub on: On,
}

/// How a job must end for those that wait for it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub enum On {
    /// It succeeded.
    #[default]
    Ok,
    /// Whatever became of it.
    Any,
    /// It failed.
    Failed,
}

impl On {
    const WORDS: [(&'static str, On); 3] = [("ok", On::Ok), ("any", On::Any), ("failed", On::Failed)];

    /// Whether a job that ended so is what was waited for; nothing is known of one that has not ended.
    pub fn is_met_by(self, state: State) -> Option<bool> {
        match (self, state) {
            (_, State::Queued | State::Starting | State::Running | State::Stopping | State::Suspended) => {
                None
            }
            (On::Any, _) | (On::Ok, State::Succeeded) | (On::Failed, State::Failed) => Some(true),
            (On::Ok, State::Failed | State::Stopped) | (On::Failed, State::Succeeded | State::Stopped) => {
                Some(false)
            }
        }
    }

    /// What a job that is waited for is to do.
    pub fn verb(self) -> &'static str {
        match self {
            On::Ok => "succeed",
            On::Any => "end",
            On::Failed => "fail",
        }
    }
}

impl fmt::Display for On {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(On::WORDS.iter().find(|(_, on)| on == self).map_or("", |(word, _)| word))
    }
}

impl FromStr for After {
    type Err = String;

    /// `JOB`, or `JOB:ok`, `JOB:any`, `JOB:failed`.
    fn from_str(text: &str) -> Result<Self, String> {
        let (job, on) = match text.rsplit_once(':') {
            None => (text, On::Ok),
            Some((job, word)) => {
                let on = On::WORDS.iter().find(|(known, _)| *known == word).map(|(_, on)| *on);
                (job, on.ok_or_else(|| format!("must be JOB, JOB:ok, JOB:any or JOB:failed, not `{text}`"))?)
            }
        };
        match job.is_empty() {
            true => Err(format!("must name a job, not `{text}`")),
            false => Ok(Self { job: job.to_owned(), on }),
        }
    }
}

impl fmt::Display for After {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.on {
            On::Ok => f.write_str(&self.job),
            on => write!(f, "{}:{on}", self.job),
        }
    }
}

pub(super) fn after(value: Value, errors: &mut Vec<FieldError>) -> Vec<After> {
    let items = match value {
        Value::Array(items) => items,
        one => vec![one],
    };
    if items.len() > MOST {
        let message = format!("has {} jobs; at most {MOST} are allowed", items.len());
        errors.push(FieldError::new("after", FieldCode::OutOfRange, message));
        return Vec::new();
    }
    let mut all = Vec::new();
    for (index, item) in items.into_iter().enumerate() {
        match one(item) {
            Ok(one) => all.push(one),
            Err(wrong) => errors.push(FieldError::new(format!("after[{index}]"), wrong.code, wrong.message)),
        }
    }
    all
}

fn one(value: Value) -> Result<After, Wrong> {
    match value {
        Value::Object(_) => serde_json::from_value(value).map_err(|_| {
            Wrong::value("must be a job, or a map of `job` and `on`, which is ok, any or failed")
        }),
        other => text(other)?.parse().map_err(Wrong::value),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_job_is_waited_for_by_its_name_and_how_it_must_end() {
        let mut errors = Vec::new();
        let read = after(json!(["prep", "train:any", {"job": "job_1", "on": "failed"}]), &mut errors);
        let shown: Vec<String> = read.iter().map(ToString::to_string).collect();
        assert_eq!((shown.join(" "), errors), ("prep train:any job_1:failed".into(), Vec::new()));
        let mut errors = Vec::new();
        assert_eq!(after(json!(["x:soon", ":ok", 3.5, {"on": "ok"}]), &mut errors).len(), 1);
        let fields: Vec<&str> = errors.iter().map(|error| error.field.as_str()).collect();
        assert_eq!(fields, ["after[0]", "after[1]", "after[3]"]);
    }

    #[test]
    fn what_has_not_ended_may_end_either_way() {
        for on in [On::Ok, On::Any, On::Failed] {
            assert_eq!(on.is_met_by(State::Suspended), None);
        }
        assert_eq!(On::Ok.is_met_by(State::Stopped), Some(false));
        assert_eq!(On::Failed.is_met_by(State::Failed), Some(true));
        assert_eq!(On::Any.is_met_by(State::Stopped), Some(true));
    }
}
