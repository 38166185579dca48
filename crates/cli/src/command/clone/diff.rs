//! What differs between two specs, field by field.

use std::collections::BTreeMap;

use muster_api::model::JobSpec;
use muster_api::model::printable;
use muster_api::model::quantity::{format_bytes, format_duration, parse_duration};
use muster_api::view::JobDetail;
use serde::Serialize;
use serde_json::Value;

use crate::terminal::{self, Colour};

/// Fields that are written in bytes and read by people.
const SIZES: [&str; 2] = ["resources.memory", "resources.shm"];

/// Fields that are written in seconds and read by people.
const SPANS: [&str; 3] = ["timeout", "grace", "retries.backoff"];

/// One field that is not what it was.
#[derive(Debug, PartialEq, Serialize)]
pub(super) struct Change {
    /// As in errors: `resources.gpus`.
    field: String,
    old: Option<Value>,
    new: Option<Value>,
}

/// Every field that differs, in alphabetical order.
pub(super) fn changes(old: &JobSpec, new: &JobSpec) -> Vec<Change> {
    let (mut before, mut after) = (fields(old), fields(new));
    let mut names: Vec<String> = before.keys().chain(after.keys()).cloned().collect();
    names.sort_unstable();
    names.dedup();
    let change = |field: String| {
        let (old, new) = (before.remove(&field), after.remove(&field));
        (old != new).then_some(Change { field, old, new })
    };
    names.into_iter().filter_map(change).collect()
}

/// The same for people, with what becomes of the code.
pub(super) fn text(old: &JobDetail, new: &JobSpec, code: Option<String>, colours: bool) -> String {
    let changes = changes(&old.spec, new);
    let id = &old.summary.id;
    if changes.is_empty() && code.is_none() {
        return format!("the same job as {id}\n");
    }
    let mut lines: Vec<(String, String, String)> = changes
        .into_iter()
        .map(|change| {
            let value =
                |value: &Option<Value>| value.as_ref().map_or("-".into(), |it| shown(&change.field, it));
            (change.field.clone(), value(&change.old), value(&change.new))
        })
        .collect();
    if let Some(code) = code {
        let before = old.bundle.as_ref().map_or_else(|| "-".to_owned(), ToString::to_string);
        lines.push(("code".into(), before, code));
    }
    let width = lines.iter().map(|(field, ..)| field.len()).max().unwrap_or(0) + 1;
    let mut text = format!("changed from {id}:\n");
    for (field, before, after) in lines {
        let before = terminal::paint(&before, Colour::Red, colours);
        let after = terminal::paint(&after, Colour::Green, colours);
        text.push_str(&format!("  {:<width$} {before} -> {after}\n", format!("{field}:")));
    }
    text
}

/// Every field with its value, the fields of maps by themselves.
fn fields(spec: &JobSpec) -> BTreeMap<String, Value> {
    fn collect(prefix: &str, value: Value, found: &mut BTreeMap<String, Value>) {
        match value {
            Value::Object(map) => {
                for (name, value) in map {
                    let path = if prefix.is_empty() { name } else { format!("{prefix}.{name}") };
                    collect(&path, value, found);
                }
            }
            Value::Null => {}
            other => drop(found.insert(prefix.to_owned(), other)),
        }
    }
    let mut found = BTreeMap::new();
    // As the server will have it: what is only left for it to find is no change.
    let mut spec = spec.clone();
    muster_launch::settle(&mut spec);
    collect("", serde_json::to_value(spec).unwrap_or_default(), &mut found);
    found
}

fn shown(field: &str, value: &Value) -> String {
    match value {
        Value::String(text) if SPANS.contains(&field) => {
            parse_duration(text).map_or_else(|_| text.clone(), format_duration)
        }
        // Each change is one line.
        Value::String(text) if !text.is_empty() && text.chars().all(printable::is_printable) => text.clone(),
        Value::Number(number) if SIZES.contains(&field) => {
            number.as_u64().map_or_else(|| number.to_string(), format_bytes)
        }
        Value::Array(faces) if field == "faces" => {
            let words: Vec<&str> = faces.iter().filter_map(Value::as_str).collect();
            if words.is_empty() { "none".into() } else { words.join(",") }
        }
        Value::Array(_) if field == "command" => {
            let command = serde_json::from_value::<muster_api::model::spec::Command>(value.clone());
            command.map_or_else(|_| value.to_string(), |command| printable::one_line(&command.to_string()))
        }
        other => other.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn spec(value: Value) -> JobSpec {
        JobSpec::from_value(value).unwrap()
    }

    fn job(spec: &JobSpec) -> JobDetail {
        serde_json::from_value(json!({
            "id": "job_0123456789", "name": "train", "state": "succeeded", "reason": null, "message": null,
            "nodes": 1, "gpus": null, "command": "a", "on": "local", "owner": "me", "attempt": 1, "exit_code": 0,
            "submitted_at": "1970-01-01T00:00:00Z", "started_at": null, "ended_at": null, "spec": spec,
            "bundle": null, "failed_rank": null, "attempts": [],
        }))
        .unwrap()
    }

    #[test]
    fn what_was_added_changed_and_taken_away_is_named_field_by_field() {
        let old = spec(json!({"command": ["python", "a b.py"], "nodes": 2, "env": {"A": "1", "B": "x\ny"},
            "resources": {"memory": "16GB"}}));
        let new = spec(json!({"command": ["python", "c.py"], "nodes": 4, "env": {"A": "1", "C": ""},
            "resources": {"memory": "32GB", "gpus": "H100:8"}, "timeout": "2h"}));
        insta::assert_snapshot!(text(&job(&old), &new, Some("bundle_1".into()), false), @r#"
        changed from job_0123456789:
          command:          python 'a b.py' -> python c.py
          env.B:            "x\ny" -> -
          env.C:            - -> ""
          nodes:            2 -> 4
          resources.gpus:   - -> H100:8
          resources.memory: 16 GB -> 32 GB
          timeout:          - -> 2h
          code:             - -> bundle_1
        "#);
        assert!(text(&job(&old), &new, None, true).contains(&format!(
            "{} -> {}",
            terminal::paint("2", Colour::Red, true),
            terminal::paint("4", Colour::Green, true)
        )));
    }

    #[test]
    fn the_same_job_is_called_so() {
        let old = spec(json!({"command": "a"}));
        assert_eq!(changes(&old, &old), []);
        assert_eq!(text(&job(&old), &old, None, false), "the same job as job_0123456789\n");
    }
}
