//! Elements of an array, page by page: those that are over as they were written down, the others as the array has them.

use std::collections::BTreeMap;
use std::sync::Arc;

use axum::extract::State;
use muster_api::element::{ElementPage, ElementView, ListElements};
use muster_api::problem::{Code, Problem};
use muster_model::array::{Element, ElementState};
use muster_model::spec::{Array, FieldCode, FieldError, MAX_INDEX};
use muster_model::{Job, Reason};
use muster_store::Readers;

use super::describe::{Always, OnJob, Reads};
use super::failure::{Failure, Json, Params, TheJob};
use super::job::{read, row};
use crate::core::internal;
use crate::state::Shared;

const DEFAULT_PAGE: u32 = 100;
const LARGEST_PAGE: u32 = 1000;

/// List the elements of an array, by index.
#[utoipa::path(get, path = "/api/v1/jobs/{job}/elements", tag = "jobs", operation_id = "list_elements",
    params(ListElements, ("job" = String, Path)),
    responses((status = 200, body = ElementPage), Always, Reads, OnJob))]
pub(super) async fn list(
    State(shared): State<Arc<Shared>>,
    TheJob(job): TheJob,
    Params(query): Params<ListElements>,
) -> Result<Json<ElementPage>, Failure> {
    let (state, limit) = check(&query).map_err(Problem::fields)?;
    let page = read(&shared, move |readers| {
        let job = row(readers, &job)?.job;
        let array = job.policy.array.clone().ok_or_else(|| {
            Problem::new(Code::NotFound, format!("{} is not an array, and has no elements", job.id))
                .hint("`muster run --array 1-10 -- COMMAND` makes one")
        })?;
        page(readers, &job, &array, state, limit, query.after)
    });
    Ok(Json(page.await?))
}

fn check(query: &ListElements) -> Result<(Option<ElementState>, u32), Vec<FieldError>> {
    let mut errors = Vec::new();
    let known =
        |word: &str| ElementState::WORDS.iter().find(|(name, _)| *name == word).map(|(_, state)| *state);
    let state = query.state.as_deref().and_then(known);
    if let Some(word) = query.state.as_ref().filter(|_| state.is_none()) {
        let shown: String = word.chars().take(40).collect();
        let message = format!("must be waiting, running, succeeded or failed, not `{shown}`");
        errors.push(FieldError::new("state", FieldCode::InvalidValue, message));
    }
    let limit = query.limit.unwrap_or(DEFAULT_PAGE);
    if !(1..=LARGEST_PAGE).contains(&limit) {
        let message = format!("must be from 1 to {LARGEST_PAGE}, not {limit}");
        errors.push(FieldError::new("limit", FieldCode::OutOfRange, message));
    }
    if errors.is_empty() { Ok((state, limit)) } else { Err(errors) }
}

fn page(
    readers: &Readers,
    job: &Job,
    array: &Array,
    state: Option<ElementState>,
    limit: u32,
    after: Option<u32>,
) -> Result<ElementPage, Problem> {
    let running = running(job, array);
    let places = match state {
        // What has been run to an end is looked for by its state; of the others the array knows which they are.
        Some(ElementState::Succeeded | ElementState::Failed) => {
            let from = after.map_or(0, |after| after.saturating_add(1));
            let found = readers.elements(&job.id, state, (from, MAX_INDEX), limit + 1);
            let found = found.map_err(|error| internal(&error))?;
            return Ok(paged(found.into_iter().map(view).collect(), limit));
        }
        Some(ElementState::Running) => {
            let later =
                running.into_values().filter(|element| after.is_none_or(|after| element.index > after));
            return Ok(paged(later.map(view).take(limit as usize + 1).collect(), limit));
        }
        Some(ElementState::Waiting) => unfinished(job, array, after)
            .filter(|index| !running.contains_key(index))
            .take(limit as usize + 1)
            .collect(),
        None => {
            let first = array.place_after(after);
            (first..array.count())
                .take(limit as usize + 1)
                .filter_map(|place| array.index(place))
                .collect::<Vec<u32>>()
        }
    };
    let Some((first, last)) = places.first().copied().zip(places.last().copied()) else {
        return Ok(ElementPage { items: Vec::new(), next_after: None });
    };
    let stored =
        readers.elements(&job.id, None, (first, last), u32::MAX).map_err(|error| internal(&error))?;
    let mut stored: BTreeMap<u32, Element> =
        stored.into_iter().map(|element| (element.index, element)).collect();
    let known = |index: u32| {
        running.get(&index).cloned().or_else(|| stored.remove(&index)).map_or_else(|| waiting(index), view)
    };
    Ok(paged(places.into_iter().map(known).collect(), limit))
}

fn unfinished(job: &Job, array: &Array, after: Option<u32>) -> impl Iterator<Item = u32> {
    let first = array.place_after(after);
    let places: Vec<u32> = match &job.array {
        Some(progress) => progress.unfinished_from(first).collect(),
        None => Vec::new(),
    };
    let indices: Vec<u32> = places.into_iter().filter_map(|place| array.index(place)).collect();
    indices.into_iter()
}

/// Those that run, by index.
pub(super) fn running(job: &Job, array: &Array) -> BTreeMap<u32, Element> {
    let running =
        job.array.as_ref().map(|progress| progress.running(array, |rank| job.attempt_of(rank).number));
    running.into_iter().flatten().map(|element| (element.index, element)).collect()
}

fn paged(mut items: Vec<ElementView>, limit: u32) -> ElementPage {
    let more = items.len() > limit as usize;
    items.truncate(limit as usize);
    let next_after = items.last().filter(|_| more).map(|element| element.index);
    ElementPage { items, next_after }
}

fn view(element: Element) -> ElementView {
    ElementView {
        index: element.index,
        state: element.state,
        tries: element.tries,
        attempt: Some(element.attempt),
        rank: Some(element.rank),
        message: element.failure.as_ref().map(Reason::message),
        failure: element.failure,
        started_at: Some(element.started_at),
        ended_at: element.ended_at,
    }
}

fn waiting(index: u32) -> ElementView {
    ElementView {
        index,
        state: ElementState::Waiting,
        tries: 0,
        attempt: None,
        rank: None,
        message: None,
        failure: None,
        started_at: None,
        ended_at: None,
    }
}
