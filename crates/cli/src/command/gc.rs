//! `muster gc`: make room now.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::model::quantity::format_bytes;
use muster_api::view::{Gc, GcReport, OwedRemovals};

use crate::error::Error;
use crate::session::Session;
use crate::terminal;

/// Remove what need not be kept: old logs and outputs, code that no job has
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
The server does this by itself every hour. How much is kept, and for how long, is said by `[keep]` in config.toml. Jobs
themselves stay until `muster rm`, and nothing of a job that is not over is removed.

Examples:
  muster gc --dry-run          what would go
  muster gc
  muster gc --json | jq .chunk_bytes")]
pub(crate) struct Args {
    /// Say what would be removed, and remove nothing
    #[arg(long)]
    dry_run: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let request = Gc { dry_run: args.dry_run };
    let report = session.call(async |client| client.collect_garbage(&request).await).await?;
    if args.json {
        terminal::say_json(&report)?;
    } else {
        terminal::to_stdout(&text(&report))?;
    }
    Ok(ExitCode::SUCCESS)
}

fn text(report: &GcReport) -> String {
    let mut lines = Vec::new();
    let mut line = |bytes: u64, what: String| {
        if bytes > 0 {
            lines.push(format!("{:>9}  {what}\n", format_bytes(bytes)));
        }
    };
    line(report.logs_bytes, "logs".into());
    line(report.outputs_bytes, "outputs".into());
    let bundles = plural(report.bundles, "bundle");
    line(
        report.chunk_bytes,
        format!("code and outputs that no job has ({bundles}, {})", plural(report.chunks, "chunk")),
    );
    for node in &report.nodes {
        line(node.bytes, format!("on {}", node.node));
    }
    let removed = match (report.dry_run, lines.is_empty()) {
        (false, true) => "nothing to remove\n".into(),
        (true, true) => "nothing would be removed\n".into(),
        (false, false) => format!("removed:\n{}", lines.concat()),
        (true, false) => format!("would remove:\n{}", lines.concat()),
    };
    let owed: String = report.owed.iter().map(owed_text).collect();
    let heading =
        if owed.is_empty() { "" } else { "still on nodes that were away, or could not remove it:\n" };
    removed + heading + &owed
}

fn owed_text(owed: &OwedRemovals) -> String {
    let since =
        owed.since.map(|since| since.strftime(", the first removed at %Y-%m-%d %H:%M UTC").to_string());
    let jobs = plural(owed.jobs, "removed job");
    format!("  {}  files of {jobs}{}\n", owed.node, since.unwrap_or_default())
}

fn plural(count: u64, noun: &str) -> String {
    if count == 1 { format!("1 {noun}") } else { format!("{count} {noun}s") }
}

#[cfg(test)]
mod tests {
    use muster_api::view::NodeFreed;

    use super::*;

    #[test]
    fn only_what_went_is_said() {
        assert_eq!(text(&GcReport::default()), "nothing to remove\n");
        let mut report = GcReport { dry_run: true, ..GcReport::default() };
        assert_eq!(text(&report), "nothing would be removed\n");
        report.logs_bytes = 5 << 20;
        (report.bundles, report.chunks, report.chunk_bytes) = (1, 12, 3 << 30);
        report.nodes = vec![
            NodeFreed { node: "node_local".parse().unwrap(), bytes: 2048 },
            NodeFreed { node: "node_b".parse().unwrap(), bytes: 0 },
        ];
        assert_eq!(
            text(&report),
            "would remove:\n     5 MB  logs\n     3 GB  code and outputs that no job has (1 bundle, 12 chunks)\n     2 KB  on node_local\n"
        );
        let owed = |jobs, since| OwedRemovals { node: "node_gpu.h1".parse().unwrap(), jobs, since };
        let since = "2026-11-19T15:04:05Z".parse().unwrap();
        let report = GcReport { owed: vec![owed(3, Some(since)), owed(1, None)], ..GcReport::default() };
        assert_eq!(
            text(&report),
            "nothing to remove\nstill on nodes that were away, or could not remove it:\n  \
             node_gpu.h1  files of 3 removed jobs, the first removed at 2026-11-19 15:04 UTC\n  \
             node_gpu.h1  files of 1 removed job\n"
        );
    }
}
