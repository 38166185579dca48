//! What a job may want of Kubernetes beyond what it wants of any engine.
//!
//! Names are checked here as the API server checks them, so that a mistake is said with its field and without a cluster. What
//! only the cluster knows, such as whether a Secret is there, it says itself when the job is submitted.

use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

use super::field::{FieldCode, FieldError, Fields, Wrong, nearest};
use super::parse::{clipped, text, texts, whole};

/// More of anything is not written by hand, and an object there has at most about a megabyte.
const MAX_ENTRIES: usize = 128;
/// The longest name of most things, and of a part of one.
const MAX_SUBDOMAIN: usize = 253;
const MAX_LABEL: usize = 63;
/// User and group ids are 32 bits wide; the last one means none.
const MAX_ID: u64 = u32::MAX as u64 - 1;
/// What a toleration has.
const TOLERATION: &[&str] = &["key", "operator", "value", "effect", "tolerationSeconds"];

/// The block `k8s` of a job, and what the configuration has for jobs that do not say.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Kubernetes {
    /// Labels that nodes must have.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub node_selector: BTreeMap<String, String>,
    /// Taints that do not matter, as Kubernetes writes tolerations.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    #[cfg_attr(feature = "openapi", schema(value_type = Vec<Object>))]
    pub tolerations: Vec<Value>,
    /// The name of a PriorityClass.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub priority_class: Option<String>,
    /// Secrets with which images are pulled.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub image_pull_secrets: Vec<String>,
    /// Whom tasks run as; whom the image says when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub user: Option<i64>,
    /// Their group.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub group: Option<i64>,
    /// Anything else that nodes count: `rdma/hca: 1`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub resources: BTreeMap<String, String>,
    /// Variables from Secrets: a name, and `SECRET/KEY`.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pub secrets: BTreeMap<String, String>,
    /// Whom pods are to the API server; the namespace's default when absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub service_account: Option<String>,
    /// The queue of Kueue's or Volcano's that it waits in.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub queue: Option<String>,
    /// What is put over the pod spec that muster makes, and has the last word.
    #[serde(skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Option<Object>))]
    pub pod: Option<Value>,
}

impl Kubernetes {
    /// Reads what a configuration says, or says everything that is wrong with it; fields are named below the prefix, which ends
    /// in a dot.
    pub fn from_value(value: Value, prefix: &str) -> Result<Self, Vec<FieldError>> {
        let mut errors = Vec::new();
        let block = read(value, prefix, &mut errors);
        if errors.is_empty() { Ok(block) } else { Err(errors) }
    }

    /// What holds for a job that says this, where the configuration says that: the job has the last word, entry by entry.
    /// What is put over the pod spec comes from both, the job's after the other.
    pub fn over(&self, defaults: &Self) -> Self {
        let joined = |own: &BTreeMap<_, _>, other: &BTreeMap<_, _>| {
            other.iter().chain(own).map(|(name, value)| (String::clone(name), String::clone(value))).collect()
        };
        let or = |own: &Option<String>, other: &Option<String>| own.clone().or_else(|| other.clone());
        let list = |own: &Vec<String>, other: &Vec<String>| {
            let missing = other.iter().filter(|name| !own.contains(name));
            own.iter().chain(missing).cloned().collect()
        };
        Self {
            node_selector: joined(&self.node_selector, &defaults.node_selector),
            tolerations: defaults.tolerations.iter().chain(&self.tolerations).cloned().collect(),
            priority_class: or(&self.priority_class, &defaults.priority_class),
            image_pull_secrets: list(&self.image_pull_secrets, &defaults.image_pull_secrets),
            user: self.user.or(defaults.user),
            group: self.group.or(defaults.group),
            resources: joined(&self.resources, &defaults.resources),
            secrets: joined(&self.secrets, &defaults.secrets),
            service_account: or(&self.service_account, &defaults.service_account),
            queue: or(&self.queue, &defaults.queue),
            pod: self.pod.clone().or_else(|| defaults.pod.clone()),
        }
    }
}

pub(super) fn kubernetes(value: Value, errors: &mut Vec<FieldError>) -> Kubernetes {
    read(value, "k8s.", errors)
}

