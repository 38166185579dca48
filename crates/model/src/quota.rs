//! What workspaces and users may have of what everybody shares.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

use crate::spec::{FieldCode, FieldError};

/// Whoever has no limit of their own, where a user is named. No user can be called so.
pub const EVERYBODY: &str = "*";
/// The most that can be said of a resource: a petabyte of memory. Sums of thousands of them still fit a number.
pub const MOST: u64 = 1 << 50;
/// The smallest and the largest part that anybody can be given beside others.
pub const WEIGHTS: (f64, f64) = (0.001, 1000.0);
/// How many models one workspace may have quotas of.
pub const MAX_MODELS: usize = 64;

/// How much of one resource a workspace may have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Quota {
    /// What is its own whenever it wants it.
    pub nominal: u64,
    /// How much more it may have of what others leave idle; without end, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub borrow: Option<u64>,
    /// How much of its own others may have while it is idle; all of it, if absent.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lend: Option<u64>,
}

impl Quota {
    /// A quota that neither borrows nor lends.
    pub fn fixed(nominal: u64) -> Self {
        Self { nominal, borrow: Some(0), lend: Some(0) }
    }

    /// A quota whose idle part is everybody's, and which has its part of others'.
    pub fn shared(nominal: u64) -> Self {
        Self { nominal, borrow: None, lend: None }
    }

    /// The most that it can ever come to.
    pub fn most(&self) -> u64 {
        self.nominal.saturating_add(self.borrow.unwrap_or(u64::MAX))
    }

    /// How much of what is used is more than its own.
    pub fn borrowed(&self, used: u64) -> u64 {
        used.saturating_sub(self.nominal)
    }

    /// How much others may have, while so much is used.
    pub fn lends(&self, used: u64) -> u64 {
        self.nominal.saturating_sub(used).min(self.lend.unwrap_or(u64::MAX))
    }

    fn check(&self, field: &str) -> Option<FieldError> {
        let parts = [("nominal", Some(self.nominal)), ("borrow", self.borrow), ("lend", self.lend)];
        parts.into_iter().find_map(|(part, value)| {
            let value = value.filter(|value| *value > MOST)?;
            let message = format!("{value} is more than {MOST}, the most that can be said");
            Some(FieldError::new(format!("{field}.{part}"), FieldCode::OutOfRange, message))
        })
    }
}

/// What a workspace is due. What is not listed has no bound.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WorkspaceQuota {
    /// Its part of what is fair, beside the others'.
    pub weight: f64,
    /// CPUs, in thousandths.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu_millis: Option<Quota>,
    /// Memory, in bytes.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub memory_bytes: Option<Quota>,
    /// Devices of all models together.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub gpus: Option<Quota>,
    /// Devices of one model, whatever the case of its letters.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub models: BTreeMap<String, Quota>,
}

impl Default for WorkspaceQuota {
    fn default() -> Self {
        Self { weight: 1.0, cpu_millis: None, memory_bytes: None, gpus: None, models: BTreeMap::new() }
    }
}

impl WorkspaceQuota {
    /// Everything that is wrong with it.
    pub fn check(&self) -> Vec<FieldError> {
        let mut errors: Vec<FieldError> = check_weight(self.weight).into_iter().collect();
        let plain =
            [("cpu_millis", self.cpu_millis), ("memory_bytes", self.memory_bytes), ("gpus", self.gpus)];
        errors.extend(plain.into_iter().filter_map(|(field, quota)| quota?.check(field)));
        for (model, quota) in &self.models {
            match is_model(model) {
                true => errors.extend(quota.check(&format!("models.{model}"))),
                false => errors.push(wrong_model(model)),
            }
        }
        if self.models.len() > MAX_MODELS {
            let message = format!("{} models are more than {MAX_MODELS}", self.models.len());
            errors.push(FieldError::new("models", FieldCode::OutOfRange, message));
        }
        errors
    }

