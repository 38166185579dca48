//! `muster sim`: what a policy would do with work, before anybody has to live with it.
//!
//! The scheduler itself is played, in a time of its own. Nothing is submitted anywhere; a server is asked only for its history.

mod formula;
mod history;
mod table;

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;
use indicatif::{ProgressBar, ProgressStyle};
use muster_api::model::quantity::format_duration;
use muster_scheduler::Policy;
use muster_scheduler::simulate::{Line, Report, Synthetic, Trace, TraceError, Waits, WorkspaceReport, play};
use serde_json::json;

use crate::error::{Code, Error};
use crate::table::{Cell, Table};
use crate::terminal;

/// Play work through the scheduler and see what comes of it
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Without a trace, work is made up: most jobs small and short, most time in a few large ones.
With --history, it is what this server has run so far, on the nodes that it has now.
A trace has one JSON object on each line:
  {\"nodes\": {\"count\": 100, \"cpus\": 128, \"memory_gib\": 1024, \"devices\": 8, \"model\": \"H100\"}}
  {\"workspace\": {\"name\": \"nlp\", \"weight\": 2, \"devices\": {\"nominal\": 400, \"borrow\": null, \"lend\": null}}}
  {\"job\": {\"at\": 0, \"runs\": 3600, \"workspace\": \"nlp\", \"user\": \"ann\", \"nodes\": 2, \"gpus\": \"8\"}}
Several files make one trace. Those named *.csv are tables with a row for each job, or for each node. The tables of Alibaba's GPU
traces of 2020 and 2023, of Philly and of Helios are recognised by their columns; of others, --columns says what they mean.

Policies: default, fifo, greedy, by-age, no-preemption, or a YAML file of what is to be different.

Examples:
  muster sim --nodes 100 --jobs 2000
  muster sim --nodes 100 --jobs 2000 --compare fifo,default
  muster sim --history --compare default,ours.yaml
  muster sim --history --save-trace october.jsonl
  muster sim trace.jsonl --policy ours.yaml --json
  muster sim openb_node_list_gpu_node.csv openb_pod_list_default.csv
  muster sim nodes.jsonl jobs.csv --columns at=submitted,runs=ended-started,workspace=team,gpus=gpus_in_all/nodes,nodes=nodes")]
pub(crate) struct Args {
    /// The files of the trace to play, JSON lines or CSV; without any, work is made up
    #[arg(value_name = "TRACE")]
    trace: Vec<PathBuf>,
    /// What the columns of a CSV file of jobs mean; between columns and numbers may be `-`, `*` and `/`
    #[arg(long, value_name = "FIELD=COLUMN,…", value_delimiter = ',', requires = "trace")]
    columns: Vec<table::Mapping>,
    /// Play what this server has run so far
    #[arg(long, conflicts_with_all = ["trace", "nodes", "jobs", "seed", "load"])]
    history: bool,
    /// Only what ran there, with the nodes of there
    #[arg(long, value_name = "TARGET", requires = "history")]
    on: Option<String>,
    /// At most so many jobs of the history, the newest
    #[arg(long, value_name = "N", requires = "history", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=5_000_000))]
    last: u32,
    /// How many nodes, of 8 devices each, are made up
    #[arg(long, value_name = "N", default_value_t = 10_000, value_parser = clap::value_parser!(u32).range(1..=100_000), conflicts_with = "trace")]
    nodes: u32,
    /// How many jobs are made up
    #[arg(long, value_name = "N", default_value_t = 100_000, value_parser = clap::value_parser!(u32).range(1..=5_000_000), conflicts_with = "trace")]
    jobs: u32,
    /// What is made up follows from this number
    #[arg(long, value_name = "N", default_value_t = 1, conflicts_with = "trace")]
    seed: u64,
    /// How much is asked for until the last job is submitted, 1 being all that there is
    #[arg(long, value_name = "LOAD", default_value_t = 1.5, value_parser = load, conflicts_with = "trace")]
    load: f64,
    /// The policy: a name, or a YAML file
    #[arg(long, value_name = "POLICY", default_value = "default", conflicts_with = "compare")]
    policy: String,
    /// Policies to play one after the other and show side by side
    #[arg(long, value_name = "A,B", value_delimiter = ',', num_args = 1..)]
    compare: Vec<String>,
    /// Write the trace to this file, to be kept or changed, and play nothing
    #[arg(long, value_name = "FILE", alias = "write", conflicts_with_all = ["trace", "compare", "json"])]
    save_trace: Option<PathBuf>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn load(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(load) if (0.01..=100.0).contains(&load) => Ok(load),
        _ => Err("it is a number from 0.01 to 100; 1 is all that there is".into()),
    }
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let names = if args.compare.is_empty() { vec![args.policy.clone()] } else { args.compare.clone() };
    let policies =
        names.iter().map(|name| Ok((name.clone(), policy(name)?))).collect::<Result<Vec<_>, Error>>()?;
    let trace = match &args.trace[..] {
        [] if args.history => history::ask(args.on.as_deref(), args.last).await?,
        [] => made_up(args).trace(),
        paths => read(paths, &args.columns)?,
    };
    if let Some(path) = &args.save_trace {
        return write(path, &trace);
    }
    let played: Vec<(String, Report)> = policies
        .into_iter()
        .map(|(name, policy)| {
            let bar = bar(&name);
            let report = play(&trace, &policy, |over, all| {
                bar.set_length(all as u64);
                bar.set_position(over as u64);
            });
            bar.finish_and_clear();
            (name, report)
        })
        .collect();
    if args.json {
        let all: Vec<_> =
            played.iter().map(|(policy, report)| json!({ "policy": policy, "report": report })).collect();
        terminal::say_json(&all)?;
    } else {
        let (width, has_colours) = (terminal::width(), terminal::stdout_has_colours());
        let mut text = table(&played).render(width, has_colours);
        if let Some(table) = workspace_table(&played) {
            text = format!("{text}\n{}", table.render(width, has_colours));
        }
        for (position, line) in never_started(&played).iter().enumerate() {
            let before = if position == 0 { "\n" } else { "" };
            text = format!("{text}{before}{line}\n");
        }
        terminal::to_stdout(&text)?;
    }
    Ok(ExitCode::SUCCESS)
}

fn made_up(args: &Args) -> Synthetic {
    Synthetic { nodes: args.nodes, jobs: args.jobs, seed: args.seed, load: args.load, ..Synthetic::default() }
}

/// How far it is, on a terminal.
fn bar(policy: &str) -> ProgressBar {
    if !terminal::stderr_can_move() {
        return ProgressBar::hidden();
    }
    let bar = ProgressBar::new(0).with_message(policy.to_owned());
    match ProgressStyle::with_template("{msg} {wide_bar} {pos}/{len} jobs {eta}") {
        Ok(style) => bar.with_style(style),
        Err(_) => bar,
    }
}

/// One trace out of all files.
fn read(paths: &[PathBuf], columns: &[table::Mapping]) -> Result<Trace, Error> {
    let is_table = |path: &Path| path.extension().is_some_and(|it| it.eq_ignore_ascii_case("csv"));
    let (mut trace, mut rows) = (Trace::default(), Vec::new());
    for path in paths {
        let shown = path.display();
        let text = fs::read_to_string(path)
            .map_err(|error| Error::io(Code::TraceInvalid, format!("read the trace {shown}"), &error))?;
        if is_table(path) {
            let table =
                table::read(path, &text, columns).map_err(|what| invalid(&format!("{shown}: {what}")))?;
            if let Some(remark) = table.remark() {
                terminal::note(&format!("{shown}: {remark}"));
            }
            rows.extend(table.lines);
        } else {
            trace.read(&text).map_err(|error| invalid(&format!("{shown}: {error}")))?;
        }
    }
    for line in since_the_first(rows) {
        trace.add(line).map_err(|what| invalid(&what))?;
    }
    let shown = paths.iter().map(|path| path.display().to_string()).collect::<Vec<_>>().join(", ");
    trace.complete().map_err(|error| match error {
        TraceError::NoNodes => invalid(&format!("{shown}: {error}; it may be in another file beside")),
        _ => invalid(&format!("{shown}: {error}")),
    })
}

fn invalid(what: &str) -> Error {
    Error::new(Code::TraceInvalid, what).hint("`muster sim --help` shows what a trace has")
}

/// Tables say when a job was submitted by the clock; a trace, how long after the first.
fn since_the_first(mut lines: Vec<Line>) -> Vec<Line> {
    let at = |line: &Line| if let Line::Job(job) = line { Some(job.at) } else { None };
    let first = lines.iter().filter_map(at).min_by(f64::total_cmp).unwrap_or(0.0);
    for line in &mut lines {
        if let Line::Job(job) = line {
            job.at -= first;
        }
    }
    lines
}

fn write(path: &Path, trace: &Trace) -> Result<ExitCode, Error> {
    let lines = trace.lines().map(|line| serde_json::to_string(&line)).collect::<Result<Vec<_>, _>>();
    let text = lines.map_err(|error| Error::encoding("JSON", error))?.join("\n") + "\n";
    fs::write(path, text)
        .map_err(|error| Error::io(Code::FileUnwritable, format!("write {}", path.display()), &error))?;
    Ok(ExitCode::SUCCESS)
}

/// A policy by its name, or out of a file that says what is otherwise than in the default one.
fn policy(name: &str) -> Result<Policy, Error> {
    if let Some(policy) = Policy::named(name) {
        return Ok(policy);
    }
    let hint = format!("the names are {}; anything else is a file", Policy::names().join(", "));
    let text = fs::read_to_string(name).map_err(|error| {
        Error::io(Code::PolicyInvalid, format!("read the policy `{name}`"), &error).hint(hint.clone())
    })?;
    let wrong = |what: String| Error::new(Code::PolicyInvalid, format!("{name}: {what}"));
    let policy: Policy = serde_yaml_ng::from_str(&text).map_err(|error| wrong(error.to_string()))?;
    policy.check().map_err(|(field, what)| wrong(format!("{field}: {what}")))?;
    Ok(policy)
}

fn span(seconds: f64) -> String {
    format_duration(Duration::from_secs_f64(seconds.max(0.0)))
}

/// How many workspaces, and reasons of jobs that never started, are shown.
const SHOWN: usize = 20;

/// What each workspace had of it, if there are several.
fn workspace_table(played: &[(String, Report)]) -> Option<Table> {
    let (_, first) = played.first()?;
    let mut by_use: Vec<(&String, &WorkspaceReport)> = first.workspaces.iter().collect();
    by_use.sort_by(|(_, a), (_, b)| b.device_hours.total_cmp(&a.device_hours).then(b.jobs.cmp(&a.jobs)));
    if by_use.len() < 2 {
        return None;
    }
    let waits: Vec<String> = match played {
        [_] => vec!["wait: half / 90 %".into()],
        several => several.iter().map(|(policy, _)| format!("wait: half / 90 %, {policy}")).collect(),
    };
    let headings =
        ["workspace", "jobs", "over", "device hours"].into_iter().chain(waits.iter().map(String::as_str));
    let mut table = Table::new(&headings.collect::<Vec<_>>());
    for (name, report) in by_use.iter().take(SHOWN) {
        let figures =
            [report.jobs.to_string(), report.over.to_string(), format!("{:.1}", report.device_hours)];
        let mut row = vec![Cell::from((*name).clone())];
        row.extend(figures.map(Cell::from));
        row.extend(played.iter().map(|(_, report)| {
            let waits = report.workspaces.get(*name).map(|it| &it.waits);
            Cell::from(waits.map_or("-".into(), |it| format!("{} / {}", span(it.p50), span(it.p90))))
        }));
        table.row(row);
    }
    if by_use.len() > SHOWN {
        terminal::remark(&format!("{} more workspaces had less; --json has all", by_use.len() - SHOWN));
    }
    Some(table)
}

/// The jobs that never started, a line for each reason. Policies that say the same are one.
fn never_started(played: &[(String, Report)]) -> Vec<String> {
    let mut said: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (policy, report) in played {
        for never in report.never.iter().take(SHOWN) {
            let jobs = if never.jobs == 1 { "1 job".to_owned() } else { format!("{} jobs", never.jobs) };
            let line = format!("{jobs} of {} never started: {}", never.workspace, never.reason);
            said.entry(line).or_default().push(policy);
        }
    }
    let with_policies = |(line, policies): (String, Vec<&str>)| match policies.len() == played.len() {
        true => line,
        false => format!("{}: {line}", policies.join(", ")),
    };
    said.into_iter().map(with_policies).collect()
}

fn table(played: &[(String, Report)]) -> Table {
    let mut headings = vec![""];
    headings.extend(played.iter().map(|(name, _)| name.as_str()));
    let mut table = Table::new(&headings);
    let waits = |waits: &Waits| [waits.p50, waits.p90, waits.p99, waits.max].map(span).join(" / ");
    let percent = |part: f64| format!("{:.1} %", part * 100.0);
    let mut row = |title: &str, cell: &dyn Fn(&Report) -> String| {
        let cells = played.iter().map(|(_, report)| Cell::from(cell(report)));
        table.row([Cell::from(title)].into_iter().chain(cells).collect());
    };
    row("jobs over", &|it| format!("{} of {}", it.over, it.jobs));
    row("until the last was over", &|it| span(it.span));
    row("devices in use while jobs waited", &|it| percent(it.utilisation));
    row("wait: half / 90 % / 99 % / longest", &|it| waits(&it.waits));
    row("wait of jobs of several nodes", &|it| waits(&it.gang_waits));
    row("fairness between workspaces", &|it| format!("{:.3}", it.fairness));
    row("preemptions", &|it| it.preemptions.to_string());
    row("work lost by them", &|it| percent(it.lost));
    table
}
