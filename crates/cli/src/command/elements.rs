//! `muster elements`: what became of each element of an array.

use std::process::ExitCode;

use clap::Args as ClapArgs;
use muster_api::element::{ElementView, ListElements};
use muster_api::model::Timestamp;
use muster_api::model::array::{ElementCounts, ElementState};
use muster_api::model::spec::{Array, FieldCode, FieldError};
use muster_api::view::JobDetail;

use super::OneJob;
use crate::duration;
use crate::error::Error;
use crate::session::Session;
use crate::table::{Cell, Table};
use crate::terminal::{self, Colour};

/// How many are shown when nobody asks for more.
const SHOWN: u32 = 100;
/// The most a page can have.
const PAGE: u32 = 1000;
/// How many that failed are shown with their job.
const FIRST: u32 = 10;

/// List the elements of an array, and what became of each
#[derive(Debug, ClapArgs)]
#[command(after_help = "\
Examples:
  muster elements sweep                    the first 100
  muster elements sweep --failed           those that failed, all of them
  muster elements sweep --state running
  muster elements sweep --all --json | jq '.[] | select(.tries > 1) | .index'
  muster logs sweep --element 7            what one of them wrote
  muster clone sweep --failed              run the failed ones again")]
pub(crate) struct Args {
    #[command(flatten)]
    job: OneJob,
    /// Only those that failed
    #[arg(long, conflicts_with = "state")]
    failed: bool,
    /// Only those in this state: waiting, running, succeeded, failed
    #[arg(long, value_name = "STATE")]
    state: Option<String>,
    /// However many there are
    #[arg(short, long)]
    all: bool,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

pub(crate) async fn run(args: &Args) -> Result<ExitCode, Error> {
    let session = Session::open().await?;
    let state = if args.failed { Some(ElementState::Failed.as_str().to_owned()) } else { args.state.clone() };
    let limit = if args.all || args.failed { None } else { Some(SHOWN) };
    let (elements, more) = list(&session, &args.job.job, state, limit).await?;
    if args.json {
        terminal::say_json(&elements)?;
        return Ok(ExitCode::SUCCESS);
    }
    let text = table(&elements, Timestamp::now()).render(terminal::width(), terminal::stdout_has_colours());
    terminal::to_stdout(&text)?;
    if more {
        terminal::note("there are more; `muster elements --all` shows them");
    }
    Ok(ExitCode::SUCCESS)
}

/// Elements in a state, or in any; at most so many, or all of them. And whether there are more.
async fn list(
    session: &Session,
    job: &str,
    state: Option<String>,
    limit: Option<u32>,
) -> Result<(Vec<ElementView>, bool), Error> {
    let mut query = ListElements { state, limit: limit.or(Some(PAGE)), after: None };
    let mut elements = Vec::new();
    loop {
        let page = session.call(async |client| client.elements(job, &query).await).await?;
        elements.extend(page.items);
        query.after = page.next_after;
        if limit.is_some() || query.after.is_none() {
            return Ok((elements, query.after.is_some()));
        }
    }
}

/// The first of those that failed, for whoever looks at the job.
pub(super) async fn first_failed(
    session: &Session,
    job: &JobDetail,
    now: Timestamp,
) -> Result<Option<Table>, Error> {
    if job.summary.elements.is_none_or(|counts| counts.failed == 0) {
        return Ok(None);
    }
    let state = Some(ElementState::Failed.as_str().to_owned());
    let (elements, _) = list(session, job.summary.id.as_str(), state, Some(FIRST)).await?;
    Ok(Some(table(&elements, now)))
}

fn table(elements: &[ElementView], now: Timestamp) -> Table {
    let mut table = Table::new(&["INDEX", "STATE", "TRIES", "DURATION", "FAILURE"]);
    for element in elements {
        let ran = element.started_at.map(|at| duration::between(at, element.ended_at.unwrap_or(now)));
        let ran = ran.map_or_else(|| "-".to_owned(), duration::shown);
        table.row(vec![
            element.index.to_string().into(),
            Cell::coloured(element.state.as_str().to_owned(), colour(element.state)),
            element.tries.to_string().into(),
            ran.into(),
            element.message.as_deref().unwrap_or("").into(),
        ]);
    }
    table
}

fn colour(state: ElementState) -> Option<Colour> {
    match state {
        ElementState::Waiting => None,
        ElementState::Running => Some(Colour::Cyan),
        ElementState::Succeeded => Some(Colour::Green),
        ElementState::Failed => Some(Colour::Red),
    }
}

/// `512 of 1000 succeeded, 3 failed, 16 run, 469 wait`.
pub(super) fn words(counts: &ElementCounts) -> String {
    let mut words = format!("{} of {} succeeded", counts.succeeded, counts.total);
    for (count, what) in [(counts.failed, "failed"), (counts.running, "run"), (counts.waiting, "wait")] {
        if count > 0 {
            words.push_str(&format!(", {count} {what}"));
        }
    }
    words
}

/// The array of those elements of a job that failed; with `unfinished` also of those that did not run to their end.
pub(super) async fn failed(session: &Session, job: &JobDetail, unfinished: bool) -> Result<Array, Error> {
    let id = &job.summary.id;
    if unfinished && !job.summary.state.is_terminal() {
        let message = format!("{id} is not over, and may still run them");
        return Err(Error::fields(&[FieldError::new("--unfinished", FieldCode::InvalidValue, message)])
            .hint(format!("`muster stop {id}` ends it; --failed takes those alone that have failed")));
    }
    let mut indices = Vec::new();
    let wanted = [ElementState::Failed, ElementState::Waiting];
    for state in wanted.iter().take(if unfinished { 2 } else { 1 }) {
        let (elements, _) = list(session, id.as_str(), Some(state.as_str().to_owned()), None).await?;
        indices.extend(elements.iter().map(|element| element.index));
    }
    Array::new(indices, job.spec.array.as_ref().and_then(Array::at_once)).ok_or_else(|| {
        let (flag, what) =
            if unfinished { ("--unfinished", "is unfinished") } else { ("--failed", "has failed") };
        let message = format!("no element of {id} {what}");
        Error::fields(&[FieldError::new(flag, FieldCode::InvalidValue, message)])
            .hint(format!("`muster elements {id}` shows how they are"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn counts_are_told_as_far_as_there_are_any() {
        let all = ElementCounts { total: 10, succeeded: 10, ..ElementCounts::default() };
        assert_eq!(words(&all), "10 of 10 succeeded");
        let some = ElementCounts { total: 10, succeeded: 5, failed: 1, running: 2, waiting: 2 };
        assert_eq!(words(&some), "5 of 10 succeeded, 1 failed, 2 run, 2 wait");
    }
}
