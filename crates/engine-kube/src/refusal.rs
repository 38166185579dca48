//! What the API server refuses, in the words of our own spec. Pure.
//!
//! It names fields of objects that our users have never seen, and has one status for what nobody will ever take and for what is only
//! not possible now. Here each becomes either fields of the spec, with what helps, or a reason to try again later.

mod admission;
#[cfg(test)]
mod tests;

use kube::core::Status;
use muster_engine::{Class, Error};
use muster_model::spec::{FieldCode, FieldError};
use serde_json::Value;

use crate::objects::{MUSTER, TASK};

/// What a refusal means.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Refusal {
    /// It will not be taken as it is, because of these.
    Fields(Vec<FieldError>),
    /// It may be taken later: a quota is used up, rights are missing, the API server is busy.
    Later(String),
}

impl Refusal {
    /// As an engine says it.
    pub(crate) fn into_error(self) -> Error {
        match self {
            Self::Fields(fields) => Error::terminal(words(&fields)),
            Self::Later(what) => Error { what, class: Class::Retryable, source: None },
        }
    }
}

/// All fields on one line.
pub(crate) fn words(fields: &[FieldError]) -> String {
    let word = |error: &FieldError| format!("{}: {}", error.field, error.message);
    format!("Kubernetes does not take it: {}", fields.iter().map(word).collect::<Vec<_>>().join("; "))
}

/// What a refusal of a Job or of one of its pods means. `pod` is the spec that was sent, in which things have names.
pub(crate) fn read(status: &Status, pod: &Value) -> Refusal {
    match status.code {
        400 => Refusal::Fields(undecoded(&status.message, pod)),
        401 => Refusal::Later(format!("the cluster does not accept our credentials: {}", status.message)),
        403 => admission::read(&status.message),
        404 => Refusal::Fields(vec![absent(status)]),
        422 if status.message.contains(" denied request: ") => admission::read(&status.message),
        422 => Refusal::Fields(invalid(status, pod)),
        code if code == 429 || code >= 500 => {
            Refusal::Later(format!("the API server is busy: {}", status.message))
        }
        _ => Refusal::Fields(vec![FieldError::new("k8s", FieldCode::InvalidValue, status.message.clone())]),
    }
}

/// What is not there that everything else is in.
fn absent(status: &Status) -> FieldError {
    let details = status.details.as_ref();
    let name = details.filter(|details| details.kind == "namespaces").map(|details| details.name.as_str());
    let message = match name {
        Some(name) => format!(
            "there is no namespace `{name}` in this cluster; create it, or set k8s.namespace to another"
        ),
        None => status.message.clone(),
    };
    FieldError::new("k8s.namespace", FieldCode::InvalidValue, message)
}

/// The causes of a validation that failed, one for each of our fields: limits and requests are one thing to us.
fn invalid(status: &Status, pod: &Value) -> Vec<FieldError> {
    let causes = status.details.as_ref().map(|details| details.causes.as_slice()).unwrap_or_default();
    let mut errors: Vec<FieldError> = Vec::new();
    for cause in causes {
        let field = field(&cause.field, pod);
        if errors.iter().any(|error| error.field == field) {
            continue;
        }
        let code = match cause.reason.as_str() {
            "FieldValueRequired" => FieldCode::Required,
            "FieldValueForbidden" => FieldCode::NotSupported,
            _ => FieldCode::InvalidValue,
        };
        errors.push(FieldError::new(field, code, plain(&cause.message)));
    }
    if errors.is_empty() {
        errors.push(FieldError::new("k8s", FieldCode::InvalidValue, plain(&status.message)));
    }
    errors
}

/// `Invalid value: "x": must be …` without what only its authors care for.
fn plain(message: &str) -> String {
    let message = message.split(" (e.g. ").next().unwrap_or(message);
    let said = match message.strip_prefix("Invalid value: ").map(quoted) {
        Some((Some(value), rest)) => format!("`{value}`: {rest}"),
        Some((None, rest)) => rest.to_owned(),
        None if message == "Required value" => "is required".to_owned(),
        None => message.to_owned(),
    };
    said.chars().take(500).collect()
}

/// A value at the beginning, up to the colon that ends it.
fn quoted(text: &str) -> (Option<&str>, &str) {
    match text.strip_prefix('"').and_then(|text| text.split_once("\": ")) {
        Some((value, rest)) => (Some(value), rest),
        None => match text.split_once(": ") {
            Some((value, rest)) if !value.contains(' ') => (Some(value), rest),
            _ => (None, text),
        },
    }
}

