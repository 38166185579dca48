//! Where the output of one element of an array is.

use std::sync::Arc;
use std::time::Duration;

use muster_api::problem::{Code, Problem};
use muster_api::view::LogsQuery;
use muster_model::array::Element;
use muster_model::spec::{FieldCode, FieldError};
use muster_store::{JobRow, Readers};

use crate::core::internal;
use crate::http::element::running;
use crate::http::job::{read, row};
use crate::state::Shared;

/// How often somebody who follows an element looks whether it has begun, of which nothing else tells.
const LOOK: Duration = Duration::from_millis(250);

/// A query about the task that ran an element, and where in its log that begins.
pub(super) async fn find(
    shared: &Arc<Shared>,
    job: &JobRow,
    query: LogsQuery,
) -> Result<(LogsQuery, Option<(u64, u32)>), Problem> {
    check(job, &query).map_err(|error| Problem::fields(vec![error]))?;
    let Some(index) = query.element else { return Ok((query, None)) };
    let id = job.job.id.clone();
    loop {
        let id = id.clone();
        let (found, is_over) = read(shared, move |readers| {
            let row = row(readers, &id)?;
            Ok((last_run(readers, &row, index)?, row.job.state.is_terminal()))
        })
        .await?;
        if let Some(element) = found {
            let (task, attempt) = (Some(element.rank), Some(element.attempt));
            return Ok((LogsQuery { task, attempt, ..query }, Some((element.log_from, index))));
        }
        if !query.follow || is_over {
            let message = format!("element {index} of {} has not run", job.job.id);
            let id = &job.job.id;
            let hint = match is_over {
                true => format!("the job is over; `muster clone {id} --unfinished` runs what is left of it"),
                false => format!(
                    "with --follow its output is waited for; `muster elements {id}` shows how they are"
                ),
            };
            return Err(Problem::new(Code::NotFound, message).hint(hint));
        }
        tokio::select! {
            () = tokio::time::sleep(LOOK) => {}
            () = shared.stop.cancelled() => return Err(Problem::new(Code::Unavailable, "the server stops")),
        }
    }
}

fn last_run(readers: &Readers, row: &JobRow, index: u32) -> Result<Option<Element>, Problem> {
    let array = row.job.policy.array.as_ref();
    let now = array.and_then(|array| running(&row.job, array).remove(&index));
    match now {
        Some(element) => Ok(Some(element)),
        None => readers.element(&row.job.id, index).map_err(|error| internal(&error)),
    }
}

fn check(row: &JobRow, query: &LogsQuery) -> Result<(), FieldError> {
    let wrong = |code, message: String| Err(FieldError::new("element", code, message));
    match (&row.job.policy.array, query.element) {
        (None, None) => Ok(()),
        (None, Some(_)) => wrong(
            FieldCode::NotSupported,
            format!("{} is not an array, and has no elements; leave it out", row.job.id),
        ),
        (Some(_), None) if query.task.is_some() => Ok(()),
        (Some(array), None) => wrong(
            FieldCode::Required,
            format!(
                "is missing: an array has a log for each element; write the index, such as {}",
                array.first()
            ),
        ),
        (Some(array), Some(index)) if array.place(index).is_none() => {
            wrong(FieldCode::OutOfRange, format!("there is no element {index}; the array is {array}"))
        }
        (Some(_), Some(_)) if query.task.is_some() || query.attempt.is_some() => wrong(
            FieldCode::NotSupported,
            "is of the task and the attempt that ran it last; leave out `task` and `attempt`".into(),
        ),
        (Some(_), Some(_)) if query.tail.is_some() => wrong(
            FieldCode::NotSupported,
            "is shown whole, without `tail`; search it with `grep`, or cut it in the shell".into(),
        ),
        (Some(_), Some(_)) => Ok(()),
    }
}