fn read(value: Value, prefix: &str, errors: &mut Vec<FieldError>) -> Kubernetes {
    let mut fields = Fields::new(value, prefix, errors);
    let id = |value| whole(value, 0, MAX_ID).map(|id| id as i64);
    let read = Kubernetes {
        node_selector: fields.take("node_selector", |value| map(value, label)).unwrap_or_default(),
        tolerations: fields.take("tolerations", tolerations).unwrap_or_default(),
        priority_class: fields.take("priority_class", object_name),
        image_pull_secrets: fields.take("image_pull_secrets", object_names).unwrap_or_default(),
        user: fields.take("user", id),
        group: fields.take("group", id),
        resources: fields.take("resources", |value| map(value, resource)).unwrap_or_default(),
        secrets: fields.take("secrets", |value| map(value, secret)).unwrap_or_default(),
        service_account: fields.take("service_account", object_name),
        queue: fields.take("queue", queue),
        pod: fields.take("pod", pod),
    };
    fields.finish();
    read
}

fn map(
    value: Value,
    check: impl Fn(&str, &str) -> Result<(), String>,
) -> Result<BTreeMap<String, String>, Wrong> {
    let Value::Object(map) = value else { return Err(Wrong::kind("a map of names to texts", &value)) };
    few(map.len())?;
    let entry = |(name, value): (String, Value)| {
        let value = match value {
            // YAML reads these where Kubernetes wants the word.
            Value::Bool(value) => value.to_string(),
            other => text(other)
                .map_err(|wrong| Wrong::new(wrong.code, format!("`{}` {}", clipped(&name), wrong.message)))?,
        };
        check(&name, &value).map_err(Wrong::value)?;
        Ok((name, value))
    };
    map.into_iter().map(entry).collect()
}

fn few(count: usize) -> Result<(), Wrong> {
    if count <= MAX_ENTRIES {
        return Ok(());
    }
    let message = format!("has {count} entries; at most {MAX_ENTRIES} are allowed");
    Err(Wrong::new(FieldCode::OutOfRange, message))
}

fn label(name: &str, value: &str) -> Result<(), String> {
    qualified(name)?;
    if value.is_empty() || is_word(value) {
        return Ok(());
    }
    Err(format!(
        "`{name}: {}` cannot be a label: a value is at most {MAX_LABEL} letters, digits, `-`, `_` or `.`, and begins and \
         ends with a letter or digit",
        clipped(value)
    ))
}

fn resource(name: &str, value: &str) -> Result<(), String> {
    qualified(name)?;
    match name {
        "cpu" | "memory" => {
            let ours = if name == "cpu" { "cpus" } else { "memory" };
            return Err(format!(
                "`{name}` is what `resources.{ours}` says, outside of `k8s`; write it there"
            ));
        }
        _ if is_quantity(value) => {}
        _ => {
            let value = clipped(value);
            return Err(format!("`{name}: {value}` must be an amount as Kubernetes writes it: 1, 500m, 2Gi"));
        }
    }
    Ok(())
}

fn secret(name: &str, value: &str) -> Result<(), String> {
    if name.is_empty() || !name.bytes().all(|b| (b' '..=b'~').contains(&b) && b != b'=') {
        return Err(format!("`{}` cannot be the name of a variable", clipped(name)));
    }
    let is_key = |key: &str| {
        let valid = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
        !key.is_empty() && key.len() <= MAX_SUBDOMAIN && key.bytes().all(valid)
    };
    match value.split_once('/') {
        Some((secret, key)) if is_subdomain(secret) && is_key(key) => Ok(()),
        _ => Err(format!("`{name}` must be SECRET/KEY, as registry/token, not `{}`", clipped(value))),
    }
}

/// A queue's name, which may say whose it is: `kueue/research`.
fn queue(value: Value) -> Result<String, Wrong> {
    let text = text(value)?;
    let name = ["kueue/", "volcano/"].iter().find_map(|whose| text.strip_prefix(whose)).unwrap_or(&text);
    object_name(Value::String(name.to_owned())).map(|_| text)
}

fn object_name(value: Value) -> Result<String, Wrong> {
    let name = text(value)?;
    if is_subdomain(&name) {
        return Ok(name);
    }
    Err(Wrong::value(format!(
        "must be the name of an object there: lower-case letters, digits, `-` and `.`, not `{}`",
        clipped(&name)
    )))
}

