//! `muster pool rm`: hosts of a pool, or a pool with all of them.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::pool::{PoolView, RemoveHosts, ShowPool};
use serde_json::json;

use crate::error::Error;
use crate::session::Session;
use crate::terminal;

/// Remove hosts from a pool, or the pool with all of its hosts
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster pool rm gpu gpu2
  muster pool rm gpu ada@gpu1 --force
  muster pool rm gpu

A host with tasks is not removed without --force; `muster nodes drain` keeps new ones from it. \
The agent there is stopped; what tasks left in ~/.muster stays.")]
pub(crate) struct Args {
    /// The pool
    name: String,
    /// Which hosts, by destination, name or node; all of them, and the pool, when absent
    #[arg(value_name = "HOST")]
    hosts: Vec<String>,
    /// Also hosts that have tasks: they are stopped, and end as node_lost
    #[arg(long, short)]
    force: bool,
    /// Print what was removed as JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let how = RemoveHosts { force: args.force };
    let pool = session.call(async |client| client.pool(&args.name, &ShowPool::default()).await).await?;
    let mut removed = Vec::new();
    if args.hosts.is_empty() {
        session.call(async |client| client.delete_pool(&args.name, &how).await).await?;
        removed.extend(pool.hosts.iter().map(|host| host.node.id.to_string()));
    }
    for host in &args.hosts {
        let node = node(&pool, host);
        session.call(async |client| client.delete_node(&node, &how).await).await?;
        removed.push(node);
    }
    if args.json {
        let is_whole = args.hosts.is_empty();
        terminal::say_json(&json!({ "pool": args.name, "removed": is_whole, "nodes": removed }))?;
    } else {
        removed.iter().try_for_each(|node| terminal::say(node))?;
    }
    Ok(ExitCode::SUCCESS)
}

/// The node that people mean, among those of the pool. What is none of them, the server answers for.
fn node(pool: &PoolView, text: &str) -> String {
    let within = format!("node_{}.{text}", pool.name);
    let is_meant = |id: &str, destination: &str| {
        [text, &within].contains(&id) || id.strip_prefix("node_") == Some(text) || destination == text
    };
    let host = pool.hosts.iter().find(|host| is_meant(host.node.id.as_str(), &host.destination));
    host.map_or(within.clone(), |host| host.node.id.to_string())
}
