//! `/metrics`: the server, its nodes, their devices and the tasks that run, for Prometheus.
//!
//! Values are in Prometheus' units: seconds, bytes, parts of 1. What is not known has no line. A series of a task ends with
//! the task, and that of a node with its connection.

use std::sync::Arc;

use axum::extract::State;
use axum::http::header;
use axum::response::{IntoResponse, Response};
use muster_api::metrics::NodePoint;
use muster_api::view::NodeView;
use muster_model::metrics::{DeviceUse, NodeUse};
use muster_model::{NodeId, TaskId, job};

use super::text::{CONTENT_TYPE, Kind, Page};
use crate::core::{Input, internal};
use crate::http::failure::Failure;
use crate::http::job::read;
use crate::metrics::{BOUNDS, Commits, Current, Now};
use crate::state::Shared;

pub(in crate::http) async fn show(State(shared): State<Arc<Shared>>) -> Result<Response, Failure> {
    let counts = read(&shared, |readers| readers.counts_by_state().map_err(|error| internal(&error))).await?;
    let nodes = shared.core.ask(Input::Nodes).await?;
    let now = shared.metrics.now();
    let mut page = Page::default();
    server(&mut page, &shared);
    jobs(&mut page, &counts);
    places(&mut page, &nodes);
    machines(&mut page, &now.nodes);
    devices(&mut page, &nodes, &now);
    tasks(&mut page, &now.tasks);
    Ok(([(header::CONTENT_TYPE, CONTENT_TYPE)], page.finish()).into_response())
}

fn server(page: &mut Page, shared: &Shared) {
    let uptime = crate::core::now().duration_since(shared.started_at).as_secs_f64();
    page.family("muster_server_info", Kind::Gauge, "The server's version; always 1.")
        .value(&[("version", &shared.version)], 1);
    page.family("muster_server_uptime_seconds", Kind::Gauge, "For how long the server runs.")
        .value(&[], uptime.max(0.0));
    page.family("muster_events_total", Kind::Counter, "Events written since the database was made.")
        .value(&[], *shared.news.borrow());
    commits(page, &shared.commits);
}

fn commits(page: &mut Page, commits: &Commits) {
    let (up_to, microseconds) = commits.read();
    let help = "How long a batch of changes took to be on disk.";
    let mut family = page.family("muster_commit_seconds", Kind::Histogram, help);
    for (bound, count) in BOUNDS.iter().zip(up_to) {
        family.part("_bucket", &[("le", &seconds(*bound).to_string())], count);
    }
    let all = up_to[BOUNDS.len()];
    family.part("_bucket", &[("le", "+Inf")], all).part("_sum", &[], seconds(microseconds)).part(
        "_count",
        &[],
        all,
    );
}

fn seconds(microseconds: u64) -> f64 {
    microseconds as f64 / 1e6
}

fn jobs(page: &mut Page, counts: &[(job::State, u64)]) {
    let count = |state| counts.iter().find(|(known, _)| *known == state).map_or(0, |(_, count)| *count);
    let mut family = page.family("muster_jobs", Kind::Gauge, "Jobs by state.");
    for state in job::State::ALL {
        family.value(&[("state", state.as_str())], count(state));
    }
    page.family("muster_queue_length", Kind::Gauge, "Jobs that wait for a place.")
        .value(&[], count(job::State::Queued));
}

/// What nodes have, and how much of it is given to jobs.
fn places(page: &mut Page, nodes: &[NodeView]) {
    let connected = nodes.iter().filter(|node| node.connected).count();
    page.family("muster_agents_connected", Kind::Gauge, "Nodes whose agent is connected.")
        .value(&[], connected);
    let mut family =
        page.family("muster_node_connected", Kind::Gauge, "Whether the node's agent is connected.");
    for node in nodes {
        family.value(&[("node", node.id.as_str())], u64::from(node.connected));
    }
    let mut by_use = |name, help, used: fn(&NodeView) -> u64, all: fn(&NodeView) -> u64| {
        let mut family = page.family(name, Kind::Gauge, help);
        for node in nodes {
            let labels = |what| [("node", node.id.as_str()), ("use", what)];
            family.value(&labels("used"), used(node)).value(&labels("free"), all(node) - used(node));
        }
    };
    by_use(
        "muster_node_slots",
        "Places for tasks, by use.",
        |node| u64::from(node.slots_used),
        |node| u64::from(node.slots),
    );
    by_use(
        "muster_node_devices",
        "Accelerators, by use.",
        |node| node.devices.iter().filter(|device| device.is_in_use()).count() as u64,
        |node| node.devices.len() as u64,
    );
}

fn machines(page: &mut Page, nodes: &[(NodeId, NodePoint)]) {
    let mut family = |name, help, value: fn(&NodeUse) -> Option<f64>| {
        let mut family = page.family(name, Kind::Gauge, help);
        for (node, point) in nodes {
            family.known(&[("node", node.as_str())], value(&point.node));
        }
    };
    family("muster_node_cpus", "CPUs of the machine.", |it| Some(it.cpu_total_millis as f64 / 1e3));
    family("muster_node_cpus_used", "CPUs that are busy.", |it| Some(it.cpu_millis as f64 / 1e3));
    family("muster_node_memory_bytes", "Memory of the machine.", |it| Some(it.memory_total_bytes as f64));
    family("muster_node_memory_used_bytes", "Memory in use.", |it| Some(it.memory_bytes as f64));
    family("muster_node_network_receive_bytes_per_second", "What comes in.", |it| {
        it.received_bytes_per_second.map(|it| it as f64)
    });
    family("muster_node_network_transmit_bytes_per_second", "What goes out.", |it| {
        it.sent_bytes_per_second.map(|it| it as f64)
    });
    family("muster_node_disk_read_bytes_per_second", "What is read from disks.", |it| {
        it.read_bytes_per_second.map(|it| it as f64)
    });
    family("muster_node_disk_write_bytes_per_second", "What is written to disks.", |it| {
        it.written_bytes_per_second.map(|it| it as f64)
    });
}