/// What was not even an object of its kind: a field that does not exist, or a value of another type. Only what users write
/// themselves can be that.
fn undecoded(message: &str, pod: &Value) -> Vec<FieldError> {
    let unknown: Vec<FieldError> = message
        .match_indices("unknown field \"")
        .filter_map(|(at, opening)| message[at + opening.len()..].split('"').next())
        .map(|path| {
            let words = "there is no such field in Kubernetes; correct its spelling";
            FieldError::new(field(path, pod), FieldCode::UnknownField, words)
        })
        .collect();
    if !unknown.is_empty() {
        return unknown;
    }
    if let Some((_, rest)) = message.split_once("Go struct field ") {
        let (path, kind) = rest.split_once(" of type ").unwrap_or((rest, "another type"));
        let path = path.split_once('.').map_or(path, |(_, path)| path);
        let words = format!("is of another type than Kubernetes takes there, which is {kind}");
        return vec![FieldError::new(field(path, pod), FieldCode::WrongType, words)];
    }
    if message.contains("quantities must match") {
        let words = "has an amount that is no number; write for example 1, 500m or 4Gi";
        return vec![FieldError::new("k8s.resources", FieldCode::InvalidValue, words)];
    }
    let words = message.rsplit_once("cannot be handled as a Job: ").map_or(message, |(_, words)| words);
    vec![FieldError::new("k8s", FieldCode::InvalidValue, words)]
}

/// Our field for one of a Job's or a pod's.
fn field(path: &str, pod: &Value) -> String {
    let path = path.strip_prefix("spec.template.").unwrap_or(path);
    let Some(of_pod) = path.strip_prefix("spec.") else {
        return if path.starts_with("metadata.") { "labels".into() } else { "k8s".into() };
    };
    let (head, rest) = split(of_pod);
    let (list, index) = indexed(head);
    match list {
        "completions" | "parallelism" => "nodes".into(),
        "nodeSelector" => "k8s.node_selector".into(),
        "tolerations" => joined("k8s.tolerations", index, rest),
        "priorityClassName" => "k8s.priority_class".into(),
        "imagePullSecrets" => joined("k8s.image_pull_secrets", index, ""),
        "serviceAccountName" => "k8s.service_account".into(),
        "terminationGracePeriodSeconds" => "grace".into(),
        "activeDeadlineSeconds" => "timeout".into(),
        "securityContext" if rest == "runAsUser" => "k8s.user".into(),
        "securityContext" if rest == "runAsGroup" => "k8s.group".into(),
        "containers" | "initContainers" => {
            let container = index.map(|index| &pod[list][index]).unwrap_or(&Value::Null);
            match container["name"].as_str() {
                Some(MUSTER) if rest == "image" => "k8s.agent_image".into(),
                Some(TASK) => of_task(rest, container),
                _ => format!("k8s.pod.{of_pod}"),
            }
        }
        "volumes" => of_volume(index.and_then(|index| name_in(&pod["volumes"], index)), of_pod),
        _ => format!("k8s.pod.{of_pod}"),
    }
}

/// A field of the task's container.
fn of_task(path: &str, task: &Value) -> String {
    let (head, rest) = split(path);
    let (list, index) = indexed(head);
    match list {
        "image" => "image".into(),
        "resources" => amount(path),
        "volumeMounts" => of_volume(index.and_then(|index| name_in(&task["volumeMounts"], index)), path),
        "env" if rest.starts_with("valueFrom.secretKeyRef") || rest == "name" => {
            let name = index.and_then(|index| name_in(&task["env"], index));
            name.map_or_else(|| "k8s.secrets".into(), |name| format!("k8s.secrets.{name}"))
        }
        _ => format!("k8s.pod.containers.task.{path}"),
    }
}

/// The field of an amount: what stands in `limits[…]`.
fn amount(path: &str) -> String {
    let inner = path.split_once('[').and_then(|(_, rest)| rest.strip_suffix(']'));
    inner.map_or_else(|| "resources".into(), resource)
}

/// Our field for something that nodes count.
pub(crate) fn resource(name: &str) -> String {
    let name = name.trim_start_matches("limits.").trim_start_matches("requests.");
    match name {
        "cpu" => "resources.cpus".into(),
        "memory" => "resources.memory".into(),
        "pods" | "count/pods" | "count/jobs.batch" => "nodes".into(),
        name if name.ends_with("/gpu") || name.contains("Ascend") => "resources.gpus".into(),
        name => format!("k8s.resources.{name}"),
    }
}

/// A volume of the spec's own; others are muster's or come from what the user put over the pod.
fn of_volume(name: Option<&str>, path: &str) -> String {
    match name.and_then(|name| name.strip_prefix("volume-")).and_then(|index| index.parse::<usize>().ok()) {
        Some(index) => format!("volumes[{index}]"),
        None => format!("k8s.pod.{path}"),
    }
}

fn name_in(list: &Value, index: usize) -> Option<&str> {
    list.get(index)?.get("name")?.as_str()
}

/// The first part of a path, and what follows it. A part may have dots in its brackets.
fn split(path: &str) -> (&str, &str) {
    let mut depth = 0;
    for (at, letter) in path.char_indices() {
        match letter {
            '[' => depth += 1,
            ']' => depth -= 1,
            '.' if depth == 0 => return (&path[..at], &path[at + 1..]),
            _ => {}
        }
    }
    (path, "")
}

fn indexed(part: &str) -> (&str, Option<usize>) {
    match part.split_once('[') {
        Some((list, rest)) => (list, rest.strip_suffix(']').and_then(|index| index.parse().ok())),
        None => (part, None),
    }
}

fn joined(field: &str, index: Option<usize>, rest: &str) -> String {
    let index = index.map(|index| format!("[{index}]")).unwrap_or_default();
    let rest = if rest.is_empty() { String::new() } else { format!(".{rest}") };
    format!("{field}{index}{rest}")
}
