//! What happened to a job, or to all of them, as it happens.

use std::collections::VecDeque;
use std::sync::Arc;

use axum::extract::State;
use axum::http::HeaderMap;
use axum::response::Response;
use axum::response::sse::Event;
use muster_api::problem::Problem;
use muster_api::view::{AllEventsQuery, EventsQuery};
use muster_model::JobId;
use muster_store::Sight;
use tokio::sync::watch;

use super::describe::{Always, JobEvents, OnJob, Reads};
use super::failure::{Failure, Params, TheJob};
use super::job::{read, row};
use super::sse::{self, Feed};
use crate::accounts::Caller;
use crate::core::internal;
use crate::state::Shared;
use crate::view;

/// Events read at once.
const PAGE: u32 = 500;
/// Events of all jobs that are sent to whoever does not say from where on.
const RECENT: u32 = 100;

/// Follow a job's events. Server-sent events `event` (an `EventView`) and, last, `end`.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/events", tag = "jobs", operation_id = "follow_events", params(EventsQuery, ("job" = String, Path)),
    responses((status = 200, body = JobEvents, content_type = "text/event-stream"),
        Always, Reads, OnJob))]
pub(super) async fn follow(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    Params(query): Params<EventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let after = query.after.or(last_event(&headers)).unwrap_or(0);
    Ok(reply(shared, Of::Job(job), after, query.follow))
}

/// Follow the events of all jobs. Server-sent events `event` (an `EventView`).
#[utoipa::path(get, path = "/api/v1/events", tag = "jobs", operation_id = "follow_all_events", params(AllEventsQuery),
    responses((status = 200, body = JobEvents, content_type = "text/event-stream"), Always, Reads))]
pub(super) async fn follow_all(
    State(shared): State<Arc<Shared>>,
    caller: Caller,
    Params(query): Params<AllEventsQuery>,
    headers: HeaderMap,
) -> Result<Response, Failure> {
    let after = match query.after.or(last_event(&headers)) {
        Some(after) => after,
        None => {
            let newest =
                read(&shared, |readers| readers.largest_event_seq().map_err(|error| internal(&error)));
            newest.await?.saturating_sub(u64::from(query.tail.unwrap_or(RECENT)))
        }
    };
    Ok(reply(shared, Of::All(caller.rights.sight()), after, query.follow))
}

fn last_event(headers: &HeaderMap) -> Option<u64> {
    headers.get("last-event-id").and_then(|id| id.to_str().ok()?.parse().ok())
}

fn reply(shared: Arc<Shared>, of: Of, after: u64, follow: bool) -> Response {
    let news = shared.news.clone();
    // What the database counts with ends earlier than what a caller can say.
    let after = after.min(i64::MAX as u64);
    sse::feed(Follower { shared, news, of, after, follow })
}

/// Whose events.
#[derive(Debug, Clone)]
enum Of {
    Job(JobId),
    /// All that somebody may see.
    All(Sight),
}

struct Follower {
    shared: Arc<Shared>,
    news: watch::Receiver<u64>,
    of: Of,
    after: u64,
    follow: bool,
}

impl Feed for Follower {
    async fn turn(&mut self, ready: &mut VecDeque<Event>) -> Result<bool, Problem> {
        // Whatever is written from here on wakes the wait below.
        self.news.borrow_and_update();
        let goes_on = self.fill(ready).await?;
        if !goes_on || !ready.is_empty() {
            return Ok(goes_on);
        }
        tokio::select! {
            changed = self.news.changed() => Ok(changed.is_ok()),
            () = self.shared.stop.cancelled() => Ok(false),
        }
    }
}

impl Follower {
    /// Reads on; false once all was read that there will be.
    async fn fill(&mut self, ready: &mut VecDeque<Event>) -> Result<bool, Problem> {
        let (of, after) = (self.of.clone(), self.after);
        let (rows, read_up_to, job) = read(&self.shared, move |readers| match of {
            Of::Job(job) => {
                // The job is read first: what it says is over has all its events.
                let row = row(readers, &job)?;
                let rows = readers.events(Some(&job), after, PAGE).map_err(|error| internal(&error))?;
                Ok((rows, after, Some(row)))
            }
            Of::All(sight) => {
                let read = readers.events_in(&sight, after, PAGE).map_err(|error| internal(&error))?;
                Ok((read.0, read.1, None))
            }
        })
        .await?;
        let whole = rows.len() < PAGE as usize;
        for event in rows {
            self.after = event.seq;
            let event = view::event(event);
            ready.push_back(sse::event("event", Some(event.seq.to_string()), &event));
        }
        self.after = self.after.max(read_up_to);
        let is_over = job.as_ref().is_some_and(|row| row.job.state.is_terminal());
        let is_last = whole && (!self.follow || is_over);
        if is_last {
            ready.extend(job.map(|row| sse::event("end", None, &view::end(&row))));
        }
        Ok(!is_last)
    }
}