fn object_names(value: Value) -> Result<Vec<String>, Wrong> {
    let names = texts(value)?;
    few(names.len())?;
    names.into_iter().map(|name| object_name(Value::String(name))).collect()
}

/// As Kubernetes writes them, because they are copied from there.
fn tolerations(value: Value) -> Result<Vec<Value>, Wrong> {
    let Value::Array(items) = value else { return Err(Wrong::kind("a list of tolerations", &value)) };
    few(items.len())?;
    for item in &items {
        let Value::Object(fields) = item else { return Err(Wrong::kind("a list of maps", item)) };
        toleration(fields)?;
    }
    Ok(items)
}

fn toleration(fields: &Map<String, Value>) -> Result<(), Wrong> {
    for (name, value) in fields {
        if !TOLERATION.contains(&name.as_str()) {
            let near = nearest(name, TOLERATION).map(|near| format!("; did you mean `{near}`?"));
            let message = format!("a toleration has no `{}`{}", clipped(name), near.unwrap_or_default());
            return Err(Wrong::new(FieldCode::UnknownField, message));
        }
        let is_right = if name == "tolerationSeconds" { value.is_i64() } else { value.is_string() };
        if !is_right {
            let wanted = if name == "tolerationSeconds" { "a whole number" } else { "a text" };
            let wrong = Wrong::kind(wanted, value);
            return Err(Wrong::new(wrong.code, format!("`{name}` of a toleration {}", wrong.message)));
        }
    }
    Ok(())
}

/// Which of its fields muster needs for itself, the engine says.
fn pod(value: Value) -> Result<Value, Wrong> {
    match value {
        Value::Object(_) => Ok(value),
        other => Err(Wrong::kind("a map: the fields of a pod's `spec`", &other)),
    }
}

/// `[PREFIX/]NAME`, as labels and resources are called.
fn qualified(name: &str) -> Result<(), String> {
    let (prefix, word) = match name.split_once('/') {
        Some((prefix, word)) => (Some(prefix), word),
        None => (None, name),
    };
    if prefix.is_none_or(is_subdomain) && is_word(word) {
        return Ok(());
    }
    Err(format!("`{}` is no name that Kubernetes takes: write NAME or example.com/NAME", clipped(name)))
}

fn is_word(text: &str) -> bool {
    let valid = |b: u8| b.is_ascii_alphanumeric() || matches!(b, b'-' | b'_' | b'.');
    let ends_well = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    text.len() <= MAX_LABEL
        && text.bytes().all(valid)
        && ends_well(text.bytes().next())
        && ends_well(text.bytes().last())
}

fn is_subdomain(text: &str) -> bool {
    let valid = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    let is_part = |part: &str| {
        is_word(part) && part.bytes().all(valid) || part.len() > MAX_LABEL && part.bytes().all(valid)
    };
    text.len() <= MAX_SUBDOMAIN && text.split('.').all(is_part)
}

