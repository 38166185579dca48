//! What other schedulers keep for attempts.

use muster_model::{AttemptId, JobId, Timestamp};
use rusqlite::{Result, Transaction, params};

use crate::change::AllocationRow;
use crate::row::{json, time};

const PUT: &str = "
    INSERT INTO allocation (job, attempt, target, nodes, external, hosts, since, closing, account)
    VALUES (?1, ?2, ?3, ?4, ?5, ?6, ?7, ?8, ?9)
    ON CONFLICT (job, attempt) DO UPDATE SET external = ?5, hosts = ?6, closing = ?8";
const CLOSE: &str = "UPDATE allocation SET closed_at = ?3 WHERE job = ?1 AND attempt = ?2";
/// Of a job that is gone, nobody asks what it had.
const REMOVE_STRAY: &str = "
    DELETE FROM allocation WHERE job = ?1 AND closed_at IS NOT NULL AND NOT EXISTS (SELECT 1 FROM job WHERE id = ?1)";

/// Stores an allocation as it is now.
pub(super) fn put(transaction: &Transaction, row: &AllocationRow) -> Result<()> {
    transaction.prepare_cached(PUT)?.execute(params![
        row.attempt.job.as_str(),
        row.attempt.number,
        row.target.to_string(),
        json(&row.nodes)?,
        row.external,
        json(&row.hosts)?,
        time(row.since),
        row.closing,
        row.account,
    ])?;
    Ok(())
}

/// Stores that an allocation is gone.
pub(super) fn close(transaction: &Transaction, attempt: &AttemptId, at: Timestamp) -> Result<()> {
    let row = params![attempt.job.as_str(), attempt.number, time(at)];
    transaction.prepare_cached(CLOSE)?.execute(row)?;
    remove_stray(transaction, &attempt.job)
}

/// Takes away what a job had that was removed, as far as it is gone.
pub(super) fn remove_stray(transaction: &Transaction, job: &JobId) -> Result<()> {
    transaction.prepare_cached(REMOVE_STRAY)?.execute([job.as_str()])?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use muster_model::Event;

    use super::*;
    use crate::change::Change;
    use crate::fixture::{Fixture, admit, at, change, new_job};

    fn row(job: &JobId, number: u32) -> AllocationRow {
        AllocationRow {
            attempt: AttemptId { job: job.clone(), number },
            target: "slurm/gpu".parse().unwrap(),
            account: (number == 1).then(|| "ada.l".into()),
            nodes: vec!["node_slurm.x.1.0".parse().unwrap(), "node_slurm.x.1.1".parse().unwrap()],
            external: None,
            hosts: Vec::new(),
            since: at(i64::from(number)),
            closing: false,
        }
    }

    #[test]
    fn open_allocations_come_back_and_closed_ones_are_only_remembered() {
        let mut store = Fixture::new();
        let job = store.add(new_job(1)).job.id;
        let (first, second) = (row(&job, 1), row(&job, 2));
        store.writer.commit(&[&second, &first].map(|row| Change::Allocation(Box::new(row.clone())))).unwrap();
        let told =
            AllocationRow { external: Some("17".into()), hosts: vec!["n1".into()], closing: true, ..first };
        store.writer.commit(&[Change::Allocation(Box::new(told.clone()))]).unwrap();
        let mut store = store.reopen();
        assert_eq!(store.readers.open_allocations().unwrap(), [told.clone(), second]);
        let close = Change::CloseAllocation { attempt: told.attempt.clone(), at: at(9) };
        store.writer.commit(&[close]).unwrap();
        assert_eq!(store.readers.open_allocations().unwrap().len(), 1);
        assert_eq!(store.readers.allocations(&job).unwrap()[0], told);
    }

    #[test]
    fn a_removed_job_leaves_only_what_is_not_given_back_yet() {
        let mut store = Fixture::new();
        let job = store.add(new_job(1)).job.id;
        let (first, second) = (row(&job, 1), row(&job, 2));
        store.writer.commit(&[&first, &second].map(|row| Change::Allocation(Box::new(row.clone())))).unwrap();
        let close = |row: &AllocationRow| Change::CloseAllocation { attempt: row.attempt.clone(), at: at(9) };
        store.writer.commit(&[close(&first), Change::RemoveJob { job, at: at(30) }]).unwrap();
        assert_eq!(store.readers.open_allocations().unwrap(), std::slice::from_ref(&second));
        assert_eq!(store.count("allocation"), 1);
        store.writer.commit(&[close(&second)]).unwrap();
        assert_eq!(store.count("allocation"), 0);
    }

    #[test]
    fn an_attempt_that_waits_elsewhere_is_not_over() {
        let mut store = Fixture::new();
        let mut job = store.add(new_job(1)).job;
        let Event::Admit { placements } = admit(2) else { panic!("an admission") };
        let handed = change(&mut job, Event::HandOver { placements }, at(10));
        store.writer.commit(&[handed]).unwrap();
        let store = store.reopen();
        assert_eq!(store.readers.attempts(&job.id).unwrap()[0].ended_at, None);
        assert!(store.readers.load_unfinished().unwrap()[0].job.is_handed_over());
    }
}
