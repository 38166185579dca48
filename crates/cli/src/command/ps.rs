//! `muster ps`.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::model::spec::Kind;
use muster_api::model::{State, Timestamp};
use muster_api::view::{JobSummary, ListJobs};

use super::state;
use crate::duration::age;
use crate::error::Error;
use crate::session::Session;
use crate::table::{Cell, Table, clipped};
use crate::terminal;

/// How many jobs that are over are shown when nobody asks for more.
const RECENT: u32 = 20;
/// The most a page can have.
const PAGE: u32 = 1000;
/// Reasons are told in full by `show` and `why`.
const STATE_WIDTH: usize = 40;
/// Display names are told in full by `show`.
const DISPLAY_NAME_WIDTH: usize = 32;

/// List jobs
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster ps                         what is not over, and what was lately
  muster ps -a                      everything
  muster ps train 训练任务          these two, by name and display name
  muster ps --state failed,stopped
  muster ps --wide                  with owner, target and the whole reason of a failure
  muster ps -q --state running      ids, for other commands
  muster ps --json | jq '.[].name'")]
pub(crate) struct Args {
    /// Only these jobs: ids, beginnings of ids, names, display names, or last
    #[arg(value_name = "JOB", conflicts_with_all = ["all", "state"])]
    jobs: Vec<String>,
    /// All jobs, however long ago
    #[arg(short, long)]
    all: bool,
    /// Only jobs in these states, separated by commas
    #[arg(long, value_name = "STATE", value_delimiter = ',')]
    state: Vec<State>,
    /// Also print owner, target and the whole reason of a failure
    #[arg(short, long, conflicts_with_all = ["quiet", "json"])]
    wide: bool,
    /// The same as --wide, as kubectl spells it
    #[arg(short, long, value_name = "wide", value_parser = ["wide"], hide_possible_values = true)]
    #[arg(conflicts_with_all = ["wide", "quiet", "json"])]
    output: Option<String>,
    /// Print only the ids
    #[arg(short, long, conflicts_with = "json")]
    quiet: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let (jobs, more) = select(&session, args).await?;
    let is_wide = args.wide || args.output.is_some();
    if args.json {
        terminal::say_json(&jobs)?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = if args.quiet {
        jobs.iter().map(|job| format!("{}\n", job.id)).collect()
    } else {
        // In full, also where the terminal has fewer columns.
        let width = if is_wide { None } else { terminal::width() };
        table(&jobs, is_wide, Timestamp::now()).render(width, terminal::stdout_has_colours())
    };
    terminal::to_stdout(&text)?;
    if more {
        terminal::note("there are more; `muster ps --all` shows them");
    }
    Ok(ExitCode::SUCCESS)
}

/// The jobs to show, the newest first, and whether there are more of them.
async fn select(session: &Session, args: &Args) -> Result<(Vec<JobSummary>, bool), Error> {
    if !args.jobs.is_empty() {
        let mut jobs = Vec::new();
        for selector in &args.jobs {
            jobs.push(session.call(async |client| client.job(selector).await).await?.summary);
        }
        return Ok((jobs, false));
    }
    if args.all || !args.state.is_empty() {
        let limit = if args.all { None } else { Some(PAGE) };
        return list(session, &args.state, limit).await;
    }
    let (mut jobs, more) = list(session, &states(|state| !state.is_terminal()), Some(PAGE)).await?;
    // That there are older ones is what everyone expects.
    let (recent, _) = list(session, &states(State::is_terminal), Some(RECENT)).await?;
    jobs.extend(recent);
    jobs.sort_by_key(|job| std::cmp::Reverse(job.submitted_at));
    Ok((jobs, more))
}

fn states(predicate: impl Fn(State) -> bool) -> Vec<State> {
    State::ALL.into_iter().filter(|state| predicate(*state)).collect()
}

/// Jobs in any of these states, in all if none is given; at most so many, or all of them.
async fn list(
    session: &Session,
    states: &[State],
    limit: Option<u32>,
) -> Result<(Vec<JobSummary>, bool), Error> {
    let names: Vec<&str> = states.iter().map(|state| state.as_str()).collect();
    let state = (!names.is_empty()).then(|| names.join(","));
    let mut query = ListJobs { state, limit: limit.or(Some(PAGE)), ..ListJobs::default() };
    let mut jobs = Vec::new();
    loop {
        let page = session.call(async |client| client.jobs(&query).await).await?;
        jobs.extend(page.items);
        query.cursor = page.next_cursor;
        if limit.is_some() || query.cursor.is_none() {
            return Ok((jobs, query.cursor.is_some()));
        }
    }
}

fn table(jobs: &[JobSummary], wide: bool, now: Timestamp) -> Table {
    let mut columns = vec!["ID", "NAME", "STATE", "NODES", "GPUS", "AGE", "DURATION"];
    if wide {
        columns.extend(["OWNER", "TARGET"]);
    }
    columns.push("COMMAND");
    let mut table = Table::new(&columns);
    for job in jobs {
        let words = state::words(job);
        let words = if wide { words } else { clipped(&words, STATE_WIDTH) };
        let mut row = vec![
            job.id.as_str().into(),
            job.name.as_str().into(),
            Cell::coloured(words, state::colour(job.state)),
            size(job).into(),
            job.gpus.as_deref().unwrap_or("-").into(),
            age(job.submitted_at, now).into(),
            state::run_time(job, now).into(),
        ];
        if wide {
            row.extend([job.owner.as_str().into(), job.on.as_str().into()]);
        }
        row.push(what(job).into());
        table.row(row);
    }
    let shown = |name: &String| if wide { name.clone() } else { clipped(name, DISPLAY_NAME_WIDTH) };
    let display_names: Vec<_> = jobs.iter().map(|job| job.display_name.as_ref().map(shown)).collect();
    let display_names: Vec<_> = display_names.iter().map(Option::as_deref).collect();
    table.insert_after(1, "DISPLAY NAME", &display_names);
    table
}

/// How many nodes it has; of an array, how many of its elements are over.
fn size(job: &JobSummary) -> String {
    match &job.elements {
        Some(counts) => format!("{}/{}", counts.succeeded + counts.failed, counts.total),
        None => job.nodes.to_string(),
    }
}

/// What it runs; what kind of job it is, where it runs nothing.
fn what(job: &JobSummary) -> String {
    match job.kind {
        Kind::Training => job.command.clone(),
        kind @ Kind::Machine => format!("({kind})"),
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;
    use std::time::{Duration, Instant};

    use super::*;

    fn job(i: u64, state: State) -> JobSummary {
        let submitted_at = Timestamp::UNIX_EPOCH;
        JobSummary {
            id: muster_api::model::JobId::from_random(i),
            name: "digits".into(),
            display_name: None,
            kind: Kind::Training,
            labels: BTreeMap::new(),
            state,
            reason: None,
            message: (state == State::Failed).then(|| "exited with code 1".into()),
            nodes: 2,
            gpus: (i == 0).then(|| "H100:8".into()),
            command: "python train.py --epochs 3".into(),
            on: "local".into(),
            owner: "me".into(),
            attempt: 1,
            exit_code: None,
            submitted_at,
            started_at: (state != State::Queued).then_some(submitted_at),
            ended_at: state.is_terminal().then(|| submitted_at + Duration::from_millis(12_340)),
            asks: muster_api::view::Asks::default(),
            elements: None,
        }
    }

    #[test]
    fn a_job_is_a_line() {
        let machine = JobSummary { kind: Kind::Machine, command: String::new(), ..job(3, State::Suspended) };
        let jobs = [job(0, State::Queued), job(1, State::Running), job(2, State::Failed), machine];
        let text =
            table(&jobs, false, Timestamp::UNIX_EPOCH + Duration::from_secs(125)).render(Some(103), false);
        insta::assert_snapshot!(text, @r"
        ID               NAME     STATE                        NODES   GPUS     AGE   DURATION   COMMAND
        job_0000000000   digits   queued                       2       H100:8   2m               python train.…
        job_1000000000   digits   running                      2       -        2m    2m5s       python train.…
        job_2000000000   digits   failed: exited with code 1   2       -        2m    12.3s      python train.…
        job_3000000000   digits   suspended                    2       -        2m               (machine)
        ");
    }

    #[test]
    fn a_display_name_stands_beside_the_name() {
        let named = |i, name: &str| JobSummary { display_name: Some(name.into()), ..job(i, State::Running) };
        let jobs =
            [named(0, "训练任务"), job(1, State::Running), named(2, "größe"), named(3, &"长".repeat(20))];
        let text = table(&jobs, false, Timestamp::UNIX_EPOCH + Duration::from_secs(125)).render(None, false);
        insta::assert_snapshot!(text, @r"
        ID               NAME     DISPLAY NAME                      STATE     NODES   GPUS     AGE   DURATION   COMMAND
        job_0000000000   digits   训练任务                          running   2       H100:8   2m    2m5s       python train.py --epochs 3
        job_1000000000   digits   -                                 running   2       -        2m    2m5s       python train.py --epochs 3
        job_2000000000   digits   größe                             running   2       -        2m    2m5s       python train.py --epochs 3
        job_3000000000   digits   长长长长长长长长长长长长长长长…   running   2       -        2m    2m5s       python train.py --epochs 3
        ");
        let wide = table(&jobs, true, Timestamp::UNIX_EPOCH).render(None, false);
        assert!(wide.contains(&"长".repeat(20)), "{wide}");
    }

    #[test]
    fn a_thousand_jobs_are_laid_out_at_once() {
        let jobs: Vec<JobSummary> = (0..1000).map(|i| job(i, State::Failed)).collect();
        let began = Instant::now();
        let text = table(&jobs, false, Timestamp::UNIX_EPOCH).render(Some(120), true);
        assert_eq!(text.lines().count(), 1001);
        // Generous, for a debug build on a busy machine: the whole command has 20 ms in a release build.
        assert!(began.elapsed() < Duration::from_secs(1), "{:?}", began.elapsed());
    }
}