    /// Lifts the bound on a resource, named as in JSON or by its model. Says whether it is a resource at all.
    pub fn lift(&mut self, resource: &str) -> bool {
        match resource {
            "cpu_millis" => self.cpu_millis = None,
            "memory_bytes" => self.memory_bytes = None,
            "gpus" => self.gpus = None,
            model => self.models.retain(|known, _| !known.eq_ignore_ascii_case(model)),
        }
        is_model(resource)
    }

    /// Sets the quota of a model, of whatever case it was before.
    pub fn set_model(&mut self, model: String, quota: Quota) {
        self.models.retain(|known, _| !known.eq_ignore_ascii_case(&model));
        self.models.insert(model, quota);
    }
}

/// What a user is due.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(default)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UserQuota {
    /// Their part of what is fair, beside the others' of a workspace.
    pub weight: f64,
    /// How many jobs, or elements of arrays, they may run at once; as many as everybody, if absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_running: Option<u32>,
}

impl Default for UserQuota {
    fn default() -> Self {
        Self { weight: 1.0, max_running: None }
    }
}

impl UserQuota {
    /// What is wrong with it.
    pub fn check(&self) -> Option<FieldError> {
        check_weight(self.weight)
    }
}

fn check_weight(weight: f64) -> Option<FieldError> {
    let (least, most) = WEIGHTS;
    let message = || format!("{weight} is not from {least} to {most}; 1 is what everybody has");
    (!(least..=most).contains(&weight)).then(|| FieldError::new("weight", FieldCode::OutOfRange, message()))
}

/// A model as a job would ask for it.
fn is_model(name: &str) -> bool {
    let is_plain = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    (1..=63).contains(&name.len()) && name.bytes().all(is_plain)
}

fn wrong_model(model: &str) -> FieldError {
    let shown: String = model.chars().take(70).collect();
    let message = format!("`{shown}` is not a model; `muster nodes` shows them, such as H100");
    FieldError::new("models", FieldCode::InvalidValue, message)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn fields(quota: &WorkspaceQuota) -> Vec<String> {
        quota.check().into_iter().map(|error| error.field).collect()
    }

    #[test]
    fn everything_wrong_is_said_at_once() {
        let models = [("H 100".to_owned(), Quota::shared(1)), ("A100".into(), Quota::shared(MOST + 1))];
        let quota = WorkspaceQuota {
            weight: 0.0,
            gpus: Some(Quota { lend: Some(u64::MAX), ..Quota::shared(8) }),
            models: models.into(),
            ..WorkspaceQuota::default()
        };
        assert_eq!(fields(&quota), ["weight", "gpus.lend", "models.A100.nominal", "models"]);
        assert!(fields(&WorkspaceQuota::default()).is_empty());
        let weights = [f64::NAN, f64::INFINITY, -1.0, 1001.0];
        assert!(weights.iter().all(|weight| check_weight(*weight).is_some()));
    }

    #[test]
    fn a_model_is_one_whatever_its_case() {
        let mut quota = WorkspaceQuota::default();
        quota.set_model("H100".into(), Quota::fixed(8));
        quota.set_model("h100".into(), Quota::fixed(4));
        assert_eq!(quota.models, BTreeMap::from([("h100".into(), Quota::fixed(4))]));
        assert!(quota.lift("H100"));
        assert_eq!(quota, WorkspaceQuota::default());
        assert!(!quota.lift("no such/thing"));
    }

    #[test]
    fn what_is_not_bounded_is_not_written() {
        let quota = WorkspaceQuota { gpus: Some(Quota::shared(8)), ..WorkspaceQuota::default() };
        let text = serde_json::to_string(&quota).unwrap();
        assert_eq!(text, r#"{"weight":1.0,"gpus":{"nominal":8}}"#);
        assert_eq!(serde_json::from_str::<WorkspaceQuota>(&text).unwrap(), quota);
    }
}
