//! Arrays: who has which element, and what became of each.

use muster_model::array::Element;
use muster_model::{Job, JobId};
use rusqlite::{Result, Transaction, params};

use crate::row::{count, json, optional_json, time};

const PUT_ARRAY: &str = "
    INSERT INTO array (job, total, running, succeeded, failed, progress) VALUES (?1, ?2, ?3, ?4, ?5, ?6)
    ON CONFLICT (job) DO UPDATE SET running = ?3, succeeded = ?4, failed = ?5, progress = ?6";
const PUT_ELEMENT: &str = "
    INSERT INTO element (job, \"index\", state, tries, attempt, rank, started_at, ended_at, failure, log_from, log_to)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9, ?10, ?11)
    ON CONFLICT (job, \"index\") DO UPDATE SET
        state = ?3, tries = ?4, attempt = ?5, rank = ?6, started_at = ?7, ended_at = ?8, failure = ?9, log_from = ?10,
        log_to = ?11";

/// Stores who has which element, of a job that has such.
pub(super) fn put(transaction: &Transaction, job: &Job) -> Result<()> {
    let Some(progress) = &job.array else { return Ok(()) };
    let counts = progress.counts();
    transaction.prepare_cached(PUT_ARRAY)?.execute(params![
        job.id.as_str(),
        counts.total,
        counts.running,
        counts.succeeded,
        counts.failed,
        json(progress)?,
    ])?;
    Ok(())
}

/// Stores what became of elements.
pub(super) fn put_elements(transaction: &Transaction, job: &JobId, elements: &[Element]) -> Result<()> {
    let mut statement = transaction.prepare_cached(PUT_ELEMENT)?;
    for element in elements {
        statement.execute(params![
            job.as_str(),
            element.index,
            element.state.as_str(),
            element.tries,
            element.attempt,
            element.rank,
            time(element.started_at),
            element.ended_at.map(time),
            optional_json(element.failure.as_ref())?,
            count(element.log_from),
            element.log_to.map(count),
        ])?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use muster_model::array::{ElementState, Mark, Marked};
    use muster_model::job::Policy;
    use muster_model::task::{Address, Placement};
    use muster_model::{Event, Reason};
    use serde_json::json;

    use super::*;
    use crate::change::{Change, NewJob};
    use crate::fixture::{Fixture, at, new_job};
    use crate::read::list::JobFilter;

    #[test]
    fn an_array_is_read_as_it_was_written_and_goes_with_its_job() {
        let mut store = Fixture::new();
        let spec = json!({"command": "true", "array": "1-9:2%2"});
        let spec = muster_model::JobSpec::from_value(spec).unwrap();
        let new = new_job(1);
        let job = Job::new(new.job.id.clone(), Policy::from(&spec));
        let mut job = store.add(NewJob { job, spec, ..new }).job;
        assert!(store.readers.is_array(&job.id).unwrap());
        let placement = Placement { node: "node_local".parse().unwrap(), devices: Vec::new() };
        let address = Address::new([127, 0, 0, 1], Vec::new());
        store.apply(&mut job, Event::StartTask { rank: 0, placement }, at(1));
        store.apply(&mut job, Event::TaskReady { attempt: 1, rank: 0, address }, at(2));
        let failure = Some(Reason::exited(3));
        let ended = Mark::Ended { element: 1, failure: failure.clone(), stopped: false };
        let marks = vec![
            Marked { mark: Mark::Began { element: 1 }, at: at(3), offset: 0, end: 30 },
            Marked { mark: ended, at: at(4), offset: 90, end: 120 },
        ];
        let before_generation = job.generation;
        let event = Event::Marks { attempt: 1, rank: 0, marks, offset: 120, is_crowded: false };
        let applied = job.apply(event, at(5)).unwrap();
        let touched = applied.touched.clone();
        let changes = [
            Change::Job { before_generation, job: Box::new(job.clone()), touched, at: at(5) },
            Change::Elements { job: job.id.clone(), elements: applied.elements.clone() },
        ];
        store.writer.commit(&changes).unwrap();

        let store = store.reopen();
        assert_eq!(store.readers.job(&job.id).unwrap().unwrap().job, job);
        assert_eq!(store.readers.load_unfinished().unwrap()[0].job, job);
        let row = store.readers.element(&job.id, 1).unwrap().unwrap();
        assert_eq!(
            (row.state, row.failure, row.log_from, row.log_to),
            (ElementState::Failed, failure, 30, Some(90))
        );
        assert_eq!(store.readers.element(&job.id, 3).unwrap(), None);
        let listed = store.readers.jobs(&JobFilter::default(), 10).unwrap()[0].elements.unwrap();
        assert_eq!((listed.total, listed.failed, listed.waiting), (5, 1, 4));
        for (state, found) in [(None, 1), (Some(ElementState::Failed), 1), (Some(ElementState::Succeeded), 0)]
        {
            assert_eq!(store.readers.elements(&job.id, state, (0, 100), 10).unwrap().len(), found);
        }
        let mut store = store;
        store.writer.commit(&[Change::RemoveJob { job: job.id.clone(), at: at(30) }]).unwrap();
        assert_eq!([store.count("array"), store.count("element")], [0, 0]);
    }
}
