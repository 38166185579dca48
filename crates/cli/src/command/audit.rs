//! `muster audit`: what was done, and what was not allowed.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::account::{AuditEntry, AuditLinesQuery, AuditQuery};

use crate::error::Error;
use crate::session::Session;
use crate::table::Table;
use crate::terminal::{self, ByteOutput};

/// What a page has, at most.
const PAGE: u32 = 1000;

/// Show who did what, and who was not allowed to
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster audit
  muster audit --user ada -n 500
  muster audit --operation login --json | jq -r 'select(.outcome != \"done\") | .address'
  muster audit --export --after 4711 >>audit.jsonl

For admins. Newest first. An entry states how the operation ended: `done`, or the code of the problem; `started` while it goes on.
A number behind the outcome says how often the same was refused, or read, within ten minutes.")]
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
    /// Print all entries as JSON lines, oldest first
    #[arg(long, conflicts_with_all = ["user", "operation", "n"])]
    export: bool,
    /// Export only entries after this number
    #[arg(long, value_name = "SEQ", requires = "export")]
    after: Option<u64>,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    if args.export {
        return export(&session, args.after).await;
    }
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
    let mut table = Table::new(&["AT", "WHO", "FROM", "OPERATION", "TO", "JOB", "OUTCOME"]);
    for entry in entries {
        table.row(columns(entry).map(Into::into).into());
    }
    terminal::to_stdout(&table.render(terminal::width(), terminal::stdout_has_colours()))?;
    Ok(ExitCode::SUCCESS)
}

fn columns(entry: AuditEntry) -> [String; 7] {
    let or_none = |text: Option<String>| text.filter(|text| !text.is_empty()).unwrap_or_else(|| "-".into());
    let outcome = match entry.count {
        0 | 1 => entry.outcome,
        count => format!("{} ({count})", entry.outcome),
    };
    [
        entry.at.strftime("%F %T").to_string(),
        or_none(entry.user),
        or_none(entry.address),
        entry.operation,
        or_none(Some(entry.target)),
        or_none(entry.job.map(|job| job.to_string())),
        outcome,
    ]
}

async fn export(session: &Session, after: Option<u64>) -> Result<ExitCode, Error> {
    let query = AuditLinesQuery { after };
    let mut lines = session.call(async |client| client.audit_lines(&query).await).await?;
    // Targets and details are texts of whoever was refused.
    let mut output = ByteOutput::new(true);
    while let Some(piece) = lines.next().await? {
        output.write(&piece)?;
    }
    output.finish()?;
    Ok(ExitCode::SUCCESS)
}
