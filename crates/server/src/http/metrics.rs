//! `/metrics`, in Prometheus' text format.

use std::fmt::Write;
use std::sync::Arc;

use axum::extract::State;
use muster_model::job;

use super::failure::Failure;
use super::job::read;
use crate::core::{Input, internal};
use crate::state::Shared;

pub(super) async fn show(State(shared): State<Arc<Shared>>) -> Result<String, Failure> {
    let counts = read(&shared, |readers| readers.counts_by_state().map_err(|error| internal(&error))).await?;
    let nodes = shared.core.ask(Input::Nodes).await?;
    let mut text = String::new();
    head(&mut text, "muster_jobs", "gauge", "Jobs by state.");
    for state in job::State::ALL {
        let count = counts.iter().find(|(known, _)| *known == state).map_or(0, |(_, count)| *count);
        line(&mut text, "muster_jobs", &format!("state=\"{state}\""), count);
    }
    head(&mut text, "muster_node_connected", "gauge", "Whether the node's agent is connected.");
    for node in &nodes {
        line(&mut text, "muster_node_connected", &format!("node=\"{}\"", node.id), u64::from(node.connected));
    }
    head(&mut text, "muster_node_slots", "gauge", "Places for tasks, by use.");
    head(&mut text, "muster_node_devices", "gauge", "Accelerators, by use.");
    for node in &nodes {
        let used = node.devices.iter().filter(|device| device.job.is_some()).count() as u64;
        let labels = |state| format!("node=\"{}\",use=\"{state}\"", node.id);
        line(&mut text, "muster_node_slots", &labels("used"), u64::from(node.slots_used));
        line(&mut text, "muster_node_slots", &labels("free"), u64::from(node.slots - node.slots_used));
        line(&mut text, "muster_node_devices", &labels("used"), used);
        line(&mut text, "muster_node_devices", &labels("free"), node.devices.len() as u64 - used);
    }
    head(&mut text, "muster_events_total", "counter", "Events written since the database was made.");
    line(&mut text, "muster_events_total", "", *shared.news.borrow());
    Ok(text)
}

fn head(text: &mut String, name: &str, kind: &str, help: &str) {
    let _ = writeln!(text, "# HELP {name} {help}\n# TYPE {name} {kind}");
}

fn line(text: &mut String, name: &str, labels: &str, value: u64) {
    let labels = if labels.is_empty() { String::new() } else { format!("{{{labels}}}") };
    let _ = writeln!(text, "{name}{labels} {value}");
}