/// A number, and perhaps what it is counted in.
fn is_quantity(text: &str) -> bool {
    let number = text.trim_end_matches(|c: char| c.is_ascii_alphabetic());
    let unit = &text[number.len()..];
    let is_number = number.parse::<f64>().is_ok_and(|number| number >= 0.0)
        && number.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    is_number && matches!(unit, "" | "m" | "k" | "M" | "G" | "T" | "P" | "Ki" | "Mi" | "Gi" | "Ti" | "Pi")
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn errors(value: Value) -> Vec<(String, FieldCode)> {
        let mut errors = Vec::new();
        kubernetes(value, &mut errors);
        errors.into_iter().map(|error| (error.field, error.code)).collect()
    }

    #[test]
    fn a_whole_block_is_read_and_said_again_as_it_was() {
        let value = json!({
            "node_selector": { "nvidia.com/gpu.product": "H100", "zone": "a", "spot": true },
            "tolerations": [{ "key": "gpu", "operator": "Exists", "effect": "NoSchedule", "tolerationSeconds": 5 }],
            "priority_class": "high", "image_pull_secrets": ["registry.lab"], "user": 1000, "group": 1000,
            "resources": { "rdma/hca": 1, "example.com/foo": "2Gi" },
            "secrets": { "TOKEN": "hub/token.txt" }, "service_account": "train", "queue": "kueue/team-a",
            "pod": { "hostNetwork": true },
        });
        let mut errors = Vec::new();
        let block = kubernetes(value, &mut errors);
        assert_eq!(errors, []);
        assert_eq!(
            (block.resources["rdma/hca"].as_str(), block.node_selector["spot"].as_str()),
            ("1", "true")
        );
        let said = serde_json::to_value(&block).unwrap();
        assert_eq!(kubernetes(said, &mut errors), block);
        assert_eq!(errors, []);
        assert_eq!(serde_json::to_value(Kubernetes::default()).unwrap(), json!({}));
    }

    #[test]
    fn what_kubernetes_would_not_take_is_named() {
        use FieldCode::{InvalidValue, OutOfRange, UnknownField, WrongType};
        let long = "a".repeat(64);
        let many: Map<String, Value> = (0..200).map(|i| (format!("a{i}"), json!("b"))).collect();
        for (value, field, code) in [
            (json!({ "node_selector": { "a b": "c" } }), "k8s.node_selector", InvalidValue),
            (json!({ "node_selector": { "a": "-c" } }), "k8s.node_selector", InvalidValue),
            (json!({ "node_selector": { "a": long } }), "k8s.node_selector", InvalidValue),
            (json!({ "node_selector": { "a": ["c"] } }), "k8s.node_selector", WrongType),
            (json!({ "node_selector": many }), "k8s.node_selector", OutOfRange),
            (json!({ "tolerations": { "key": "gpu" } }), "k8s.tolerations", WrongType),
            (json!({ "tolerations": [{ "kee": "gpu" }] }), "k8s.tolerations", UnknownField),
            (json!({ "tolerations": [{ "key": 1 }] }), "k8s.tolerations", WrongType),
            (json!({ "tolerations": ["gpu"] }), "k8s.tolerations", WrongType),
            (json!({ "priority_class": "High" }), "k8s.priority_class", InvalidValue),
            (json!({ "image_pull_secrets": ["a", "b/c"] }), "k8s.image_pull_secrets", InvalidValue),
            (json!({ "user": -1 }), "k8s.user", OutOfRange),
            (json!({ "group": "wheel" }), "k8s.group", WrongType),
            (json!({ "resources": { "cpu": 1 } }), "k8s.resources", InvalidValue),
            (json!({ "resources": { "rdma/hca": "one" } }), "k8s.resources", InvalidValue),
            (json!({ "resources": { "rdma/hca": "-1" } }), "k8s.resources", InvalidValue),
            (json!({ "secrets": { "TOKEN": "hub" } }), "k8s.secrets", InvalidValue),
            (json!({ "secrets": { "A=B": "hub/token" } }), "k8s.secrets", InvalidValue),
            (json!({ "queue": "team a" }), "k8s.queue", InvalidValue),
            (json!({ "queue": "slurm/a" }), "k8s.queue", InvalidValue),
            (json!({ "queue": "kueue/" }), "k8s.queue", InvalidValue),
            (json!({ "pod": [] }), "k8s.pod", WrongType),
            (json!({ "node_selectors": {} }), "k8s.node_selectors", UnknownField),
            (json!("prod"), "k8s", WrongType),
        ] {
            assert_eq!(errors(value.clone()), [(field.to_owned(), code)], "{value}");
        }
    }

    #[test]
    fn the_job_has_the_last_word_over_the_configuration() {
        let read = |value| kubernetes(value, &mut Vec::new());
        let defaults = read(json!({
            "node_selector": { "zone": "a", "pool": "gpu" }, "user": 1000, "queue": "all", "image_pull_secrets": ["a"],
            "tolerations": [{ "key": "gpu" }],
        }));
        let own = read(json!({
            "node_selector": { "zone": "b" }, "queue": "mine", "image_pull_secrets": ["b", "a"],
            "tolerations": [{ "key": "spot" }],
        }));
        let expected = read(json!({
            "node_selector": { "zone": "b", "pool": "gpu" }, "user": 1000, "queue": "mine",
            "image_pull_secrets": ["b", "a"], "tolerations": [{ "key": "gpu" }, { "key": "spot" }],
        }));
        assert_eq!(own.over(&defaults), expected);
    }
}
