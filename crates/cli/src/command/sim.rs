//! `muster sim`: what a policy would do with work, before anybody has to live with it.
//!
//! The scheduler itself is played, in a time of its own. Nothing is submitted anywhere; a server is asked only for its history.

mod history;

use std::fs;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::time::Duration;

use clap::Args as ClapArgs;
use indicatif::{ProgressBar, ProgressStyle};
use muster_api::model::quantity::format_duration;
use muster_scheduler::Policy;
use muster_scheduler::simulate::{Report, Synthetic, Trace, Waits, play};
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

Policies: default, fifo, greedy, by-age, no-preemption, or a YAML file of what is to be different.

Examples:
  muster sim --nodes 100 --jobs 2000
  muster sim --nodes 100 --jobs 2000 --compare fifo,default
  muster sim --history --compare default,ours.yaml
  muster sim --history --save-trace october.jsonl
  muster sim trace.jsonl --policy ours.yaml --json")]
pub(crate) struct Args {
    /// The trace to play, as JSON lines; without it, work is made up
    #[arg(value_name = "TRACE")]
    trace: Option<PathBuf>,
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
    let trace = match &args.trace {
        Some(path) => read(path)?,
        None if args.history => history::ask(args.on.as_deref(), args.last).await?,
        None => made_up(args).trace(),
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
        let table = table(&played).render(terminal::width(), terminal::stdout_has_colours());
        terminal::to_stdout(&table)?;
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

fn read(path: &Path) -> Result<Trace, Error> {
    let shown = path.display();
    let text = fs::read_to_string(path)
        .map_err(|error| Error::io(Code::TraceInvalid, format!("read the trace {shown}"), &error))?;
    Trace::parse(&text).map_err(|error| {
        Error::new(Code::TraceInvalid, format!("{shown}: {error}"))
            .hint("`muster sim --help` shows what a trace has")
    })
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

fn table(played: &[(String, Report)]) -> Table {
    let mut headings = vec![""];
    headings.extend(played.iter().map(|(name, _)| name.as_str()));
    let mut table = Table::new(&headings);
    let span = |seconds: f64| format_duration(Duration::from_secs_f64(seconds.max(0.0)));
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
