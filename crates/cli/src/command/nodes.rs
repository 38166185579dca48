//! `muster nodes`: the machines and who uses them.

mod cluster;
mod label;

use std::process::ExitCode;

use clap::{Args as ClapArgs, Subcommand};
use muster_api::client::Client;
use muster_api::model::printable;
use muster_api::model::quantity::format_bytes;
use muster_api::pool::DrainNode;
use muster_api::quota::QuotaQuery;
use muster_api::view::{DeviceView, NodeView};

use super::quota::tables;
use super::show::usage::device_cells;
use crate::amount::{per_second, quotient, thousandths};
use crate::error::Error;
use crate::session::Session;
use crate::table::{Cell, Table};
use crate::terminal::{self, Colour};

/// Show the machines, their devices, and what of them is in use
#[derive(Debug, ClapArgs)]
#[command(
    args_conflicts_with_subcommands = true,
    after_help = "\
Examples:
  muster nodes
  muster nodes --wide
  muster nodes --json | jq '.[].devices'
  muster nodes --clusters
  muster nodes drain gpu1
  muster nodes drain gpu1 --evict
  muster nodes undrain gpu1
  muster nodes label gpu1 gpu2 rack=r1"
)]
pub(crate) struct Args {
    #[command(subcommand)]
    action: Option<Action>,
    /// Show also how busy the machines and their devices are
    #[arg(long, short, conflicts_with = "json")]
    wide: bool,
    /// Show only the machines of other schedulers, as Slurm's or Kubernetes'; with --json these
    #[arg(long, conflicts_with = "wide")]
    clusters: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

#[derive(Debug, Subcommand)]
enum Action {
    /// Keep new tasks from machines; those that run there go on, or are told to go elsewhere
    #[command(after_help = "\
Examples:
  muster nodes drain gpu1
  muster nodes drain node_gpu.gpu1 node_gpu.gpu2
  muster nodes drain gpu1 --evict

With --evict, jobs with tasks there get their notice and their grace, as if they were preempted; they wait again at their \
old place and cost none of their retries. Machines (`muster machine`) stay until they are stopped.")]
    Drain(DrainArgs),
    /// Label machines, so that jobs can choose among them
    Label(label::Args),
    /// Let machines have new tasks again
    #[command(after_help = "Examples:\n  muster nodes undrain gpu1")]
    Undrain(UndrainArgs),
}

#[derive(Debug, ClapArgs)]
struct DrainArgs {
    #[command(flatten)]
    which: UndrainArgs,
    /// Tell what runs there to end, and to run elsewhere
    #[arg(long)]
    evict: bool,
}

#[derive(Debug, ClapArgs)]
struct UndrainArgs {
    /// Which: ids of nodes, or names of hosts
    #[arg(value_name = "NODE", required = true)]
    nodes: Vec<String>,
    /// Print the nodes as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    match &args.action {
        None => list(args).await,
        Some(Action::Drain(args)) => set_drained(&args.which, Some(DrainNode { evict: args.evict })).await,
        Some(Action::Label(args)) => label::run(args).await,
        Some(Action::Undrain(args)) => set_drained(args, None).await,
    }
}

/// How nodes are drained; not at all, where they are to get tasks again.
async fn set_drained(args: &UndrainArgs, how: Option<DrainNode>) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let mut changed = Vec::new();
    for node in &args.nodes {
        let set = async |client: &Client| match &how {
            Some(how) => client.drain_node(node, how).await,
            None => client.undrain_node(node).await,
        };
        changed.push(session.call(set).await?);
    }
    if args.json {
        terminal::say_json(&changed)?;
    } else {
        let text = |node: &NodeView| match &how {
            Some(DrainNode { evict: true }) => {
                format!("{} gets no new tasks; those that it has are told to end", node.id)
            }
            Some(_) => format!("{} gets no new tasks; those that it has go on", node.id),
            None => format!("{} gets tasks again", node.id),
        };
        changed.iter().try_for_each(|node| terminal::say(&text(node)))?;
    }
    Ok(ExitCode::SUCCESS)
}

