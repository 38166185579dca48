//! `muster machine ls`.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::model::Timestamp;

use super::create::label;
use crate::command::state;
use crate::duration::age;
use crate::error::Error;
use crate::machine::{self, Row};
use crate::session::Session;
use crate::table::{Cell, Table};
use crate::terminal;

/// List the machines that are not killed
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster machine ls
  muster machine ls --label project=bert
  muster machine ls --json | jq -r '.[].address'")]
pub(crate) struct Args {
    /// Only those with this label
    #[arg(short, long = "label", value_name = "NAME=VALUE", value_parser = label)]
    labels: Vec<(String, String)>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let labels: Vec<String> = args.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
    let groups = machine::all(&session, &labels).await?;
    let rows = machine::rows(&session, &groups).await?;
    show(&rows, args.json)?;
    Ok(ExitCode::SUCCESS)
}

pub(super) fn show(rows: &[Row], json: bool) -> Result<(), Error> {
    if json {
        return terminal::say_json(&rows);
    }
    let table = table(rows, Timestamp::now());
    terminal::to_stdout(&table.render(terminal::width(), terminal::stdout_has_colours()))
}

fn table(rows: &[Row], now: Timestamp) -> Table {
    let mut table = Table::new(&["MACHINE", "STATE", "ON", "NODE", "ADDRESS", "DEVICES", "AGE", "LABELS"]);
    for row in rows {
        let labels: Vec<String> = row.labels.iter().map(|(name, value)| format!("{name}={value}")).collect();
        table.row(vec![
            row.name.as_str().into(),
            Cell::coloured(row.state.to_string(), state::colour(row.state)),
            row.on.as_str().into(),
            row.node.as_ref().map_or("-", |node| node.as_str()).into(),
            row.address.as_deref().unwrap_or("-").into(),
            row.gpus().into(),
            age(row.submitted_at, now).into(),
            labels.join(",").into(),
        ]);
    }
    table
}
