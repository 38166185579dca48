//! `muster queue`: who waits, and for what.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use jiff::Timestamp;
use muster_api::model::quantity::format_bytes;
use muster_api::quota::{QueueQuery, QueueView, QueuedView};

use crate::error::Error;
use crate::session::Session;
use crate::table::{Cell, Table};
use crate::terminal::{self, Colour};
use crate::{duration, moment};

/// Show who waits, those that are to start next first
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster queue
  muster queue --user ada --on ssh/gpu
  muster queue --json | jq -r '.items[].job'

POSITION counts all jobs that wait in the same place, also those of others that you do not see. `-` waits for something \
else than its turn, or in the queue of Slurm or Kubernetes, whose estimate of the start is shown. `muster why JOB` says more of one: what would let it start now, and when it starts.")]
pub(crate) struct Args {
    /// Only jobs of this workspace
    #[arg(long, value_name = "NAME")]
    workspace: Option<String>,
    /// Only jobs of this user
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Only jobs that are to run there, such as local or ssh/gpu
    #[arg(long, value_name = "PLACE")]
    on: Option<String>,
    /// At most so many, up to 1000
    #[arg(long, value_name = "NUMBER", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=1000))]
    limit: u32,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let query = QueueQuery {
        workspace: args.workspace.clone(),
        user: args.user.clone(),
        on: args.on.clone(),
        limit: Some(args.limit),
    };
    let queue = session.call(async |client| client.queue(&query).await).await?;
    if args.json {
        terminal::say_json(&queue)?;
        return Ok(ExitCode::SUCCESS);
    }
    if queue.items.is_empty() {
        terminal::note(&nobody(&queue));
        return Ok(ExitCode::SUCCESS);
    }
    let text =
        table(&queue.items, Timestamp::now()).render(terminal::width(), terminal::stdout_has_colours());
    terminal::to_stdout(&text)?;
    if queue.waiting > queue.items.len() as u64 {
        terminal::note(&format!("{} of {} jobs that wait", queue.items.len(), queue.waiting));
    }
    Ok(ExitCode::SUCCESS)
}

fn nobody(queue: &QueueView) -> String {
    match queue.waiting {
        0 => "nothing waits".into(),
        1 => "nothing of that waits; 1 other job does".into(),
        others => format!("nothing of that waits; {others} other jobs do"),
    }
}

fn table(items: &[QueuedView], now: Timestamp) -> Table {
    let headings = [
        "POSITION",
        "JOB",
        "NAME",
        "USER",
        "WORKSPACE",
        "ON",
        "PRIORITY",
        "ASKS FOR",
        "WAITS",
        "STARTS",
        "WHY",
    ];
    let mut table = Table::new(&headings);
    for one in items {
        table.row(vec![
            position(one).into(),
            one.job.as_str().into(),
            one.name.as_str().into(),
            one.user.as_str().into(),
            one.workspace.as_str().into(),
            one.on.as_str().into(),
            one.priority.to_string().into(),
            asks(one).into(),
            duration::age(one.waiting_since, now).into(),
            one.starts_at.map_or_else(|| "-".into(), moment::expected).into(),
            Cell::coloured(one.summary.as_str(), colour(&one.code)),
        ]);
    }
    let display_names: Vec<_> = items.iter().map(|one| one.display_name.as_deref()).collect();
    table.insert_after(2, "DISPLAY NAME", &display_names);
    table
}

pub(crate) fn position(one: &QueuedView) -> String {
    one.position.map_or_else(|| "-".into(), |position| position.to_string())
}

/// `2x H100:8`, `4 CPUs, 16 GB`, `37 elements: 1 CPU`.
pub(crate) fn asks(one: &QueuedView) -> String {
    let cpus = (one.cpu_millis > 0).then(|| match one.cpu_millis {
        1000 => "1 CPU".into(),
        millis => format!("{} CPUs", millis as f64 / 1000.0),
    });
    let memory = (one.memory_bytes > 0).then(|| format_bytes(one.memory_bytes));
    let parts = || one.gpus.iter().chain(&cpus).chain(&memory).cloned().collect::<Vec<_>>();
    let each = match (one.exclusive, parts().is_empty()) {
        (true, true) => "a whole node".into(),
        (true, false) => format!("a whole node, {}", parts().join(", ")),
        (false, true) => "a slot".into(),
        (false, false) => parts().join(", "),
    };
    match (one.elements, one.nodes) {
        (Some(1), _) => format!("1 element: {each}"),
        (Some(elements), _) => format!("{elements} elements: {each}"),
        (None, 1) => each,
        (None, nodes) => format!("{nodes}x {each}"),
    }
}

/// What waiting does not mend stands out.
pub(crate) fn colour(code: &str) -> Option<Colour> {
    match code {
        "never_fits" | "never_allowed" | "not_served" | "no_node" => Some(Colour::Red),
        "held" | "dependency" => Some(Colour::Dim),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use super::*;

    fn queued(number: u64, code: &str) -> QueuedView {
        QueuedView {
            position: (code != "held").then_some(number + 1),
            job: muster_api::model::JobId::from_random(number),
            name: "bert".into(),
            display_name: None,
            user: "ada".into(),
            workspace: "nlp".into(),
            on: "ssh/gpu".into(),
            priority: 500,
            nodes: 2,
            gpus: Some("H100:8".into()),
            cpu_millis: if number == 2 { 4000 } else { 0 },
            memory_bytes: number << 30,
            exclusive: false,
            elements: (number == 1).then_some(37),
            waiting_since: Timestamp::UNIX_EPOCH,
            code: code.into(),
            summary: format!("it is {code}"),
            starts_at: None,
        }
    }

    #[test]
    fn a_job_that_waits_is_a_line() {
        let items = [queued(0, "no_capacity"), queued(1, "never_fits"), queued(2, "held")];
        let text = table(&items, Timestamp::UNIX_EPOCH + Duration::from_secs(300)).render(None, false);
        insta::assert_snapshot!(text, @r"
        POSITION   JOB              NAME   USER   WORKSPACE   ON        PRIORITY   ASKS FOR                    WAITS   STARTS   WHY
        1          job_0000000000   bert   ada    nlp         ssh/gpu   500        2x H100:8                   5m      -        it is no_capacity
        2          job_1000000000   bert   ada    nlp         ssh/gpu   500        37 elements: H100:8, 1 GB   5m      -        it is never_fits
        -          job_2000000000   bert   ada    nlp         ssh/gpu   500        2x H100:8, 4 CPUs, 2 GB     5m      -        it is held
        ");
    }

    #[test]
    fn an_empty_page_says_whether_others_wait() {
        let of = |waiting| nobody(&QueueView { items: Vec::new(), waiting });
        assert_eq!(of(0), "nothing waits");
        assert!(of(7).ends_with("7 other jobs do"));
    }
}
