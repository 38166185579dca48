//! What a user puts over the pod that we make: maps are merged, named things by their names, everything else is replaced, and null
//! takes away. What muster rests on is refused rather than broken.

use muster_model::spec::{FieldCode, FieldError};
use serde_json::{Map, Value};

use super::pod::{MUSTER, TASK};

/// The pod with the user's words over it. Problems are fields of the spec's own `k8s.pod`.
pub(super) fn over(pod: Value, words: &Value, errors: &mut Vec<FieldError>) -> Value {
    let Value::Object(words) = words else {
        let message = "must be a map of fields of a pod's spec";
        errors.push(FieldError::new("k8s.pod", FieldCode::WrongType, message));
        return pod;
    };
    let mut merged = pod.clone();
    merge(&mut merged, &Value::Object(named(words)));
    for (field, before, after) in rests_on(&pod, &merged) {
        if before != after {
            let message = "is muster's own, and its agent needs it as it is; leave it out";
            errors.push(FieldError::new(format!("k8s.pod.{field}"), FieldCode::NotSupported, message));
        }
    }
    merged
}

/// Who writes down one container without a name means the task's.
fn named(words: &Map<String, Value>) -> Map<String, Value> {
    let mut words = words.clone();
    if let Some(Value::Array(containers)) = words.get_mut("containers")
        && let [Value::Object(only)] = containers.as_mut_slice()
    {
        only.entry("name").or_insert_with(|| TASK.into());
    }
    words
}

fn merge(base: &mut Value, words: &Value) {
    match (base, words) {
        (Value::Object(base), Value::Object(words)) => {
            for (name, word) in words {
                if word.is_null() {
                    base.remove(name);
                } else {
                    merge(base.entry(name).or_insert(Value::Null), word);
                }
            }
        }
        (Value::Array(base), Value::Array(words)) if identity(words).is_some() => {
            let key = identity(words).unwrap_or_default();
            for word in words {
                match base.iter_mut().find(|item| item.get(key) == word.get(key)) {
                    Some(item) => merge(item, word),
                    None => base.push(without_nulls(word)),
                }
            }
        }
        (base, words) => *base = without_nulls(words),
    }
}

/// What tells the items of a list apart: a mount is one by its path, most things by their names.
fn identity(items: &[Value]) -> Option<&'static str> {
    let all_have =
        |key: &str| !items.is_empty() && items.iter().all(|item| item.get(key).is_some_and(Value::is_string));
    ["mountPath", "name"].into_iter().find(|key| all_have(key))
}

/// There is nothing to take away from what is new.
fn without_nulls(value: &Value) -> Value {
    match value {
        Value::Object(map) => {
            let kept = map.iter().filter(|(_, value)| !value.is_null());
            Value::Object(kept.map(|(name, value)| (name.clone(), without_nulls(value))).collect())
        }
        Value::Array(items) => items.iter().map(without_nulls).collect(),
        value => value.clone(),
    }
}

/// Everything that must come out of a merge as it went in.
fn rests_on<'a>(before: &'a Value, after: &'a Value) -> Vec<(String, Option<&'a Value>, Option<&'a Value>)> {
    let mut kept = Vec::new();
    for field in ["restartPolicy", "subdomain", "hostname"] {
        kept.push((field.to_owned(), before.get(field), after.get(field)));
    }
    for volume in [MUSTER, "muster-seat"] {
        let of = |pod: &'a Value| item(pod.get("volumes"), "name", volume);
        kept.push((format!("volumes.{volume}"), of(before), of(after)));
    }
    for (list, name) in [("containers", TASK), ("containers", MUSTER), ("initContainers", MUSTER)] {
        let (before, after) = (item(before.get(list), "name", name), item(after.get(list), "name", name));
        for field in ["command", "args", "restartPolicy"] {
            let of = |container: Option<&'a Value>| container.and_then(|container| container.get(field));
            kept.push((format!("{list}.{name}.{field}"), of(before), of(after)));
        }
        if name == MUSTER {
            let of =
                |container: Option<&'a Value>| container.and_then(|container| container.get("lifecycle"));
            kept.push((format!("{list}.{name}.lifecycle"), of(before), of(after)));
        }
        for path in ["/muster", "/muster-seat"] {
            let of = |container: Option<&'a Value>| item(container?.get("volumeMounts"), "mountPath", path);
            kept.push((format!("{list}.{name}.volumeMounts.{path}"), of(before), of(after)));
        }
        for variable in ["MUSTER_NODE_NAME", "MUSTER_POD_IP", "MUSTER_HOST_IP", "JOB_COMPLETION_INDEX"] {
            let of = |container: Option<&'a Value>| item(container?.get("env"), "name", variable);
            kept.push((format!("{list}.{name}.env.{variable}"), of(before), of(after)));
        }
    }
    kept
}

fn item<'a>(list: Option<&'a Value>, key: &str, value: &str) -> Option<&'a Value> {
    let mut of_it =
        list?.as_array()?.iter().filter(|item| item.get(key).and_then(Value::as_str) == Some(value));
    of_it.next()
}
