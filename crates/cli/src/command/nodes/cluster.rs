//! The machines of other people's schedulers, for each place that a job can name.

use std::time::Duration;

use muster_api::cluster::{ClusterNode, ClusterView, PlaceLimitsView};
use muster_api::model::printable;
use muster_api::model::quantity::{format_bytes, format_duration};

use super::cpus;
use crate::table::{Cell, Table};
use crate::terminal::{self, Colour};

/// A heading and a table for each place; why one does not answer, in place of its machines.
pub(super) fn text(clusters: &[ClusterView], width: Option<usize>, colours: bool) -> Vec<String> {
    let mut texts = Vec::new();
    for cluster in clusters {
        if let Some(error) = &cluster.error {
            let away = terminal::paint(
                &format!("{} does not answer:", printable::inline(&cluster.engine)),
                Colour::Red,
                colours,
            );
            texts.push(format!("{away} {}\n", printable::inline(error)));
        }
        for hidden in &cluster.hidden {
            let name = terminal::paint(
                &format!("{} is not shown:", printable::inline(&hidden.on)),
                Colour::Red,
                colours,
            );
            texts.push(format!("{name} {}\n", printable::inline(&hidden.why)));
        }
        for (places, here) in groups(cluster) {
            texts.push(format!(
                "{}:\n{}",
                printable::inline(&heading(&places, &here)),
                table(&here).render(width, colours)
            ));
        }
        if let Some(error) = &cluster.limits_error {
            let name = terminal::paint(
                &format!("limits of {} are not shown:", printable::inline(&cluster.engine)),
                Colour::Yellow,
                colours,
            );
            texts.push(format!("{name} {}\n", printable::inline(error)));
        }
        if !cluster.limits.is_empty() {
            texts.push(limits_table(&cluster.limits).render(width, colours));
        }
    }
    texts
}

/// The machines of each place; places with the same machines, as two names of one, share them.
fn groups(cluster: &ClusterView) -> Vec<(String, Vec<&ClusterNode>)> {
    let mut groups: Vec<(String, Vec<&ClusterNode>)> = Vec::new();
    for place in places(cluster) {
        let here: Vec<&ClusterNode> = cluster.nodes.iter().filter(|node| node.on.contains(place)).collect();
        let is_same = |group: &&mut (String, Vec<&ClusterNode>)| {
            group.1.len() == here.len()
                && group.1.iter().zip(&here).all(|(one, other)| std::ptr::eq(*one, *other))
        };
        match groups.iter_mut().find(is_same) {
            Some((names, _)) => names.push_str(&format!(", {place}")),
            None => groups.push((place.clone(), here)),
        }
    }
    groups
}

/// Every place, in the order in which machines name them.
fn places(cluster: &ClusterView) -> Vec<&String> {
    let mut places: Vec<&String> = Vec::new();
    for place in cluster.nodes.iter().flat_map(|node| &node.on) {
        if !places.contains(&place) {
            places.push(place);
        }
    }
    places
}

/// `slurm/gpu, 4 machines, 12 of 32 devices free`.
fn heading(place: &str, nodes: &[&ClusterNode]) -> String {
    let machines = if nodes.len() == 1 { "machine" } else { "machines" };
    let counts = nodes.iter().flat_map(|node| node.devices.values());
    let (free, total) = counts.fold((0, 0), |(free, total), one| (free + one.free, total + one.total));
    let devices = if total > 0 { format!(", {free} of {total} devices free") } else { String::new() };
    format!("{place}, {} {machines}{devices}", nodes.len())
}

fn table(nodes: &[&ClusterNode]) -> Table {
    let mut table = Table::new(&["NODE", "STATE", "FREE CPUS", "FREE MEMORY", "FREE DEVICES", "NOTE"]);
    for node in nodes {
        table.row(vec![
            node.name.as_str().into(),
            state(&node.state),
            format!("{}/{}", cpus(node.cpu_millis_free), cpus(node.cpu_millis)).into(),
            format!("{}/{}", format_bytes(node.memory_bytes_free), format_bytes(node.memory_bytes)).into(),
            devices(node).into(),
            node.note.as_deref().unwrap_or_default().into(),
        ]);
    }
    table
}