/// A device, with the job and the task that have it: empty where nobody has.
struct Held<'a> {
    labels: [(&'static str, String); 5],
    device: &'a DeviceUse,
}

fn held<'a>(nodes: &[NodeView], now: &'a Now) -> Vec<Held<'a>> {
    let mut all = Vec::new();
    for (node, point) in &now.nodes {
        for device in &point.devices {
            let known = nodes.iter().find(|view| view.id == *node);
            let known = known.and_then(|it| it.devices.iter().find(|it| it.device.index == device.index));
            let holder = now.tasks.iter().find(|(_, at, current)| {
                at == node && current.point.devices.iter().any(|it| it.index == device.index)
            });
            let (job, task) = match holder {
                Some((task, ..)) => (task.attempt.job.to_string(), task.rank.to_string()),
                None => (String::new(), String::new()),
            };
            let labels = [
                ("node", node.to_string()),
                ("device", device.index.to_string()),
                ("model", known.map(|it| it.device.model.clone()).unwrap_or_default()),
                ("job", job),
                ("task", task),
            ];
            all.push(Held { labels, device });
        }
    }
    all
}

fn devices(page: &mut Page, nodes: &[NodeView], now: &Now) {
    let all = held(nodes, now);
    let mut family = |name, kind, help, value: fn(&DeviceUse) -> Option<f64>| {
        let mut family = page.family(name, kind, help);
        for held in &all {
            let labels = held.labels.each_ref().map(|(name, value)| (*name, value.as_str()));
            family.known(&labels, value(held.device));
        }
    };
    family("muster_device_utilisation_ratio", Kind::Gauge, "In how much of the time it computes.", |it| {
        it.utilisation_percent.map(|it| f64::from(it) / 100.0)
    });
    family("muster_device_memory_bytes", Kind::Gauge, "Memory of the device.", |it| {
        it.memory_total_bytes.map(|it| it as f64)
    });
    family("muster_device_memory_used_bytes", Kind::Gauge, "Memory of the device in use.", |it| {
        it.memory_bytes.map(|it| it as f64)
    });
    family("muster_device_power_watts", Kind::Gauge, "What the device draws.", |it| {
        it.power_watts.map(f64::from)
    });
    family("muster_device_temperature_celsius", Kind::Gauge, "How hot the device is.", |it| {
        it.temperature_celsius.map(f64::from)
    });
    family(
        "muster_device_ecc_corrected_total",
        Kind::Counter,
        "Memory errors that were corrected, since the driver was loaded.",
        |it| it.ecc_corrected.map(|it| it as f64),
    );
    family(
        "muster_device_ecc_uncorrected_total",
        Kind::Counter,
        "Memory errors that were not corrected, since the driver was loaded.",
        |it| it.ecc_uncorrected.map(|it| it as f64),
    );
}

fn tasks(page: &mut Page, tasks: &[(TaskId, NodeId, Current)]) {
    let mut family = |name, kind, help, value: fn(&Current) -> Option<f64>| {
        let mut family = page.family(name, kind, help);
        for (task, node, current) in tasks {
            let (attempt, rank) = (task.attempt.number.to_string(), task.rank.to_string());
            let labels = [
                ("job", task.attempt.job.as_str()),
                ("attempt", attempt.as_str()),
                ("task", rank.as_str()),
                ("node", node.as_str()),
            ];
            family.known(&labels, value(current));
        }
    };
    family("muster_task_cpus_used", Kind::Gauge, "CPUs that the task keeps busy.", |it| {
        Some(it.point.task.cpu_millis as f64 / 1e3)
    });
    family("muster_task_cpu_seconds_total", Kind::Counter, "CPU time since the task's start.", |it| {
        Some(it.usage.cpu_milliseconds as f64 / 1e3)
    });
    family("muster_task_memory_used_bytes", Kind::Gauge, "Memory that the task uses.", |it| {
        Some(it.point.task.memory_bytes as f64)
    });
    family("muster_task_memory_peak_bytes", Kind::Gauge, "The most memory the task has used.", |it| {
        Some(it.usage.peak_memory_bytes as f64)
    });
    family("muster_task_processes", Kind::Gauge, "Processes of the task.", |it| {
        Some(f64::from(it.point.task.processes))
    });
    family("muster_task_disk_read_bytes_per_second", Kind::Gauge, "What it reads from disks.", |it| {
        it.point.task.read_bytes_per_second.map(|it| it as f64)
    });
    family("muster_task_disk_write_bytes_per_second", Kind::Gauge, "What it writes to disks.", |it| {
        it.point.task.written_bytes_per_second.map(|it| it as f64)
    });
}
