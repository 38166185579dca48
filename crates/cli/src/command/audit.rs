//! `muster audit`: what was done, and what was not allowed.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::account::{AuditEntry, AuditQuery};

use crate::error::Error;
use crate::session::Session;
use crate::table::Table;
use crate::terminal;

/// What a page has, at most.
const PAGE: u32 = 1000;

/// Show who did what, and who was not allowed to
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster audit
  muster audit --user ada -n 500
  muster audit --operation login --json | jq -r 'select(.outcome != \"done\") | .address'

For admins. Newest first; nothing in it is ever changed or removed.")]
pub(crate) struct Args {
    /// Only what this person did
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Only this operation, as the API calls it
    #[arg(long, value_name = "OPERATION")]
    operation: Option<String>,
    /// As many entries
    #[arg(long, short, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..))]
    n: u32,
    /// Print JSON, one entry on each line
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let mut entries: Vec<AuditEntry> = Vec::new();
    let mut cursor = None;
    while entries.len() < args.n as usize {
        let query = AuditQuery {
            user: args.user.clone(),
            operation: args.operation.clone(),
            limit: Some((args.n - entries.len() as u32).min(PAGE)),
            cursor,
        };
        let page = session.call(async |client| client.audit(&query).await).await?;
        entries.extend(page.items);
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    if args.json {
        for entry in &entries {
            terminal::say_json(entry)?;
        }
        return Ok(ExitCode::SUCCESS);
    }
    let mut table = Table::new(&["AT", "WHO", "FROM", "OPERATION", "TO", "OUTCOME"]);
    for entry in entries {
        let or_none = |text: Option<String>| text.unwrap_or_else(|| "-".into());
        let at = entry.at.strftime("%F %T").to_string();
        let target = if entry.target.is_empty() { "-".into() } else { entry.target };
        let row = [at, or_none(entry.user), or_none(entry.address), entry.operation, target, entry.outcome];
        table.row(row.map(Into::into).into());
    }
    terminal::to_stdout(table.render(terminal::width(), terminal::stdout_has_colours()).as_bytes())?;
    Ok(ExitCode::SUCCESS)
}
