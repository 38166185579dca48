//! `muster pool ls`: pools and their hosts.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::model::printable;
use muster_api::model::quantity::format_bytes;
use muster_api::pool::{PoolView, ShowPool};

use crate::command::nodes::{cpus, devices, reasons, state};
use crate::error::Error;
use crate::session::Session;
use crate::table::Table;
use crate::terminal;

/// List pools, their hosts, and why those are away that are
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster pool ls
  muster pool ls gpu
  muster pool ls --json | jq '.[].hosts[].destination'")]
pub(crate) struct Args {
    /// Only this pool
    name: Option<String>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let pools = match &args.name {
        Some(name) => {
            vec![session.call(async |client| client.pool(name, &ShowPool::default()).await).await?]
        }
        None => session.call(async |client| client.pools().await).await?.items,
    };
    if args.json {
        terminal::say_json(&pools)?;
        return Ok(ExitCode::SUCCESS);
    }
    if pools.is_empty() {
        terminal::hint("there are no pools; `muster pool add NAME USER@HOST` makes one");
    }
    let colours = terminal::stdout_has_colours();
    let mut text = table(&pools).render(terminal::width(), colours);
    let nodes: Vec<_> = pools.iter().flat_map(|pool| &pool.hosts).map(|host| host.node.clone()).collect();
    text.push_str(&reasons(&nodes, colours));
    for pool in &pools {
        let mut remarks = Vec::new();
        remarks.extend(pool.configured.then(|| "from config.toml".to_owned()));
        remarks.extend(pool.shared.as_ref().map(|shared| format!("all hosts share {shared}")));
        if !remarks.is_empty() {
            let line = format!("{}: {}", pool.name, remarks.join("; "));
            text.push_str(&format!("{}\n", printable::inline(&line)));
        }
    }
    terminal::to_stdout(&text)?;
    Ok(ExitCode::SUCCESS)
}

/// One row for each host.
pub(super) fn table(pools: &[PoolView]) -> Table {
    let mut table = Table::new(&["POOL", "DESTINATION", "NODE", "STATE", "CPUS", "MEMORY", "DEVICES"]);
    for pool in pools {
        if pool.hosts.is_empty() {
            table.row([&pool.name, "-", "-", "no hosts", "-", "-", "-"].map(Into::into).into());
        }
        for host in &pool.hosts {
            let node = &host.node;
            let is_known = node.slots > 0;
            let known = |text: String| if is_known { text } else { "-".into() };
            table.row(vec![
                pool.name.as_str().into(),
                host.destination.as_str().into(),
                node.id.as_str().into(),
                state(node),
                known(format!("{}/{}", cpus(node.cpu_millis_used), cpus(node.cpu_millis))).into(),
                known(format!(
                    "{}/{}",
                    format_bytes(node.memory_bytes_used),
                    format_bytes(node.memory_bytes)
                ))
                .into(),
                known(devices(node)).into(),
            ]);
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use muster_api::pool::PoolList;
    use serde_json::json;

    use super::*;

    #[test]
    fn a_host_that_never_came_has_no_numbers() {
        let node = |id: &str, connected: bool, slots: u32, error: serde_json::Value| {
            json!({"id": id, "engine": "ssh", "pool": "gpu", "host": "", "connected": connected, "agent_pid": null,
                "agent_version": null, "cpu_millis": 4000, "cpu_millis_used": 500, "memory_bytes": 1u64 << 30,
                "memory_bytes_used": 0, "slots": slots, "slots_used": 0, "devices": [], "error": error})
        };
        let error = json!({"message": "no route to host", "may_pass": true, "at": "2024-06-07T00:00:00Z"});
        let list: PoolList = serde_json::from_value(json!({"items": [
            {"name": "gpu", "on": "ssh/gpu", "configured": false, "hosts": [
                {"destination": "ada@h1", "node": node("node_gpu.h1", true, 4, json!(null))},
                {"destination": "ada@h2", "port": 22, "node": node("node_gpu.h2", false, 0, error)},
                {"destination": "ada@h3", "node": node("node_gpu.h3", false, 0, json!(null))}]},
            {"name": "spare", "on": "ssh/spare", "configured": true, "hosts": []}]}))
        .unwrap();
        insta::assert_snapshot!(table(&list.items).render(None, false), @r"
        POOL    DESTINATION   NODE          STATE        CPUS    MEMORY     DEVICES
        gpu     ada@h1        node_gpu.h1   ready        0.5/4   0 B/1 GB   none
        gpu     ada@h2        node_gpu.h2   away         -       -          -
        gpu     ada@h3        node_gpu.h3   connecting   -       -          -
        spare   -             -             no hosts     -       -          -
        ");
        let nodes: Vec<_> = list.items[0].hosts.iter().map(|host| host.node.clone()).collect();
        assert_eq!(reasons(&nodes, false), "node_gpu.h2 is away: no route to host\n");
    }
}