async fn list(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    if args.clusters {
        return clusters(&session, args.json).await;
    }
    let nodes = session.call(async |client| client.nodes().await).await?.items;
    if args.json {
        terminal::say_json(&nodes)?;
    } else {
        let clusters = session.call(async |client| client.clusters().await).await?.items;
        let mut tables = vec![table(&nodes)];
        if args.wide {
            tables.push(machines(&nodes));
            tables.extend(device_table(&nodes));
        }
        let (width, colours) = (terminal::width(), terminal::stdout_has_colours());
        let mut texts: Vec<String> = tables.iter().map(|table| table.render(width, colours)).collect();
        if let Some(first) = texts.first_mut() {
            first.push_str(&reasons(&nodes, colours));
        }
        if let Some(table) = available(&session, &nodes).await {
            texts.push(table.render(width, colours));
        }
        texts.extend(cluster::text(&clusters, width, colours));
        terminal::to_stdout(&texts.join("\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// What one can get now of the devices that there are. A server of before there were quotas does not say.
async fn available(session: &Session, nodes: &[NodeView]) -> Option<Table> {
    if nodes.iter().all(|node| node.devices.is_empty()) {
        return None;
    }
    let quota = session.client().quota(&QuotaQuery::default()).await.ok()?;
    (!quota.available.is_empty()).then(|| tables::available(&quota.available))
}

/// What other schedulers have, and nothing else.
async fn clusters(session: &Session, json: bool) -> Result<ExitCode, Error> {
    let clusters = session.call(async |client| client.clusters().await).await?.items;
    if json {
        terminal::say_json(&clusters)?;
    } else if clusters.is_empty() {
        terminal::note(
            "this server knows no other schedulers; a [slurm] or [k8s] section in config.toml names one",
        );
    } else {
        let texts = cluster::text(&clusters, terminal::width(), terminal::stdout_has_colours());
        terminal::to_stdout(&texts.join("\n"))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn table(nodes: &[NodeView]) -> Table {
    let mut table = Table::new(&["NODE", "ENGINE", "HOST", "STATE", "CPUS", "MEMORY", "SLOTS", "DEVICES"]);
    for node in nodes {
        // One that has never come has not said what it has.
        let known = |text: String| if node.slots > 0 { text } else { "-".into() }.into();
        table.row(vec![
            node.id.as_str().into(),
            place(node).into(),
            node.host.as_str().into(),
            state(node),
            known(format!("{}/{}", cpus(node.cpu_millis_used), cpus(node.cpu_millis))),
            known(format!("{}/{}", format_bytes(node.memory_bytes_used), format_bytes(node.memory_bytes))),
            known(format!("{}/{}", node.slots_used, node.slots)),
            known(devices(node)),
        ]);
    }
    table
}

/// Where a job has to say to run to come there: `local`, `ssh/gpu`.
pub(crate) fn place(node: &NodeView) -> String {
    node.pool.as_ref().map_or_else(|| node.engine.clone(), |pool| format!("{}/{pool}", node.engine))
}

/// Whether a node can be used.
pub(crate) fn state(node: &NodeView) -> Cell {
    // One that has never come, and of which nothing bad is known, is on its way.
    let is_away = node.error.is_some() || node.slots > 0;
    let (text, colour) = match (node.connected, node.drained, is_away) {
        (true, false, _) => ("ready", Colour::Green),
        (true, true, _) => ("drained", Colour::Yellow),
        (false, true, _) => ("away, drained", Colour::Red),
        (false, false, true) => ("away", Colour::Red),
        (false, false, false) => ("connecting", Colour::Yellow),
    };
    Cell::coloured(text, Some(colour))
}

/// Why nodes are away, a line each.
pub(crate) fn reasons(nodes: &[NodeView], colours: bool) -> String {
    let line = |node: &NodeView| {
        let error = node.error.as_ref()?;
        Some(format!(
            "{} {}\n",
            terminal::paint(&format!("{} is away:", node.id), Colour::Red, colours),
            printable::inline(&error.message)
        ))
    };
    nodes.iter().filter_map(line).collect()
}

/// What is in use of each machine, by muster or not.
fn machines(nodes: &[NodeView]) -> Table {
    let headings = ["NODE", "BUSY CPUS", "MEMORY IN USE", "RECEIVES", "SENDS", "DISKS READ", "DISKS WRITE"];
    let mut table = Table::new(&headings);
    for node in nodes {
        let now = node.now.as_ref();
        let rate = |rate: Option<u64>| rate.map_or_else(|| "-".into(), per_second).into();
        let share = |used: u64, all: u64| format!("{}/{}", thousandths(used), thousandths(all));
        table.row(vec![
            node.id.as_str().into(),
            now.map_or_else(|| "-".into(), |it| share(it.cpu_millis, it.cpu_total_millis)).into(),
            now.map_or_else(|| "-".into(), |it| quotient(it.memory_bytes, it.memory_total_bytes)).into(),
            rate(now.and_then(|it| it.received_bytes_per_second)),
            rate(now.and_then(|it| it.sent_bytes_per_second)),
            rate(now.and_then(|it| it.read_bytes_per_second)),
            rate(now.and_then(|it| it.written_bytes_per_second)),
        ]);
    }
    table
}

/// How each device is, of those that can be asked.
fn device_table(nodes: &[NodeView]) -> Option<Table> {
    let headings = ["NODE", "DEVICE", "UTILISATION", "MEMORY", "POWER", "TEMPERATURE", "ECC ERRORS", "JOB"];
    let mut table = Table::new(&headings);
    let mut is_empty = true;
    for node in nodes {
        for (view, now) in node.devices.iter().filter_map(|view| Some((view, view.now.as_ref()?))) {
            let mut row = vec![node.id.as_str().into()];
            row.extend(device_cells(now));
            row.push(view.job.as_ref().map_or("-", |job| job.as_str()).into());
            table.row(row);
            is_empty = false;
        }
    }
    (!is_empty).then_some(table)
}

/// Thousandths as people count: `4`, `0.5`.
pub(crate) fn cpus(millis: u64) -> String {
    let text = format!("{:.3}", millis as f64 / 1000.0);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// `8x H100 80 GB (3 free)`, one group for each model; simulated ones say so. Nothing is free where no task may start.
pub(crate) fn devices(node: &NodeView) -> String {
    devices_by_model(&node.devices, node.connected && !node.drained)
}

fn devices_by_model(devices: &[DeviceView], takes_tasks: bool) -> String {
    let mut groups: Vec<(String, usize, usize)> = Vec::new();
    for view in devices {
        let device = &view.device;
        let simulated = if device.simulated { " simulated" } else { "" };
        let name = format!("{} {}{simulated}", device.model, format_bytes(device.memory_bytes));
        let free = usize::from(takes_tasks && !view.is_in_use());
        match groups.iter_mut().find(|(known, ..)| *known == name) {
            Some((_, count, all_free)) => {
                *count += 1;
                *all_free += free;
            }
            None => groups.push((name, 1, free)),
        }
    }
    if groups.is_empty() {
        return "none".into();
    }
    let texts: Vec<String> =
        groups.iter().map(|(name, count, free)| format!("{count}x {name} ({free} free)")).collect();
    texts.join(", ")
}

#[cfg(test)]
mod tests {
    use muster_api::model::node::{Device, Vendor};

    use super::*;

    fn device(index: u32, simulated: bool, is_used: bool) -> DeviceView {
        let device = Device {
            index,
            vendor: Vendor::Nvidia,
            model: "H100".into(),
            uuid: String::new(),
            memory_bytes: 80 << 30,
            simulated,
            ip: None,
        };
        // In use by a job that the caller may not see.
        DeviceView { device, job: None, in_use: is_used, now: None }
    }

    #[test]
    fn devices_are_counted_by_model_and_simulated_ones_say_so() {
        assert_eq!(devices_by_model(&[], true), "none");
        let mixed = [device(0, false, true), device(1, false, false), device(2, true, false)];
        assert_eq!(
            devices_by_model(&mixed, true),
            "2x H100 80 GB (1 free), 1x H100 80 GB simulated (1 free)"
        );
        assert_eq!(devices_by_model(&mixed[..2], false), "2x H100 80 GB (0 free)");
    }

    #[test]
    fn cpus_are_written_without_needless_zeros() {
        assert_eq!([0, 500, 4000, 10_250].map(cpus), ["0", "0.5", "4", "10.25"]);
    }
}