/// What each partition lets a job have.
fn limits_table(limits: &[PlaceLimitsView]) -> Table {
    let mut table = Table::new(&["PARTITION", "LONGEST TIME", "DEFAULT TIME", "NODES PER JOB"]);
    let time = |limit: Option<u64>| limit.map(|limit| format_duration(Duration::from_millis(limit)));
    for one in limits {
        let default = if one.is_default { " (default)" } else { "" };
        let longest = time(one.max_time_ms).unwrap_or_else(|| "unlimited".into());
        table.row(vec![
            format!("{}{default}", one.on).into(),
            longest.clone().into(),
            time(one.default_time_ms).unwrap_or(longest).into(),
            one.max_nodes.map_or_else(|| "unlimited".into(), |nodes| nodes.to_string()).into(),
        ]);
    }
    table
}

/// `H100 3/8, gpu 0/2`.
fn devices(node: &ClusterNode) -> String {
    let group = |(kind, count): (&String, &muster_api::cluster::DeviceCount)| {
        format!("{kind} {}/{}", count.free, count.total)
    };
    let groups: Vec<String> = node.devices.iter().map(group).collect();
    if groups.is_empty() { "none".into() } else { groups.join(", ") }
}

fn state(word: &str) -> Cell {
    let colour = match word {
        "idle" => Some(Colour::Green),
        "mixed" | "allocated" => None,
        _ if word.starts_with("down") || word.starts_with("fail") => Some(Colour::Red),
        _ => Some(Colour::Yellow),
    };
    Cell::coloured(word, colour)
}

#[cfg(test)]
mod tests {
    use muster_api::cluster::{DeviceCount, HiddenPlace, PlaceLimitsView};

    use super::*;

    fn node(name: &str, on: &[&str], state: &str, free: u32) -> ClusterNode {
        ClusterNode {
            name: name.into(),
            on: on.iter().map(|place| (*place).to_owned()).collect(),
            state: state.into(),
            cpu_millis: 8000,
            cpu_millis_free: 6000,
            memory_bytes: 4 << 30,
            memory_bytes_free: 1 << 30,
            devices: [("H100".to_owned(), DeviceCount { total: 8, free })].into(),
            note: (state == "drained").then(|| "fan".into()),
        }
    }

    #[test]
    fn every_place_has_its_machines_and_a_silent_one_says_why() {
        let nodes = vec![
            node("n1", &["slurm/main", "slurm/gpu"], "mixed", 3),
            node("n2", &["slurm/main"], "drained", 0),
        ];
        let limits = vec![
            PlaceLimitsView {
                on: "slurm/main".into(),
                is_default: true,
                max_time_ms: None,
                default_time_ms: None,
                max_nodes: None,
            },
            PlaceLimitsView {
                on: "slurm/gpu".into(),
                is_default: false,
                max_time_ms: Some(7_200_000),
                default_time_ms: Some(1_800_000),
                max_nodes: Some(2),
            },
        ];
        let away = HiddenPlace { on: "k8s/lab".into(), why: "connection refused".into() };
        let of = |engine: &str| ClusterView {
            engine: engine.into(),
            nodes: Vec::new(),
            limits: Vec::new(),
            limits_error: None,
            hidden: Vec::new(),
            error: None,
        };
        let prod = vec![node("gpu1", &["k8s", "k8s/prod"], "idle", 8)];
        let clusters = [
            ClusterView { nodes, limits, ..of("slurm") },
            ClusterView {
                nodes: prod,
                hidden: vec![away],
                limits_error: Some("access denied".into()),
                ..of("k8s")
            },
            ClusterView { error: Some("connection refused".into()), ..of("other") },
        ];
        insta::assert_snapshot!(text(&clusters, None, false).join("\n"), @r"
        slurm/main, 2 machines, 3 of 16 devices free:
        NODE   STATE     FREE CPUS   FREE MEMORY   FREE DEVICES   NOTE
        n1     mixed     6/8         1 GB/4 GB     H100 3/8
        n2     drained   6/8         1 GB/4 GB     H100 0/8       fan

        slurm/gpu, 1 machine, 3 of 8 devices free:
        NODE   STATE   FREE CPUS   FREE MEMORY   FREE DEVICES   NOTE
        n1     mixed   6/8         1 GB/4 GB     H100 3/8

        PARTITION              LONGEST TIME   DEFAULT TIME   NODES PER JOB
        slurm/main (default)   unlimited      unlimited      unlimited
        slurm/gpu              2h             30m            2

        k8s/lab is not shown: connection refused

        k8s, k8s/prod, 1 machine, 8 of 8 devices free:
        NODE   STATE   FREE CPUS   FREE MEMORY   FREE DEVICES   NOTE
        gpu1   idle    6/8         1 GB/4 GB     H100 8/8

        limits of k8s are not shown: access denied

        other does not answer: connection refused
        ");
    }
}
